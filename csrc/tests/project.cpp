// project: sparse rows against sums in double. What a row of the matrix does not name never enters its sum, be it NaN.
#include "naive.h"

using namespace flyk;
using namespace flyk::tests;

namespace {

void test(Random& random, int64_t rows, int64_t in, int64_t m, int64_t nnz, DType dtype, Draw draw) {
  const Activation activation = random.below(2) ? Activation::relu : Activation::none;
  Buffer x = numbers(random, dtype, rows * in, draw);
  Matrix matrix(random, dtype, m, in, nnz, true, draw);
  std::vector<Sum> right;
  for (int64_t s = 0; s < rows * m; ++s) right.push_back(projected(x, s / m, matrix, s % m));

  const std::string inputs = text("%d rows, %d to %d, nnz %d, %s, %s%s", int(rows), int(in), int(m), int(nnz),
                                  draw_names[int(draw)], dtype_names[int(dtype)],
                                  activation == Activation::relu ? ", relu" : "");
  every(inputs, [&](const Kernels& kernels) {
    Buffer y(dtype, rows * m);
    kernels.project({x.data(), dtype, rows, matrix.frozen(), activation, y.data()});
    for (int64_t s = 0; s < rows * m; ++s) {
      const double value = right[s].value;
      expect_near(y[s], activation == Activation::relu && value < 0 ? 0 : value, right[s].allowed(dtype), "an entry");
    }
    agree(draw == Draw::whole ? Among::builds : Among::threads, "y", y);
  });
}

}  // namespace

int main() {
  Random random(2);
  for (int i = 0; i < 120; ++i)
    for (const DType dtype : dtypes) {
      const int64_t in = random.of({1, 2, 5, 16, 33, 100}), rows = random.of({0, 1, 2, 15, 16, 17, 32, 33, 65, 100});
      const int64_t m = random.of({1, 2, 15, 16, 31, 32, 33, 65, 100});
      const int64_t nnz = random.below(std::min<int64_t>(in, 12) + 1);
      test(random, rows, in, m, nnz, dtype, draws[i % 3]);
    }
  for (const DType dtype : dtypes) test(random, 20, 50, 2500, 3, dtype, Draw::real);  // pieces of the matrix
  return finish();
}
