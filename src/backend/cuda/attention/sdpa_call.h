#pragma once
// Attention that cuDNN computes ("scaled dot product attention"): a plain value and pure functions,
// decided from shapes, types and strides alone, so that they are the same with and without a GPU.

#include <string>

#include "backend/cuda/attention/attention_node.h"

namespace brrr::cuda {

struct SdpaCall {
  using Matrix = AttentionNode::Matrix;
  bool backward = false, causal = false;
  DType dtype = DType::bf16;
  int64_t batch = 1, heads = 1, queries = 0, keys = 0, width = 0;
  double scale = 1;
  Matrix q, k, v, y;
  LaunchArg lse;  // [batch, heads, queries] f32: a result of the forward pass
  Matrix dy, dq, dk, dv;
  int64_t sums = 0;       // of the backward pass: offset of [batch, heads, queries] f32
  int64_t workspace = 0;  // offset, both in the scratch memory
};

/// A node of attention; returns why cuDNN does not compute it, empty: it may, where
/// there is a cuDNN.
std::string as_sdpa_call(const NodeView& node, const GpuDescription& gpu, SdpaCall& call);

/// Scratch memory that cuDNN may use in a call. Its backward pass gives the same bits every time
/// where it keeps the gradients of all scores, and only then: 2 bytes each.
int64_t sdpa_workspace_bytes(const SdpaCall& call);

/// "sdpa_grad bf16 8x12 1024x1024x64 causal", for people and for caches.
std::string describe(const SdpaCall& call);

}  // namespace brrr::cuda
