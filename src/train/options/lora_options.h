#pragma once
// The options of low-rank adapters (LoRA).

#include <string>
#include <vector>

#include "base/weight_source.h"
#include "passes/pipeline.h"
#include "train/options.h"

namespace brrr::train {

/// Appends the rows to the current group.
void add_lora_rows(OptionTable<TrainOptions>& table);
/// Fills what follows from the rank: alpha, targets and the learning rate.
void fill_lora(TrainOptions& options);
/// Throws UserError (exit 2) for options that do not go together.
void validate_lora(const TrainOptions& options);

/// Returns the model with the adapter that the options describe. A model that has an adapter keeps
/// it, and the parameters of its head and those that `weights` (if given) lacks are trained beside
/// it. Without --lora-r a plain model is returned unchanged. Throws UserError.
models::ModelPtr with_adapter(const TrainOptions& options, models::ModelPtr model,
                              const WeightSource* weights);

/// The integers that the adapted model is held in; 0 bits: floats.
Quantization quantization_of_base(const TrainOptions& options);

/// What a run says that trains an adapter further for another task; "" otherwise. `known`: the
/// model as the folder has it.
std::string other_task_note(const models::Model& known, const models::Model& model);

/// What a run says where --load-in-4bit or --load-in-8bit leaves linear layers as floats, because
/// they are small; "" otherwise.
std::string kept_floats_note(const models::Model& model, const TrainOptions& options);

/// What a run says about its adapter; "" without one.
std::string adapter_line(const models::Model& model);

}  // namespace brrr::train
