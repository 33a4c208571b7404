// winner_take_all: exact, so equal to a stable sort in every build, on rows made to be hard as on random ones.
#include "naive.h"

using namespace flyk;
using namespace flyk::tests;

namespace {

constexpr const char* kinds[] = {"random", "ties", "equal", "ascending", "descending", "special", "one group"};

// Entry i of a row of n: `one group` puts all that is large a multiple of 256 apart, which defeats group maxima.
double entry(Random& random, int kind, int64_t i, int64_t n) {
  switch (kind) {
    case 0: return random.real();
    case 1: return random.whole(3);
    case 2: return -1.5;
    case 3: return static_cast<double>(i) / n;
    case 4: return static_cast<double>(n - i) / n;
    case 5: return number(random, Draw::special);
    default: return random.real() + (i % 256 == 0 ? 9 : 0);
  }
}

void test(Random& random, int64_t rows, int64_t n, int64_t k, int kind, DType dtype) {
  const Selection selection = selections[random.below(3)];
  const bool biased = random.below(2);
  Buffer y(dtype, rows * n), bias = bias_for(random, dtype, n, kind == 1 ? Draw::whole : Draw::real);
  for (int64_t i = 0; i < rows * n; ++i) y.set(i, entry(random, kind, i % n, n));
  std::vector<std::vector<double>> scores(rows, std::vector<double>(n));
  for (int64_t i = 0; i < rows * n; ++i) scores[i / n][i % n] = score(dtype, y[i], biased ? bias[i % n] : 0, selection);

  const std::string inputs = text("%d rows of %d, k %d, %s, %s, selection %d%s", int(rows), int(n), int(k), kinds[kind],
                                  dtype_names[int(dtype)], int(selection), biased ? ", bias" : "");
  every(inputs, [&](const Kernels& kernels) {
    Buffer winners(dtype, rows * k);
    std::vector<int64_t> indices(rows * k, -1);
    kernels.winner_take_all({y.data(), dtype, rows, n, k, biased ? bias.floats() : nullptr, selection, winners.data(),
                             indices.data()});
    for (int64_t row = 0; row < rows; ++row) expect_winners(scores[row], indices.data() + row * k, k, 0);
    if (state().faults > 0) return;
    for (int64_t s = 0; s < rows * k; ++s) expect_near(winners[s], y[s / k * n + indices[s]], 0, "a winner");
    agree(Among::builds, "winners", winners);
  });
}

}  // namespace

int main() {
  Random random(1);
  for (const int64_t n : {1, 2, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 256, 257, 513, 1024, 4099})
    for (int kind = 0; kind < 7; ++kind)
      for (const DType dtype : dtypes)
        for (const int64_t k : {int64_t{0}, int64_t{1}, n / 8, n / 2, n - 1, n})
          test(random, random.of({1, 2, 5}), n, k, kind, dtype);
  for (const DType dtype : dtypes) {
    test(random, 0, 100, 7, 0, dtype);
    test(random, 3, 20000, 500, 0, dtype);
    test(random, 400, 32, 8, 1, dtype);
  }
  return finish();
}
