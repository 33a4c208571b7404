// The k-winner Gram: G (lower triangle) += phi^T phi and q += class sums, for phi given by its winners.
//
// The ladder: (1) a thread owns whole rows of G, so each entry is summed by one thread in the order of the samples:
// the same bits on any number of threads, with no atomics and no copies of G; (2) a list of the samples that won each
// row, so that nothing is searched; (3) the winners of each sample in order of column: what row c adds is then the
// prefix that ends where c itself stands; (4) long rows first, so that the threads end together.
#include <vector>

#include "column_set.h"
#include "operators.h"

namespace flyk {
namespace FLYK_ISA {

namespace {

// phi by samples, columns ascending within each, and by columns, samples ascending within each.
struct Winners {
  struct Place {
    int32_t sample, rank;  // a winner is entry sample * k + rank of column and value
  };
  int64_t k;
  std::vector<int32_t> column;  // (rows, k)
  std::vector<float> value;     // (rows, k)
  std::vector<int64_t> start;   // (m + 1,): the winners of column c are places start[c] .. start[c + 1]
  std::vector<Place> place;     // (rows * k,)

  explicit Winners(const WinnerGram& a)
      : k(a.k), column(a.rows * k), value(a.rows * k), start(a.m + 1, 0), place(a.rows * k) {
    parallel_for(a.rows, 16, [&](int64_t begin, int64_t end) { order_columns(a, begin, end); });
    for (const int32_t c : column) ++start[c + 1];
    for (int64_t c = 0; c < a.m; ++c) start[c + 1] += start[c];
    std::vector<int64_t> next(start.begin(), start.end() - 1);
    for (int32_t n = 0; n < a.rows; ++n)
      for (int32_t j = 0; j < k; ++j) place[next[column[n * k + j]]++] = {n, j};
  }

 private:
  void order_columns(const WinnerGram& a, int64_t begin, int64_t end) {
    ColumnSet won(a.m);
    for (int64_t n = begin; n < end; ++n) {
      won.clear();
      for (int64_t s = n * k; s < (n + 1) * k; ++s) won.add(a.indices[s]);
      won.count();
      for (int64_t s = n * k; s < (n + 1) * k; ++s) {
        const int64_t to = n * k + won.rank(a.indices[s]);
        column[to] = static_cast<int32_t>(a.indices[s]);
        value[to] = a.winners[s];
      }
    }
  }
};

void add_row(const WinnerGram& a, const Winners& phi, int64_t row) {
  float *g = a.g + row * a.m, *q = a.q + row * a.classes;
  for (int64_t i = phi.start[row]; i < phi.start[row + 1]; ++i) {
    const auto [sample, rank] = phi.place[i];
    const int32_t* column = phi.column.data() + sample * a.k;
    const float *value = phi.value.data() + sample * a.k, factor = value[rank];
    for (int32_t s = 0; s <= rank; ++s) g[column[s]] += factor * value[s];
    q[a.labels[sample]] += factor;
  }
}

}  // namespace

void winner_gram(const WinnerGram& a) {
  const Winners phi(a);
  parallel_for(a.m, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) add_row(a, phi, a.m - 1 - i);
  });
}

}  // namespace FLYK_ISA
}  // namespace flyk
