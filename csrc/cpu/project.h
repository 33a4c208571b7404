// A tile of rows of project, which project and project_topk share.
//
// The plain way takes each output alone and gathers its inputs. Here rows of x are transposed into a tile of 128 bytes
// for each input, so that one entry (value, column) of the matrix updates all rows of the tile by whole vectors; the
// sums of 32 rows of the matrix are held in L1 and leave it transposed again, whole cache lines at a time. Each sum is
// taken over the entries in their order, so that a row's result doesn't depend on the rows beside it, and only what
// they name enters it.
#pragma once

#include "operators.h"
#include "vectors.h"

namespace flyk {
namespace FLYK_ISA {

template <class T>
class Projector {
  using A = Accumulator<T>;
  static constexpr int64_t lanes = Vector<A>::lanes, vectors = 128 / vector_bytes, held = 32;
  static constexpr bool half = !std::is_same_v<T, A>;

 public:
  static constexpr int64_t tile = vectors * lanes;  // rows

  explicit Projector(const Project& a) : a_(a), wide_(half ? a.matrix.rows * a.matrix.nnz : 0) {
    const T* values = static_cast<const T*>(a.matrix.values);
    if constexpr (half) {
      widen(values, wide_.get(), a.matrix.rows * a.matrix.nnz);
      values_ = wide_.get();
    } else {
      values_ = values;
    }
  }

  // y[i, m - begin] for begin <= m < end and the `count` rows of x, at most a tile, that start at `row`; rows of y are
  // `stride` apart. `x` has room for (in, tile).
  void run(int64_t row, int64_t count, int64_t begin, int64_t end, A* x, T* y, int64_t stride) const {
    const int64_t in = a_.matrix.in;
    if (count < tile) std::fill(x, x + in * tile, A(0));
    transpose(static_cast<const T*>(a_.x) + row * in, in, count, in, x, tile);
    alignas(64) A sums[held * tile];
    for (int64_t m = begin; m < end; m += held) {
      const int64_t size = std::min(held, end - m);
      for (int64_t i = 0; i < size; ++i) sum(x, m + i, sums + i * tile);
      if (a_.activation == Activation::relu)
        for (int64_t i = 0; i < size * tile; ++i) sums[i] = sums[i] < A(0) ? A(0) : sums[i];
      transpose(sums, tile, size, count, y + (m - begin), stride);
    }
  }

 private:
  void sum(const A* x, int64_t m, A* to) const {
    const int64_t nnz = a_.matrix.nnz;
    const A* value = values_ + m * nnz;
    const int32_t* index = a_.matrix.indices + m * nnz;
    typename Vector<A>::type sums[vectors] = {};
    for (int64_t j = 0; j < nnz; ++j) {
      const A* from = x + index[j] * tile;
#pragma GCC unroll 8
      for (int64_t v = 0; v < vectors; ++v) sums[v] += value[j] * vector_at(from + v * lanes);
    }
#pragma GCC unroll 8
    for (int64_t v = 0; v < vectors; ++v) vector_at(to + v * lanes) = sums[v];
  }

  const Project& a_;
  const A* values_;
  Scratch<A> wide_;
};

}  // namespace FLYK_ISA
}  // namespace flyk
