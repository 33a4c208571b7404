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

}  // namespace FLYK_ISA
}  // namespace flyk
