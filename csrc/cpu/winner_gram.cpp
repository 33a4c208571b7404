// The k-winner Gram: G (lower triangle) += phi^T phi and q += class sums, for phi given by its winners.
// Each thread owns whole rows of G, so the sums are taken in the order of the samples and need no atomics.
#include <vector>

#include "operators.h"

namespace flyk {
namespace FLYK_ISA {

void winner_gram(const WinnerGram& a) {
  // phi by columns: for each column of phi, the samples that won it and their values, in order.
  std::vector<int64_t> start(a.m + 1, 0), sample(a.rows * a.k);
  std::vector<float> value(a.rows * a.k);
  for (int64_t s = 0; s < a.rows * a.k; ++s) ++start[a.indices[s] + 1];
  for (int64_t c = 0; c < a.m; ++c) start[c + 1] += start[c];
  std::vector<int64_t> next(start.begin(), start.end() - 1);
  for (int64_t s = 0; s < a.rows * a.k; ++s) {
    const int64_t at = next[a.indices[s]]++;
    sample[at] = s / a.k;
    value[at] = a.winners[s];
  }
  parallel_for(a.m, 64, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t at = start[row]; at < start[row + 1]; ++at) {
        const int64_t n = sample[at];
        for (int64_t s = n * a.k; s < (n + 1) * a.k; ++s)
          if (a.indices[s] <= row) a.g[row * a.m + a.indices[s]] += value[at] * a.winners[s];
        a.q[row * a.classes + a.labels[n]] += value[at];
      }
  });
}

}  // namespace FLYK_ISA
}  // namespace flyk
