// e^x in every lane of a vector, to within 2 units in the last place over all x, the subnormal results but for theirs.
//
// x = n ln 2 + r with n whole and |r| <= ln 2 / 2, so that e^x = 2^n e^r. ln 2 is taken in two parts, the first of so
// few bits that its product with n is exact. e^r is its Taylor series, cut where the next term is below a tenth of a
// unit. 2^n is multiplied in as two factors of half the exponent each, which reach infinity and the subnormals as they
// should; NaN stays NaN.
#pragma once

#include "vectors.h"

namespace flyk {
namespace FLYK_ISA {

template <class A>
struct ExpConstants;
template <>
struct ExpConstants<float> {
  using Bits = uint32_t;
  static constexpr int mantissa = 23, bias = 127, terms = 7;
  static constexpr float low = -104.0f, high = 89.0f;  // e^x is 0 below and infinity above
  static constexpr float ln2_high = 0x1.63p-1f, ln2_low = -0x1.bd0106p-13f;
};
template <>
struct ExpConstants<double> {
  using Bits = uint64_t;
  static constexpr int mantissa = 52, bias = 1023, terms = 13;
  static constexpr double low = -746.0, high = 710.0;
  static constexpr double ln2_high = 0x1.62e42fefap-1, ln2_low = 0x1.cf79abc9e3b3ap-40;
};

template <class A>
constexpr A inverse_factorial(int n) {
  A product = 1;
  for (int i = 2; i <= n; ++i) product *= A(i);
  return 1 / product;
}

template <class A>
inline typename Vector<A>::type exp_in_lanes(typename Vector<A>::type x) {
  using C = ExpConstants<A>;
  using Bits = typename Vector<typename C::Bits>::type;
  using Floats = typename Vector<A>::type;
  x = x < C::low ? Floats{} + C::low : x;
  x = x > C::high ? Floats{} + C::high : x;
  // A number of this size has no fraction: adding it rounds, and leaves n in the lowest bits.
  constexpr A whole = A(3) * (typename C::Bits(1) << (C::mantissa - 1));
  const Floats shifted = x * A(1.4426950408889634) + whole, n = shifted - whole;
  const Floats r = (x - n * C::ln2_high) - n * C::ln2_low;
  Floats sum = Floats{} + inverse_factorial<A>(C::terms);
#pragma GCC unroll 16
  for (int i = C::terms - 1; i >= 0; --i) sum = sum * r + inverse_factorial<A>(i);
  const Bits both = reinterpret_cast<Bits>(shifted) - reinterpret_cast<Bits>(Floats{} + whole) + 2 * C::bias;
  const Bits half = both >> 1;
  return sum * reinterpret_cast<Floats>(half << C::mantissa) * reinterpret_cast<Floats>((both - half) << C::mantissa);
}

inline Vector<float>::type exp(Vector<float>::type x) { return exp_in_lanes<float>(x); }
inline Vector<double>::type exp(Vector<double>::type x) { return exp_in_lanes<double>(x); }

}  // namespace FLYK_ISA
}  // namespace flyk
