// fly_lora: winners by projections in double, the output by the winners that the kernel found.
#include "naive.h"

using namespace flyk;
using namespace flyk::tests;

namespace {

struct Shape {
  int64_t rows, in, out, r, nnz, k;
  bool sparse;
};

// Where `base` is in place, y itself holds it when the kernel is called.
enum class Base { none, apart, in_place };

void test(Random& random, const Shape& s, DType dtype, Draw draw) {
  const Selection selection = selections[random.below(3)];
  const Base from = static_cast<Base>(random.below(3));
  const bool biased = random.below(2);
  const double scale = draw == Draw::whole ? 0.5 : 0.3;  // 0.3 is another number in float
  Buffer x = numbers(random, dtype, s.rows * s.in, draw), b = numbers(random, dtype, s.out * s.r, finite(draw));
  Buffer base = numbers(random, dtype, s.rows * s.out, draw), bias = bias_for(random, dtype, s.r, draw);
  Matrix a(random, dtype, s.r, s.in, s.nnz, s.sparse, draw);
  std::vector<Sum> y;
  std::vector<double> allowed(s.rows, 0);
  std::vector<std::vector<double>> scores(s.rows, std::vector<double>(s.r));
  for (int64_t i = 0; i < s.rows * s.r; ++i) {
    const int64_t n = i / s.r;
    y.push_back(projected(x, n, a, i % s.r));
    scores[n][i % s.r] = score(dtype, y[i].value, biased ? bias[i % s.r] : 0, selection);
    if (draw == Draw::real) allowed[n] = std::max(allowed[n], (2 * a.nnz + 12) * sum_unit(dtype) * (y[i].size + 1));
  }

  const std::string inputs =
      text("%d rows, %d to %d, r %d, %s %d, k %d, %s, %s, base %d, selection %d%s", int(s.rows), int(s.in), int(s.out),
           int(s.r), s.sparse ? "nnz" : "dense", int(a.nnz), int(s.k), draw_names[int(draw)], dtype_names[int(dtype)],
           int(from), int(selection), biased ? ", bias" : "");
  every(inputs, [&](const Kernels& kernels) {
    Buffer out = from == Base::in_place ? base : Buffer(dtype, s.rows * s.out), winners(dtype, s.rows * s.k);
    std::vector<int64_t> indices(s.rows * s.k, -1);
    const void* added = from == Base::none ? nullptr : from == Base::apart ? base.data() : out.data();
    kernels.fly_lora({x.data(), dtype, s.rows, s.out, s.k, a.frozen(), added, b.data(),
                      biased ? bias.floats() : nullptr, scale, selection, out.data(), winners.data(), indices.data()});
    for (int64_t n = 0; n < s.rows; ++n) expect_winners(scores[n], indices.data() + n * s.k, s.k, allowed[n]);
    if (state().faults > 0) return;
    for (int64_t j = 0; j < s.rows * s.k; ++j) {
      const Sum& won = y[j / s.k * s.r + indices[j]];
      expect_near(winners[j], won.value, won.allowed(dtype), "a winner");
    }
    for (int64_t i = 0; i < s.rows * s.out; ++i) {
      const int64_t n = i / s.out, o = i % s.out;
      Sum sum;
      if (from != Base::none) sum.add(1, base[i]);
      for (int64_t j = n * s.k; j < (n + 1) * s.k; ++j) {
        const Sum& won = y[n * s.r + indices[j]];
        sum.add(scale * won.value, b[o * s.r + indices[j]]);
        sum.size += (won.terms + 4) * std::fabs(scale * won.size * b[o * s.r + indices[j]]);
      }
      expect_near(out[i], sum.value, sum.allowed(dtype), "an entry of the output");
    }
    const Among among = draw == Draw::whole ? Among::builds : Among::threads;
    agree(among, "indices", indices);
    agree(among, "winners", winners);
    agree(among, "out", out);
  });
}

}  // namespace

int main() {
  Random random(4);
  for (int i = 0; i < 75; ++i)
    for (const DType dtype : dtypes) {
      Shape s;
      s.rows = random.of({0, 1, 2, 3, 5, 12, 13, 49, 130});
      s.in = random.of({1, 2, 7, 16, 33, 100, 300});
      s.out = random.of({1, 5, 16, 127, 128, 130, 300});
      s.r = random.of({1, 3, 8, 16, 17, 32, 33, 64, 65, 100});
      s.k = random.of({0, 1, s.r / 4, s.r / 2, s.r});
      s.nnz = random.below(std::min<int64_t>(s.in, 24) + 1);
      s.sparse = random.below(4) > 0;
      if (!s.sparse) s.in = std::min<int64_t>(s.in, 33);  // so that whole sums stay exact in a half type
      test(random, s, dtype, draws[i % 3]);
    }
  return finish();
}
