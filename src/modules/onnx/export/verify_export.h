#pragma once
// Checking an exported file by running it: the graph that it was made of and the file, read by our
// own import, on the same inputs.

#include <string>
#include <vector>

#include "modules/onnx/export/onnx_export.h"
#include "runtime/runnable.h"
#include "runtime/runnable_session.h"

namespace brrr::onnx {

struct ExportDifference {
  std::string output;        // the one that differs most
  double largest = 0;        // |difference| over the largest element of that output
  std::string all_nan;       // an output of which nothing is a number; "": none
  bool has_16_bits = false;  // the model computes in f16 or bf16 somewhere
};

/// Runs both for one binding of the sizes. Throws UserError where an output has another type.
ExportDifference compare_export(const ExportSource& source, std::shared_ptr<const Runnable> written,
                                const Backend& backend, const std::vector<int64_t>& sizes,
                                const PortValues& inputs);

}  // namespace brrr::onnx
