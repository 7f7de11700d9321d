#pragma once
// GPTQ (Frantar et al. 2022): integers that are chosen one input at a time, each rounding error
// spread over the inputs that are not rounded yet, so that the layer's output on calibration rows
// changes least.

#include <span>

#include "calibration/input_statistics.h"
#include "folders/quantized/integer_matrix.h"

namespace brrr::calibration {

struct GptqOptions {
  /// Added to the diagonal of the Gram matrix, as a share of its mean.
  double damping = 0.01;
  /// Inputs with large activations are rounded first ("act-order"). Groups keep their places, so
  /// that the file needs no order of inputs; their scales are fixed before the first input.
  bool orders_inputs = true;
};

/// Quantises `weight` [form.rows, form.columns] of finite numbers. `gram` is [columns, columns],
/// the products of calibration rows (input_statistics.h). Inputs that are always zero keep the
/// integers of rounding to nearest. Symmetric, in the grid of io::quantize().
io::IntegerMatrix gptq(std::span<const float> weight, const io::IntegerForm& form,
                       std::span<const float> gram, const GptqOptions& options = {});

/// U, upper triangular with Uᵀ U = (gram + damping)⁻¹, of [n, n] in row-major order. Throws
/// UserError where the damped matrix is not positive definite.
std::vector<float> inverse_factor(std::span<const float> gram, int64_t n, double damping);

}  // namespace brrr::calibration
