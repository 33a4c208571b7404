// Which build of the kernels serves this process: the widest that the processor and its system support, or the one
// that the environment names in FLYK_CPU.
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels.h"

namespace flyk {

namespace baseline { extern const Kernels table; }
#ifdef FLYK_X86
namespace avx2 { extern const Kernels table; }
namespace avx512 { extern const Kernels table; }
#endif
#ifdef FLYK_AMX
namespace amx {
bool supported();
void product(const Product&);
}  // namespace amx
#endif

namespace {

#ifdef FLYK_AMX
// AVX-512's kernels and one more.
Kernels with_tiles() {
  Kernels table = avx512::table;
  table.isa = "amx";
  table.product = amx::product;
  return table;
}
#endif

}  // namespace

std::vector<const Kernels*> tables() {
  std::vector<const Kernels*> found;
#ifdef FLYK_X86
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
#ifdef FLYK_AMX
    static const Kernels tiles = with_tiles();
    static const bool there = amx::supported();
    if (there) found.push_back(&tiles);
#endif
    found.push_back(&avx512::table);
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
    found.push_back(&avx2::table);
#endif
  found.push_back(&baseline::table);
  return found;
}

namespace {

const Kernels& choose() {
  const auto supported = tables();
  const char* forced = std::getenv("FLYK_CPU");
  if (forced == nullptr || *forced == '\0') return *supported.front();
  std::string names;
  for (const Kernels* t : supported) {
    if (std::string(forced) == t->isa) return *t;
    names += (names.empty() ? "" : ", ") + std::string(t->isa);
  }
  throw std::runtime_error("FLYK_CPU must be one of " + names + " on this processor, got " + forced);
}

}  // namespace

std::vector<const char*> instruction_sets() {
  std::vector<const char*> names;
  for (const Kernels* t : tables()) names.push_back(t->isa);
  return names;
}

const Kernels& kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

}  // namespace flyk
