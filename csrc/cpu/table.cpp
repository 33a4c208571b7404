// One build's table of kernels.
#include "operators.h"

#define FLYK_TEXT_(x) #x
#define FLYK_TEXT(x) FLYK_TEXT_(x)

namespace flyk {
namespace FLYK_ISA {

#define FLYK_ENTRY(name, Arguments) name,
extern const Kernels table;
// The last is the product of the tile unit, which isa.cpp adds.
const Kernels table = {FLYK_TEXT(FLYK_ISA), FLYK_KERNELS(FLYK_ENTRY) nullptr};

}  // namespace FLYK_ISA
}  // namespace flyk
