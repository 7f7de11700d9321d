#pragma once
// Calls of attention and attention_grad with every option, alone and combined, and every way in
// which their operands may lie.

#include <vector>

#include "ir/op_def.h"

namespace brrr::ops {

std::vector<Sample> attention_samples(bool gradient);

}  // namespace brrr::ops
