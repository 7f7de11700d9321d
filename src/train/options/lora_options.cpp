#include "train/options/lora_options.h"

#include <algorithm>

#include "base/blocks/four_bit.h"
#include "base/human.h"
#include "base/memory.h"
#include "folders/quantized/base_forms.h"
#include "runtime/engine.h"
#include "train/tasks/picture_data.h"

namespace brrr::train {
namespace {

constexpr int64_t kMostRank = int64_t{1} << 20;
constexpr const char* kIntegers = "int4";  // the default of --load-in-4bit-type

bool is_none(const std::string& text) {
  return text == "off" || text == "none" || text == "null" || text == "false" || text == "no";
}

}  // namespace

void add_lora_rows(OptionTable<TrainOptions>& t) {
  using O = TrainOptions;
  t.parsed<int64_t>(
      "lora-r", &O::lora_r,
      [](const std::string& s) { return is_none(s) ? 0 : parse_integer(s, 1, kMostRank); },
      [](const int64_t& r) { return r == 0 ? std::string("off") : std::to_string(r); }, "N",
      "with --init-from: train a low-rank adapter of this rank (LoRA, Hu et al. 2021) and leave "
      "the model as it is; the run's folder holds the adapter, as PEFT writes it. The default "
      "learning rate is then 10 times as high (Schulman et al. 2025, LoRA Without Regret), and so "
      "it is with --init-from the folder of an adapter, which is trained further",
      {"lora-rank"});
  t.parsed<double>(
      "lora-alpha", &O::lora_alpha,
      [](const std::string& s) {
        return s == "auto" || is_none(s) ? 0
                                         : parse_real(s, {.low = 0, .high = 1e9, .low_open = true});
      },
      [](const double& x) { return x == 0 ? std::string("auto") : show_real(x); }, "X",
      "the adapter's output is multiplied by this over the rank (default: twice the rank)");
  t.real("lora-dropout", &O::lora_dropout, {.low = 0, .high = 0.999}, "P",
         "probability of dropping an input of the adapter");
  t.list(
      "lora-targets", &O::lora_targets, true, "NAME...",
      "linear layers to adapt: all-linear (all but the head), the last parts of their names such "
      "as q_proj, or a regular expression for whole names (default: all-linear)",
      {"lora-target-modules"});
  t.flag("rslora", &O::rslora,
         "divide alpha by the square root of the rank, not by the rank (Kalajdzievski 2023)",
         {"use-rslora"});
  t.flag(
      "load-in-4bit", &O::load_in_4bit,
      "hold the linear layers of the base model in 4 bits (QLoRA, Dettmers et al. 2023); a "
      "folder or GGUF file that is quantised already keeps its own integers without this option");
  t.choice("load-in-4bit-type", &O::load_in_4bit_type, {{"int4"}, {"nf4"}, {"fp4"}}, "TYPE",
           "number format of the 4 bits: int4 is integers with a scale per 32 inputs; nf4 and fp4 "
           "are those of bitsandbytes, with a scale per 64",
           {"bnb-4bit-quant-type", "quantization-type"});
  t.flag("load-in-8bit", &O::load_in_8bit,
         "hold the linear layers of the base model in 8 bits, with a scale per output");
  t.list(
      "lora-modules-to-save", &O::lora_modules_to_save, true, "NAME...",
      "modules to train as a whole beside the adapter, such as lm_head; the head of a task always "
      "is",
      {"additional-target"});
}

namespace {

/// Multiplies the default learning rate by 10, for adapters. A rate that was given stays.
void raise_learning_rate(TrainOptions& o) {
  constexpr double kFaster = 10;
  if (!o.was_given("learning-rate"))
    o.learning_rate = parse_real(fmt::format("{:.3g}", o.learning_rate * kFaster), {});
}

}  // namespace

void fill_lora(TrainOptions& o) {
  if (o.lora_r == 0) return;
  if (o.lora_alpha == 0) o.lora_alpha = 2 * static_cast<double>(o.lora_r);
  if (o.lora_targets.empty()) o.lora_targets = {"all-linear"};
  raise_learning_rate(o);
}

void fill_for_started_adapter(TrainOptions& o) {
  const bool follows = !o.was_given("min-lr") && o.min_lr == default_min_lr(o);
  raise_learning_rate(o);
  if (follows) o.min_lr = default_min_lr(o);
}

namespace {

const char* name_of_integers(const TrainOptions& o) {
  return o.load_in_4bit ? "load-in-4bit" : "load-in-8bit";
}

void refuse_integers_without_adapter(const TrainOptions& o) {
  if (o.load_in_4bit || o.load_in_8bit)
    usage_error(
        "--{} holds the model below an adapter in integers, which are not trained themselves: it "
        "needs --lora-r, or --init-from the folder of an adapter",
        name_of_integers(o));
}

void refuse_integers_for_pictures(const TrainOptions& o) {
  if (learns_pictures(o) && (o.load_in_4bit || o.load_in_8bit))
    usage_error(
        "--{}: convolutions are not held in integers while an adapter is trained, so that it would "
        "save nothing with --task images; leave it out",
        name_of_integers(o));
}

/// Refuses --freeze and --qat, which concern weights that an adapter leaves alone.
void refuse_changes_of_base(const TrainOptions& o) {
  if (!o.freeze.empty())
    usage_error(
        "an adapter leaves all of the model as it is but for the modules that are saved whole: "
        "leave --freeze {} out",
        fmt::join(o.freeze, ","));
  if (o.qat != "none")
    usage_error("--qat {} rounds weights that are trained, and an adapter leaves them as they are",
                o.qat);
}

}  // namespace

void validate_lora(const TrainOptions& o) {
  if (o.load_in_4bit && o.load_in_8bit)
    usage_error("expected --load-in-4bit or --load-in-8bit, not both");
  if (o.load_in_4bit_type != kIntegers && !o.load_in_4bit)
    usage_error("--load-in-4bit-type {} chooses a format for --load-in-4bit: add --load-in-4bit",
                o.load_in_4bit_type);
  const auto refuse = [&](const char* option) {
    usage_error("--{} describes an adapter: it needs --lora-r", option);
  };
  if (o.lora_r == 0) {
    if (o.wants_resume()) return;
    if (o.lora_alpha != 0) refuse("lora-alpha");
    if (o.lora_dropout != 0) refuse("lora-dropout");
    if (!o.lora_targets.empty()) refuse("lora-targets");
    if (o.rslora) refuse("rslora");
    if (!o.lora_modules_to_save.empty()) refuse("lora-modules-to-save");
    // A folder to start from may be an adapter's: with_adapter() looks at it.
    if (o.init_from == "scratch") refuse_integers_without_adapter(o);
    refuse_integers_for_pictures(o);
    return;
  }
  refuse_integers_for_pictures(o);
  if (o.init_from == "scratch" && !o.wants_resume())
    usage_error("--lora-r adapts a trained model: it needs --init-from FOLDER");
  refuse_changes_of_base(o);
}

models::ModelPtr with_adapter(const TrainOptions& o, models::ModelPtr model,
                              const WeightSource* weights, const ParameterSet* quantized) {
  std::set<std::string> fresh;
  for (const models::ParameterInfo& p : model->parameters())
    if (!p.is_buffer && weights != nullptr && weights->find(p.name) == nullptr)
      fresh.insert(p.name);
  if (const models::AdaptedModel* adapted = model->adapted()) {
    if (o.lora_r > 0)
      usage_error(
          "--lora-r: the model in {} is an adapter already; leave --lora-r out to train it "
          "further, or merge it into a model first (`brrr merge`)",
          o.init_from);
    refuse_changes_of_base(o);
    std::vector<models::Adapter> adapters = adapted->adapters();
    // With dropout, log probabilities would differ from the reference's before anything is learnt.
    if (traits_of(o).has_reference) adapters.front().dropout = 0;
    for (const models::Adapter& adapter : adapters)
      for (const models::AdaptedLayer& layer : adapter.layers)
        if (layer.has_factor)
          user_error(
              "--init-from {}: an adapter with DoRA is used, not trained: merge it into a model "
              "first (`brrr merge`)",
              o.init_from);
    adapters.front().saved.insert(fresh.begin(), fresh.end());
    // The head of a task is always trained.
    for (const models::ParameterInfo& p : model->parameters())
      if (p.part == models::Part::head && !model->task().labels.empty() &&
          std::ranges::none_of(adapters.front().layers, [&](const models::AdaptedLayer& layer) {
            return layer.layer.weight == p.name;
          }))
        adapters.front().saved.insert(p.name);
    return std::make_shared<models::AdaptedModel>(adapted->base(), std::move(adapters),
                                                  adapted->forms());
  }
  if (o.lora_r == 0) {
    refuse_integers_without_adapter(o);
    return model;
  }
  const models::AdapterRequest request{.rank = o.lora_r,
                                       .alpha = o.lora_alpha,
                                       .dropout = o.lora_dropout,
                                       .rslora = o.rslora,
                                       .targets = o.lora_targets,
                                       .saved = o.lora_modules_to_save};
  models::Adapter adapter = models::make_adapter(*model, request, fresh);
  BaseForms forms;
  if (weights != nullptr) forms = io::forms_of_files(*weights, quantized);
  return std::make_shared<models::AdaptedModel>(std::move(model), std::vector{std::move(adapter)},
                                                std::move(forms));
}

namespace {

/// Storage of the blocks that --load-in-4bit-type asks for; nothing for integers.
std::optional<Storage> blocks_asked_for(const TrainOptions& o) {
  if (!o.load_in_4bit || o.load_in_4bit_type == kIntegers) return std::nullopt;
  return storage_from_name(o.load_in_4bit_type == "nf4" ? blocks::kNf4Storage
                                                        : blocks::kFp4Storage);
}

/// Whether the files hold a weight in the form that the options ask for.
bool is_asked_for(const TrainOptions& o, const BaseForm& form) {
  if (!o.load_in_4bit && !o.load_in_8bit) return true;
  if (const auto blocks = blocks_asked_for(o)) return form.storage == blocks;
  return form.storage && form.storage->is_quantized() &&
         form.storage->quantized.bits == quantization_of_base(o).bits;
}

}  // namespace

std::shared_ptr<const models::AdaptedModel> with_base_held(const TrainOptions& o,
                                                           const models::Model& model) {
  const models::AdaptedModel* const adapted = model.adapted();
  if (adapted == nullptr) return nullptr;
  BaseForms forms;
  for (const auto& [name, form] : adapted->forms())
    if (is_asked_for(o, form)) forms.emplace(name, form);
  if (const auto blocks = blocks_asked_for(o))
    for (const models::ParameterInfo& p : adapted->base()->parameters())
      if (p.shape.rank() == 2) forms.try_emplace(p.name, BaseForm{blocks, "", true});
  return std::make_shared<models::AdaptedModel>(adapted->base(), adapted->adapters(),
                                                std::move(forms));
}

std::string float_base_note(const TrainOptions& o, const models::Model& model,
                            const Engine& engine) {
  constexpr size_t kMostNames = 5;
  const models::AdaptedModel* const adapted = model.adapted();
  if (adapted == nullptr) return "";
  std::set<std::string> wanted;
  for (const auto& [name, form] : adapted->forms()) wanted.insert(name);
  if (o.load_in_4bit || o.load_in_8bit)
    for (const models::AdaptedLayer& layer : adapted->adapters().front().layers)
      wanted.insert(layer.layer.weight);
  std::vector<std::string> names;
  int64_t bytes = 0;
  bool is_any_quantized = false;
  for (const StateInfo& state : engine.states()) {
    if (state.type.storage.is_quantized() || state.type.storage.is_blocks()) {
      is_any_quantized = true;
      continue;
    }
    // The name of a derived weight begins with its parameter's (derived_weight.h).
    const std::string name = state.name.substr(0, state.name.find(':'));
    if (!wanted.contains(name)) continue;
    if (names.empty() || names.back() != name) names.push_back(name);
    bytes += state.type.bytes();
  }
  if (names.empty()) return "";
  const size_t count = names.size();
  if (count > kMostNames) names.resize(kMostNames);
  return fmt::format(
      "{}{} of the base {} held as floats, {}: {}{}. Quantised are matrices of at least {} "
      "elements, {} rows and {} columns that only matrix products read and whose rows are a "
      "multiple of the block or group",
      is_any_quantized ? "" : "no weight is quantised: ",
      counted(static_cast<int64_t>(count), "weight"), count == 1 ? "is" : "are", memory_text(bytes),
      fmt::join(names, ", "), count > kMostNames ? ", ..." : "",
      with_commas(kLeastQuantizedElements), kLeastQuantizedSize, kLeastQuantizedSize);
}

Quantization quantization_of_base(const TrainOptions& o) {
  if (blocks_asked_for(o)) return {};
  if (o.load_in_4bit) return quantization_of_precision(Precision::int4_weight_only);
  if (o.load_in_8bit) return quantization_of_precision(Precision::int8_weight_only);
  return {};
}

std::string other_task_note(const models::Model& known, const models::Model& model) {
  const models::Task was = known.task(), now = model.task();
  if (known.adapted() == nullptr || (was.head == now.head && was.labels == now.labels)) return "";
  constexpr size_t kMost = 5;
  const auto text = [](const models::Task& task) {
    return models::description(task.head) +
           (task.labels.empty() ? "" : fmt::format(" ({})", listed(task.labels, kMost)));
  };
  return fmt::format(
      "the adapter was trained for {}; its low-rank matrices are trained further for {}, with the "
      "head that this needs",
      text(was), text(now));
}

std::string adapter_line(const models::Model& model) {
  const models::AdaptedModel* adapted = model.adapted();
  if (adapted == nullptr) return "";
  const models::Adapter& adapter = adapted->adapters().front();
  int64_t low = adapter.layers.front().rank, high = low, saved = 0;
  for (const models::AdaptedLayer& layer : adapter.layers) {
    low = std::min(low, layer.rank);
    high = std::max(high, layer.rank);
  }
  for (const models::ParameterInfo& p : model.parameters())
    if (adapter.saved.contains(p.name)) saved += p.shape.elements();
  const auto trained = static_cast<double>(adapted->trained_count());
  const auto all = static_cast<double>(model.parameter_count());
  constexpr int64_t kFew = 1'000'000;
  const auto counts = [](int64_t n) {
    return n < kFew ? with_commas(n) : fmt::format("{:.2f}M", 1e-6 * static_cast<double>(n));
  };
  std::string line = fmt::format(
      "adapter: {} of {} parameters are trained ({:.2f}%): rank {} on {}",
      counts(adapted->trained_count()), counts(model.parameter_count()), 100 * trained / all,
      low == high ? std::to_string(low) : fmt::format("{} to {}", low, high),
      counted(std::ssize(adapter.layers), "linear layer"));
  if (saved > 0)
    line += fmt::format(", and {} as a whole ({})",
                        fmt::join(models::saved_modules(adapter.saved), ", "), counts(saved));
  return line;
}

}  // namespace brrr::train
