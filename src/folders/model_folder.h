#pragma once
// A model on disk: config.json, weights and a tokenizer in one folder. What a run writes,
// what a checkpoint holds and what Hugging Face publishes are all such folders. A GGUF file holds
// all of it, and its path stands for a folder here.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "folders/generation_settings.h"
#include "folders/quantized/quantized_folder.h"
#include "folders/weights.h"
#include "models/model.h"
#include "passes/weights/weight_choice.h"
#include "text/tokenizer.h"

namespace brrr::io {

/// How pictures become the input of a model, as transformers' image processors write it.
inline constexpr const char* kPreprocessorConfig = "preprocessor_config.json";

struct AdapterBase;

struct ModelFolder {
  fs::path folder;
  models::ModelPtr definition;
  std::shared_ptr<const WeightList> weights;  // by the parameters' names, memory-mapped
  std::unique_ptr<Tokenizer> tokenizer;       // null: opened without one, or a model for pictures
  GenerationSettings generation;
  /// How the folder's weights are quantised; `weights` then makes f32 tensors of these parameters.
  std::optional<FolderQuantization> quantization;
  std::shared_ptr<const ParameterSet> quantized = {};
  /// The integers that products read by default, of a folder with a quantization.
  ProductIntegers products = {};
  std::string layout;  // QuantizedWeights::layout
  /// The parameters that a GGUF file has in blocks of integers; null: none.
  std::shared_ptr<const BlockParameters> blocks = {};
  /// The model that the adapters were trained over, of one with adapters; else null.
  std::shared_ptr<const AdapterBase> adapter_base = {};

  /// Whether the folder has weights in integers.
  bool has_integers() const { return quantization || blocks; }
  /// How products read such weights by default: as product_integers() says. Blocks are read with 8
  /// bits in groups of 32. Without integers nothing is quantised.
  WeightQuantization own_quantization() const;

  /// Writes the f32 values of a parameter, which the folder must have.
  void read(std::string_view parameter, std::span<float> out) const;
};

/// Finds the folder that `name` means: a folder with config.json, or a file of one; a GGUF file,
/// which stands for a folder; a run folder
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
/// `base`: where the base of an adapter is, if not where the adapter says.
models::ModelPtr read_definition(const fs::path& folder, const fs::path& base = {});

/// Whether a folder's weights, or those of a GGUF file, are integers: ModelFolder::has_integers().
bool holds_integers(const fs::path& folder);

/// Reads what a model is made of, without converting its weights. Throws UserError for the first
/// fault. Nothing is verified. `base`: as for read_definition().
void check_readable(const fs::path& folder, const fs::path& base = {});

/// The tokenizer of a folder, or of one file, that a user named, verified as open_model() does.
std::unique_ptr<Tokenizer> open_tokenizer(const fs::path& path);

/// An adapter to put on a model (folders/adapters/adapter_folder.h).
struct ChosenAdapter {
  fs::path folder;
  double weight = 1;  // a further factor of its scale
  /// What the user calls it: models::Adapter::title. "": the name of its folder.
  std::string name = {};
};
/// Reads "[NAME=]FOLDER[=WEIGHT]". Throws UserError (exit 2).
ChosenAdapter parse_adapter(const std::string& text);
std::vector<ChosenAdapter> parse_adapters(const std::vector<std::string>& texts);

/// What to make of a model that is opened.
struct OpenOptions {
  /// The task instead of the one in config.json.
  std::optional<models::Task> task = std::nullopt;
  TaskHead head = TaskHead::of_files;
  /// Off: for what reads no text. The folder need not have a tokenizer. On, a model for pictures is
  /// refused.
  bool reads_tokenizer = true;
  /// On top of the model, which may have one already.
  std::vector<ChosenAdapter> adapters = {};
};

/// Opens it. Checkpoint folders, and models with checksums, are verified first. The tokenizer's
/// vocabulary must not exceed the model's. Throws UserError that names the file and what is wrong
/// with it.
ModelFolder open_model(const fs::path& folder, const OpenOptions& options = {});

}  // namespace brrr::io
