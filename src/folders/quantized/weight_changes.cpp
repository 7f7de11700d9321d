#include "folders/quantized/weight_changes.h"

#include "base/errors.h"

namespace brrr::io {

void WeightChanges::apply(std::string_view parameter, std::span<float> weight,
                          int64_t inputs) const {
  const auto columns = input_factors.find(parameter), rows = output_factors.find(parameter);
  const auto width = static_cast<size_t>(inputs);
  if (columns != input_factors.end()) {
    BRRR_CHECK(columns->second.size() == width, "{} factors for {} inputs", columns->second.size(),
               inputs);
    for (size_t i = 0; i < weight.size(); ++i) weight[i] *= columns->second[i % width];
  }
  if (rows != output_factors.end()) {
    BRRR_CHECK(rows->second.size() * width == weight.size(), "{} factors for {} numbers",
               rows->second.size(), weight.size());
    for (size_t i = 0; i < weight.size(); ++i) weight[i] *= rows->second[i / width];
  }
}

}  // namespace brrr::io
