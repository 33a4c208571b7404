// What the kernels need of CUDA beyond the language, once for nvcc and once for plain C++.
//
// Compiled by nvcc, a kernel runs on the device. Compiled by any C++ compiler, it runs on the host under shim.h, which
// takes a block's threads through it one by one and watches the shared memory: so its logic is tested without a GPU.
// A kernel writes the language of both: shared memory is a Shared<T, N> or dynamic_shared<T>(), read by value (never
// by `auto`), and kernels start by launch().
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#if defined(__CUDACC__)

#include <cuda_runtime.h>

namespace flyk {
namespace FLYK_ISA {

template <class T, int N>
using Shared = T[N];

// `count` entries of the block's dynamic shared memory, from byte `offset` on.
template <class T>
__device__ T* dynamic_shared(int offset, int) {
  extern __shared__ __align__(16) unsigned char bytes[];
  return reinterpret_cast<T*>(bytes + offset);
}

inline void check(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

inline void use_device(int64_t device) { check(cudaSetDevice(static_cast<int>(device))); }

// Bytes that a block may ask for, less what kernels declare.
inline int64_t dynamic_shared_limit(int64_t declared) {
  int device = 0, bytes = 0;
  check(cudaGetDevice(&device));
  check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  return bytes - declared;
}

template <class... P>
void launch(void (*kernel)(P...), dim3 grid, int threads, int64_t shared, int64_t stream, const P&... arguments) {
  if (shared > 0)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
  kernel<<<grid, threads, static_cast<size_t>(shared), reinterpret_cast<cudaStream_t>(stream)>>>(arguments...);
  check(cudaGetLastError());
}

}  // namespace FLYK_ISA
}  // namespace flyk

#else
#include "shim.h"
#endif

// An entry of the library: int64 alone (addresses, sizes, codes), so that any caller can bind it by its name.
// Returns null, or a sentence that says what failed, valid until the thread's next call.
#define FLYK_ENTRY extern "C" __attribute__((visibility("default"))) const char*

namespace flyk {
namespace FLYK_ISA {

template <class F>
const char* guarded(int64_t device, const F& work) {
  static thread_local std::string fault;
  try {
    use_device(device);
    work();
    return nullptr;
  } catch (const std::exception& error) {
    fault = error.what();
    return fault.c_str();
  }
}

template <class T>
T* at(int64_t address) {
  return reinterpret_cast<T*>(address);
}

constexpr int warp_size = 32;
constexpr uint32_t whole_warp = 0xffffffffu;

__device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % warp_size; }
__device__ __forceinline__ int warp() { return static_cast<int>(threadIdx.x) / warp_size; }

}  // namespace FLYK_ISA
}  // namespace flyk
