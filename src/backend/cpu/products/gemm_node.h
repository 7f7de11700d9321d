#pragma once
// A matmul or linear node as a call of gemm().

#include <optional>
#include <span>
#include <string>

#include "backend/cpu/products/gemm.h"
#include "backend/cpu/products/product.h"

namespace brrr::cpu {

/// Why gemm() does not compute the node by this path; empty: it can.
std::string gemm_node_refusal(const NodeView& view, GemmPath path);
/// The path that stands first in the kernel list among those that can; nothing: there is none.
std::optional<GemmPath> gemm_node_path(const NodeView& view);

/// Target::reads_panels: products of bf16 and f32 without a batch.
bool reads_panels(const NodeView& product);
/// Whether a product or a loss head has a kernel that reads panels.
bool multiplies_panels(const NodeView& product);
/// Target::gains_by_panels: those that go by way of tiles, which multiply panels as they lie.
bool gains_by_panels(const NodeView& product);

class GemmNode {
 public:
  GemmNode(const NodeView& view, GemmPath path);
  /// For a bias that is not f32.
  int64_t scratch_bytes() const;
  /// in: a, b and the bias. c may be null: then the epilogue has it all.
  void run(std::span<const void* const> in, void* c, std::byte* scratch, GemmEpilogue epilogue = {},
           GemmTermSums sums = {}) const;

 private:
  GemmPath path_;
  Product p_;
  GemmArgs args_;
  std::optional<DType> bias_;
};

}  // namespace brrr::cpu
