// Memory for a large result, just asked for, has no pages yet: the first write to each makes the system clear one. Pages
// of 2 MB instead of 4 KB are several hundred times fewer interruptions. Where the system has none, nothing changes.
#pragma once

#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace flyk {
namespace FLYK_ISA {

inline void ask_for_huge_pages(void* memory, int64_t bytes) {
#if defined(__linux__)
  constexpr uintptr_t page = uintptr_t{1} << 21;
  const uintptr_t from = reinterpret_cast<uintptr_t>(memory), begin = (from + page - 1) / page * page;
  const uintptr_t end = (from + static_cast<uintptr_t>(bytes)) / page * page;
  if (end >= begin + 4 * page) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
  (void)memory, (void)bytes;
#endif
}

}  // namespace FLYK_ISA
}  // namespace flyk
