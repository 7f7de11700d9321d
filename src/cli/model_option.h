#pragma once
// The --model option of the verbs that use a model.

#include <string>

#include "base/options.h"
#include "folders/model_folder.h"
#include "infer/room.h"
#include "infer/run_precision.h"
#include "machine/device.h"
#include "train/fit.h"

namespace brrr::cli {

/// What a verb reads besides a model.
enum class AlsoReads { nothing, prompt_file, text, text_or_shards };
/// Adds the words that stand alone on a command line to the options that were given: a folder, a
/// file of a model or a name is --model, another file is what the verb reads. Throws UserError
/// (exit 2) for a second model.
KeyValues with_words(const Arguments& args, AlsoReads reads);

/// Throws UserError for a model for pictures, which the verb cannot take. `what` is what is not
/// done with it: "quantised".
void refuse_pictures(const models::Model& model, const fs::path& folder, const char* what);

/// Finds the model's folder; damaged checkpoints that were passed over are named on stderr.
fs::path find_named_model(const std::string& name);
/// Finds and opens the model; damaged checkpoints that were passed over are named on stderr.
io::ModelFolder open_named_model(const std::string& name, const io::OpenOptions& options = {});

/// The model as files for other runtimes have it (Model::exchange), without its tokenizer: one that
/// gives vectors of texts pools them as its folder says. Throws UserError where modules behind the
/// encoder make the vectors.
std::shared_ptr<const io::ModelFolder> open_exchange_model(const std::string& name);

using infer::RunPrecision;
/// What --precision says, or, where it is not given, the folder's own precision.
template <typename Options>
RunPrecision precision_of(const Options& o, const io::ModelFolder& model) {
  if (!o.has_precision())
    if (auto own = infer::own_precision(model, machine::backend_for(o.device))) return *own;
  return infer::run_precision(o.precision);
}

/// What an inference with these options may take, --memory-limit or what there is; `advice` says
/// what makes it take less besides a lower precision.
template <typename Options>
infer::Memory memory_of(const Options& o, const std::string& advice) {
  return {
      machine::memory_budget(o.device, o.memory_limit),
      (o.precision == Precision::fp32 ? "--precision bf16, " : "") + advice + ", a smaller model"};
}

}  // namespace brrr::cli
