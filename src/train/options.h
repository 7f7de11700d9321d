#pragma once
// Everything that `brrr train` can be told: a plain struct and the one table over it that the
// command line, the TOML file, --help, --print-config, the run folder's record and the documents
// share. resolve() layers preset, file and command line, and validates; what it returns is complete
// and in range, so the trainer checks nothing again. All errors are UserError with exit code 2.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/options.h"
#include "models/model.h"
#include "passes/precision/precision.h"
#include "train/tasks/train_task.h"

namespace brrr::train {

/// The defaults are those of the preset char-cpu. "Filled" fields have -1 (or "") until resolve().
struct TrainOptions {
  std::string preset = "char-cpu";    // models::Architecture::presets, of all architectures
  std::string architecture = "gpt2";  // filled: the preset's
  std::string config;                 // the file of options, "" for none

  // Data.
  std::vector<std::string> text;      // files and folders; empty: the default text
  std::vector<std::string> data;      // token shards: files, or folders that hold them
  std::vector<std::string> val_data;  // token shards for validation; empty: a part of `data`
  std::string tokenizer = "char";     // "byte", "char", "gpt2", "bpe:N", or a folder
  std::string tokenize = "auto";      // of text: "ahead", "stream" (while training), "auto"
  std::string separator;              // that ends a document inside a text file; "": none
  double val_fraction = 0.1;          // last part of the text kept for validation, in [0, 1)
                                      // (of a task's rows every tenth)

  // Tasks; all but `text` read `data` and `val_data` as files of their own (train_task.h).
  TrainTask task = TrainTask::text;
  std::string chat_template;  // file with the template of conversations; "": the model's
  std::string text_column, text2_column, label_column;  // names, or numbers from 1; "": by the file
  bool any_labels = false;        // labels that look like numbers or ids are classes nevertheless
  std::string header = "auto";    // whether files of labels have one: auto, yes, no
  std::string quoting = "auto";   // auto, csv, none
  bool truncate = true;           // texts longer than the context are truncated
  double mlm_probability = 0.15;  // of masking a token, for masked language models
  bool whole_word_mask = false;   // masks whole words

  // Training on pictures with classes.
  double label_smoothing = 0;
  std::string augment = "none";    // a recipe: io::augment_names()
  double color_jitter = 0;         // share by which colours change
  int64_t random_operations = -1;  // of RandAugment; filled: the recipe's
  double random_erasing = -1;      // probability; filled: the recipe's
  int64_t cutout = 0;              // side of a square, in pixels
  double mixup = 0;
  int64_t skip_bad_images = 0;
  int64_t max_pixels = 178'956'970;  // of a picture
  std::string image_cache;           // bytes of decoded pictures that are kept; "": none

  // Model.
  int64_t vocab_size = 0;  // 0: the tokenizer's
  int64_t context = 64;    // T, tokens
  double dropout = 0.0;
  /// The architecture's own options (models::Architecture::options) by canonical name, as text.
  /// Filled: all of them.
  std::map<std::string, std::string> model_settings;
  std::string init_from = "scratch";  // or a folder: a checkpoint, a run, or a Hugging Face model
  std::vector<std::string> freeze;  // places and parameters that are not trained (models/freeze.h)

  // A low-rank adapter that is trained instead of the model (models/adapters/adapter.h).
  int64_t lora_r = 0;     // rank; 0: none
  double lora_alpha = 0;  // filled: twice the rank
  double lora_dropout = 0;
  std::vector<std::string> lora_targets;  // filled: all-linear
  bool rslora = false;
  bool load_in_4bit = false, load_in_8bit = false;  // what the model is held in beside the adapter
  std::string load_in_4bit_type = "int4";           // int4, nf4, fp4
  std::vector<std::string> lora_modules_to_save;

  // The loss of preferences (models/losses/preference_loss.h).
  std::string dpo_loss = "sigmoid";  // or "ipo"
  double dpo_beta = 0.1;
  double dpo_label_smoothing = 0;

