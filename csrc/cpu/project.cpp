// project, sparse rows: y[n, m] = act(sum over the entries j of row m of value[m, j] x[n, index[m, j]]).
#include "project.h"

namespace flyk {
namespace FLYK_ISA {

namespace {

template <class T>
void run(const Project& a) {
  const Projector<T> projector(a);
  const int64_t tile = projector.tile, tiles = parts(a.rows, tile), m = a.matrix.rows;
  // A task is a tile of rows; where tiles are few, a piece of the matrix too, so that every thread has work.
  const int64_t pieces = std::clamp<int64_t>(2 * Pool::threads() / std::max<int64_t>(tiles, 1), 1, 1 + m / 1024);
  parallel_for(tiles * pieces, 1, [&](int64_t begin, int64_t end) {
    const Scratch<Accumulator<T>> x(a.matrix.in * tile);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t row = task / pieces * tile, count = std::min(tile, a.rows - row), piece = task % pieces;
      const int64_t first = m * piece / pieces, last = m * (piece + 1) / pieces;
      projector.run(row, count, first, last, x.get(), static_cast<T*>(a.y) + row * m + first, m);
    }
  });
}

}  // namespace

void project(const Project& a) {
  by_dtype(a.dtype, [&](auto t) { run<decltype(t)>(a); });
}

}  // namespace FLYK_ISA
}  // namespace flyk
