// ema_: bank[j] = decay[j] bank[j] + (1 - decay[j]) online.
//
// The ladder: (1) each head in two passes, a product and a sum; (2) in one, so that the bank is read and written once;
// (3) all heads over one block of entries before the next, so that online comes from memory once and from L1 for the
// later heads; (4) an equal run of blocks on each thread, where there are enough entries to pay for waking it: what a
// thread moved in one step is still in its own cache in the next.
#include "operators.h"
#include "vectors.h"

namespace flyk {
namespace FLYK_ISA {

namespace {

template <class T, class A = Accumulator<T>>
void move(T* head, const T* online, int64_t n, A decay, A rest) {
  constexpr int64_t lanes = Vector<A>::lanes;
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) write(head + i, decay * read(head + i) + rest * read(online + i));
  for (; i < n; ++i) store(head[i], decay * load(head[i]) + rest * load(online[i]));
}

template <class T>
void run(const Ema& a) {
  constexpr int64_t block = 4096, paying = 16384;  // entries
  const int64_t grain = std::max(paying, parts(a.entries, Pool::threads()));
  parallel_for(a.entries, grain, [&](int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += block) {
      const int64_t n = std::min(block, end - first);
      for (int64_t j = 0; j < a.heads; ++j)
        move(static_cast<T*>(a.bank) + j * a.entries + first, static_cast<const T*>(a.online) + first, n,
             static_cast<Accumulator<T>>(a.decays[j]), static_cast<Accumulator<T>>(1 - a.decays[j]));
    }
  });
}

}  // namespace

void ema_(const Ema& a) {
  by_dtype(a.dtype, [&](auto t) { run<decltype(t)>(a); });
}

}  // namespace FLYK_ISA
}  // namespace flyk
