// A model that a run starts from brings its shape and its tokenizer.

#include <algorithm>

#include "train/dataset_tokenizer.h"
#include "train/options/lora_options.h"
#include "train/trainer.h"

namespace brrr::train {
void check_architecture(const TrainOptions& o, const models::Model& model,
                        const std::string& folder) {
  const std::string& architecture = model.architecture().name;
  if (o.was_given("architecture") && o.architecture != architecture)
    usage_error("--architecture {}: the model in {} is of the architecture {}", o.architecture,
                folder, architecture);
}

void adopt_definition(TrainOptions& o, const models::Model& model, const std::string& folder) {
  const std::string& architecture = model.architecture().name;
  check_architecture(o, model, folder);
  const KeyValues settings = model.settings();
  const auto check = [&](const std::string& name, const std::string& asked,
                         const std::string& has) {
    if (asked != has)
      usage_error("--init-from: {} has {} = {}; got {}. Leave --{} out: the model defines it",
                  folder, name, has, asked, name);
  };
  for (const auto& [name, value] : settings)
    if (o.was_given(name)) check(name, o.model_settings[name], value);
  for (const auto& [name, value] : o.model_settings)
    if (o.was_given(name) && model.architecture().find_option(name) == nullptr)
      usage_error("--{}: the model in {} is of the architecture {}, which has no such option", name,
                  folder, architecture);
  const models::ModelSizes sizes = model.sizes();
  if (o.was_given("vocab-size") && o.vocab_size != 0)
    check("vocab-size", std::to_string(o.vocab_size), std::to_string(sizes.vocabulary));
  if (o.context > sizes.context)
    usage_error("--context {} is longer than the {} positions of {}: use --context {} or less",
                o.context, sizes.context, folder, sizes.context);
  o.architecture = architecture;
  o.model_settings = {settings.begin(), settings.end()};
}

void adopt_architecture(TrainOptions& o, const io::ModelFolder& model) {
  const std::string folder = model.folder.string();
  // With dropout, log probabilities would differ from the reference's before anything is learnt.
  if (!o.was_given("dropout"))
    o.dropout = traits_of(o).has_reference ? 0 : model.definition->dropout();
  if (o.was_given("tokenizer") && !model.tokenizer)
    usage_error("--tokenizer {}: the model in {} sees pictures and has no tokenizer", o.tokenizer,
                folder);
  if (o.was_given("tokenizer") && !asks_for(o.tokenizer, *model.tokenizer))
    usage_error(
        "--init-from: the tokenizer of {} ({} of {}) is not --tokenizer {}; leave it out: the "
        "model brings its own",
        folder, model.tokenizer->kind(), model.tokenizer->vocab_size(), o.tokenizer);
  if (!o.was_given("context")) o.context = std::min(o.context, model.definition->sizes().context);
  if (model.definition->adapted() != nullptr) fill_for_started_adapter(o);
  check_min_lr(o);
  adopt_definition(o, *model.definition, folder);
}

models::ModelPtr to_start_from(const io::ModelFolder& model, const TrainOptions& o) {
  const models::ModelPtr definition = o.was_given("dropout") || traits_of(o).has_reference
                                          ? model.definition->with_dropout(o.dropout)
                                          : model.definition;
  return with_adapter(o, definition, model.weights.get(), model.quantized.get());
}

std::string quantization_note(const io::ModelFolder& model) {
  if (!model.quantization) return "";
  return fmt::format(
      "the weights of {} are quantised ({}): they are trained as floats, from the values that "
      "their integers stand for, and the result can be quantised with `brrr quantize`",
      model.folder.string(), io::description(*model.quantization));
}

std::string preset_note(const TrainOptions& o, const io::ModelFolder& model) {
  if (!o.was_given("preset")) return "";
  KeyValues choices;  // the options that choose the defaults of fine-tuning
  for (const char* name : {"task", "init-from", "optim", "lora-r"})
    if (o.was_given(name)) choices.emplace_back(name, train_option_table().find(name).get(o)[0]);
  TrainOptions usual = resolve_unchecked(choices);
  usual.context = std::min(usual.context, model.definition->sizes().context);
  if (model.definition->adapted() != nullptr) fill_for_started_adapter(usual);
  std::vector<std::string> changed;
  for (const char* name : {"learning-rate", "context"}) {
    const auto& row = train_option_table().find(name);
    const std::string now = row.get(o)[0], before = row.get(usual)[0];
    if (!o.was_given(name) && now != before)
      changed.push_back(fmt::format("--{} {} (fine-tuning: {})", name, now, before));
  }
  if (changed.empty()) return "";
  return fmt::format(
      "--preset {} brings {}; {}the sizes come from {}", o.preset, fmt::join(changed, " and "),
      o.was_given("dropout") ? "" : fmt::format("dropout {} and ", model.definition->dropout()),
      model.folder.string());
}

std::string description(const io::ModelFolder& model) {
  const models::ModelSizes sizes = model.definition->sizes();
  return fmt::format("{} ({}, {:.2f}M parameters, {})", model.folder.string(),
                     model.definition->architecture().name,
                     1e-6 * static_cast<double>(model.definition->parameter_count()),
                     sizes.picture ? fmt::format("pictures of {} x {}", sizes.picture->height,
                                                 sizes.picture->width)
                                   : fmt::format("context {}", sizes.context));
}

}  // namespace brrr::train
