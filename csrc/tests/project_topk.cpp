// project_topk: the winners of sums in double, or as near to them as the sums' rounding allows.
#include "naive.h"

using namespace flyk;
using namespace flyk::tests;

namespace {

void test(Random& random, int64_t rows, int64_t in, int64_t m, int64_t nnz, int64_t k, DType dtype, Draw draw) {
  const Selection selection = selections[random.below(3)];
  const Activation activation = random.below(2) ? Activation::relu : Activation::none;
  const bool biased = random.below(2);
  Buffer x = numbers(random, dtype, rows * in, draw), bias = bias_for(random, dtype, m, draw);
  Matrix matrix(random, dtype, m, in, nnz, true, draw);
  std::vector<double> y, allowed(rows, 0);
  std::vector<std::vector<double>> scores(rows, std::vector<double>(m));
  for (int64_t s = 0; s < rows * m; ++s) {
    const Sum sum = projected(x, s / m, matrix, s % m);
    y.push_back(rounded(dtype, activation == Activation::relu && sum.value < 0 ? 0 : sum.value));
    scores[s / m][s % m] = score(dtype, y[s], biased ? bias[s % m] : 0, selection);
    // Twice, for the one that wins and the one that should.
    if (draw == Draw::real) allowed[s / m] = std::max(allowed[s / m], 2 * sum.allowed(dtype) + 4 * sum_unit(dtype));
  }
  const std::string inputs =
      text("%d rows, %d to %d, nnz %d, k %d, %s, %s, selection %d%s%s", int(rows), int(in), int(m), int(nnz), int(k),
           draw_names[int(draw)], dtype_names[int(dtype)], int(selection), biased ? ", bias" : "",
           activation == Activation::relu ? ", relu" : "");
  every(inputs, [&](const Kernels& kernels) {
    Buffer winners(dtype, rows * k);
    std::vector<int64_t> indices(rows * k, -1);
    kernels.project_topk({{x.data(), dtype, rows, matrix.frozen(), activation, nullptr}, k,
                          biased ? bias.floats() : nullptr, selection, winners.data(), indices.data()});
    for (int64_t row = 0; row < rows; ++row) expect_winners(scores[row], indices.data() + row * k, k, allowed[row]);
    if (state().faults > 0) return;
    for (int64_t s = 0; s < rows * k; ++s)
      expect_near(winners[s], y[s / k * m + indices[s]], allowed[s / k], "a winner");
    agree(draw == Draw::whole ? Among::builds : Among::threads, "indices", indices);
    agree(draw == Draw::whole ? Among::builds : Among::threads, "winners", winners);
  });
}

}  // namespace

int main() {
  Random random(3);
  for (int i = 0; i < 80; ++i)
    for (const DType dtype : dtypes) {
      const int64_t in = random.of({1, 2, 5, 16, 33, 100}), rows = random.of({0, 1, 2, 15, 16, 17, 32, 33, 65});
      const int64_t m = random.of({1, 2, 16, 31, 33, 64, 65, 100, 300});
      const int64_t nnz = random.below(std::min<int64_t>(in, 12) + 1);
      test(random, rows, in, m, nnz, random.of({0, 1, m / 3, m}), dtype, i % 2 ? Draw::whole : Draw::real);
    }
  return finish();
}
