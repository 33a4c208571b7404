// project, sparse rows: y[n, m] = act(sum over the entries j of row m of value[m, j] x[n, index[m, j]]).
#include "operators.h"

namespace flyk {
namespace FLYK_ISA {

namespace {

template <class T>
void run(const Project& a, int64_t begin, int64_t end) {
  using A = Accumulator<T>;
  const Frozen& r = a.matrix;
  for (int64_t n = begin; n < end; ++n) {
    const T* x = static_cast<const T*>(a.x) + n * r.in;
    for (int64_t m = 0; m < r.rows; ++m) {
      A sum = 0;
      for (int64_t j = m * r.nnz; j < (m + 1) * r.nnz; ++j)
        sum += load(static_cast<const T*>(r.values)[j]) * load(x[r.indices[j]]);
      if (a.activation == Activation::relu && sum < A(0)) sum = A(0);
      store(static_cast<T*>(a.y)[n * r.rows + m], sum);
    }
  }
}

}  // namespace

void project(const Project& a) {
  by_dtype(a.dtype, [&](auto t) {
    parallel_for(a.rows, 8, [&](int64_t begin, int64_t end) { run<decltype(t)>(a, begin, end); });
  });
}

}  // namespace FLYK_ISA
}  // namespace flyk
