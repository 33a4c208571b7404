// Any kernel with any arguments that its caller's checks let through: no access outside its memory, and the same bits
// with and without threads, and between builds where the numbers are whole. What is right say the other tests.
//
// Bytes choose everything. As a test it draws its own, `fuzz N` N times; with FLYK_LIBFUZZER libFuzzer does, which
// looks for bytes that reach new code (make fuzz).
#include <cstdlib>

#include "naive.h"

using namespace flyk;
using namespace flyk::tests;

namespace {

// Choices from bytes, 0 where there are no more; and numbers from a seed that they give.
class Script {
 public:
  Script(const uint8_t* bytes, size_t size) : at_(bytes), end_(bytes + size), random_(hash(bytes, size)) {}
  int64_t below(int64_t n) {
    int64_t v = 0;
    for (int i = 0; i < 2 && at_ != end_; ++i) v = v << 8 | *at_++;
    return n > 0 ? v % n : 0;
  }
  int64_t size() { return below(4) ? below(20) : below(140); }
  Random& random() { return random_; }

 private:
  static uint64_t hash(const uint8_t* bytes, size_t size) {
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < size; ++i) h = (h ^ bytes[i]) * 1099511628211u;
    return h;
  }
  const uint8_t *at_, *end_;
  Random random_;
};

struct Common {
  DType dtype;
  Draw draw;
  Among among;
  Buffer some(Random& random, int64_t n) const { return numbers(random, dtype, n, draw); }
};

std::vector<int64_t> winners_of(Random& random, int64_t rows, int64_t n, int64_t k) {
  std::vector<int64_t> indices;
  for (int64_t row = 0; row < rows; ++row)
    for (const int32_t i : columns(random, n, k)) indices.push_back(i);
  return indices;
}

std::vector<int64_t> labels_of(Random& random, int64_t rows, int64_t classes) {
  std::vector<int64_t> labels(rows);
  for (int64_t& label : labels) label = random.below(classes);
  return labels;
}

void expect_distinct(const std::vector<int64_t>& indices, int64_t k, int64_t n) {
  for (size_t first = 0; k > 0 && first < indices.size(); first += k) {
    std::vector<bool> taken(n);
    for (int64_t j = 0; j < k; ++j) {
      const int64_t i = indices[first + j];
      const bool right = i >= 0 && i < n && !taken[i];
      expect(right, right ? "" : "an index is out of range or twice there");
      if (!right) return;
      taken[i] = true;
    }
  }
}

// Half types round sums that other builds take in another order; so may float32 where numbers are not whole.
void choose(Script& script, const Common& c) {
  Random& random = script.random();
  const Selection selection = selections[script.below(3)];
  const int64_t rows = script.size(), n = 1 + script.size(), k = script.below(n + 1);
  const bool biased = script.below(2);
  Buffer y = c.some(random, rows * n), bias = bias_for(random, c.dtype, n, c.draw);
  every("winner_take_all", [&](const Kernels& kernels) {
    Buffer winners(c.dtype, rows * k);
    std::vector<int64_t> indices(rows * k, -1);
    kernels.winner_take_all(
        {y.data(), c.dtype, rows, n, k, biased ? bias.floats() : nullptr, selection, winners.data(), indices.data()});
    expect_distinct(indices, k, n);
    agree(Among::builds, "indices", indices);
    agree(Among::builds, "winners", winners);
  });
}

void expand(Script& script, const Common& c) {
  Random& random = script.random();
  const Selection selection = selections[script.below(3)];
  const Activation activation = script.below(2) ? Activation::relu : Activation::none;
  const int64_t rows = script.size(), in = script.size(), m = 1 + script.size(), k = script.below(m + 1);
  const bool biased = script.below(2);
  Buffer x = c.some(random, rows * in), bias = bias_for(random, c.dtype, m, c.draw);
  Matrix a(random, c.dtype, m, in, script.below(in + 1), true, c.draw);
  every("project and project_topk", [&](const Kernels& kernels) {
    Buffer y(c.dtype, rows * m), winners(c.dtype, rows * k);
    std::vector<int64_t> indices(rows * k, -1);
    kernels.project({x.data(), c.dtype, rows, a.frozen(), activation, y.data()});
    kernels.project_topk({{x.data(), c.dtype, rows, a.frozen(), activation, nullptr},
                          k, biased ? bias.floats() : nullptr, selection, winners.data(), indices.data()});
    expect_distinct(indices, k, m);
    agree(c.among, "y", y);
    agree(c.among, "indices", indices);
    agree(c.among, "winners", winners);
  });
}

