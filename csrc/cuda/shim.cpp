// How the shim runs the kernels of this library, for tests to set.
#define FLYK_ISA shim
#include "platform.h"

// 0 forward, 1 backward, else the seed of a shuffle of blocks and threads.
FLYK_ENTRY flyk_shim_order(int64_t order) {
  flyk::shim::Machine::get().order = order;
  return nullptr;
}

// Bytes of dynamic shared memory that a block may have.
FLYK_ENTRY flyk_shim_limit(int64_t bytes) {
  flyk::shim::Machine::get().dynamic_limit = bytes;
  return nullptr;
}
