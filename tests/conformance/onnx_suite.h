#pragma once
// Runs a case of ONNX's backend suite: a folder with model.onnx and test_data_set_N, whose
// input_I.pb and output_I.pb are tensors.

#include <cstdint>
#include <optional>
#include <string>

#include "base/file.h"

namespace brrr::test {

struct SuiteResult {
  enum class Kind { passed, wrong, refused, failed };
  Kind kind = Kind::passed;
  std::string reason;  // of all but `passed`
};

/// With `again` the model is first written as ONNX with that opset, for the inputs of each set, and
/// read again.
SuiteResult run_suite_case(const fs::path& folder, std::optional<int64_t> again = std::nullopt);

}  // namespace brrr::test
