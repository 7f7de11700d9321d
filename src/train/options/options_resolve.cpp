// Layers of options, their validation, and their records (JSON, TOML).
#include <algorithm>
#include <set>

#include "base/human.h"
#include "data/images/augment.h"
#include "data/labelled/metrics.h"
#include "formats/json_file.h"
#include "train/options.h"
#include "train/options/evaluation_options.h"
#include "train/options/foreign_names.h"
#include "train/options/lora_options.h"
#include "train/options/option_layer.h"
#include "train/options/preference_options.h"
#include "train/options/rank_options.h"
#include "train/options/row_folder.h"

namespace brrr::train {
namespace {

using Row = OptionTable<TrainOptions>::Row;
using OrderedJson = nlohmann::ordered_json;

const models::Architecture& architecture_of_preset(const std::string& name) {
  for (const models::Architecture* a : models::all_architectures())
    for (const models::Preset& preset : a->presets)
      if (preset.name == name) return *a;
  check_failed(__FILE__, __LINE__, "preset exists", name);
}

/// A setting that only other architectures have; "" when there is none.
std::string foreign_setting(const TrainOptions& o) {
  for (const auto& [name, value] : o.model_settings)
    if (is_foreign_setting(name, o)) return name;
  return "";
}

double rounded(double x, int digits) { return parse_real(fmt::format("{:.{}g}", x, digits), {}); }

// Presets are written for AdamW, unless they name another optimizer; with these other numbers are
// usual.
void fill_for_optimizer(TrainOptions& o) {
  for (const auto& [name, value] : find_preset(o.preset).values)
    if (name == "optim" && value == o.optim) return;
  const auto fill_in = [&](const char* name, double& field, double value) {
    if (!o.was_given(name)) field = value;
  };
  if (o.optim == "lion") {  // Chen et al. 2023, section 5: a third to a tenth, and the inverse
    fill_in("learning-rate", o.learning_rate, rounded(o.learning_rate / 3, 3));
    fill_in("weight-decay", o.weight_decay, rounded(o.weight_decay * 3, 3));
    fill_in("adam-beta2", o.adam_beta2, 0.99);
  } else if (o.optim == "sgd") {
    fill_in("learning-rate", o.learning_rate, 0.1);
    fill_in("weight-decay", o.weight_decay, 0);
  } else if (o.optim == "adafactor") {
    fill_in("weight-decay", o.weight_decay, 0);
    if (!o.was_given("relative-step")) o.relative_step = !o.was_given("learning-rate");
  }
}

// Once for each pass over the data is a share of all steps.
void fill_intervals(TrainOptions& o) {
  const auto fill_in = [&](const char* strategy, double& field) {
    if (field != kEachEpoch) return;
    if (o.max_steps > 0 || o.num_train_epochs <= 0)
      usage_error(
          "--{}: expected steps or no, or epoch with --num-train-epochs and without --max-steps; "
          "got 'epoch'",
          strategy);
    field = o.num_train_epochs > 1 ? 1 / o.num_train_epochs : 0;
  };
  fill_in("eval-strategy", o.eval_steps);
  fill_in("save-strategy", o.save_steps);
  fill_in("logging-strategy", o.logging_steps);
  if (o.save_steps < 0) o.save_steps = o.eval_steps;
}

void fill(TrainOptions& o) {
  fill_preferences(o);
  if (!o.wants_resume()) {  // else in merge_for_resume(), which knows the task and the data
    fill_row_folder(o);
    fill_evaluation(o);
  }
  fill_for_optimizer(o);
  fill_lora(o);
  for (const auto& [name, value] : models::find_architecture(o.architecture).defaults())
    o.model_settings.emplace(name, value);
  if (o.min_lr < 0) o.min_lr = default_min_lr(o);
  if (o.was_given("num-train-epochs") && o.num_train_epochs > 0 && !o.was_given("max-steps"))
    o.max_steps = 0;
  fill_intervals(o);
  if (traits_of(o).packs && !o.was_given("pack")) o.pack = "documents";
  if (o.pack == "documents" && !learns_labels(o) && !o.was_given("sampling"))
    o.sampling = "documents";
  if (o.data_seed < 0) o.data_seed = o.seed;
  const io::Augment recipe = learns_pictures(o) ? io::augment_from_name(o.augment) : io::Augment{};
  if (o.random_operations < 0) o.random_operations = recipe.random_operations;
  if (o.random_erasing < 0) o.random_erasing = recipe.erase;
  // The task of a resumed run stands in its record.
  if (!learns_labels(o) && !o.wants_resume() && o.metric_for_best_model == "loss")
    o.metric_for_best_model.clear();
  if (o.eval_batch_size == 0) o.eval_batch_size = o.batch_size;
  // Shards bring their tokenizer; a tokenizer brings its vocabulary.
  const bool learns_tokenizer = learns_labels(o) && o.init_from == "scratch" && !learns_pictures(o);
  if ((!o.data.empty() || learns_pictures(o)) && !learns_tokenizer && !o.was_given("tokenizer"))
    o.tokenizer.clear();
  if (o.was_given("tokenizer") && !o.was_given("vocab-size")) o.vocab_size = 0;
}

OrderedJson value_of(const Row& row, const TrainOptions& options) {
  const std::vector<std::string> items = row.get(options);
  switch (row.kind) {
    case OptionKind::kFlag:
      return items[0] == "true";
    case OptionKind::kInteger:
      return parse_integer(items[0], std::numeric_limits<int64_t>::min(),
                           std::numeric_limits<int64_t>::max());
    case OptionKind::kReal:
      return parse_real(items[0], {});
    case OptionKind::kList:
      return items;
    default:
      return items[0];
  }
}

std::string with_underscores(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::string toml_string(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      result.append({'\\', c});
    else if (byte < 0x20 || byte == 0x7f)
      result += fmt::format("\\u{:04X}", byte);
    else
      result += c;
  }
  return result + "\"";
}

constexpr const char* kNanoGpt = "gpt2";
/// The default architecture for pictures.
constexpr const char* kPictures = "resnet";
/// The architecture that learns labels of texts from scratch, and the preset for that.
constexpr const char *kRecurrent = "lstm", *kRecurrentTexts = "text-lstm";

/// Whether an option's value is not its default. A file may name every option, so that an option
/// was given says less.
bool is_set(const TrainOptions& o, const char* name) {
  const Row& row = train_option_table().find(name);
  TrainOptions usual;
  usual.random_operations = 0;  // as they are filled
  usual.random_erasing = 0;
  return row.get(o) != row.get(usual);
}

bool has_picture_architecture(const TrainOptions& o) {
  return models::find_architecture(o.architecture).head == models::Head::classes;
}

void validate_pictures(const TrainOptions& o) {
  if (o.preset == kFineTunePictures && o.init_from == "scratch")
    usage_error(
        "--preset {} trains a model further: it needs --init-from FOLDER; --preset {} begins a new "
        "one",
        kFineTunePictures, models::find_architecture(kPictures).presets.front().name);
  if (o.was_given("tokenizer"))
    usage_error("--tokenizer is for text: --task images reads pictures; leave it out");
  if (o.was_given("context") && o.context != 1)
    usage_error(
        "--context is for text: --task images reads pictures, whose size is --image-size; leave it "
        "out");
  if (o.init_from == "scratch" && !has_picture_architecture(o))
    usage_error("--task images needs a model for pictures, such as --architecture {}; got {}",
                kPictures, o.architecture);
  if (o.data.size() > 1 || o.val_data.size() > 1)
    usage_error("--task images takes one path for --{}; got {}",
                o.data.size() > 1 ? "data" : "val-data",
                o.data.size() > 1 ? o.data.size() : o.val_data.size());
}

/// Refuses an architecture that does not learn the labels of texts from scratch.
void validate_labelled_start(const TrainOptions& o) {
  if (o.init_from != "scratch") return;
  if (o.architecture != kRecurrent)
    usage_error(
        "--task {} starts from a trained model: expected --init-from FOLDER, or --architecture {}, "
        "which learns it from scratch",
        o.task, kRecurrent);
  if (traits_of(o).labels == io::LabelKind::kTags)
    usage_error("--task {} needs an encoder: expected --init-from FOLDER; got --architecture {}",
                o.task, kRecurrent);
}

/// Validates the files of a task and how their rows are sampled.
void validate_files(const TrainOptions& o) {
  const TaskTraits& task = traits_of(o);
  if (!o.text.empty())
    usage_error("--task {} reads {} from --data {}; got --text", o.task, task.reads, task.file);
  // Pictures may be absent where a run is only planned.
  if (task.data != TaskData::pictures && (o.data.size() != 1 || o.val_data.size() > 1))
    usage_error("--task {} needs --data with one file of {}{}; got {}", o.task, task.reads,
                o.data.size() == 1 ? ", and --val-data with one at most" : "",
                o.data.size() == 1 ? o.val_data.size() : o.data.size());
  if (std::ranges::find(task.samplings, o.sampling) == task.samplings.end())
    usage_error("--task {} works with --sampling {}; got {}", o.task,
                fmt::join(task.samplings, " or "), o.sampling);
  if (o.val_data.empty() && o.val_fraction > 0.5)
    usage_error("--task {} holds out every k-th {}: expected --val-fraction up to 0.5; got {}",
                o.task, task.row, o.val_fraction);
}

/// Refuses options of other tasks.
void refuse_foreign_options(const TrainOptions& o) {
  const bool compares = traits_of(o).data == TaskData::preferences;
  if (!learns_pictures(o)) {
    if (learns_labels(o) && !o.wants_resume() &&
        architecture_of_preset(o.preset).head == models::Head::classes)
      usage_error("--preset {} is for pictures, --task images; got --task {}", o.preset, o.task);
    for (const char* name :
         {"augment", "color-jitter", "random-operations", "random-erasing", "cutout", "mixup",
          "label-smoothing", "skip-bad-images", "max-pixels", "image-cache"})
      if (is_set(o, name))
        usage_error("--{} applies to pictures: it needs --task images{}", name,
                    compares && std::string_view(name) == "label-smoothing"
                        ? "; for pairs of answers take --dpo-label-smoothing"
                        : "");
    if (has_picture_architecture(o) && o.init_from == "scratch" && !o.wants_resume())
      usage_error("a model of the architecture {} learns from pictures: it needs --task images",
                  o.architecture);
  }
  for (const char* name : {"text-column", "text2-column", "label-column", "header", "quoting",
                           "truncate", "any-labels"})
    if (!learns_labels(o) && is_set(o, name) &&
        !(std::string_view(name) == "text-column" && !o.text.empty()) &&  // of a .jsonl file
        !(std::string_view(name) == "truncate" && compares))
      usage_error("--{} applies to labelled texts: it needs --task", name);
  if (!renders_conversations(o) && is_set(o, "chat-template"))
    usage_error("--chat-template writes conversations: it needs --task chat or dpo");
  refuse_preference_options(o);
  const bool masks = o.task == TrainTask::text &&
                     (o.init_from != "scratch" || o.wants_resume() ||
                      models::find_architecture(o.architecture).head == models::Head::masked_token);
  for (const char* name : {"mlm-probability", "whole-word-mask"})
    if (!masks && is_set(o, name))
      usage_error(
          "--{} applies to masked language models, which are trained on text: it needs --preset "
          "bert-mini, or --init-from of an encoder, and no --task",
          name);
}

void validate_task(const TrainOptions& o) {
  refuse_foreign_options(o);
  const TaskData data = traits_of(o).data;
  if (data == TaskData::preferences) validate_preferences(o);
  if (o.wants_resume()) return;
  switch (data) {
    case TaskData::text:
      if (o.preset == kFineTune && o.init_from == "scratch")
        usage_error("--preset {} needs --task classify, regress or tokens", kFineTune);
      return;
    case TaskData::pictures:
      validate_pictures(o);
      break;
    case TaskData::labelled_texts:
      validate_labelled_start(o);
      break;
    case TaskData::conversations:
      if (o.init_from == "scratch")
        usage_error(
            "--task {} starts from a trained model, which brings the tokenizer: expected "
            "--init-from FOLDER",
            o.task);
      break;
    case TaskData::preferences:
      if (o.init_from == "scratch")
        usage_error(
            "--task {} starts from a trained model, which also is the reference: expected "
            "--init-from FOLDER",
            o.task);
  }
  validate_files(o);
}

}  // namespace

void check_packable(const TrainOptions& o, models::Head head) {
  if (o.pack == "documents" && head != models::Head::next_token)
    usage_error(
        "--pack documents is for decoders; encoders train without padding on --sampling documents: "
        "leave --pack out");
}

double default_min_lr(const TrainOptions& o) {
  // A tenth at full precision would print as 5.9999999999999995e-05.
  return o.lr_scheduler_type == "linear" ? 0 : rounded(o.learning_rate / 10, 12);
}

void check_min_lr(const TrainOptions& o) {
  const bool decays = o.lr_scheduler_type == "cosine" || o.lr_scheduler_type == "linear";
  if (decays && o.min_lr > o.learning_rate)
    usage_error("min-lr must not be above learning-rate; got min-lr {} and learning-rate {}",
                o.min_lr, o.learning_rate);
}

const models::Preset& find_preset(const std::string& name) {
  for (const models::Preset* preset : presets())
    if (preset->name == name) return *preset;
  check_failed(__FILE__, __LINE__, "preset exists", name);
}

std::vector<const models::Preset*> presets() {
  std::vector<const models::Preset*> all;
  for (const models::Architecture* a : models::all_architectures())
    for (const models::Preset& preset : a->presets) all.push_back(&preset);
  return all;
}

bool is_model_setting(std::string_view name) {
  const auto& all = models::all_architectures();
  return std::any_of(all.begin(), all.end(), [&](const models::Architecture* a) {
    return a->find_option(name) != nullptr;
  });
}

bool is_per_call(std::string_view name) {
  for (const char* known :
       {"fit", "memory-limit", "config", "json", "resume", "overwrite", "disable-tqdm", "explain",
        "explain-dispatch", "dump-graph", "live", "live-port", "ranks", "elastic", "max-restarts",
        "peer-checkpoint-steps"})
    if (name == known) return true;
  return false;
}

bool is_foreign_setting(std::string_view name, const TrainOptions& options) {
  return is_model_setting(name) &&
         models::find_architecture(options.architecture).find_option(name) == nullptr;
}

TrainOptions resolve(const KeyValues& given) {
  TrainOptions options = resolve_unchecked(given);
  validate(options);
  return options;
}

TrainOptions resolve_unchecked(const KeyValues& given) {
  const auto& table = train_option_table();
  std::vector<PlacedOption> typed, settings;
  for (const auto& [key, value] : given)
    append_in_our_names(typed, {key, value, "--" + canonical_key(key), ""});
  // The preset and the file come first whatever their place on the command line.
  TrainOptions heads;
  bool names_preset = false, names_architecture = false;
  const auto take_head = [&](const PlacedOption& option) {
    const Row& row = table.find(option.key, option.unknown_where);
    if (row.name == "preset" || row.name == "config" || row.name == "architecture" ||
        row.name == "task" || row.name == "init-from")
      table.set(heads, row, option.value, option.where);
    names_preset = names_preset || row.name == "preset";
    names_architecture = names_architecture || row.name == "architecture";
    return row.name;
  };
  for (const PlacedOption& option : typed) take_head(option);
  bool is_nanogpt = false;
  if (!heads.config.empty()) {
    is_nanogpt = heads.config.ends_with(".py");
    for (const FileSetting& s : is_nanogpt ? read_python(heads.config) : read_toml(heads.config))
      append_in_our_names(settings, {s.key, s.value, s.where + ": " + s.key, s.where + ": "});
    heads.preset = TrainOptions{}.preset;
    for (const PlacedOption& option : settings)
      if (take_head(option) == "config")
        usage_error("{}: a file cannot name another file", option.where);
    for (const PlacedOption& option : typed) take_head(option);
  }

  // The learning rates of pre-training are far too large for a trained model.
  if (!names_preset && !names_architecture) {
    const bool is_trained = heads.init_from != "scratch" && heads.init_from != "resume";
    if (learns_pictures(heads) && heads.init_from == "scratch")
      heads.preset = models::find_architecture(kPictures).presets.front().name;
    else if (learns_labels(heads) || is_trained)
      heads.preset = traits_of(heads).fine_tuning_preset;
    else if (is_nanogpt)
      heads.preset = kNanoGpt;
  } else {
    is_nanogpt = false;  // the file counts over what was named
  }
  const models::Architecture& of_preset = architecture_of_preset(heads.preset);
  if (!names_architecture)
    heads.architecture = of_preset.name;
  else if (!names_preset && heads.architecture == kRecurrent && heads.task != TrainTask::text)
    heads.preset = kRecurrentTexts;
  else if (!names_preset)
    heads.preset = models::find_architecture(heads.architecture).presets.front().name;
  else if (of_preset.name != heads.architecture)
    usage_error("--preset {} is of the architecture {}; got --architecture {}", heads.preset,
                of_preset.name, heads.architecture);

  TrainOptions options;
  options.preset = heads.preset;
  options.task = heads.task;
  options.architecture = heads.architecture;
  OptionLayer preset(options, OptionLayer::Source::preset, nullptr);
  for (const auto& [key, value] : find_preset(heads.preset).values)
    preset.set({key, value, heads.preset, ""});
  if (is_nanogpt && heads.task == TrainTask::text)
    for (const auto& [key, value] : nanogpt_defaults()) preset.set({key, value, heads.config, ""});
  std::set<std::string> names;
  OptionLayer file(options, OptionLayer::Source::file, &names);
  for (const PlacedOption& option : settings) file.set(option);
  OptionLayer command_line(options, OptionLayer::Source::command_line, &names);
  for (const PlacedOption& option : typed) command_line.set(option);
  if (names.contains("activation-memory")) names.insert("rematerialize");  // it sets both
  options.given.assign(names.begin(), names.end());
  fill(options);
  return options;
}

void validate(const TrainOptions& o) {
  // Otherwise a folder says which architecture it is.
  if (o.init_from == "scratch" && !o.wants_resume()) {
    if (const std::string name = foreign_setting(o); !name.empty())
      usage_error(
          "--{} is not an option of the architecture {}; --architecture {} --help lists its "
          "options",
          name, o.architecture, o.architecture);
    models::find_architecture(o.architecture)
        .describe({{o.model_settings.begin(), o.model_settings.end()},
                   std::max<int64_t>(1, o.vocab_size),
                   o.context,
                   o.dropout});
  }
  validate_task(o);
  if (!o.wants_resume()) validate_evaluation(o);  // else in merge_for_resume()
  validate_ranks(o);
  validate_lora(o);
  if (!o.text.empty() && !o.data.empty())
    usage_error("expected --text or --data, not both: text is tokenized, data already is tokens");
  if (!o.val_data.empty() && o.data.empty())
    usage_error("--val-data needs --data: with --text, --val-fraction sets the validation part");
  const bool documents =
      !learns_labels(o) && (o.sampling == "documents" || o.sampling == "group_by_length");
  if (o.pack == "documents") {
    if (learns_labels(o))
      usage_error(
          "--pack documents is for training on text; texts with labels are never padded "
          "where the device has kernels for that: leave --pack out");
    if (o.sampling != "documents")
      usage_error("--pack documents goes with --sampling documents; got {}", o.sampling);
    if (o.init_from == "scratch" && !o.wants_resume())
      check_packable(o, models::find_architecture(o.architecture).head);
  }
  if (documents && o.tokenize == "stream")
    usage_error("--sampling {} needs --tokenize ahead: a stream is read in windows", o.sampling);
  if (!o.separator.empty() && !documents)
    usage_error("--separator separates documents, but --sampling {} ignores them; {}", o.sampling,
                "add --sampling documents or group_by_length, or --pack documents");
  if (!o.separator.empty() && !o.data.empty())
    usage_error("--separator is for text: shards have an end-of-text token after each document");
  if (o.max_steps == 0 && o.num_train_epochs <= 0)
    usage_error("nothing to do: expected max-steps or num-train-epochs above 0");
  // A resumed run has rates of its own, which merge_for_resume() compares. The default rate of a
  // run that starts from a folder depends on whether that holds an adapter (adopt_architecture()).
  const bool knows_rate = o.init_from == "scratch" || o.was_given("learning-rate");
  if (!o.wants_resume() && knows_rate) check_min_lr(o);
  if (o.optim == "muon" && o.learning_rate == 0 && o.muon_learning_rate > 0)
    usage_error(
        "--optim muon needs a --learning-rate above 0: --muon-learning-rate {} follows its "
        "schedule; got 0",
        o.muon_learning_rate);
  if (o.relative_step && o.optim != "adafactor")
    usage_error("--relative-step applies to --optim adafactor only; got --optim {}", o.optim);
  if (!o.fused_optimizer && (o.optim != "adamw" || o.param_dtype != Precision::fp32))
    usage_error(
        "--no-fused-optimizer applies to --optim adamw with --param-dtype fp32 only; got {} with "
        "{}",
        o.optim, o.param_dtype);
  const int64_t group = o.qat_group_size;
  if (group != 0 && !o.qat.starts_with("int4"))
    usage_error("--qat-group-size applies to --qat int4 and int4-weight-only only; got --qat {}",
                o.qat);
  if (group != 0 && group != 32 && group != 64 && group != 128)
    usage_error("--qat-group-size must be 32, 64 or 128; got {}", group);
  if (o.qat != "none" && o.precision == Precision::fp8)
    usage_error(
        "--qat {} trains for integers and --precision fp8 for 8-bit floats; use bf16 or "
        "fp32",
        o.qat);
  if (o.param_dtype == Precision::bfloat16 && o.precision == Precision::fp16)
    usage_error("--param-dtype bf16 works with --precision fp32 or bf16; got fp16");
  if (o.param_dtype == Precision::bfloat16 && o.optim == "adafactor")
    usage_error(
        "--param-dtype bf16 does not work with adafactor; expected adamw, adamw_8bit, sgd, lion or "
        "muon");
  if (o.wants_resume() && o.overwrite)
    usage_error("expected --resume or --overwrite, not both: one keeps the run, one discards it");
}

std::string to_json(const TrainOptions& options) {
  OrderedJson json = OrderedJson::object();
  for (const Row& row : train_option_table().rows())
    if (row.get && !is_foreign_setting(row.name, options))
      json[with_underscores(row.name)] = value_of(row, options);
  // Paths may hold any bytes; JSON holds UTF-8.
  return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

TrainOptions options_from_json(std::string_view text, const std::string& what) {
  const io::Json json = io::parse_json(text, what);
  if (!json.is_object()) user_error("{}: expected an object, got {}", what, io::describe(json));
  TrainOptions options;
  for (const auto& [key, value] : json.items()) {
    const std::string where = fmt::format("{}: {}", what, io::in_quotes(key));
    const auto& table = train_option_table();
    const Row& row = table.find(key, what + ": ");
    const auto mistyped = [&, &value = value](const char* expected) {
      user_error("{}: expected {}, got {}", where, expected, io::describe(value));
    };
    const auto put = [&](const std::string& s) { table.set(options, row, s, where); };
    switch (row.kind) {
      case OptionKind::kFlag:
        if (!value.is_boolean()) mistyped("true or false");
        put(value.get<bool>() ? "true" : "false");
        break;
      case OptionKind::kInteger:
        if (!value.is_number_integer()) mistyped("a whole number");
        put(value.dump());
        break;
      case OptionKind::kReal:
        if (!value.is_number()) mistyped("a number");
        put(show_real(value.get<double>()));
        break;
      case OptionKind::kList:
        if (!value.is_array()) mistyped("a list of strings");
        row.clear(options);
        for (const auto& item : value) {
          if (!item.is_string()) mistyped("a list of strings");
          put(item.get<std::string>());
        }
        break;
      default:
        if (!value.is_string()) mistyped("a string");
        put(value.get<std::string>());
    }
  }
  return options;
}

std::string to_toml(const TrainOptions& options) {
  std::string text, group;
  for (const Row& row : train_option_table().rows()) {
    if (!row.get || row.name == "config" || is_foreign_setting(row.name, options)) continue;
    const std::vector<std::string> items = row.get(options);
    std::string value;
    if (row.kind == OptionKind::kList) {
      for (const std::string& item : items)
        value.append(value.empty() ? "" : ", ").append(toml_string(item));
      if (value.empty()) continue;
      value = "[" + value + "]";
    } else if (row.kind == OptionKind::kText || row.kind == OptionKind::kOptional) {
      if (items[0].empty()) continue;
      value = toml_string(items[0]);
    } else {
      value = items[0];
      // A TOML float has a point or an exponent.
      if (row.kind == OptionKind::kReal && value.find_first_of(".e") == std::string::npos)
        value += ".0";
    }
    if (row.group != group) {
      group = row.group;
      text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", group);
    }
    text += fmt::format("{} = {}  # {}\n", with_underscores(row.name), value, row.help);
  }
  return text;
}

}  // namespace brrr::train
