#pragma once
// The tensors of model.safetensors, for writers other than write_model_files() (folders/weights.h).

#include <cstddef>
#include <span>
#include <vector>

#include "folders/weights.h"

namespace brrr::io {

struct ModelTensors {
  std::vector<TensorView> tensors;  // those without bytes are the given ones
  std::vector<std::byte> zeros;     // what the others are views of
  Metadata metadata;
  DType stored = DType::f32;  // as config.json says
};

/// `tensors` are exactly the model's parameters, in any order, with or without bytes.
ModelTensors model_tensors(const models::Model& model, std::span<const TensorView> tensors);

void write_model_config(const fs::path& folder, const models::Model& model, DType stored);

}  // namespace brrr::io
