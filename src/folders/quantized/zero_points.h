#pragma once
// A weight with a scale and a zero point for each group and output, as GPTQ and AWQ store it:
// x[n][k] = scales[g][n] * (q[k][n] - zeros[g][n]), where g is the group of input k. The integers
// lie [inputs, outputs], transposed to the weight.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace brrr::io {

/// Outputs that ZeroPointMatrix asks for at once, at most; a multiple of a word's integers.
inline constexpr int64_t kOutputsAtOnce = 64;

struct ZeroPointMatrix {
  int64_t outputs = 0, inputs = 0;
  std::vector<float> scales;      // [groups, outputs]
  std::vector<int32_t> zeros;     // [groups, outputs]
  std::vector<int32_t> group_of;  // [inputs]: below the number of groups
  /// Writes q[input][first ...], which is to.size() <= kOutputsAtOnce integers. `first` is a
  /// multiple of kOutputsAtOnce.
  std::function<void(int64_t input, int64_t first, std::span<int32_t> to)> integers;

  /// Writes the weight [outputs, inputs], with all threads.
  void dequantize(std::span<float> to) const;
  /// Returns q - zeros [outputs, inputs], each of which must fit 8 bits.
  std::vector<int8_t> differences() const;
  /// Returns the scales as [outputs, groups].
  std::vector<float> scales_of_rows() const;
};

/// The group of each input where groups are neighbours.
std::vector<int32_t> neighbouring_groups(int64_t inputs, int64_t group);

}  // namespace brrr::io
