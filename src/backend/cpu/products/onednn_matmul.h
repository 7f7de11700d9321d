#pragma once
// matmul and linear by oneDNN: next in line after gemm(), for batches of any broadcast.

#include <memory>
#include <string>

#include "runtime/backend.h"

namespace brrr::cpu {

/// Why oneDNN cannot run the node on this machine; empty: it can.
std::string onednn_matmul_refusal(const NodeView& view);

std::unique_ptr<Kernel> onednn_matmul(const NodeView& view);

}  // namespace brrr::cpu
