// Kernels with the faults that the shim is there to find, and one without.
#include "platform.h"

namespace {

using namespace flyk::FLYK_ISA;
constexpr int threads = 64;

// to[i] is what its right neighbour holds: handed on through shared memory, with or without the barrier.
template <bool BARRIER>
__global__ void neighbour(const int* from, int* to) {
  __shared__ Shared<int, threads> held;
  held[threadIdx.x] = from[threadIdx.x];
  if (BARRIER) __syncthreads();
  to[threadIdx.x] = held[(threadIdx.x + 1) % threads];
}

// The same within a warp, where a shuffle orders nothing and __syncwarp is enough.
template <bool SYNC>
__global__ void beside(const int* from, int* to) {
  __shared__ Shared<int, threads> held;
  held[threadIdx.x] = from[threadIdx.x];
  if (SYNC) __syncwarp();
  const int sum = __shfl_xor_sync(whole_warp, 0, 1);
  to[threadIdx.x] = sum + held[threadIdx.x ^ 1];
}

// Two threads of one warp write the same word.
__global__ void overwrite(const int*, int* to) {
  __shared__ Shared<int, threads> held;
  held[threadIdx.x / 2] = threadIdx.x;
  __syncthreads();
  to[threadIdx.x] = held[threadIdx.x / 2];
}

// All count, which an atomic sum allows, and a plain one does not.
template <bool ATOMIC>
__global__ void tally(const int*, int* to) {
  __shared__ Shared<int, 1> count;
  if (threadIdx.x == 0) count[0] = 0;
  __syncthreads();
  if (ATOMIC)
    atomic_add(count[0], 1);
  else
    count[0] += 1;
  __syncthreads();
  to[threadIdx.x] = count[0];
}

// Through global memory, which is not recorded: the order of the threads shows.
__global__ void through_global(const int*, int* to) { to[0] = threadIdx.x; }

__global__ void lone_barrier(const int*, int* to) {
  if (threadIdx.x < 32) __syncthreads();
  to[threadIdx.x] = 0;
}

__global__ void beyond(const int*, int* to) {
  __shared__ Shared<int, threads> held;
  held[threadIdx.x + 1] = 0;
  to[threadIdx.x] = 0;
}

// The collectives against what they are defined to be.
__global__ void collectives(const int* from, int* to) {
  const int l = lane(), value = from[threadIdx.x];
  int right = __shfl_sync(whole_warp, value, 5) == from[warp() * 32 + 5];
  right &= __shfl_up_sync(whole_warp, value, 3) == from[threadIdx.x - (l >= 3 ? 3 : 0)];
  right &= __shfl_down_sync(whole_warp, value, 3) == from[threadIdx.x + (l + 3 < 32 ? 3 : 0)];
  right &= __shfl_xor_sync(whole_warp, value, 9) == from[threadIdx.x ^ 9];
  right &= __ballot_sync(whole_warp, l % 3 == 0) == 0x49249249u;
  right &= __match_any_sync(whole_warp, l % 2) == (l % 2 ? 0xaaaaaaaau : 0x55555555u);
  if (l < 16) right &= __ballot_sync(0xffffu, 1) == 0xffffu;
  to[threadIdx.x] = right && __popc(0xf0u) == 4 && __ffs(8) == 4;
}

}  // namespace

FLYK_ENTRY flyk_run(int64_t which, int64_t from, int64_t to) {
  using Kernel = void (*)(const int*, int*);
  static const Kernel kernels[] = {neighbour<true>, neighbour<false>, beside<true>,   beside<false>,  overwrite,
                                   tally<true>,     tally<false>,     through_global, lone_barrier,   beyond,
                                   collectives};
  return guarded(0, [&] { launch(kernels[which], dim3(1), threads, 0, 0, static_cast<const int*>(at<int>(from)), at<int>(to)); });
}
