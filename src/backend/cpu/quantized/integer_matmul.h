#pragma once
// Products with a right operand of quantised integers in panels.

#include <string>

#include "backend/cpu/products/gemm.h"
#include "backend/cpu/quantized/integer_strips.h"
#include "base/integer_panels.h"
#include "runtime/backend.h"

namespace brrr::cpu {

/// Returns the layout of the node's right operand.
IntegerPanels integer_panels_of(const NodeView& product);

/// Returns why these kernels do not compute the node; empty if they do.
std::string integer_matmul_refusal(const NodeView& product);

/// Whether the node quantises its left operand ({left_bits} is 8).
bool quantizes_left(const NodeView& product);

/// A product with a right operand in integer panels. Quantises the rows of the left operand and
/// multiplies integers, or dequantises the weight.
class IntegerProduct {
 public:
  /// Uses the fastest strip kernel available on this processor.
  explicit IntegerProduct(const NodeView& product);
  IntegerProduct(const NodeView& product, const StripKernel& strips);

  int64_t scratch_bytes() const;
  /// in: a and b. c may be null; then the epilogue takes the result.
  void run(const void* const* in, void* c, std::byte* scratch,
           const GemmEpilogue& epilogue = {}) const;

 private:
  void multiply_integers(const GemmArgs& args, std::byte* scratch) const;
  void multiply_block(const GemmArgs& args, const QuantizedRows& rows,
                      const IntegerBlock& block) const;
  void dequantize(GemmArgs args, std::byte* scratch) const;

  int64_t value_bytes() const;
  QuantizedRows rows_in(std::byte* scratch) const;

  IntegerPanels form_;
  GemmArgs args_;
  StripKernel strips_;  // empty: dequantises
};

/// Returns the arguments of gemm(), without pointers, for a node that dequantises its weight.
GemmArgs unpacking_gemm(const NodeView& product, const IntegerPanels& form);

}  // namespace brrr::cpu
