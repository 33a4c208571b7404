// project_topk: the winners of a projection, a block of rows at a time, so that the activations of all rows are never
// written.
#include <vector>

#include "operators.h"

namespace flyk {
namespace FLYK_ISA {

namespace {

constexpr int64_t block = 16;  // rows whose activations are held at once

template <class T>
void run(const ProjectTopk& a, int64_t begin, int64_t end) {
  const Frozen& r = a.project.matrix;
  std::vector<T> y((end - begin) * r.rows);
  Project p = a.project;
  p.x = static_cast<const T*>(a.project.x) + begin * r.in;
  p.rows = end - begin;
  p.y = y.data();
  project(p);
  winner_take_all({y.data(), p.dtype, p.rows, r.rows, a.k, a.bias, a.selection,
                   static_cast<T*>(a.winners) + begin * a.k, a.indices + begin * a.k});
}

}  // namespace

void project_topk(const ProjectTopk& a) {
  by_dtype(a.project.dtype, [&](auto t) {
    for (int64_t begin = 0; begin < a.project.rows; begin += block)
      run<decltype(t)>(a, begin, begin + block < a.project.rows ? begin + block : a.project.rows);
  });
}

}  // namespace FLYK_ISA
}  // namespace flyk