  // Training.
  int64_t max_steps = 2000;     // 0: from num_train_epochs
  double num_train_epochs = 0;  // 0: from max_steps; ignored when max_steps > 0
  int64_t batch_size = 12;      // sequences per micro-batch
  int64_t gradient_accumulation_steps = 1;
  double learning_rate = 1e-3;
  double min_lr = -1;                        // filled: learning_rate / 10; 0 for "linear"
  std::string lr_scheduler_type = "cosine";  // cosine, linear, constant, constant_with_warmup
  double warmup_steps = 100;                 // below 1: a share of the steps
  int64_t lr_decay_steps = 0;                // 0: all steps
  std::string optim = "adamw";               // adamw, adamw_8bit, sgd, lion, adafactor, muon
  bool fused_optimizer = true;               // false: element-wise ops for each tensor
  double weight_decay = 0.1;
  double momentum = 0.9;             // of sgd
  double muon_learning_rate = 0.02;  // of hidden matrices; the others have learning_rate
  bool relative_step = false;        // filled: adafactor without a learning rate
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.99;
  double adam_epsilon = 1e-8;
  double max_grad_norm = 1.0;  // 0: no clipping
  int64_t seed = 1337;
  int64_t data_seed = -1;  // filled: seed
  // random (with replacement, as nanoGPT), epoch (shuffled), documents, group_by_length
  std::string sampling = "random";
  std::string pack = "none";           // or "documents": several of them in a row, each a sequence
  int64_t dataloader_num_workers = 1;  // threads that make batches; 0: the step makes its own
  int64_t dataloader_prefetch_factor = 2;  // batches ahead per worker

  // Evaluation and logging.
  double eval_steps = 250;                // below 1: a share of all steps; 0: only at the end
  int64_t eval_batches = 20;              // 0: the whole validation text
  int64_t eval_batch_size = 0;            // filled: batch_size
  bool load_best_model_at_end = false;    // the run ends with the weights of its best evaluation
  std::string metric_for_best_model;      // which one that is; "": the task's, or the loss
  std::optional<bool> greater_is_better;  // what the user believes of that metric
  double logging_steps = 1;               // below 1: a share of all steps
  int64_t samples = 1;                    // texts that the model writes at the end, ...
  double sample_steps = 0;                // and after so many steps; 0: only at the end
  std::string sample_prompt;              // that they continue; "": where a text begins
  int64_t sample_tokens = 300;            // of each
  double sample_temperature = 0.8;        // 0: always the likeliest token
  std::string report_to = "tensorboard";  // event files; log.jsonl is written in any case
  bool live = false;                      // a page of the run on this machine
  int64_t live_port = 0;                  // 0: any that is free
  bool disable_tqdm = false;
  bool json = false;

  // The run folder.
  std::string output_dir;  // "": runs/<preset>-<n>
  std::string run_name;    // "": the folder's name
  double save_steps = -1;  // filled: eval_steps; below 1: a share of all steps; 0: only at the
                           // end and on a signal
  int64_t save_total_limit = 2;
  std::string resume = "false";  // "true": the newest checkpoint; else a folder
  bool overwrite = false;

  // The machine.
  std::string device = "auto";
  Precision precision = Precision::fp32;             // mixed but for fp32
  std::string float32_matmul_precision = "highest";  // highest, high, medium
  std::string qat = "none";        // quantization-aware training: none, or a precision of integers
  int64_t qat_group_size = 0;      // inputs that share a scale with 4 bits; 0: 32
  double init_loss_scale = 65536;  // of fp16
  Precision param_dtype = Precision::fp32;  // fp32, or bf16: no fp32 copy of matrices
  int64_t threads = 0;                      // 0: all that the process may use
  std::string memory_limit;                 // "6GiB"; "": what the process may use
  std::string fit = "false";                // "true", or "all": the optimizer, too
  std::string rematerialize = "none";       // none, all, blocks, auto
  std::string activation_memory;            // budget of auto ("2GiB"), "" for none
  bool compile = true;

