// What fly_lora and its backward share: vectors, scratch memory, and sums of a few rows of a matrix cut into panels.
//
// The plain form is three loops: for each row n, for each winner j of n, to[n, :] += value[n, j] * M[index[n, j], :].
// What makes it fast: M is cut into panels of `width` columns, each contiguous and small enough for L1; a panel meets
// many rows n before the next one comes; the columns being summed stay in registers while the winners pass.
#pragma once

#include <algorithm>
#include <new>
#include <type_traits>
#include <utility>

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
template <class A>
inline typename Vector<A>::type& vector_at(A* p) {
  return *reinterpret_cast<typename Vector<A>::type*>(p);
}
template <class A>
inline typename Vector<A>::type vector_at(const A* p) {
  return *reinterpret_cast<const typename Vector<A>::type*>(p);
}

// Memory on a cache line, not initialised. Not std::vector, whose code the linker would share between the builds.
template <class A>
class Scratch {
 public:
  explicit Scratch(int64_t n) : data_(static_cast<A*>(::operator new(n * sizeof(A), std::align_val_t{64}))) {}
  Scratch(Scratch&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  ~Scratch() { ::operator delete(data_, std::align_val_t{64}); }
  A* get() const { return data_; }

 private:
  A* data_;
};

inline int64_t parts(int64_t n, int64_t size) { return (n + size - 1) / size; }

template <class T>
inline void widen(const T* from, Accumulator<T>* to, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) to[i] = load(from[i]);
}
template <class T>
inline void narrow(const Accumulator<T>* from, T* to, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) store(to[i], from[i]);
}
template <class T>
inline void prefetch(const T* from, int64_t n) {
  for (int64_t i = 0; i < n; i += 64 / sizeof(T)) __builtin_prefetch(from + i);
}

// A matrix (r, n) as panels of `width` columns, each (r, width) contiguous; what lies beyond column n is zero.
constexpr int64_t width = 128;
// Pieces of a panel are a row apart, too far for the processor to foresee: they are asked for `ahead` rows early.
constexpr int64_t ahead = 4;

// A panel's piece of a row as it is summed: in place where it is whole and of the type of sums, else in `wide`.
template <class T>
inline Accumulator<T>* piece(T* row, int64_t columns, Accumulator<T>* wide) {
  if constexpr (std::is_same_v<T, Accumulator<T>>) {
    if (columns == width) return row;
  }
  return wide;
}
template <class T>
inline const Accumulator<T>* widened(const T* row, int64_t columns, Accumulator<T>* wide) {
  if constexpr (std::is_same_v<T, Accumulator<T>>) {
    if (columns == width) return row;
  }
  widen(row, wide, columns);
  return wide;
}

// Panel `p` of the transpose of b (n, r).
template <class T>
inline void transpose(const T* b, int64_t n, int64_t r, int64_t p, Accumulator<T>* panel) {
  const int64_t columns = std::min(width, n - p * width);
  for (int64_t o = 0; o < columns; ++o)
    for (int64_t i = 0; i < r; ++i) panel[i * width + o] = load(b[(p * width + o) * r + i]);
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
template <class A>
inline void sum_row(const A* panel, const A* values, const int64_t* indices, int64_t k, A scale, const A* base, A* to) {
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
      if (base) total += vector_at(base + c + h * lanes);
      vector_at(to + c + h * lanes) = total;
    }
  }
}

template <class T>
void sum_panel(const WinnerSum<T>& a, int64_t p, int64_t begin, int64_t end) {
  using A = Accumulator<T>;
  const int64_t first = p * width, columns = std::min(width, a.n - first);
  A wide[width] = {};
  for (int64_t row = begin; row < end; ++row) {
    const T* base = a.base ? a.base + row * a.n + first : nullptr;
    T* to = a.to + row * a.n + first;
    if (base) prefetch(base + ahead * a.n, columns);
    if (base != to) prefetch(to + ahead * a.n, columns);
    A* sums = piece(to, columns, wide);
    sum_row(a.panels + p * a.r * width, a.values + row * a.k, a.indices + row * a.k, a.k, a.scale,
            base ? widened(base, columns, wide) : nullptr, sums);
    if (sums == wide) narrow(wide, to, columns);
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
