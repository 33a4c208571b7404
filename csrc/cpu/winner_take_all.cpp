// winner_take_all: the k best scores of each row, in descending order.
#include "winner_take_all.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "operators.h"

namespace flyk {
namespace FLYK_ISA {

namespace {

template <class T>
void run(const WinnerTakeAll& a, int64_t begin, int64_t end) {
  using A = Accumulator<T>;
  std::vector<decltype(key_of(A{}))> keys(a.n);
  std::vector<int64_t> order(a.n);
  for (int64_t row = begin; row < end; ++row) {
    const T* y = static_cast<const T*>(a.y) + row * a.n;
    for (int64_t i = 0; i < a.n; ++i)
      keys[i] = key_of(score_of<A>(load(y[i]), reinterpret_cast<const A*>(a.bias), i, a.selection));
    std::iota(order.begin(), order.end(), int64_t{0});
    std::partial_sort(order.begin(), order.begin() + a.k, order.end(), [&](int64_t p, int64_t q) {
      return keys[p] != keys[q] ? keys[p] > keys[q] : p < q;
    });
    for (int64_t j = 0; j < a.k; ++j) {
      a.indices[row * a.k + j] = order[j];
      static_cast<T*>(a.winners)[row * a.k + j] = y[order[j]];
    }
  }
}

}  // namespace

void winner_take_all(const WinnerTakeAll& a) {
  by_dtype(a.dtype, [&](auto t) {
    parallel_for(a.rows, 8, [&](int64_t begin, int64_t end) { run<decltype(t)>(a, begin, end); });
  });
}

}  // namespace FLYK_ISA
}  // namespace flyk
