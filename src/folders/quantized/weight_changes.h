#pragma once
// Rescaling of weights before quantisation (SmoothQuant, AWQ). A norm, or the rows of a weight, are
// divided by a factor for each channel, and the columns of the weights that read these channels are
// multiplied by it. The model computes the same.

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace brrr::io {

struct WeightChanges {
  using ByParameter = std::map<std::string, std::vector<float>, std::less<>>;
  ByParameter input_factors;   // of a linear layer's weight [outputs, inputs]: one for each input
  ByParameter output_factors;  // one for each output
  ByParameter vectors;         // parameters that are not quantised, with their new values

  /// Multiplies a weight [outputs, inputs] by its factors.
  void apply(std::string_view parameter, std::span<float> weight, int64_t inputs) const;
};

}  // namespace brrr::io
