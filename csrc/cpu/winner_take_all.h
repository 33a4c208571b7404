// The order of winners, shared by every kernel that picks them: the higher score first, NaN above all, ties to the
// lower index.
#pragma once

#include <cmath>
#include <cstdint>

#include "../dtypes.h"

namespace flyk {
namespace FLYK_ISA {

template <class A>
inline A score_of(A y, const A* bias, int64_t i, Selection selection) {
  const A b = bias ? bias[i] : A(0);
  switch (selection) {
    case Selection::magnitude: return std::fabs(y) + b;
    case Selection::signed_: return y + b;
    default: return std::fabs(y + b);
  }
}

// Monotone unsigned keys: a > b as scores (NaN largest, -0 equal to 0) if and only if key(a) > key(b).
inline uint32_t key_of(float score) {
  if (std::isnan(score)) return ~0u;
  uint32_t w;
  score += 0.0f;  // -0 becomes 0
  std::memcpy(&w, &score, 4);
  return w & 0x80000000u ? ~w : w | 0x80000000u;
}
inline uint64_t key_of(double score) {
  if (std::isnan(score)) return ~0ull;
  uint64_t w;
  score += 0.0;
  std::memcpy(&w, &score, 8);
  return w & (1ull << 63) ? ~w : w | (1ull << 63);
}

}  // namespace FLYK_ISA
}  // namespace flyk
