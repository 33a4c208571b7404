// The order of winners as numbers: score_of says what an entry is ranked by, rank_of makes of it an unsigned integer
// that is smaller the earlier the entry comes: NaN is 0 and first, -0 and 0 are one, and no score has all bits set.
#pragma once

#include <cmath>

#include "../dtypes.h"
#include "platform.h"

namespace flyk {
namespace FLYK_ISA {

template <class A>
__device__ __forceinline__ A score_of(A y, const A* bias, int64_t i, Selection selection) {
  const A b = bias ? bias[i] : A(0);
  switch (selection) {
    case Selection::magnitude: return std::fabs(y) + b;
    case Selection::signed_: return y + b;
    default: return std::fabs(y + b);
  }
}

__device__ __forceinline__ uint32_t rank_of(float score) {
  const uint32_t w = word_of(score + 0.0f);
  if (score != score) return 0;
  return w >> 31 ? w : 0x7fffffffu - w;
}
__device__ __forceinline__ uint64_t rank_of(double score) {
  const double s = score + 0.0;
  uint64_t w;
  std::memcpy(&w, &s, 8);
  if (score != score) return 0;
  return w >> 63 ? w : 0x7fffffffffffffffu - w;
}
template <class T>
using Rank = decltype(rank_of(Accumulator<T>{}));

}  // namespace FLYK_ISA
}  // namespace flyk
