// What the kernels share below their loops: the widest vectors of this build, memory for them, and the transpose.
#pragma once

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <new>
#include <type_traits>
#include <utility>

#include "../dtypes.h"

namespace flyk {
namespace FLYK_ISA {

#if defined(__AVX512F__)
constexpr int64_t vector_bytes = 64;
#elif defined(__AVX2__)
constexpr int64_t vector_bytes = 32;
#else
constexpr int64_t vector_bytes = 16;
#endif

template <class A, int64_t bytes = vector_bytes>
struct Vector {
  static constexpr int64_t lanes = bytes / sizeof(A);
  typedef A type __attribute__((vector_size(bytes), aligned(sizeof(A)), may_alias));
};
using Words = Vector<uint32_t>::type;
using Halves = Vector<uint16_t, vector_bytes / 2>::type;
template <class A>
inline typename Vector<A>::type& vector_at(A* p) {
  return *reinterpret_cast<typename Vector<A>::type*>(p);
}
template <class A>
inline typename Vector<A>::type vector_at(const A* p) {
  return *reinterpret_cast<const typename Vector<A>::type*>(p);
}

// A vector's worth of T read as what it is summed in, and written back. The masks are full; the forms without draw a
// false warning from gcc 12.
template <class T>
inline typename Vector<Accumulator<T>>::type read(const T* p) {
  if constexpr (std::is_same_v<T, Accumulator<T>>) {
    return vector_at(p);
  } else {
#if defined(__AVX512F__)
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    if constexpr (std::is_same_v<T, f16>) return _mm512_maskz_cvtph_ps(0xffff, bits);
    else return reinterpret_cast<Vector<float>::type>(Words(_mm512_maskz_cvtepu16_epi32(0xffff, bits)) << 16);
#elif defined(__AVX2__)
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    if constexpr (std::is_same_v<T, f16>) return _mm256_cvtph_ps(bits);
    else return reinterpret_cast<Vector<float>::type>(Words(_mm256_cvtepu16_epi32(bits)) << 16);
#else
    Vector<float>::type v;
    for (int64_t i = 0; i < Vector<float>::lanes; ++i) v[i] = load(p[i]);
    return v;
#endif
  }
}
template <class T>
inline void write(T* p, const typename Vector<Accumulator<T>>::type& v) {
  if constexpr (std::is_same_v<T, Accumulator<T>>) {
    vector_at(p) = v;
  } else if constexpr (std::is_same_v<T, bf16>) {  // store() of dtypes.h in all lanes
    const Words w = reinterpret_cast<Words>(v), top = w >> 16;
    const Words bits = v != v ? top | 0x40u : (w + 0x7fffu + (top & 1u)) >> 16;
    *reinterpret_cast<Halves*>(p) = __builtin_convertvector(bits, Halves);
  } else {
#if defined(__AVX512F__)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_maskz_cvtps_ph(0xffff, v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__AVX2__)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
#else
    for (int64_t i = 0; i < Vector<float>::lanes; ++i) store(p[i], v[i]);
#endif
  }
}

// Memory that starts on a cache line and is not initialised.
template <class A>
class Scratch {
 public:
  explicit Scratch(int64_t n) : data_(static_cast<A*>(::operator new(n * sizeof(A), std::align_val_t{64}))) {}
  Scratch(const Scratch&) = delete;
  ~Scratch() { ::operator delete(data_, std::align_val_t{64}); }
  A* get() const { return data_; }
  A& operator[](int64_t i) const { return data_[i]; }
  void swap(Scratch& other) { std::swap(data_, other.data_); }

 private:
  A* data_;
};

inline int64_t parts(int64_t n, int64_t size) { return (n + size - 1) / size; }

template <class T>
inline void widen(const T* from, Accumulator<T>* to, int64_t n) {
  constexpr int64_t lanes = Vector<Accumulator<T>>::lanes;
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) vector_at(to + i) = read(from + i);
  for (; i < n; ++i) to[i] = load(from[i]);
}

#if defined(__AVX512F__)
// 16 rows of 16 become their columns: for each bit of the place, rows that differ in it alone swap the lanes that do.
inline void turn(__m512 (&rows)[16]) {
  const Words lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#pragma GCC unroll 4
  for (uint32_t bit = 1; bit < 16; bit *= 2) {
    const Words low = (lane & bit) != 0 ? lane + 16 - bit : lane, high = low + bit;
#pragma GCC unroll 16
    for (uint32_t i = 0; i < 16; ++i)
      if (!(i & bit)) {
        const __m512 a = rows[i], b = rows[i + bit];
        rows[i] = _mm512_permutex2var_ps(a, reinterpret_cast<__m512i>(low), b);
        rows[i + bit] = _mm512_permutex2var_ps(a, reinterpret_cast<__m512i>(high), b);
      }
  }
}
#elif defined(__SSE2__)
// to = transpose of from, 16 rows of 16, by squares of 4.
inline void turn(const float* from, float* to) {
  for (int64_t row = 0; row < 16; row += 4)
    for (int64_t column = 0; column < 16; column += 4) {
      __m128 square[4];
      for (int64_t j = 0; j < 4; ++j) square[j] = _mm_load_ps(from + (row + j) * 16 + column);
      _MM_TRANSPOSE4_PS(square[0], square[1], square[2], square[3]);
      for (int64_t j = 0; j < 4; ++j) _mm_store_ps(to + (column + j) * 16 + row, square[j]);
    }
}
#endif

// to (n, m) = transpose of from (m, n), rows of each at a stride, by tiles that stay in L1.
template <class T, class U>
inline void transpose(const T* from, int64_t from_stride, int64_t m, int64_t n, U* to, int64_t to_stride) {
  constexpr int64_t tile = 16;
  for (int64_t i = 0; i < m; i += tile)
    for (int64_t c = 0; c < n; c += tile) {
      const T* in = from + i * from_stride + c;
      U* out = to + c * to_stride + i;
#if defined(__AVX512F__)
      if constexpr (std::is_same_v<Accumulator<T>, float>) {
        if (i + tile <= m && c + tile <= n) {
          __m512 rows[tile];
#pragma GCC unroll 16
          for (int64_t row = 0; row < tile; ++row) rows[row] = read(in + row * from_stride);
          turn(rows);
#pragma GCC unroll 16
          for (int64_t row = 0; row < tile; ++row) write(out + row * to_stride, rows[row]);
          continue;
        }
      }
#elif defined(__SSE2__)
      if constexpr (std::is_same_v<Accumulator<T>, float>) {
        if (i + tile <= m && c + tile <= n) {
          alignas(64) float rows[tile * tile], columns[tile * tile];
          for (int64_t row = 0; row < tile; ++row) widen(in + row * from_stride, rows + row * tile, tile);
          turn(rows, columns);
          for (int64_t row = 0; row < tile; ++row)
            for (int64_t l = 0; l < tile; l += Vector<float>::lanes)
              write(out + row * to_stride + l, vector_at(columns + row * tile + l));
          continue;
        }
      }
#endif
      for (int64_t row = 0; row < std::min(tile, m - i); ++row)
        for (int64_t column = 0; column < std::min(tile, n - c); ++column)
          store(out[column * to_stride + row], load(in[row * from_stride + column]));
    }
}

}  // namespace FLYK_ISA
}  // namespace flyk
