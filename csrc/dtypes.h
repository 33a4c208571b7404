// The four dtypes, their conversion to what they are summed in, and the call of a template by dtype.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "kernels.h"

#if defined(__CUDACC__)
#define FLYK_ANYWHERE __host__ __device__
#else
#define FLYK_ANYWHERE
#endif

namespace flyk {
namespace FLYK_ISA {

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

FLYK_ANYWHERE inline uint32_t word_of(float v) {
  uint32_t w;
  std::memcpy(&w, &v, 4);
  return w;
}
FLYK_ANYWHERE inline float float_of(uint32_t w) {
  float v;
  std::memcpy(&v, &w, 4);
  return v;
}

FLYK_ANYWHERE inline float load(float v) { return v; }
FLYK_ANYWHERE inline double load(double v) { return v; }
FLYK_ANYWHERE inline float load(bf16 v) { return float_of(static_cast<uint32_t>(v.bits) << 16); }
// Exponent and mantissa moved into float's places and scaled by 2^112 set every finite value, subnormals included.
FLYK_ANYWHERE inline float load(f16 v) {
  const uint32_t sign = static_cast<uint32_t>(v.bits & 0x8000u) << 16;
  const uint32_t rest = static_cast<uint32_t>(v.bits & 0x7fffu) << 13;
  const uint32_t finite = word_of(float_of(rest) * float_of(239u << 23));
  return float_of(sign | ((v.bits & 0x7c00u) == 0x7c00u ? rest | 0x7f800000u : finite));
}

// To nearest, ties to even; NaN stays a quiet NaN.
FLYK_ANYWHERE inline void store(float& to, float v) { to = v; }
FLYK_ANYWHERE inline void store(double& to, double v) { to = v; }
FLYK_ANYWHERE inline void store(bf16& to, float v) {
  const uint32_t w = word_of(v);
  const bool nan = (w & 0x7fffffffu) > 0x7f800000u;
  to.bits = static_cast<uint16_t>(nan ? (w >> 16) | 0x40u : (w + 0x7fffu + ((w >> 16) & 1u)) >> 16);
}
FLYK_ANYWHERE inline void store(f16& to, float v) {
  const uint32_t w = word_of(v), sign = (w >> 16) & 0x8000u, magnitude = w & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u;
  } else if (magnitude >= 0x477ff000u) {  // 65520 and more round to infinity
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 leaves the subnormal's bits at the bottom
    half = word_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  to.bits = static_cast<uint16_t>(sign | half);
}

// The type in which sums over T are taken.
template <class T>
struct AccumulatorOf {
  using type = float;
};
template <>
struct AccumulatorOf<double> {
  using type = double;
};
template <class T>
using Accumulator = typename AccumulatorOf<T>::type;

// f(T{}) for the type behind `dtype`.
template <class F>
void by_dtype(DType dtype, const F& f) {
  switch (dtype) {
    case DType::f32: return f(float{});
    case DType::f64: return f(double{});
    case DType::bf16: return f(bf16{});
    case DType::f16: return f(f16{});
  }
  throw std::invalid_argument("flyk: unknown dtype");
}

}  // namespace FLYK_ISA
}  // namespace flyk
