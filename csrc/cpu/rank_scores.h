// y = A x for a tile of rows, which is what fly_lora chooses its winners by.
//
// The plain way takes each y alone and gathers the inputs that its row of A names; a dense A needs no gather but
// multiplies by every zero. Here rows of x are transposed into a tile in L1, so that one entry (value, column) of A
// updates all rows of the tile by whole vectors, and work is done for A's entries alone. The tile holds a chunk of the
// columns of x; the entries of each row of A are put in the order of those chunks first, once for all tiles.
#pragma once

#include <algorithm>

#include "fly_lora.h"

namespace flyk {
namespace FLYK_ISA {

template <class A>
struct Entry {
  A value;
  int32_t column;  // within its chunk
};

// The rows of A as entries in the order of chunks of columns; within a chunk they keep their order.
template <class T>
class Chunks {
  using A = Accumulator<T>;

 public:
  static constexpr int64_t columns = 64;  // of a chunk

  explicit Chunks(const Frozen& m)
      : m_(m), count_(parts(m.in, columns)), entries_(m.rows * m.nnz), starts_(m.rows * (count_ + 1)) {}

  int64_t count() const { return count_; }
  const Entry<A>* begin(int64_t row, int64_t chunk) const {
    return entries_.get() + row * m_.nnz + starts_[row * (count_ + 1) + chunk];
  }
  const Entry<A>* end(int64_t row, int64_t chunk) const { return begin(row, chunk + 1); }

  void fill(int64_t row) {
    const T* values = static_cast<const T*>(m_.values) + row * m_.nnz;
    const int32_t* indices = m_.indices ? m_.indices + row * m_.nnz : nullptr;
    const auto column = [&](int64_t s) { return indices ? indices[s] : static_cast<int32_t>(s); };
    int64_t* start = starts_.get() + row * (count_ + 1);
    std::fill(start, start + count_ + 1, 0);
    for (int64_t s = 0; s < m_.nnz; ++s) ++start[column(s) / columns];
    for (int64_t c = 0, sum = 0; c <= count_; ++c) sum += std::exchange(start[c], sum);
    Entry<A>* entries = entries_.get() + row * m_.nnz;
    for (int64_t s = 0; s < m_.nnz; ++s) {
      const int32_t c = column(s);
      entries[start[c / columns]++] = {load(values[s]), static_cast<int32_t>(c % columns)};
    }
    // Each start has moved to its end, which is the next one's start.
    std::copy_backward(start, start + count_, start + count_ + 1);
    start[0] = 0;
  }

 private:
  const Frozen& m_;
  const int64_t count_;
  Scratch<Entry<A>> entries_;
  Scratch<int64_t> starts_;
};

// sums (vectors) += values times columns of a tile of as many vectors.
template <int64_t vectors, class A>
inline void add_entries(const Entry<A>* entry, const Entry<A>* end, const A* x, A* sums) {
  constexpr int64_t lanes = Vector<A>::lanes;
  typename Vector<A>::type held[vectors];
#pragma GCC unroll 8
  for (int64_t v = 0; v < vectors; ++v) held[v] = vector_at(sums + v * lanes);
  for (; entry != end; ++entry) {
    const A* from = x + entry->column * (vectors * lanes);
#pragma GCC unroll 8
    for (int64_t v = 0; v < vectors; ++v) held[v] += entry->value * vector_at(from + v * lanes);
  }
#pragma GCC unroll 8
  for (int64_t v = 0; v < vectors; ++v) vector_at(sums + v * lanes) = held[v];
}

// y (count, m.rows) for `count` rows of x, at most a tile of `vectors` vectors.
template <int64_t vectors, class T>
void score_tile(const Frozen& m, const Chunks<T>& chunks, const T* x, int64_t count, Accumulator<T>* y) {
  using A = Accumulator<T>;
  constexpr int64_t tile = vectors * Vector<A>::lanes, columns = Chunks<T>::columns;
  Scratch<A> turned(columns * tile), sums(m.rows * tile);
  std::fill(turned.get(), turned.get() + columns * tile, A(0));  // also of rows that are not there
  std::fill(sums.get(), sums.get() + m.rows * tile, A(0));
  for (int64_t c = 0; c < chunks.count(); ++c) {
    transpose(x + c * columns, m.in, count, std::min(columns, m.in - c * columns), turned.get(), tile);
    for (int64_t i = 0; i < m.rows; ++i) {
      const T* next = x + (c + 1) * columns;  // of the chunk that is needed next, a few rows with each row of A
      if (c + 1 < chunks.count())
        for (int64_t n = i * count / m.rows; n < (i + 1) * count / m.rows; ++n) prefetch(next + n * m.in, columns);
      add_entries<vectors>(chunks.begin(i, c), chunks.end(i, c), turned.get(), sums.get() + i * tile);
    }
  }
  transpose(sums.get(), tile, m.rows, count, y, m.rows);
}

}  // namespace FLYK_ISA
}  // namespace flyk
