// ensemble: each row alone, all its heads in double, the softmax of each over the classes seen, and their maximum.
#include "naive.h"

using namespace flyk;
using namespace flyk::tests;

namespace {

struct Shape {
  int64_t rows, in, classes, experts, heads;
};

// A bank of weights by head, expert, class, its rows some NaN apart: nothing but strides says where they lie.
struct Bank {
  int64_t in, stride, classes, experts;
  Buffer weight;
  Bank(Random& random, const Shape& s, DType dtype, Draw draw, int64_t apart)
      : in(s.in), stride(s.in + apart), classes(s.classes), experts(s.experts),
        weight(dtype, s.heads * experts * classes * stride) {
    for (int64_t i = 0; i < weight.size(); ++i)
      if (i % stride < in) weight.set(i, number(random, draw));
  }
  int64_t row(int64_t e, int64_t j, int64_t c) const { return ((j * experts + e) * classes + c) * stride; }
};

Sum logit(const Buffer& h, int64_t row, const Buffer& weight, int64_t first, int64_t in, double bias) {
  Sum sum;
  for (int64_t i = 0; i < in; ++i) sum.add(h[row * in + i], weight[first + i]);
  sum.add(1, bias);
  return sum;
}

// p = max of p and the softmax of z over the classes seen; allowed likewise, of what rounding may do to each.
void combine(const std::vector<Sum>& z, const std::vector<char>& seen, DType dtype, std::vector<double>& p,
             std::vector<double>& allowed) {
  double largest = -INFINITY, sum = 0, off = 0, range = 0;
  for (size_t c = 0; c < z.size(); ++c)
    if (seen[c]) largest = std::max(largest, z[c].value);
  for (size_t c = 0; c < z.size(); ++c) {
    if (!seen[c]) continue;
    sum += std::exp(z[c].value - largest);
    if (!std::isfinite(z[c].value - largest)) continue;
    off = std::max(off, (z[c].terms + 4) * sum_unit(dtype) * z[c].size);
    range = std::max(range, largest - z[c].value);
  }
  // Logits wrong by `off` make an exponential wrong by a factor of e^off, and so their sum, which divides it.
  const double relative = std::expm1(2 * off + sum_unit(dtype) * (range + z.size() + 16));
  for (size_t c = 0; c < z.size(); ++c) {
    const double of_head = sum != sum ? NAN : seen[c] ? std::exp(z[c].value - largest) / sum : 0;
    p[c] = of_head != of_head || of_head > p[c] ? of_head : p[c];
    allowed[c] = std::max(allowed[c], relative * of_head);
  }
}

void test(Random& random, const Shape& s, DType dtype, Draw draw) {
  const bool online_biased = random.below(2), bank_biased = random.below(2), some = random.below(2);
  Buffer h = numbers(random, dtype, s.rows * s.in, draw);
  Buffer online = numbers(random, dtype, s.classes * s.in, finite(draw));
  Buffer online_bias = numbers(random, dtype, s.classes, finite(draw));
  Bank bank(random, s, dtype, finite(draw), random.below(3));
  Buffer bank_bias = numbers(random, dtype, s.experts * s.heads * s.classes, finite(draw));
  std::vector<int64_t> experts;
  for (int64_t n = 0; n < s.rows; ++n) experts.push_back(random.below(s.experts));
  std::vector<char> seen(s.classes, 1);
  for (int64_t c = 0; some && c + 1 < s.classes; ++c) seen[c] = random.below(2);

  std::vector<std::vector<double>> p(s.rows, std::vector<double>(s.classes, 0)), allowed = p;
  std::vector<Sum> z(s.classes);
  for (int64_t n = 0; n < s.rows; ++n)
    for (int64_t j = -1; j < s.heads; ++j) {
      for (int64_t c = 0; c < s.classes; ++c)
        z[c] = j < 0 ? logit(h, n, online, c * s.in, s.in, online_biased ? online_bias[c] : 0)
                     : logit(h, n, bank.weight, bank.row(experts[n], j, c), s.in,
                             bank_biased ? bank_bias[(experts[n] * s.heads + j) * s.classes + c] : 0);
      combine(z, seen, dtype, p[n], allowed[n]);
    }

  every(text("%d rows of %d, %d classes%s, %d experts of %d heads, %s, %s", int(s.rows), int(s.in), int(s.classes),
             some ? ", some seen" : "", int(s.experts), int(s.heads), draw_names[int(draw)], dtype_names[int(dtype)]),
        [&](const Kernels& kernels) {
          Buffer got(dtype, s.rows * s.classes);
          kernels.ensemble({h.data(), dtype, s.rows, s.in, s.classes, s.experts, s.heads, online.data(),
                            online_biased ? online_bias.data() : nullptr, bank.weight.data(), bank.row(1, 0, 0),
                            bank.row(0, 1, 0), bank.row(0, 0, 1), bank_biased ? bank_bias.data() : nullptr,
                            experts.data(), some ? reinterpret_cast<const bool*>(seen.data()) : nullptr, got.data()});
          for (int64_t i = 0; i < got.size(); ++i) {
            const double right = p[i / s.classes][i % s.classes], off = allowed[i / s.classes][i % s.classes];
            const double rounding = off + 1.01 * unit(dtype) * right + 0x1p-148 + half_step(dtype);
            expect_near(got[i], right, seen[i % s.classes] ? rounding : 0, "a probability");
          }
          agree(Among::threads, "p", got);
        });
}

}  // namespace

int main() {
  Random random(9);
  for (int i = 0; i < 45; ++i)
    for (const DType dtype : dtypes) {
      Shape s;
      s.rows = random.of({0, 1, 2, 6, 7, 40, 70});
      s.in = random.of({0, 1, 7, 8, 16, 33, 64});
      s.classes = random.of({0, 1, 3, 4, 5, 17, 40});
      s.experts = random.of({1, 2, 10});
      s.heads = random.below(3);
      test(random, s, dtype, draws[i % 3]);
    }
  test(random, {1030, 5, 3, 2, 1}, DType::f32, Draw::real);  // more rows than are taken at a time
  return finish();
}
