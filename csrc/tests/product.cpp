// product: left rightᵀ of bfloat16 numbers, in one part or two, in every layout; the rest of out is left alone.
#include "naive.h"

using namespace flyk;
using namespace flyk::tests;

namespace {

// A matrix (rows, depth), held row after row or, `by_depth`, column after column.
struct Side {
  Buffer values;
  Operand operand;

  Side(Random& random, DType dtype, int64_t rows, int64_t depth, bool by_depth, Draw draw)
      : values(numbers(random, dtype, rows * depth, draw)),
        operand{values.data(), dtype, rows, by_depth ? 1 : depth, by_depth ? rows : 1} {}
  double at(int64_t row, int64_t d) const { return values[row * operand.row_stride + d * operand.depth_stride]; }
};

// What terms a product takes of two numbers: all of bfloat16 parts, the low one being what rounding left of the high.
void add_terms(Sum& sum, double a, double b, int terms) {
  const double high_a = rounded(DType::bf16, a), high_b = rounded(DType::bf16, b);
  sum.add(high_a, high_b);
  if (terms == 1) return;
  const double low_a = rounded(DType::bf16, a - high_a), low_b = rounded(DType::bf16, b - high_b);
  sum.add(high_a, low_b);
  sum.add(low_a, high_b);
  if (terms == 4) sum.add(low_a, low_b);
}

void test(Random& random, DType dtype, int64_t m, int64_t n, int64_t depth, int terms, bool add, bool lower,
          Draw draw) {
  const bool by_depth = random.below(2);
  const Side left(random, dtype, m, depth, by_depth, draw);
  const Side other(random, dtype, n, depth, random.below(2), finite(draw));
  const Side& right = lower ? left : other;  // a Gram matrix has one operand
  if (lower) n = m;
  const Buffer out = numbers(random, DType::f32, m * n, draw);
  std::vector<Sum> wanted(m * n);
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      Sum& sum = wanted[i * n + j];
      for (int64_t d = 0; d < depth; ++d)
        add_terms(sum, left.at(i, d), right.at(j, d), terms);
      if (add) sum.add(1, out[i * n + j]);
    }
  every(text("%d x %d of depth %d, %s, %d terms, add %d, lower %d, %s", int(m), int(n), int(depth),
             dtype_names[int(dtype)], terms, add, lower, draw_names[int(draw)]),
        [&](const Kernels& kernels) {
          if (kernels.product == nullptr) return;
          Buffer got = out;
          kernels.product({left.operand, right.operand, depth, terms, add, lower, got.floats()});
          for (int64_t i = 0; i < m * n; ++i) {
            if (lower && i % n > i / n) continue;
            const double allowed = draw == Draw::whole ? 0 : wanted[i].allowed(DType::f32);
            expect_near(got[i], wanted[i].value, allowed, "an entry");
          }
          agree(Among::threads, "out", got);
        });
}

}  // namespace

int main() {
  Random random(12);
  for (int i = 0; i < 60; ++i) {
    const auto side = [&] { return random.of({0, 1, 15, 16, 17, 31, 32, 33, 70, 280}); };
    const int64_t m = side(), n = side(), depth = random.of({0, 1, 2, 31, 32, 33, 65, 100});
    const DType dtype = random.below(2) ? DType::f32 : DType::bf16;
    const bool add = random.below(2), lower = random.below(2);
    // Infinities split into parts become NaN.
    test(random, dtype, m, n, depth, int(random.of({1, 3, 4})), add, lower, draws[i % 2]);
    test(random, dtype, m, n, depth, 1, add, false, Draw::special);
  }
  return finish();
}
