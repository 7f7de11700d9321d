#pragma once
// Opens what the user names as a model: a folder, a name of the Hugging Face Hub, a GGUF file, a
// PyTorch state dict, an ONNX file or a .brrr file.

#include <memory>
#include <optional>
#include <string>

#include "base/file.h"
#include "folders/model_folder.h"
#include "infer/room.h"
#include "infer/run_precision.h"
#include "machine/device.h"
#include "machine/memory_budget.h"
#include "passes/precision/precision.h"
#include "runtime/runnable.h"

namespace brrr::infer {

/// Finds the model's folder; damaged checkpoints that were passed over are named on stderr.
fs::path find_named_model(const std::string& name);
/// Finds and opens the model; damaged checkpoints that were passed over are named on stderr.
io::ModelFolder open_named_model(const std::string& name, const io::OpenOptions& options = {});

/// The adapters on a model for results: "poet", "judge=0.5".
std::vector<std::string> adapter_titles(const io::ModelFolder& model);
/// The model for results: "base", or "base with poet, judge=0.5".
std::string title_of(const io::ModelFolder& model);

/// The model as files for other runtimes have it (Model::exchange), without its tokenizer: one that
/// gives vectors of texts pools them as its folder says. Throws UserError where modules behind the
/// encoder make the vectors. Adapters are merged into the weights.
std::shared_ptr<const io::ModelFolder> open_exchange_model(
    const std::string& name, const std::vector<io::ChosenAdapter>& adapters = {});

/// What --precision says, or, where it is not given, the folder's own precision.
template <typename Options>
RunPrecision precision_of(const Options& o, const io::ModelFolder& model) {
  if (!o.has_precision())
    if (auto own = own_precision(model, machine::backend_for(o.device))) return *own;
  return run_precision(o.precision);
}

/// The memory that an inference with these options may use: --memory-limit, or what is available.
/// `advice`: what else than a lower precision reduces it, for the refusal.
template <typename Options>
Memory memory_of(const Options& o, const std::string& advice) {
  return {
      machine::memory_budget(o.device, o.memory_limit),
      (o.precision == Precision::fp32 ? "--precision bf16, " : "") + advice + ", a smaller model"};
}

/// Whether a word is the file of a module: by its ending, or one with silero's tensors.
bool is_module_file(const std::string& word);

/// The ONNX or .brrr file that a name means, and the folder that says how to use it: the file
/// itself, silero's .safetensors in a folder, or model.onnx or onnx/model.onnx of a folder without
/// other weights; "" where none is.
struct ModuleFiles {
  fs::path file, folder;
};
ModuleFiles module_files(const std::string& name);

struct NamedRunnable {
  std::shared_ptr<const Runnable> runnable;
  std::optional<RunPrecision> own;  // of a folder with quantised weights
};
/// Opens an ONNX or .brrr file (module_files), or a model's folder with the inputs and outputs that
/// its files for other runtimes have (Model::exchange). Throws UserError.
NamedRunnable open_runnable(const std::string& name, const std::string& device);

}  // namespace brrr::infer
