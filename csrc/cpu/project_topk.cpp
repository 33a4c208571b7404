// project_topk: the winners of a projection, a tile of rows at a time, so that the activations of all rows are never
// written: those of one tile stay in the cache, where the winners are taken from them.
#include "project.h"
#include "winner_take_all.h"

namespace flyk {
namespace FLYK_ISA {

namespace {

template <class T>
void run(const ProjectTopk& a) {
  const Projector<T> projector(a.project);
  const int64_t m = a.project.matrix.rows, rows = a.project.rows;
  // Tiles are cut short where there would be fewer than threads.
  const int64_t tile = std::clamp<int64_t>(parts(rows, Pool::threads()), 1, projector.tile);
  parallel_for(rows, tile, [&](int64_t begin, int64_t end) {
    const Scratch<Accumulator<T>> x(a.project.matrix.in * projector.tile);
    const Scratch<T> y(tile * m);
    for (int64_t row = begin; row < end; row += tile) {
      const int64_t count = std::min(tile, end - row);
      projector.run(row, count, 0, m, x.get(), y.get(), m);
      const WinnerTakeAll taken{y.get(), a.project.dtype, count, m, a.k, a.bias, a.selection,
                                static_cast<T*>(a.winners) + row * a.k, a.indices + row * a.k};
      winner_take_all_rows(taken, 0, count);
    }
  });
}

}  // namespace

void project_topk(const ProjectTopk& a) {
  by_dtype(a.project.dtype, [&](auto t) { run<decltype(t)>(a); });
}

}  // namespace FLYK_ISA
}  // namespace flyk
