// Several vectors summed over their lanes at once.
//
// The plain way sums each vector alone, log2(lanes) steps for one number. Here two vectors become one at each step:
// lane i takes a[i] + a[i ^ step] or, where i has the bit `step`, b[i] + b[i ^ step], until lane i holds the sum of
// vector i.
#pragma once

#include <utility>

#include "vectors.h"

namespace flyk {
namespace FLYK_ISA {

template <size_t step, class V, size_t... i>
inline V merge(V a, V b, std::index_sequence<i...>) {
  constexpr size_t lanes = sizeof...(i);
  return __builtin_shufflevector(a, b, (i & step ? lanes + i : i)...) +
         __builtin_shufflevector(a, b, (i & step ? lanes + (i ^ step) : i ^ step)...);
}

// Lane i of the result, for i < count, is the sum of the lanes of v[i]; count is a power of 2, at most the lanes.
// v is overwritten.
template <class A, size_t count, size_t step = 1>
inline typename Vector<A>::type lane_sums(typename Vector<A>::type* v) {
  constexpr size_t lanes = Vector<A>::lanes, left = count / step > 1 ? count / step : 1;
  if constexpr (step == lanes) {
    return v[0];
  } else {
#pragma GCC unroll 8
    for (size_t j = 0; j < (left + 1) / 2; ++j)
      v[j] = merge<step>(v[2 * j], v[left > 1 ? 2 * j + 1 : 0], std::make_index_sequence<lanes>());
    return lane_sums<A, count, 2 * step>(v);
  }
}

}  // namespace FLYK_ISA
}  // namespace flyk
