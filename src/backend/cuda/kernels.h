#pragma once
// The groups of device kernels, one function per file; device_kernels() joins them.

#include <vector>

#include "backend/cuda/launch.h"

namespace brrr::cuda {

std::vector<PlanEntry> cluster_entries();    // element-wise ops, rows, their fused nodes, leaves
std::vector<PlanEntry> reduction_entries();  // sum, max
std::vector<PlanEntry> matmul_entries();     // matmul, linear, fused with a product
std::vector<PlanEntry> movement_entries();   // transpose, slice, pad, concat, update_slice
std::vector<PlanEntry> embedding_entries();  // embedding, embedding_grad
std::vector<PlanEntry> rotary_entries();     // rotary
std::vector<PlanEntry> cross_entropy_entries();  // cross_entropy, cross_entropy_grad
std::vector<PlanEntry> loss_head_entries();      // linear_cross_entropy, _grad, _step
std::vector<PlanEntry> attention_entries();      // attention, attention_grad
std::vector<PlanEntry> update_entries();         // adamw, sgd, lion, muon, muon_momentum
std::vector<PlanEntry> global_norm_entries();
std::vector<PlanEntry> update_8bit_entries();  // adamw_8bit
std::vector<PlanEntry> adafactor_entries();    // adafactor, adafactor_vector

/// Attention that the matrix unit of sm_90 does, with its tiles from the copy engine.
LaunchPlan attention_tma_forward(const NodeView& node, const GpuDescription& gpu);
LaunchPlan attention_tma_backward(const NodeView& node, const GpuDescription& gpu);

/// Appends the plain tiled product that `product` describes; a library may take its place.
void add_product(LaunchPlan& plan, const Product& product);

}  // namespace brrr::cuda