  // Ranks: processes that train together. batch_size and gradient_accumulation_steps are those of
  // all of them.
  int64_t ranks = 1;
  int64_t zero = 0;                    // ZeRO's stage, 0 to 3
  int64_t deterministic_ranks = 0;     // slots of a step; 0: as many as ranks
  bool overlap = true;                 // of communication and computation
  std::string comm = "auto";           // what carries bytes between them
  double rank_timeout = 0;             // seconds; 0: the transports' own
  bool elastic = false;                // lost ranks are started again
  int64_t max_restarts = 100;          // of one call of the program
  int64_t peer_checkpoint_steps = -1;  // -1: with elastic, as often as costs little; 0: never

  // Looking inside.
  bool explain = false;
  bool explain_dispatch = false;
  std::string dump_graph;                 // folder, "": off
  std::vector<std::string> disable_pass;  // names of passes

  /// Canonical names that the file or the command line set, sorted. Not recorded.
  std::vector<std::string> given;

  bool operator==(const TrainOptions&) const = default;
  bool was_given(std::string_view name) const;
  /// Whether the run has no validation data, so that it never evaluates.
  bool skips_validation() const { return val_data.empty() && val_fraction == 0; }
  /// The steps that eval_steps, save_steps, sample_steps or logging_steps means; 0 for none, and
  /// for a share of steps whose number is not known yet (max_steps 0).
  int64_t interval(double steps) const;
  /// While it trains; at the end the model is read from its folder.
  bool writes_samples() const { return sample_steps > 0 && samples > 0; }
  bool wants_resume() const { return resume != "false"; }
  bool wants_live() const { return live || live_port > 0; }
  bool wants_fit() const { return fit != "false"; }
  bool keeps_peer_checkpoints() const {
    return peer_checkpoint_steps > 0 || (elastic && peer_checkpoint_steps < 0);
  }
};

inline const TaskTraits& traits_of(const TrainOptions& options) { return traits_of(options.task); }
/// Whether a chat template writes what the run learns.
inline bool renders_conversations(const TrainOptions& options) {
  return traits_of(options).renders_conversations();
}
/// Whether the run learns labels, of texts or of pictures.
inline bool learns_labels(const TrainOptions& options) { return traits_of(options).has_labels(); }
inline bool learns_pictures(const TrainOptions& options) {
  return traits_of(options).data == TaskData::pictures;
}

/// A tokenizer that is learnt from the text, and how many entries it gets: "bpe:N", "wordpiece:N".
struct LearntTokenizer {
  std::string kind;  // "bpe", "wordpiece"
  int64_t entries = 0;
};
/// Nothing for other names. Throws UserError (exit 2) for a bad N.
std::optional<LearntTokenizer> learnt_tokenizer(const std::string& name);

/// The one table.
const OptionTable<TrainOptions>& train_option_table();

/// The presets of all architectures.
std::vector<const models::Preset*> presets();

const models::Preset& find_preset(const std::string& name);

/// Whether the option is asked anew each time, and never taken from the record of a run.
bool is_per_call(std::string_view name);
/// Copies the options of which that is true.
void copy_per_call(const TrainOptions& from, TrainOptions& to);
/// Whether the option belongs to some architecture: a folder with a model says its value.
bool is_model_setting(std::string_view name);
/// Whether it does, and not to the one of `options`.
bool is_foreign_setting(std::string_view name, const TrainOptions& options);

/// Preset, then the file (key "config"), then `given` (a list's entries add up), then derived
/// fields and validation. Keys may be any alias, with `_` or `-`, with or without dashes. Entries
/// of the file, or of `given`, that contradict each other are refused: no order decides.
TrainOptions resolve(const KeyValues& given);
/// The same without the validation: for help, where the options are not complete.
TrainOptions resolve_unchecked(const KeyValues& given);

/// The min_lr of a run that was given none.
double default_min_lr(const TrainOptions& options);
/// Throws UserError (exit 2) if min_lr exceeds the learning rate of a schedule that decays to it.
void check_min_lr(const TrainOptions& options);

/// `over` and what it leaves of `under`, as one `given`: a setting in `under` goes where `over`
/// sets the same field, by whatever name; lists add up. Throws UserError (exit 2) for an unknown
/// key.
KeyValues overlaid(KeyValues under, const KeyValues& over);

/// Ranges across fields: min_lr <= learning_rate, a setting that the architecture has, ... Called
/// by resolve().
void validate(const TrainOptions& options);

/// Cuts the rows of a step into as many micro-batches as the slots of --deterministic-ranks, or a
/// multiple of them; changes nothing where they are cut so already. Throws UserError (exit 2) where
/// ranks, slots and rows do not divide each other.
void cut_into_slots(TrainOptions& options);

/// Throws UserError (exit 2) where the options pack documents for a model with such a head.
void check_packable(const TrainOptions& options, models::Head head);

/// One JSON object with every field by its canonical name with '_' (max_steps), in table order.
/// Settings of other architectures are left out.
std::string to_json(const TrainOptions& options);
/// Reads what to_json() wrote; `what` names it in errors. Unknown and mistyped keys fail; fields
/// that are absent keep their defaults.
TrainOptions options_from_json(std::string_view json, const std::string& what);

/// The same as a TOML file that --config reads back.
std::string to_toml(const TrainOptions& options);

/// "brrr train --preset char ... --overwrite": the shortest command that begins this run again, in
/// the folder `run`.
std::string command_to_begin_again(const TrainOptions& recorded, const std::string& run);

/// Whether a resumed run may have another value: what decides how the rest of it learns, is
/// evaluated, logged and saved, and nothing that its checkpoint holds.
bool may_change_on_resume(const OptionTable<TrainOptions>::Row& row);

/// Options to go on with a run that `recorded` started: the recorded ones, with what the user gave
/// now where that leaves the model, its data and the state of its optimizer as they are: learning
/// rates and schedules, weight decay, clipping, evaluation, logging, saving, samples, max_steps,
/// threads... A min_lr that followed from the learning rate follows from the new one. Throws
/// UserError when now gives another value for anything else. `what` names the record.
TrainOptions merge_for_resume(const TrainOptions& recorded, const TrainOptions& now,
                              const std::string& what);

/// The options of a checkpoint, with what resumed processes have changed since it was written as
/// far as the record of its run says so (train_config.json in the folder `run`).
TrainOptions with_later_changes(const TrainOptions& at_checkpoint,
                                const std::filesystem::path& run);

/// An option of which a resumed run has another value than its checkpoint.
struct OptionChange {
  std::string name, before, now;
};
/// Those that change what the run learns, or when it evaluates, logs, saves and writes samples.
std::vector<OptionChange> changes_on_resume(const TrainOptions& at_checkpoint,
                                            const TrainOptions& now);
/// "--learning-rate 0.0001 (was 0.001)", for each.
std::vector<std::string> texts_of(const std::vector<OptionChange>& changes);

/// One key of a TOML file: its value as text, and "run.toml:3" for errors. A list has one entry per
/// item; tables are headings only.
struct FileSetting {
  std::string key, value, where;
};
std::vector<FileSetting> read_toml(const std::string& path);
/// Returns whether a positional argument names an options file, by its extension. YAML files count,
/// so that read_toml() refuses them with a hint instead of their being trained on as text.
bool is_options_file(const std::string& path);
/// The same for a configuration file of nanoGPT: `name = literal` or `name: type = literal`, where
/// numbers may be joined by + - * / // % ** and parentheses, and a list gives a list. Nothing in
/// the file is run.
std::vector<FileSetting> read_python(const std::string& path);

}  // namespace brrr::train
