// winner_gram, scattered and by panels: the lower triangle grows by the product of the winners. The upper is scrap to
// panels, and left alone by the other.
#include "naive.h"

using namespace flyk;
using namespace flyk::tests;

namespace {

void test(Random& random, int64_t rows, int64_t k, int64_t m, int64_t classes, Draw draw) {
  Buffer winners = numbers(random, DType::f32, rows * k, draw);
  const Buffer g = numbers(random, DType::f32, m * m, draw), q = numbers(random, DType::f32, m * classes, draw);
  std::vector<int64_t> indices, labels;
  std::vector<Sum> right_g(m * m), right_q(m * classes);
  for (int64_t i = 0; i < m * m; ++i) right_g[i].add(1, g[i]);
  for (int64_t i = 0; i < m * classes; ++i) right_q[i].add(1, q[i]);
  for (int64_t n = 0; n < rows; ++n) {
    const auto won = columns(random, m, k);
    indices.insert(indices.end(), won.begin(), won.end());
    labels.push_back(random.below(classes));
    for (int64_t s = 0; s < k; ++s) {
      right_q[won[s] * classes + labels[n]].add(1, winners[n * k + s]);
      for (int64_t t = 0; t < k; ++t)
        if (won[t] <= won[s]) right_g[won[s] * m + won[t]].add(winners[n * k + s], winners[n * k + t]);
    }
  }
  every(text("%d rows, k %d of %d, %d classes, %s", int(rows), int(k), int(m), int(classes), draw_names[int(draw)]),
        [&](const Kernels& kernels) {
          for (const bool scatter : {true, false}) {
            Buffer to_g = g, to_q = q;
            kernels.winner_gram({winners.floats(), indices.data(), labels.data(), rows, k, m, classes, to_g.floats(),
                                 to_q.floats(), scatter});
            const std::string way = scatter ? ", scattered" : ", by panels";
            for (int64_t i = 0; !scatter && i < m * m; ++i)
              if (i % m > i / m) to_g.set(i, g[i]);
            for (int64_t i = 0; i < m * m; ++i)
              expect_near(to_g[i], right_g[i].value, i % m > i / m ? 0 : right_g[i].allowed(DType::f32), "G" + way);
            for (int64_t i = 0; i < m * classes; ++i)
              expect_near(to_q[i], right_q[i].value, right_q[i].allowed(DType::f32), "Q" + way);
            agree(draw == Draw::whole ? Among::builds : Among::threads, "G" + way, to_g);
            agree(draw == Draw::whole ? Among::builds : Among::threads, "Q" + way, to_q);
          }
        });
}

}  // namespace

int main() {
  Random random(6);
  for (int i = 0; i < 150; ++i) {
    const int64_t m = random.of({1, 2, 15, 16, 17, 63, 64, 65, 130}), k = random.of({0, 1, m / 8, m / 2, m});
    test(random, random.of({0, 1, 2, 17, 40}), k, m, random.of({1, 3, 10}), draws[i % 2]);
  }
  test(random, 1030, 3, 20, 2, Draw::real);  // more rows than a panel holds
  return finish();
}
