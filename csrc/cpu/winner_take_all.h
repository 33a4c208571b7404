// The order of winners, shared by every kernel that picks them: the higher score first, NaN above all, ties to the
// lower index.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "../kernels.h"
#include "vectors.h"

namespace flyk {
namespace FLYK_ISA {

// winner_take_all of the rows begin .. end, by the calling thread alone.
void winner_take_all_rows(const WinnerTakeAll& a, int64_t begin, int64_t end);

template <class A>
inline A score_of(A y, const A* bias, int64_t i, Selection selection) {
  const A b = bias ? bias[i] : A(0);
  switch (selection) {
    case Selection::magnitude: return std::fabs(y) + b;
    case Selection::signed_: return y + b;
    default: return std::fabs(y + b);
  }
}

// Monotone signed keys: a > b as scores (NaN largest, all NaN equal, -0 equal to 0) if and only if key(a) > key(b).
// The largest key is below the type's maximum, so that key + 1 is safe.
inline int32_t key_of(float score) {
  const float s = score + 0.0f;  // -0 becomes 0
  int32_t w;
  std::memcpy(&w, &s, 4);
  w ^= (w >> 31) & 0x7fffffff;
  return score != score ? 0x7f800001 : w;
}
inline int64_t key_of(double score) {
  const double s = score + 0.0;
  int64_t w;
  std::memcpy(&w, &s, 8);
  w ^= (w >> 63) & 0x7fffffffffffffff;
  return score != score ? 0x7ff0000000000001 : w;
}
template <class A>
using KeyOf = decltype(key_of(A{}));

// order[rank] = index for n <= 64 keys, by counting for each key those that come before it: no branch depends on the
// data, and the keys stay in registers. `keys` is readable up to a multiple of vector_bytes. fly_lora's r is such an n:
// its rows may be ordered by this where they are made, as winner_take_all orders those in memory.
constexpr int64_t countable = 64;

template <class K>
inline void order_by_counting(const K* keys, int64_t n, uint8_t* order) {
  using Lanes = typename Vector<K>::type;
  constexpr int64_t lanes = Vector<K>::lanes;
  K numbers[lanes];
  for (int64_t l = 0; l < lanes; ++l) numbers[l] = static_cast<K>(l);
  const Lanes lane = vector_at(numbers);
  for (int64_t base = 0; base < n; base += lanes) {
    const Lanes own = vector_at(keys + base);
    Lanes rank = {};
    const auto count = [&](const Lanes& other) {
#if defined(__AVX512F__)
      if constexpr (sizeof(K) == 4) {
        const __mmask16 before = _mm512_cmplt_epi32_mask((__m512i)own, (__m512i)other);
        rank = (Lanes)_mm512_mask_add_epi32((__m512i)rank, before, (__m512i)rank, _mm512_set1_epi32(1));
        return;
      }
#endif
      rank -= own < other;  // a comparison is -1 where it holds
    };
    const int64_t end = base + lanes < n ? base + lanes : n;
    int64_t j = 0;
    for (; j < base; ++j) count(Lanes{} + (keys[j] + 1));
    for (; j < end; ++j) count(keys[j] - (lane > static_cast<K>(j - base)));
    for (; j < n; ++j) count(Lanes{} + keys[j]);
    K ranks[lanes];
    vector_at(ranks) = rank;
    for (int64_t i = base; i < end; ++i) order[ranks[i - base]] = static_cast<uint8_t>(i);
  }
}

}  // namespace FLYK_ISA
}  // namespace flyk
