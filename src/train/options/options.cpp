#include "train/options.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/memory.h"
#include "data/images/augment.h"
#include "machine/device.h"
#include "optim/optimizer.h"
#include "train/options/foreign_names.h"
#include "train/options/harmless_names.h"
#include "train/options/lora_options.h"
#include "train/options/preference_options.h"
#include "train/options/rank_options.h"

namespace brrr::train {
namespace {

using Table = OptionTable<TrainOptions>;
using Options = TrainOptions;
constexpr int64_t kSeedLimit = (int64_t{1} << 32) - 1;

RealRange at_least(double low) { return {.low = low}; }
RealRange share() { return {.low = 0, .high = 1, .high_open = true}; }

void add_data_rows(Table& t) {
  t.group("general");
  std::vector<std::vector<std::string>> names;
  for (const models::Preset* preset : presets()) names.push_back({preset->name});
  t.choice("preset", &Options::preset, names, "NAME", "starting point, listed above");
  t.text("config", &Options::config, "FILE",
         "TOML file, or nanoGPT's .py, with any of these options")
      .free_on_resume = true;

  t.group("data");
  t.list("text", &Options::text, false, "FILE...",
         "text files and folders to train on, .jsonl, .gz and .zst, too (default: tiny "
         "Shakespeare)",
         {"train-file"})
      .free_on_resume = true;  // the trainer compares the content's digest
  t.list(
       "data", &Options::data, false, "FILE...",
       "token shards (.bin), or folders of them; with --task a file of texts and labels (.csv, "
       ".tsv, .jsonl, packed or not), or of conversations or pairs of answers (.jsonl, or a folder "
       "with train.jsonl and valid.jsonl); with --task images a folder with a folder of pictures "
       "for each class, MNIST's files, or a list of lines `path<tab>class`")
      .free_on_resume = true;
  t.list("val-data", &Options::val_data, false, "FILE...",
         "the same for validation (default: a part of --data)", {"validation-file"})
      .free_on_resume = true;
  auto& tokenizer = t.text(
      "tokenizer", &Options::tokenizer, "KIND",
      "byte, char, gpt2, bpe:N or wordpiece:N (N entries, learned from the text), or a folder",
      {"tokenizer-name"});
  tokenizer.choices = {"byte", "char", "gpt2"};
  tokenizer.set = [](Options& o, const std::string& s) {
    learnt_tokenizer(s);
    o.tokenizer = s;
  };
  t.choice("tokenize", &Options::tokenize, {{"auto"}, {"ahead"}, {"stream"}}, "WHEN",
           "tokenise the text ahead of the training, as a stream during it, or auto: by its size");
  t.text("separator", &Options::separator, "TEXT",
         "text that ends a document inside a file (default: a file is a document, or a line of a "
         ".jsonl file)");
  t.real("val-fraction", &Options::val_fraction, {.low = 0, .high = 1, .high_open = true}, "X",
         "fraction of the text held out for validation, taken from its end; with --task every k-th "
         "row, k = 1 / X; 0: no validation, even where the data have a set for it",
         {"val-size", "val-set-size"});
}

void add_task_rows(Table& t) {
  t.group("task");
  auto& task = t.parsed<TrainTask>(
      "task", &Options::task, parse_task, [](TrainTask o) { return std::string(name_of(o)); },
      "NAME",
      "what a model learns from texts with labels: classify (a class for each text), regress "
      "(numbers), or an encoder tokens (a class for each word); from pictures: images (a class "
      "for each); from conversations in a .jsonl file: chat (what the assistant says, except in "
      "messages with \"weight\": 0 or \"train\": false), or dpo (which of two answers is "
      "preferred)");
  for (const TaskTraits& traits : task_table()) task.choices.push_back(traits.spellings[0]);
  t.text("chat-template", &Options::chat_template, "FILE",
         "template (Jinja) that writes conversations, for --task chat and dpo (default: the "
         "model's own)",
         {"chat-template-path"})
      .free_on_resume = true;  // a checkpoint has it
  t.text("text-column", &Options::text_column, "NAME",
         "column of the text: its name in the header, or its number (default: detected); of .jsonl "
         "files the field",
         {"text-column-name"});
  t.text("text2-column", &Options::text2_column, "NAME", "column of a second text");
  t.text("label-column", &Options::label_column, "NAME", "column of the label",
         {"label-column-name"});
  t.choice("header", &Options::header, {{"auto"}, {"yes"}, {"no"}}, "WHETHER",
           "whether the first row names the columns");
  t.choice(
      "quoting", &Options::quoting, {{"auto"}, {"csv"}, {"none"}}, "HOW",
      "how such files use quotes: csv (around fields), none (quotes are text), auto (detected)");
  t.flag("any-labels", &Options::any_labels,
         "learn labels as classes that look like numbers or ids");
  t.flag("truncate", &Options::truncate,
         "truncate texts longer than the context; --no-truncate makes them an error",
         {"truncation"});
  add_preference_rows(t);
}

void add_picture_rows(Table& t) {
  t.group("pictures");
  std::vector<std::vector<std::string>> recipes;
  for (const std::string& name : io::augment_names()) recipes.push_back({name});
  t.choice("augment", &Options::augment, recipes, "NAME",
           "how pictures are changed in training: none, flip (mirrored at random), cifar (shifted "
           "by up to 4 pixels, and flip), imagenet (random part of a picture, and flip), strong "
           "(imagenet, two random operations, erasing)");
  t.real("color-jitter", &Options::color_jitter, {.low = 0, .high = 10}, "X",
         "change brightness, contrast and saturation by factors from 1 - X to 1 + X");
  t.integer("random-operations", &Options::random_operations, 0, 16, "N",
            "operations of RandAugment on each picture (default: the recipe's; 0: none)");
  t.real("random-erasing", &Options::random_erasing, {.low = 0, .high = 1}, "P",
         "probability of erasing a rectangle of a picture (default: the recipe's; 0: none)");
  t.integer("cutout", &Options::cutout, 0, 1 << 14, "N",
            "erase a square of N pixels of each picture (0: none)");
  t.real("mixup", &Options::mixup, {.low = 0, .high = 100}, "X",
         "mix pairs of pictures with weights from Beta(X, X) (0: none)");
  t.real("label-smoothing", &Options::label_smoothing, share(), "X",
         "share of the target that all classes divide among them");
  t.integer("skip-bad-images", &Options::skip_bad_images, 0, 1 << 30, "N",
            "leave out up to N pictures that cannot be read (0: the first is an error)");
  t.integer("max-pixels", &Options::max_pixels, 1, int64_t{1} << 40, "N",
            "largest picture that is read, in pixels");
  auto& cache =
      t.text("image-cache", &Options::image_cache, "SIZE",
             "keep up to so much memory of decoded pictures, such as 1GiB (default: none)");
  cache.free_on_resume = true;
  cache.set = [](Options& o, const std::string& s) {
    if (!s.empty()) parse_memory(s);
    o.image_cache = s;
  };
}

// The option of this name: of the chosen architecture, else of the first one that has it.
const models::ModelOption& setting_named(const std::string& name, const Options& o) {
  if (const auto* own = models::find_architecture(o.architecture).find_option(name)) return *own;
  for (const models::Architecture* a : models::all_architectures())
    if (const auto* option = a->find_option(name)) return *option;
  check_failed(__FILE__, __LINE__, "an architecture has the option", name);
}

// transformers' model_type is here a setting of an architecture that has several, or else the
// architecture itself.
void refuse_architecture(const std::string& type) {
  for (const models::Architecture* a : models::all_architectures())
    if (!a->find_option("model-type") &&
        (a->name == type || std::ranges::count(a->model_types, type) > 0))
      usage_error("{0} is an architecture of its own: take --architecture {0}", a->name);
}

// The options of all architectures, each name once. Architectures that share a name may differ in
// range, default and help: the chosen one's count, and the page says what each of them means.
void add_settings(Table& t) {
  std::map<std::string, size_t> rows;
  for (const models::Architecture* a : models::all_architectures())
    for (const models::ModelOption& option : a->options) {
      const auto [first, is_new] = rows.emplace(option.name, t.rows().size());
      if (!is_new) {
        Table::Row& shared = t.row(first->second);
        if (shared.help.find(option.help) == std::string::npos)
          shared.help += fmt::format("; {}: {}", a->name, option.help);
        for (const std::string& alias : option.aliases)
          if (std::ranges::find(shared.aliases, alias) == shared.aliases.end())
            shared.aliases.push_back(alias);
        continue;
      }
      Table::Row& row = t.add(option);
      const std::string name = option.name;
      row.set = [name](Options& o, const std::string& s) {
        if (name == "model-type") refuse_architecture(s);
        o.model_settings[name] = setting_named(name, o).canonical(s);
      };
      row.get = [name](const Options& o) {
        const auto at = o.model_settings.find(name);
        return std::vector{at == o.model_settings.end() ? setting_named(name, o).shown_default
                                                        : at->second};
      };
    }
}

void add_model_rows(Table& t) {
  t.group("model");
  // A model_type of config.json is another spelling of its architecture, and a setting of it.
  std::vector<std::vector<std::string>> names;
  for (const models::Architecture* a : models::all_architectures()) {
    names.push_back({a->name});
    for (const std::string& type : a->model_types)
      if (type != a->name) names.back().push_back(type);
  }
  auto& architecture = t.choice("architecture", &Options::architecture, names, "NAME",
                                "kind of model; has options of its own, see --help with it");
  architecture.set = [choose = architecture.set](Options& o, const std::string& s) {
    choose(o, s);
    if (models::find_architecture(o.architecture).find_option("model-type") && s != o.architecture)
      o.model_settings["model-type"] = s;
  };
  t.integer("vocab-size", &Options::vocab_size, 0, 1 << 24, "N",
            "tokens in the vocabulary (0: the tokenizer's)");
  add_settings(t);
  t.integer("context", &Options::context, 1, 1 << 24, "N", "sequence length (tokens)",
            {"block-size", "n-positions", "n-ctx", "max-seq-length", "max-length", "cutoff-len",
             "sequence-len"});
  t.real("dropout", &Options::dropout, share(), "P", "probability of dropping an activation");
  t.text("init-from", &Options::init_from, "FOLDER",
         "scratch, or a checkpoint, run or model folder, GGUF file, or ORG/NAME of the Hugging "
         "Face Hub, to start from; for a resumed run: the new place of an adapter's base",
         {"model-name-or-path", "model", "base-model"});
  t.list("freeze", &Options::freeze, true, "PLACE...",
         "parameters to leave as they are: embed, h.3, h.0-5, norm, head, or a parameter's name or "
         "its beginning; they need neither gradients nor moments");
  add_lora_rows(t);
}

void add_training_rows(Table& t) {
  t.group("training");
  auto& steps = t.integer("max-steps", &Options::max_steps, -1, int64_t{1} << 31, "N",
                          "optimizer steps", {"max-iters", "max-train-steps", "iters"});
  steps.free_on_resume = true;
  steps.set = [](Options& o, const std::string& s) {
    o.max_steps = std::max<int64_t>(0, parse_integer(s, -1, int64_t{1} << 31));
  };
  t.real("num-train-epochs", &Options::num_train_epochs, {.low = 0, .high = 1e9}, "X",
         "passes over the training data, when max-steps is not given", {"epochs", "num-epochs"})
      .free_on_resume = true;
  t.integer("batch-size", &Options::batch_size, 1, 1 << 16, "N",
            "sequences, or pictures, per micro-batch",
            {"per-device-train-batch-size", "per-gpu-train-batch-size", "train-batch-size",
             "micro-batch-size"});
  t.integer("gradient-accumulation-steps", &Options::gradient_accumulation_steps, 1, 1 << 16, "N",
            "micro-batches per optimizer step", {"grad-accum-steps"});
  t.real("learning-rate", &Options::learning_rate, at_least(0), "X",
         "peak learning rate; with lion a third of the preset's, with sgd 0.1; for an adapter ten "
         "times that",
         {"lr"});
  t.real("min-lr", &Options::min_lr, at_least(0), "X",
         "learning rate at the end of the decay (default: a tenth of the peak; linear: 0)");
  t.choice("lr-scheduler-type", &Options::lr_scheduler_type,
           {{"cosine", "cosine_with_min_lr"}, {"linear"}, {"constant"}, {"constant_with_warmup"}},
           "NAME", "cosine, linear, constant, constant_with_warmup",
           {"lr-schedule", "lr-scheduler"});
  t.real("warmup-steps", &Options::warmup_steps, at_least(0), "X",
         "steps of linear warm-up; below 1: a fraction of all steps",
         {"warmup-iters", "num-warmup-steps"});
  t.integer("lr-decay-steps", &Options::lr_decay_steps, 0, int64_t{1} << 31, "N",
            "step at which the decay ends (0: the last)", {"lr-decay-iters"});
  std::vector<std::vector<std::string>> optimizers;
  for (const optim::OptimizerName& n : optim::optimizer_names()) optimizers.push_back(n.spellings);
  t.choice("optim", &Options::optim, optimizers, "NAME",
           "optimizer: adamw, adamw_8bit, sgd, lion, adafactor, muon", {"optimizer"});
  t.flag("fused-optimizer", &Options::fused_optimizer,
         "adamw: clip and update all parameters in one pass; off: separate ops for each tensor, "
         "for comparison");
  t.real("weight-decay", &Options::weight_decay, at_least(0), "X",
         "weight decay of matrices and embeddings (default: lion three times the preset's; sgd, "
         "adafactor 0)");
  t.real("adam-beta1", &Options::adam_beta1, share(), "X",
         "decay of the first moment of adamw, adamw_8bit, lion and muon's adamw", {"beta1"});
  t.real("adam-beta2", &Options::adam_beta2, share(), "X",
         "decay of the second moment; lion: of its momentum, 0.99", {"beta2"});
  t.real("momentum", &Options::momentum, share(), "X", "momentum of sgd", {"sgd-momentum"});
  t.real("muon-learning-rate", &Options::muon_learning_rate, at_least(0), "X",
         "muon: peak learning rate of hidden matrices; all other parameters use --learning-rate");
  t.flag("relative-step", &Options::relative_step,
         "adafactor: steps of min(0.01, 1 / sqrt(step)), relative to the size of a parameter "
         "(default: unless a learning rate is given)");
  t.real("adam-epsilon", &Options::adam_epsilon, {.low = 0, .high = 1, .low_open = true}, "X",
         "epsilon added to the square root of the second moment", {"adam-eps"});
  t.real("max-grad-norm", &Options::max_grad_norm, at_least(0), "X",
         "clip gradients to this global norm (0: off)", {"grad-clip"});
  t.integer("seed", &Options::seed, 0, kSeedLimit, "N", "seed of weights, dropout and samples");
  t.integer("data-seed", &Options::data_seed, 0, kSeedLimit, "N",
            "seed of the data order (default: the seed)");
  t.choice(
      "sampling", &Options::sampling,
      {{"random"}, {"epoch"}, {"documents"}, {"group_by_length", "length"}}, "NAME",
      "random: windows at random places, like nanoGPT; epoch: each token once per epoch, shuffled; "
      "documents: one document per row; group_by_length: documents of similar length together");
  t.choice("pack", &Options::pack, {{"none"}, {"documents"}}, "WHAT",
           "documents: fill each row with whole documents that do not see each other, positions "
           "starting again in each; implies --sampling documents");
  t.real("mlm-probability", &Options::mlm_probability, {.low = 0, .high = 1, .low_open = true}, "P",
         "masked language models: fraction of tokens to mask and predict");
  t.flag("whole-word-mask", &Options::whole_word_mask, "masked language models: mask whole words",
         {"wwm"});
  t.integer("dataloader-num-workers", &Options::dataloader_num_workers, 0, 256, "N",
            "threads that prepare batches ahead (0: each step prepares its own)", {"num-workers"})
      .free_on_resume = true;
  t.integer("dataloader-prefetch-factor", &Options::dataloader_prefetch_factor, 1, 1 << 16, "N",
            "batches prepared ahead per worker", {"prefetch-factor"})
      .free_on_resume = true;
}

// Steps between two of something, or the share of all steps that lies between them.
void add_interval(Table& t, const char* name, double Options::*field, const char* help,
                  std::vector<std::string> aliases = {}) {
  static constexpr double kMost = static_cast<double>(int64_t{1} << 31);
  auto& row = t.real(name, field, {.low = 0, .high = kMost}, "N", help, std::move(aliases));
  row.free_on_resume = true;
  row.set = [field](Options& o, const std::string& s) {
    const double value = parse_real(s, {.low = 0, .high = kMost});
    if (value >= 1 && value != std::floor(value))
      usage_error("expected a whole number of steps, or a fraction of all steps below 1; got '{}'",
                  s);
    o.*field = value;
  };
}

void add_evaluation_rows(Table& t) {
  t.group("evaluation");
  const auto free_integer = [&](const char* name, int64_t Options::*field, int64_t low,
                                int64_t high, const char* help, std::vector<std::string> aliases) {
    t.integer(name, field, low, high, "N", help, std::move(aliases)).free_on_resume = true;
  };
  add_interval(t, "eval-steps", &Options::eval_steps,
               "steps between evaluations; below 1: a fraction of all steps (0: only at the end)",
               {"eval-interval", "steps-per-eval"});
  auto& eval_batches = t.integer("eval-batches", &Options::eval_batches, 0, int64_t{1} << 31, "N",
                                 "batches per evaluation (0: the whole validation text)",
                                 {"eval-iters", "val-batches"});
  eval_batches.free_on_resume = true;
  eval_batches.set = [](Options& o, const std::string& s) {
    o.eval_batches = std::max<int64_t>(0, parse_integer(s, -1, int64_t{1} << 31));
  };
  free_integer("eval-batch-size", &Options::eval_batch_size, 1, 1 << 16,
               "sequences, or pictures, per evaluation batch (default: the batch size)",
               {"per-device-eval-batch-size", "per-gpu-eval-batch-size"});
  t.flag("load-best-model-at-end", &Options::load_best_model_at_end,
         "end with the weights of the best evaluation instead of the last")
      .free_on_resume = true;
  auto& metric = t.text(
      "metric-for-best-model", &Options::metric_for_best_model, "NAME",
      "what tells the best evaluation: loss, or of a task accuracy, f1, f1_macro, precision, "
      "recall, matthews_correlation, pearson, spearmanr, mse, rmse, mae (default: loss, accuracy "
      "of classes, pearson of numbers, f1 of tags)");
  metric.free_on_resume = true;
  metric.set = [](Options& o, const std::string& name) {
    constexpr std::string_view kPrefix = "eval_";  // as Hugging Face's trainer calls them
    o.metric_for_best_model = name == "none" || name == "null" ? ""
                              : name.starts_with(kPrefix)      ? name.substr(kPrefix.size())
                                                               : name;
  };
  add_interval(
      t, "logging-steps", &Options::logging_steps,
      "steps between log lines, on the screen and in log.jsonl; below 1: a fraction of all steps "
      "(0: only evaluations; default: every step in log.jsonl, forty lines on the screen)",
      {"log-interval", "steps-per-report"});
  free_integer("samples", &Options::samples, 0, 1000,
               "sample texts at the end, and each time that --sample-steps asks for",
               {"sample-count"});
  add_interval(t, "sample-steps", &Options::sample_steps,
               "steps between sample texts of the model in training; below 1: a fraction of all "
               "steps (0: only at the end)",
               {"sample-every", "generate-every"});
  t.text("sample-prompt", &Options::sample_prompt, "TEXT",
         "text that samples continue (default: where a text begins)")
      .free_on_resume = true;
  free_integer("sample-tokens", &Options::sample_tokens, 1, 1 << 20, "tokens of a sample", {});
  t.real("sample-temperature", &Options::sample_temperature, {.low = 0, .high = 100}, "X",
         "of samples: below 1 more predictable, above 1 more varied, 0: the most likely token")
      .free_on_resume = true;
  auto& report = t.choice("report-to", &Options::report_to,
                          {{"tensorboard", "all"}, {"none", "jsonl"}}, "NAME",
                          "event files to write besides log.jsonl, which is always written: "
                          "tensorboard (or all), none (or jsonl)");
  report.choices = {"tensorboard", "all", "jsonl", "none"};
  report.free_on_resume = true;
  t.flag("live", &Options::live, "serve a live page of the run to browsers on this machine only")
      .free_on_resume = true;
  t.integer("live-port", &Options::live_port, 0, 65535, "N",
            "port of the live page; implies --live (0: any free port, with --live)")
      .free_on_resume = true;
  t.flag("disable-tqdm", &Options::disable_tqdm, "plain lines instead of a progress bar")
      .free_on_resume = true;
  t.flag("json", &Options::json, "one JSON object with the result on standard output")
      .free_on_resume = true;
}

void add_rematerialize_rows(Table& t) {
  auto& policy = t.choice("rematerialize", &Options::rematerialize,
                          {{"none"}, {"all"}, {"blocks"}, {"auto"}}, "NAME",
                          "activations to recompute: none, blocks (those of each layer), auto "
                          "(cheap ones, or as many as the budget needs), all");
  policy.free_on_resume = true;
  policy.set = [parse = policy.set](Options& o, const std::string& s) {
    Options chosen;
    parse(chosen, s);
    set_rematerialize(o, chosen.rematerialize);
  };
  auto& budget = t.text("activation-memory", &Options::activation_memory, "BYTES",
                        "memory limit of activations, such as 2GiB, for rematerialize=auto");
  budget.free_on_resume = true;
  budget.set = [](Options& o, const std::string& s) {
    o.activation_memory = s;
    if (s.empty()) return;
    parse_memory(s);
    if (o.rematerialize == "none") o.rematerialize = "auto";
    if (o.rematerialize != "auto")
      usage_error("it is the budget of rematerialize=auto; got rematerialize={}", o.rematerialize);
  };
}

void add_run_rows(Table& t) {
  t.group("run");
  t.text("output-dir", &Options::output_dir, "FOLDER", "run folder (default: runs/PRESET-N)",
         {"out-dir"})
      .free_on_resume = true;
  t.text("run-name", &Options::run_name, "NAME", "name in logs (default: the folder's)",
         {"wandb-run-name"})
      .free_on_resume = true;
  add_interval(t, "save-steps", &Options::save_steps,
               "steps between checkpoints; below 1: a fraction of all steps (default: eval-steps; "
               "0: only at the end or on a signal)",
               {"save-every"});
  Table::Row& most = t.integer("save-total-limit", &Options::save_total_limit, 0, 1 << 20, "N",
                               "checkpoints to keep, besides the best one (0: all)");
  most.free_on_resume = true;
  most.set = [parse = most.set](Options& o, const std::string& s) {
    parse(o, s == "None" || s == "none" || s == "null" ? "0" : s);  // as transformers says it
  };
  Table::Row& resume = t.text("resume", &Options::resume, "FOLDER",
                              "resume from the newest checkpoint, or from the given one",
                              {"resume-from-checkpoint"});
  resume.kind = OptionKind::kOptional;
  resume.free_on_resume = true;
  resume.set = [](Options& o, const std::string& s) {
    if (s.empty()) usage_error("expected true, false or a checkpoint folder; got ''");
    const bool is_off = is_among(s, kOff);
    o.resume = is_off ? "false" : is_bool_word(s) ? "true" : s;
  };
  t.flag("overwrite", &Options::overwrite, "start over in a run folder that is not empty",
         {"overwrite-output-dir"})
      .free_on_resume = true;

  t.group("machine");
  machine::add_device_row(t).free_on_resume = true;  // checkpoints move between devices
  add_precision_row(
      t, "precision", &Options::precision, PrecisionUse::training,
      "fp32, or mixed: bf16, fp16 (with a dynamic loss scale), fp8 (bf16, the products of blocks "
      "in 8 bits: for GPUs from sm_89 on, emulated elsewhere)",
      {"dtype", "mixed-precision"});
  t.choice("qat", &Options::qat,
           {{"none"},
            {"int8", "int8-dynamic", "w8a8"},
            {"int8-weight-only", "w8a16"},
            {"int4", "int4-dynamic", "w4a8"},
            {"int4-weight-only", "w4a16"}},
           "NAME",
           "quantization-aware training: linear layers of blocks compute with weights, and rows "
           "unless weight-only, rounded to integers as --precision NAME of a model that runs "
           "rounds them; gradients pass the rounding unchanged");
  t.integer("qat-group-size", &Options::qat_group_size, 0, 128, "N",
            "--qat of 4 bits: inputs of a layer that share a scale, 32, 64 or 128 (0: 32)", {});
  t.choice(
      "float32-matmul-precision", &Options::float32_matmul_precision,
      {{"highest"}, {"high"}, {"medium"}}, "NAME",
      "f32 products: highest, high (tf32 on a GPU, three of bf16 halves elsewhere), medium (bf16 "
      "operands)");
  t.real("init-loss-scale", &Options::init_loss_scale, {.low = 1, .high = 0x1p126}, "X",
         "initial loss scale of fp16", {"fp16-init-scale"});
  add_precision_row(
      t, "param-dtype", &Options::param_dtype, PrecisionUse::parameters,
      "dtype in which matrices are stored; bf16: no fp32 copy, updates with stochastic rounding",
      {});
  t.integer("threads", &Options::threads, 0, 4096, "N",
            "threads (0: as many as OMP_NUM_THREADS or the processors allow)", {"num-threads"})
      .free_on_resume = true;
  auto& limit = t.text("memory-limit", &Options::memory_limit, "SIZE",
                       "memory limit of the process, such as 6GiB (default: what the system "
                       "allows); a run that does not fit is refused at once");
  limit.free_on_resume = true;
  limit.set = [](Options& o, const std::string& s) {
    if (!s.empty()) parse_memory(s);
    o.memory_limit = s;
  };
  Table::Row& fit = t.text("fit", &Options::fit, "all",
                           "choose the fastest micro-batch, accumulation and rematerialisation "
                           "that fit; all: also the optimizer",
                           {"auto-find-batch-size"});
  fit.kind = OptionKind::kOptional;
  fit.free_on_resume = true;
  fit.set = [](Options& o, const std::string& s) {
    if (s != "all" && !is_bool_word(s)) usage_error("expected true, false or all; got '{}'", s);
    o.fit = s == "all" ? "all" : parse_bool(s) ? "true" : "false";
  };
  add_rematerialize_rows(t);
  t.flag("compile", &Options::compile, "optimise the graph; off: node by node, for debugging",
         {"torch-compile"});

  t.group("insight");
  t.flag("explain", &Options::explain, "print what each pass decided").free_on_resume = true;
  t.flag("explain-dispatch", &Options::explain_dispatch,
         "print which kernel runs each op, and why earlier candidates were refused")
      .free_on_resume = true;
  t.text("dump-graph", &Options::dump_graph, "FOLDER", "write the graph after each pass")
      .free_on_resume = true;
  t.list("disable-pass", &Options::disable_pass, true, "NAME...", "optional passes to disable");
}

}  // namespace

std::optional<LearntTokenizer> learnt_tokenizer(const std::string& name) {
  constexpr int64_t kMost = 1 << 24;
  // The least: the bytes and the end of a text; the special tokens and a letter.
  constexpr std::pair<const char*, int64_t> kKinds[] = {{"bpe", 257}, {"wordpiece", 6}};
  for (const auto& [kind, least] : kKinds) {
    const std::string start = std::string(kind) + ":";
    if (!name.starts_with(start)) continue;
    try {
      return LearntTokenizer{
          kind, parse_integer(std::string_view(name).substr(start.size()), least, kMost)};
    } catch (const UserError&) {
      usage_error("expected {}:N with N from {} to {}; got '{}'", kind, least, kMost, name);
    }
  }
  return std::nullopt;
}

const OptionTable<TrainOptions>& train_option_table() {
  static const Table table = [] {
    Table t;
    add_data_rows(t);
    add_task_rows(t);
    add_picture_rows(t);
    add_model_rows(t);
    add_training_rows(t);
    add_evaluation_rows(t);
    add_run_rows(t);
    add_rank_rows(t);
    add_foreign_rows(t);
    return t;
  }();
  return table;
}

int64_t TrainOptions::interval(double steps) const {
  if (steps <= 0 || steps >= 1) return static_cast<int64_t>(std::max(0.0, steps));
  return std::llround(std::ceil(steps * static_cast<double>(max_steps)));
}

bool TrainOptions::was_given(std::string_view name) const {
  return std::binary_search(given.begin(), given.end(), canonical_key(name));
}

}  // namespace brrr::train
