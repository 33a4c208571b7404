// The functions that every build defines, one file each.
#pragma once

#include "../dtypes.h"
#include "../kernels.h"
#include "../parallel.h"

namespace flyk {
namespace FLYK_ISA {

void make_projection(const MakeProjection&);
void winner_take_all(const WinnerTakeAll&);
void project(const Project&);
void project_topk(const ProjectTopk&);
void fly_lora(const FlyLora&);
void fly_lora_backward(const FlyLoraBackward&);
void winner_gram(const WinnerGram&);
void ensemble(const Ensemble&);
void ema_(const Ema&);
void masked_cross_entropy(const MaskedCrossEntropy&);
void masked_cross_entropy_backward(const MaskedCrossEntropy&);

}  // namespace FLYK_ISA
}  // namespace flyk
