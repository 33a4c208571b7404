// fly_lora backward from (winners, indices) alone: with g = grad, gy_i = scale g . B[:, i] for each winner i,
// grad_x = sum gy_i A_i and grad_b[:, i] = scale sum over rows of y_i g. x is never needed.
#include <algorithm>
#include <vector>

#include "operators.h"

namespace flyk {
namespace FLYK_ISA {

namespace {

template <class T>
void rows_of_x(const FlyLoraBackward& a, int64_t begin, int64_t end) {
  using A = Accumulator<T>;
  const Frozen& m = a.matrix;
  const T *b = static_cast<const T*>(a.b), *values = static_cast<const T*>(m.values);
  std::vector<A> sum(m.in);
  for (int64_t n = begin; n < end; ++n) {
    const T* g = static_cast<const T*>(a.grad) + n * a.out;
    std::fill(sum.begin(), sum.end(), A(0));
    for (int64_t j = 0; j < a.k; ++j) {
      const int64_t i = a.indices[n * a.k + j];
      A gy = 0;
      for (int64_t o = 0; o < a.out; ++o) gy += load(g[o]) * load(b[o * m.rows + i]);
      gy *= static_cast<A>(a.scale);
      if (m.indices) {
        for (int64_t s = i * m.nnz; s < (i + 1) * m.nnz; ++s) sum[m.indices[s]] += gy * load(values[s]);
      } else {
        for (int64_t c = 0; c < m.in; ++c) sum[c] += gy * load(values[i * m.in + c]);
      }
    }
    for (int64_t c = 0; c < m.in; ++c) store(static_cast<T*>(a.grad_x)[n * m.in + c], sum[c]);
  }
}

template <class T>
void rows_of_b(const FlyLoraBackward& a, int64_t begin, int64_t end) {
  using A = Accumulator<T>;
  const int64_t r = a.matrix.rows;
  std::vector<A> sum((end - begin) * r, A(0));
  for (int64_t n = 0; n < a.rows; ++n) {
    const T *g = static_cast<const T*>(a.grad) + n * a.out, *y = static_cast<const T*>(a.winners) + n * a.k;
    for (int64_t o = begin; o < end; ++o)
      for (int64_t j = 0; j < a.k; ++j) sum[(o - begin) * r + a.indices[n * a.k + j]] += load(g[o]) * load(y[j]);
  }
  for (int64_t s = 0; s < (end - begin) * r; ++s)
    store(static_cast<T*>(a.grad_b)[begin * r + s], static_cast<A>(a.scale) * sum[s]);
}

}  // namespace

void fly_lora_backward(const FlyLoraBackward& a) {
  by_dtype(a.dtype, [&](auto t) {
    using T = decltype(t);
    if (a.grad_x) parallel_for(a.rows, 8, [&](int64_t begin, int64_t end) { rows_of_x<T>(a, begin, end); });
    if (a.grad_b) parallel_for(a.out, 32, [&](int64_t begin, int64_t end) { rows_of_b<T>(a, begin, end); });
  });
}

}  // namespace FLYK_ISA
}  // namespace flyk
