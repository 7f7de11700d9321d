#pragma once
// The tensors of adapter_model.safetensors by the names of a model's parameters. PEFT calls them
// base_model.model.MODULE.lora_A.weight [rank, in], ...lora_B.weight [out, rank], DoRA's
// ...lora_magnitude_vector [out], and trained copies base_model.model.PARAMETER.

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/file.h"
#include "base/weight_source.h"
#include "folders/weights.h"
#include "models/adapters/adapted_model.h"

namespace brrr::io {

/// The file with the tensors: adapter_model.safetensors, or adapter_model.bin where only that
/// exists.
fs::path adapter_file(const fs::path& folder);
/// Opens it. Nothing of a pickle is run (formats/pickle/). Throws UserError for a damaged file.
std::shared_ptr<const WeightSource> open_adapter_file(const fs::path& folder);

struct AdapterTensors {
  models::Adapter adapter;
  std::shared_ptr<const WeightSource> file;
  /// Views of the file; a magnitude is called magnitude_name().
  std::map<std::string, TensorView, std::less<>> by_parameter;
};

/// Reads the folder's configuration and finds its tensors. `name`: Adapter::name. With
/// TaskHead::fresh the model has another task than the adapter was trained for, and what the
/// adapter has for its own head is passed over. Throws UserError for tensors that do not belong to
/// a layer of the model, or have another shape or rank (named, up to ten).
AdapterTensors read_adapter_tensors(const fs::path& folder, const models::Model& base,
                                    const std::string& name, TaskHead head = TaskHead::of_files);

/// The model below the adapter in `folder`. Where `base` ties its head to the table of embeddings
/// and the adapter has a trained copy of one of them, or of both with different values, the head is
/// a parameter of its own, as in PEFT; its values in the base are those of the table.
models::ModelPtr model_below(const fs::path& folder, models::ModelPtr base);

std::string magnitude_name(const models::LinearLayer& layer);
bool is_magnitude(std::string_view name);

/// The name of a trained parameter in an adapter's file.
std::string name_in_peft(std::string_view parameter, const models::Model& base);

}  // namespace brrr::io
