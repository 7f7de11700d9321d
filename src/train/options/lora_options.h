#pragma once
// The options of low-rank adapters (LoRA).

#include <string>
#include <vector>

#include "base/weight_source.h"
#include "models/adapters/adapted_model.h"
#include "passes/pipeline.h"
#include "train/options.h"

namespace brrr {
class Engine;
}

namespace brrr::train {

/// Appends the rows to the current group.
void add_lora_rows(OptionTable<TrainOptions>& table);
/// Fills what follows from the rank: alpha, targets and the learning rate.
void fill_lora(TrainOptions& options);
/// Fills the default learning rate of adapters, and the min_lr that follows from it, for a run that
/// trains the adapter in --init-from further.
void fill_for_started_adapter(TrainOptions& options);
/// Throws UserError (exit 2) for options that do not go together.
void validate_lora(const TrainOptions& options);

/// Returns the model with the adapter that the options describe. A model that has an adapter keeps
/// it, and the parameters of its head and those that `weights` (if given) lacks are trained beside
/// it. `quantized`: the parameters that the files hold as integers of any kind; null: unknown.
/// Without
/// --lora-r a plain model is returned unchanged. Throws UserError.
models::ModelPtr with_adapter(const TrainOptions& options, models::ModelPtr model,
                              const WeightSource* weights, const ParameterSet* quantized = nullptr);

/// The integers that --load-in-4bit or --load-in-8bit asks for; 0 bits: none, or NF4 or FP4.
Quantization quantization_of_base(const TrainOptions& options);
/// The model with the form of each base weight as the options choose: the integers of its files,
/// unless the options ask for others. Null for a model without adapters.
std::shared_ptr<const models::AdaptedModel> with_base_held(const TrainOptions& options,
                                                           const models::Model& model);

/// Names the base weights that a compiled run holds as floats although integers were asked for or
/// found, their bytes and the reason; "" where there are none.
std::string float_base_note(const TrainOptions& options, const models::Model& model,
                            const Engine& engine);

/// Returns the note of a run that trains an adapter further for another task, else "". `known`: the
/// model as the folder has it.
std::string other_task_note(const models::Model& known, const models::Model& model);

/// Returns the line of a run about the adapter that it trains; "" without one.
std::string adapter_line(const models::Model& model);

}  // namespace brrr::train
