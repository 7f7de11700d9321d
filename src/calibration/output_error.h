#pragma once
// How far the outputs of a linear layer on calibration rows move when its weight changes.

#include <cstdint>
#include <span>
#include <vector>

namespace brrr::calibration {

/// The sum over the rows d of `difference` [rows, width] of d gram dᵀ: the squared change of the
/// layer's outputs when its weight changes by `difference`.
double output_square(std::span<const float> difference, std::span<const float> gram, int64_t width);

/// The number of rows of a weight on which its output error is measured.
inline constexpr int64_t kMeasuredRows = 64;
/// Returns at most kMeasuredRows rows of a weight [rows, width], spread evenly.
std::vector<float> sampled_rows(std::span<const float> weight, int64_t width);

/// The change of the outputs over the outputs, both as root mean squares: what `quantised` gives
/// instead of `weight`, both [rows, width].
double output_error(std::span<const float> weight, std::span<const float> quantised,
                    std::span<const float> gram, int64_t width);

}  // namespace brrr::calibration
