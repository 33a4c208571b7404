// The functions that every build defines, one file each.
#pragma once

#include "../dtypes.h"
#include "../kernels.h"
#include "../parallel.h"

namespace flyk {
namespace FLYK_ISA {

#define FLYK_DECLARE(name, Arguments) void name(const Arguments&);
FLYK_KERNELS(FLYK_DECLARE)
#undef FLYK_DECLARE

}  // namespace FLYK_ISA
}  // namespace flyk
