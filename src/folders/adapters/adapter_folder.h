#pragma once
// A folder with a low-rank adapter, as PEFT writes it: adapter_config.json and
// adapter_model.safetensors. Together with the model that it names as its base it stands for a
// model folder: open_model() and read_definition() read both. Brrr adds model_config.json, which
// says the labels of a head, and the tokenizer; the metadata of the tensors' file record a
// fingerprint of the base's weights.

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "folders/adapters/adapter_config.h"
#include "folders/model_folder.h"

namespace brrr::io {

/// The model that an adapter was trained over.
struct AdapterBase {
  std::string name = {};         // a folder, or a name of the Hub
  std::string fingerprint = {};  // "": not known
};

/// The last part of a path: "poet" of "adapters/poet/".
std::string last_part(const fs::path& folder);

/// A checksum of the names, shapes and dtypes of the base's weights and of a sample of their bytes,
/// heads of tasks left out. It tells models and versions of them apart and reads up to 64 KiB of
/// each tensor. Tensors that are computed when they are read, such as those of quantised files, are
/// sampled up to 2^28 elements in all; further ones count by name, dtype and shape.
std::string fingerprint_of(const WeightSource& weights, const models::Model& base);
/// The same checksum over all tensors of a model, including those of heads and adapters and all
/// computed ones.
std::string fingerprint_of_all(const WeightList& weights);

/// Reads the name and the fingerprint of the base that an adapter's folder records.
AdapterBase base_of_adapter(const fs::path& folder);
/// The base of a model that is opened for training.
AdapterBase base_of_model(const ModelFolder& model);

/// open_model() for the folder of an adapter.
ModelFolder open_adapter_folder(const fs::path& folder, const OpenOptions& options);
/// open_model() for a plain model with OpenOptions::adapters, the first of which may bring a head.
ModelFolder open_with_adapters(const fs::path& folder, const OpenOptions& options);
/// Whether the folder of an adapter brings a tokenizer.
bool has_tokenizer(const fs::path& folder);
/// The folder of the adapter's base.
fs::path base_folder(const fs::path& adapter);
/// read_definition() and open_weights() for the folder of an adapter. `base`: the folder of the
/// base, if it is not where the adapter says.
models::ModelPtr read_adapter_definition(const fs::path& folder, const fs::path& base = {});
std::shared_ptr<const WeightList> open_adapter_weights(const fs::path& folder,
                                                       const models::Model& model,
                                                       const fs::path& base = {});
/// Whether `base` holds the weights that the adapter was trained over, by the fingerprint that the
/// adapter records. True if it records none.
bool is_base_of(const fs::path& adapter, const fs::path& base);

/// Puts adapters on an open model. `head`: fresh if the model has another task than the adapters
/// were trained for. Warns on standard error if an adapter was trained over another base.
ModelFolder with_adapters(ModelFolder base, std::span<const ChosenAdapter> adapters,
                          TaskHead head = TaskHead::of_files);

/// Merges the adapters into the base: returns a plain model whose weights are W + s B A, computed
/// when they are read. Returns a model without adapters unchanged.
ModelFolder merged(ModelFolder model);

/// Writes adapter_config.json, adapter_model.safetensors and model_config.json into an existing
/// folder. `tensors` has every parameter that training changes (AdaptedModel::trained).
void write_adapter_files(const fs::path& folder, const models::AdaptedModel& model,
                         std::span<const TensorView> tensors, const TensorContent& content,
                         const AdapterBase& base);

}  // namespace brrr::io
