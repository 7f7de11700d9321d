#pragma once
// The files of a quantised model's folder besides its integers.

#include <set>
#include <span>
#include <string>
#include <vector>

#include "folders/quantized/quantized_folder.h"
#include "models/model.h"

namespace brrr::io {

/// The linear layers that are kept, for the list "ignore" of quantization_config: every matrix of
/// the files that is neither quantised nor a table, and the head. Layers of the trunk are named so
/// that transformers finds them with and without the prefix of a task's class.
std::vector<std::string> kept_layers(const models::Model& model, const WeightSource& files,
                                     const std::set<std::string>& quantised);

/// Copies what a model folder is used by besides its weights and config.json: tokenizer, generation
/// settings, chat template, and the modules of sentence-transformers.
void copy_texts(const fs::path& from, const fs::path& to);

/// Writes model.safetensors, config.json with the quantization_config, checksums.json, and copies
/// of what the model at `from` is used by: tokenizer, generation settings, chat template, and the
/// modules of sentence-transformers.
void write_quantized_folder(const fs::path& to, const fs::path& from,
                            std::span<const TensorView> tensors,
                            const FolderQuantization& quantization);

}  // namespace brrr::io
