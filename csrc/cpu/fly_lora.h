// What fly_lora and its backward share: sums of a few rows of a matrix cut into panels.
//
// The plain form is three loops: for each row n, for each winner j of n, to[n, :] += value[n, j] * M[index[n, j], :].
// What makes it fast: M is cut into panels of `width` columns, each contiguous and small enough for L1; a panel meets
// many rows n before the next one comes; the columns being summed stay in registers while the winners pass.
#pragma once

#include <algorithm>

#include "operators.h"
#include "vectors.h"

namespace flyk {
namespace FLYK_ISA {

template <class T>
inline void prefetch(const T* from, int64_t n) {
  for (int64_t i = 0; i < n; i += 64 / sizeof(T)) __builtin_prefetch(from + i, 0, 2);  // into L2
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
