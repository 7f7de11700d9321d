#pragma once
// What a GPU can run: cuBLASLt's products first, then the kernels of kernels/. Choice and plans
// depend on the description of a GPU alone, never on a live one.

#include "backend/cuda/node_plan.h"

namespace brrr::cuda {

std::vector<KernelEntry> cuda_kernels(const GpuDescription& gpu);

/// Target::gains_by_epilogue: what cuBLASLt's epilogues do is worth a try; whether it is faster
/// than two kernels is measured on the device.
bool gains_by_epilogue(const NodeView& product, const NodeView& reader);

/// Target::gains_by_bias_gradient: the same of the sum over k of an operand.
bool gains_by_bias_gradient(const NodeView& product, const NodeView& sum);

}  // namespace brrr::cuda
