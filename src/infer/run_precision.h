#pragma once
// What a model is computed in: a value of --precision, or the form of a folder whose weights are
// quantised already.

#include <optional>

#include "folders/model_folder.h"
#include "passes/pipeline.h"
#include "passes/precision/precision.h"
#include "runtime/backend.h"

namespace brrr::infer {

struct RunPrecision {
  Precision name = Precision::fp32;
  DType dtype = DType::f32;
  WeightQuantization quantization = {};
};

/// The form that --precision names, for all weights.
RunPrecision run_precision(Precision precision);
/// The form of a folder with quantised weights: its own integers on a CPU, and bf16 on a GPU, which
/// multiplies no integers. Nothing for other folders.
std::optional<RunPrecision> own_precision(const io::ModelFolder& model, const Backend& backend);

/// The same for made-up weights, which are floats, neither blocks nor integers of a file.
RunPrecision for_made_weights(RunPrecision precision);

}  // namespace brrr::infer
