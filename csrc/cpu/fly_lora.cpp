// fly_lora: y = base + scale * sum over the k winners i of (A x)_i B[:, i].
#include <vector>

#include "operators.h"

namespace flyk {
namespace FLYK_ISA {

namespace {

template <class T>
void run(const FlyLora& a, int64_t begin, int64_t end) {
  using A = Accumulator<T>;
  const int64_t r = a.matrix.rows;
  std::vector<A> sum(a.out);
  for (int64_t n = begin; n < end; ++n) {
    const T* winners = static_cast<const T*>(a.winners) + n * a.k;
    const int64_t* indices = a.indices + n * a.k;
    for (int64_t o = 0; o < a.out; ++o) {
      A total = 0;
      for (int64_t i = 0; i < a.k; ++i) total += load(winners[i]) * load(static_cast<const T*>(a.b)[o * r + indices[i]]);
      const A from = a.base ? load(static_cast<const T*>(a.base)[n * a.out + o]) : A(0);
      store(static_cast<T*>(a.y)[n * a.out + o], from + static_cast<A>(a.scale) * total);
    }
  }
}

}  // namespace

void fly_lora(const FlyLora& a) {
  project_topk({{a.x, a.dtype, a.rows, a.matrix, Activation::none, nullptr}, a.k, a.bias, a.selection, a.winners, a.indices});
  by_dtype(a.dtype, [&](auto t) {
    parallel_for(a.rows, 8, [&](int64_t begin, int64_t end) { run<decltype(t)>(a, begin, end); });
  });
}

}  // namespace FLYK_ISA
}  // namespace flyk
