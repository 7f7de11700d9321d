#pragma once
// matmul and linear by oneDNN: what gemm() is measured against, and next in line where it is
// disabled.

#include <memory>
#include <string>

#include "runtime/backend.h"

namespace brrr::cpu {

/// Why oneDNN cannot run the node on this machine; empty: it can.
std::string onednn_matmul_refusal(const NodeView& view);

std::unique_ptr<Kernel> onednn_matmul(const NodeView& view);

}  // namespace brrr::cpu
