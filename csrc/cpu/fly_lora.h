// What fly_lora and its backward share: vectors, scratch memory, and sums of a few rows of a matrix cut into panels.
//
// The plain form is three loops: for each row n, for each winner j of n, to[n, :] += value[n, j] * M[index[n, j], :].
// What makes it fast: M is cut into panels of `width` columns, each contiguous and small enough for L1; a panel meets
// many rows n before the next one comes; the columns being summed stay in registers while the winners pass.
#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <new>
#include <type_traits>

#include "operators.h"

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
template <class T>
inline void prefetch(const T* from, int64_t n) {
  for (int64_t i = 0; i < n; i += 64 / sizeof(T)) __builtin_prefetch(from + i);
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
#endif
      for (int64_t row = 0; row < std::min(tile, m - i); ++row)
        for (int64_t column = 0; column < std::min(tile, n - c); ++column)
          store(out[column * to_stride + row], load(in[row * from_stride + column]));
    }
}

// Row i of a frozen matrix, zero where no entry is named.
template <class T>
inline void unpack(const Frozen& m, int64_t i, Accumulator<T>* row) {
  const T* values = static_cast<const T*>(m.values) + i * m.nnz;
  if (m.indices == nullptr) return widen(values, row, m.in);
  const int32_t* indices = m.indices + i * m.nnz;
  std::fill(row, row + m.in, Accumulator<T>(0));
  for (int64_t s = 0; s < m.nnz; ++s) row[indices[s]] = load(values[s]);
}

// A matrix (r, n) as panels of `width` columns, each (r, width) contiguous; what lies beyond column n is zero.
constexpr int64_t width = 128;
// Pieces of a panel are a row apart, too far for the processor to foresee: they are asked for `ahead` rows early.
constexpr int64_t ahead = 4;

// Panel `p` of the transpose of b (n, r).
template <class T>
inline void transpose_panel(const T* b, int64_t n, int64_t r, int64_t p, Accumulator<T>* panel) {
  const int64_t columns = std::min(width, n - p * width);
  transpose(b + p * width * r, r, columns, r, panel, width);
  for (int64_t i = 0; i < r; ++i) std::fill(panel + i * width + columns, panel + (i + 1) * width, Accumulator<T>(0));
}

template <class T>
struct WinnerSum {
  const Accumulator<T>* values;  // (rows, k)
  const int64_t* indices;        // (rows, k)
  int64_t rows, k;
  const Accumulator<T>* panels;  // of a matrix (r, n)
  int64_t r, n;
  Accumulator<T> scale;
  const T* base;  // (rows, n) or null; may be `to` itself
  T* to;          // (rows, n)
};

// to = base + scale * sum of k rows of a panel.
template <class T, class A = Accumulator<T>>
inline void sum_row(const A* panel, const A* values, const int64_t* indices, int64_t k, A scale, const T* base, T* to) {
  constexpr int64_t lanes = Vector<A>::lanes, held = 8;
  for (int64_t c = 0; c < width; c += held * lanes) {
    typename Vector<A>::type sum[held] = {};
    for (int64_t j = 0; j < k; ++j) {
      const A *row = panel + indices[j] * width + c, value = values[j];
#pragma GCC unroll 8
      for (int64_t h = 0; h < held; ++h) sum[h] += value * vector_at(row + h * lanes);
    }
#pragma GCC unroll 8
    for (int64_t h = 0; h < held; ++h) {
      typename Vector<A>::type total = scale * sum[h];
      if (base) total += read(base + c + h * lanes);
      write(to + c + h * lanes, total);
    }
  }
}

template <class T>
void sum_panel(const WinnerSum<T>& a, int64_t p, int64_t begin, int64_t end) {
  const int64_t first = p * width, columns = std::min(width, a.n - first);
  T part[width] = {};  // a row's piece of a panel that is not whole
  for (int64_t row = begin; row < end; ++row) {
    const T* base = a.base ? a.base + row * a.n + first : nullptr;
    T* to = a.to + row * a.n + first;
    if (base) prefetch(base + ahead * a.n, columns);
    if (base != to) prefetch(to + ahead * a.n, columns);
    if (columns < width && base) base = std::copy(base, base + columns, part) - columns;
    sum_row(a.panels + p * a.r * width, a.values + row * a.k, a.indices + row * a.k, a.k, a.scale, base,
            columns < width ? part : to);
    if (columns < width) std::copy(part, part + columns, to);
  }
}

// Tasks are `slice` rows by a page of columns, so that no two threads write the same page.
template <class T>
void sum_winners(const WinnerSum<T>& a) {
  constexpr int64_t slice = 128, page = 1024 / width;
  const int64_t panels = parts(a.n, width), pages = parts(panels, page);
  parallel_for(pages * parts(a.rows, slice), 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t row = t / pages * slice, first = t % pages * page;
      for (int64_t p = first; p < std::min(first + page, panels); ++p)
        sum_panel(a, p, row, std::min(row + slice, a.rows));
    }
  });
}

}  // namespace FLYK_ISA
}  // namespace flyk
