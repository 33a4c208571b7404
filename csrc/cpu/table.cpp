// One build's table of kernels.
#include "operators.h"

#define FLYK_TEXT_(x) #x
#define FLYK_TEXT(x) FLYK_TEXT_(x)

namespace flyk {
namespace FLYK_ISA {

extern const Kernels table;
const Kernels table = {
    FLYK_TEXT(FLYK_ISA), make_projection, winner_take_all, project, project_topk, fly_lora, fly_lora_backward,
    winner_gram, ensemble, ema_, masked_cross_entropy, masked_cross_entropy_backward, nullptr,
};

}  // namespace FLYK_ISA
}  // namespace flyk
