// The names of CUDA that the kernels use, on the host: see shim_machine.h for what runs them.
#pragma once

#include "shim_machine.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)

inline void __syncthreads() { flyk::shim::Machine::get().barrier(); }

namespace flyk {
namespace shim {

template <class V>
V collect(Collective kind, uint32_t mask, V value, int argument = 0) {
  static_assert(sizeof(V) <= 8, "a lane hands on 8 bytes at most");
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(V));
  bits = Machine::get().collect(kind, mask, bits, argument);
  std::memcpy(&value, &bits, sizeof(V));
  return value;
}

}  // namespace shim
}  // namespace flyk

inline void __syncwarp(uint32_t mask = 0xffffffffu) { flyk::shim::collect(flyk::shim::Collective::sync, mask, 0); }
inline uint32_t __ballot_sync(uint32_t mask, int predicate) {
  return flyk::shim::collect<uint32_t>(flyk::shim::Collective::ballot, mask, predicate != 0);
}
inline uint32_t __match_any_sync(uint32_t mask, uint32_t value) {
  return flyk::shim::collect(flyk::shim::Collective::match, mask, value);
}
template <class V>
V __shfl_sync(uint32_t mask, V value, int from) {
  return flyk::shim::collect(flyk::shim::Collective::shuffle, mask, value, from);
}
template <class V>
V __shfl_up_sync(uint32_t mask, V value, int distance) {
  return flyk::shim::collect(flyk::shim::Collective::shuffle_up, mask, value, distance);
}
template <class V>
V __shfl_down_sync(uint32_t mask, V value, int distance) {
  return flyk::shim::collect(flyk::shim::Collective::shuffle_down, mask, value, distance);
}
template <class V>
V __shfl_xor_sync(uint32_t mask, V value, int bits) {
  return flyk::shim::collect(flyk::shim::Collective::shuffle_xor, mask, value, bits);
}
inline int __popc(uint32_t word) { return __builtin_popcount(word); }
inline int __ffs(uint32_t word) { return __builtin_ffs(static_cast<int>(word)); }
template <class V>
V atomicOr(V* at, V bits) {
  const V before = *at;
  *at |= bits;
  return before;
}

namespace flyk {
namespace FLYK_ISA {

// Declared shared memory is one for all blocks, which run one after another; its contents do not outlive a block.
template <class T, int N>
class Shared : shim::Resettable {
 public:
  Shared() {
    shim::Machine::get().declared.push_back(this);
    Shared::reset();
  }
  shim::Entry<T> operator[](int64_t i) { return shim::Entries<T>(data_, words_, N)[i]; }
  void reset() override { std::memset(data_, 0xff, sizeof data_); }

 private:
  T data_[N];
  shim::Word words_[N * sizeof(T) / 4];
};

template <class T>
shim::Entries<T> dynamic_shared(int offset, int count) {
  auto& machine = shim::Machine::get();
  if (offset + count * sizeof(T) > machine.dynamic.size()) machine.fail("more shared memory than the launch asked for");
  return {reinterpret_cast<T*>(machine.dynamic.data() + offset), machine.dynamic_words.data() + offset / 4, count};
}

// An atomic sum in shared memory; returns what was there.
template <class T>
T atomic_add(shim::Entry<T> entry, T value) {
  return entry.add(value);
}

inline void use_device(int64_t) {}

inline int64_t dynamic_shared_limit(int64_t) { return shim::Machine::get().dynamic_limit; }

template <class... P>
void launch(void (*kernel)(P...), dim3 grid, int threads, int64_t shared, int64_t, const P&... arguments) {
  shim::Machine::get().run(grid, threads, shared, [&] { kernel(arguments...); });
}

}  // namespace FLYK_ISA
}  // namespace flyk
