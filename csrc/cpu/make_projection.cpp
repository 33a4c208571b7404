#include "operators.h"

namespace flyk {
namespace FLYK_ISA {

void make_projection(const MakeProjection&) {}

}  // namespace FLYK_ISA
}  // namespace flyk
