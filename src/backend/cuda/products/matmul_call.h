#pragma once
// Products that cuBLASLt computes, with what it can do to the result before it is stored: a plain
// value and pure functions, decided from shapes and types alone, so that they are the same with and
// without a GPU.

#include <optional>
#include <string>
#include <vector>

#include "backend/cuda/launch.h"

namespace brrr::cuda {

enum class Epilogue {
  none,
  gelu,      // y = gelu(product), tanh's approximation; `aux` is written: the product itself
  gelu_grad  // y = product * gelu'(aux)
};

struct MatmulCall {
  Product product;
  Epilogue epilogue = Epilogue::none;
  std::optional<LaunchArg> aux;     // [m, n] of the result's dtype
  std::optional<LaunchArg> addend;  // [m, n] of the result's dtype, added to the product
  /// f32, beside the product: the sum over k of b, [n], or of a, [m], as the product reads them.
  std::optional<LaunchArg> bias_gradient;
  bool sums_a = false;
  int64_t workspace = 0;  // offset in the scratch memory
};

/// Scratch memory that the library may use in a call.
int64_t workspace_bytes(const GpuDescription& gpu);

/// A matmul or linear node: `operands[i]` says where operand i of it is, `y` where it goes. Returns
/// why the library does not compute it; empty: it does. A bias must have the result's dtype.
std::string as_product(const NodeView& view, const std::vector<LaunchArg>& operands, LaunchArg y,
                       Product& product);

/// A fused node whose body is a product and what an epilogue can do; the same return. Bias: the
/// operand of the node that has to be of the result's dtype.
std::string as_matmul_call(const NodeView& fused, MatmulCall& call);

/// "bf16 4096x3072x768 nt +bias +gelu", for people and for caches.
std::string describe(const MatmulCall& call);

}  // namespace brrr::cuda