void adapt(Script& script, const Common& c) {
  Random& random = script.random();
  const Selection selection = selections[script.below(3)];
  const int64_t rows = script.size(), in = script.size(), out = script.size(), r = 1 + script.size();
  const int64_t k = script.below(r + 1), base_at = script.below(3), wanted = 1 + script.below(3);
  const bool biased = script.below(2), sparse = script.below(4);
  Buffer x = c.some(random, rows * in), b = c.some(random, out * r), base = c.some(random, rows * out);
  Buffer bias = bias_for(random, c.dtype, r, c.draw), grad = c.some(random, rows * out), won = c.some(random, rows * k);
  Matrix a(random, c.dtype, r, in, script.below(in + 1), sparse, c.draw);
  const auto at = winners_of(random, rows, r, k);
  every("fly_lora and its backward", [&](const Kernels& kernels) {
    Buffer y = base_at == 1 ? base : Buffer(c.dtype, rows * out), winners(c.dtype, rows * k);
    std::vector<int64_t> indices(rows * k, -1);
    const void* added = base_at == 0 ? nullptr : base_at == 1 ? y.data() : base.data();
    kernels.fly_lora({x.data(), c.dtype, rows, out, k, a.frozen(), added, b.data(), biased ? bias.floats() : nullptr,
                      0.5, selection, y.data(), winners.data(), indices.data()});
    expect_distinct(indices, k, r);
    agree(Among::threads, "indices", indices);
    agree(Among::threads, "y", y);
    Buffer to_x(c.dtype, rows * in), to_b(c.dtype, out * r);
    kernels.fly_lora_backward({grad.data(), c.dtype, rows, out, k, won.data(), at.data(), a.frozen(), b.data(), 0.5,
                               wanted & 1 ? to_x.data() : nullptr, wanted & 2 ? to_b.data() : nullptr});
    agree(Among::threads, "grad_x", to_x);
    agree(Among::threads, "grad_b", to_b);
  });
}

void sum(Script& script, const Common& c) {
  Random& random = script.random();
  const int64_t rows = script.size(), m = 1 + script.size(), k = script.below(m + 1), classes = 1 + script.below(9);
  const bool scatter = script.below(2);
  Buffer winners = numbers(random, DType::f32, rows * k, c.draw), g = numbers(random, DType::f32, m * m, c.draw);
  Buffer q = numbers(random, DType::f32, m * classes, c.draw);
  const auto at = winners_of(random, rows, m, k), labels = labels_of(random, rows, classes);
  every("winner_gram", [&](const Kernels& kernels) {
    Buffer to_g = g, to_q = q;
    kernels.winner_gram({winners.floats(), at.data(), labels.data(), rows, k, m, classes, to_g.floats(), to_q.floats(),
                         scatter});
    for (int64_t i = 0; i < m * m; ++i)
      if (i % m > i / m) to_g.set(i, 0);  // may be anything
    agree(Among::threads, "G", to_g);
    agree(Among::threads, "Q", to_q);
  });
}

void average(Script& script, const Common& c) {
  Random& random = script.random();
  const int64_t heads = script.below(5), entries = script.size() * (1 + script.below(2) * 60);
  Buffer bank = c.some(random, heads * entries), online = c.some(random, entries);
  std::vector<double> decays(heads);
  for (double& decay : decays) decay = random.below(9) / 8.0;
  every("ema_", [&](const Kernels& kernels) {
    Buffer moved = bank;
    kernels.ema_({moved.data(), c.dtype, heads, entries, online.data(), decays.data()});
    agree(Among::threads, "bank", moved);
  });
}

