#pragma once
// A model on disk: config.json, weights and a tokenizer in one folder. What a run writes,
// what a checkpoint holds and what Hugging Face publishes are all such folders.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "folders/generation_settings.h"
#include "folders/quantized/compressed_tensors.h"
#include "folders/weights.h"
#include "models/model.h"
#include "passes/weights/weight_choice.h"
#include "text/tokenizer.h"

namespace brrr::io {

struct ModelFolder {
  fs::path folder;
  models::ModelPtr definition;
  std::shared_ptr<const WeightList> weights;  // by the parameters' names, memory-mapped
  std::unique_ptr<Tokenizer> tokenizer;       // null: opened without one
  GenerationSettings generation;
  /// How the folder's weights are quantised; `weights` then makes f32 tensors of these parameters.
  std::optional<FolderQuantization> quantization;
  std::shared_ptr<const ParameterSet> quantized = {};
  bool has_lowest = false;  // reaches_lowest()

  /// How products read such weights by default: with the integers of the file, or, where our 4
  /// bits do not hold them (reaches_lowest), with 8 bits. Without `quantization` nothing is
  /// quantised.
  WeightQuantization own_quantization() const;

  /// Writes the f32 values of a parameter, which the folder must have.
  void read(std::string_view parameter, std::span<float> out) const;
};

/// Finds the folder that `name` means: a folder with config.json, or a file of one; a run folder
/// whose newest valid checkpoint has one; or a model of the Hugging Face Hub ("gpt2",
/// "openai-community/gpt2"), which is downloaded where the cache does not have it. Empty: the
/// newest run in runs/ that has a model. `on_damaged` gets a line for each damaged checkpoint that
/// was passed over.
fs::path find_model(const std::string& name,
                    const std::function<void(const std::string&)>& on_damaged = {});

/// Records size and checksum of every file that the folder's model is read from (weights, config,
/// tokenizer) in checksums.json, as a checkpoint's manifest does for its files.
void write_model_checksums(const fs::path& folder);
/// Before the model is written anew: a kill must not leave the checksums of other files.
void remove_model_checksums(const fs::path& folder);

/// The model that the folder's config.json describes; untied where its weights hold a head of their
/// own (has_other_head). Throws UserError as models::parse_config and WeightFiles do, and where the
/// checksum of config.json differs from checksums.json.
models::ModelPtr read_definition(const fs::path& folder);

/// Reads what a model is made of, without converting its weights. Throws UserError for the first
/// fault. Nothing is verified.
void check_readable(const fs::path& folder);

/// The tokenizer of a folder, or of one file, that a user named, verified as open_model() does.
std::unique_ptr<Tokenizer> open_tokenizer(const fs::path& path);

/// What to make of a model that is opened.
struct OpenOptions {
  /// The task instead of the one in config.json.
  std::optional<models::Task> task = std::nullopt;
  TaskHead head = TaskHead::of_files;
  /// Off: for what reads no text. The folder need not have a tokenizer.
  bool reads_tokenizer = true;
};

/// Opens it. Checkpoint folders, and models with checksums, are verified first. The tokenizer's
/// vocabulary must not exceed the model's. Throws UserError that names the file and what is wrong
/// with it.
ModelFolder open_model(const fs::path& folder, const OpenOptions& options = {});

}  // namespace brrr::io