void predict(Script& script, const Common& c) {
  Random& random = script.random();
  const int64_t rows = script.size(), in = script.size(), classes = script.size(), experts = 1 + script.below(5);
  const int64_t heads = script.below(4), with = script.below(8);
  Buffer h = c.some(random, rows * in), weight = c.some(random, classes * in), bias = c.some(random, classes);
  Buffer bank = c.some(random, experts * heads * classes * in), bank_bias = c.some(random, experts * heads * classes);
  const auto ids = labels_of(random, rows, experts);
  std::vector<char> seen(classes);
  for (size_t i = 0; i < seen.size(); ++i) seen[i] = i == 0 || random.below(2);
  every("ensemble", [&](const Kernels& kernels) {
    Buffer p(c.dtype, rows * classes);
    kernels.ensemble({h.data(), c.dtype, rows, in, classes, experts, heads, weight.data(),
                      with & 1 ? bias.data() : nullptr, bank.data(), heads * classes * in, classes * in, in,
                      with & 2 ? bank_bias.data() : nullptr, ids.data(),
                      with & 4 ? reinterpret_cast<const bool*>(seen.data()) : nullptr, p.data()});
    agree(Among::threads, "p", p);
  });
}

void lose(Script& script, const Common& c) {
  Random& random = script.random();
  const int64_t rows = script.size(), classes = 1 + script.size();
  Buffer logits = c.some(random, rows * classes);
  const auto target = labels_of(random, rows, classes);
  every("masked_cross_entropy", [&](const Kernels& kernels) {
    Buffer mean(c.dtype, 1), grad(c.dtype, rows * classes);
    kernels.masked_cross_entropy({logits.data(), c.dtype, rows, classes, target.data(), 0, mean.data()});
    kernels.masked_cross_entropy_backward({logits.data(), c.dtype, rows, classes, target.data(), 0.5, grad.data()});
    agree(Among::threads, "loss", mean);
    agree(Among::threads, "gradient", grad);
  });
}

void make(Script& script, const Common&) {
  const Kind kind = static_cast<Kind>(script.below(4));
  const int64_t in = 1 + script.size(), rows = script.size(), first = script.below(3) * (int64_t{1} << 33);
  const bool sparse = kind != Kind::gaussian;
  const int64_t nnz = sparse ? 1 + script.below(in) : in;
  const uint64_t seed = script.random().word();
  every("make_projection", [&](const Kernels& kernels) {
    Buffer values(DType::f32, rows * nnz);
    std::vector<int32_t> indices(sparse ? rows * nnz : 0, -1);
    kernels.make_projection({kind, in, nnz, 0.5f, seed, first, rows, values.floats(), sparse ? indices.data() : nullptr});
    expect_distinct({indices.begin(), indices.end()}, nnz, in);
    agree(Among::builds, "values", values);
    agree(Among::builds, "indices", indices);
  });
}

void multiply(Script& script, const Common& c) {
  Random& random = script.random();
  const bool add = script.below(2), lower = script.below(2), half = script.below(2);
  const int64_t rows = script.size(), other = lower ? rows : script.size(), depth = script.size();
  const int terms = half ? 1 : static_cast<int>(random.of({1, 3, 4}));
  const DType dtype = half ? DType::bf16 : DType::f32;
  Buffer left = numbers(random, dtype, rows * depth, c.draw), right = numbers(random, dtype, other * depth, c.draw);
  Buffer out = numbers(random, DType::f32, rows * other, c.draw);
  every("product", [&](const Kernels& kernels) {
    if (kernels.product == nullptr) return;
    Buffer got = out;
    const Operand one{left.data(), dtype, rows, depth, 1}, two{right.data(), dtype, other, depth, 1};
    kernels.product({one, lower ? one : two, depth, terms, add, lower, got.floats()});
    for (int64_t i = 0; lower && i < rows * other; ++i)
      if (i % other > i / other) got.set(i, 0);
    agree(Among::threads, "out", got);
  });
}

void once(const uint8_t* bytes, size_t size) {
  constexpr void (*kernels[])(Script&, const Common&) = {choose, expand,  adapt, sum,     average,
                                                         predict, lose, make,  multiply};
  Script script(bytes, size);
  const auto kernel = kernels[script.below(9)];
  const DType dtype = dtypes[script.below(4)];
  const Draw draw = draws[script.below(3)];
  kernel(script, {dtype, draw, draw == Draw::whole ? Among::builds : Among::threads});
}

}  // namespace

#ifdef FLYK_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  once(bytes, size);
  if (state().faults > 0) std::abort();
  return 0;
}
#else
int main(int count, char** arguments) {
  Random random(13);
  const int64_t executions = count > 1 ? std::atoll(arguments[1]) : 1000;
  for (int64_t i = 0; i < executions; ++i) {
    uint8_t bytes[48];
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.word());
    once(bytes, 1 + random.below(sizeof bytes));
  }
  return finish();
}
#endif
