#include "cli/eval/eval_conversations.h"

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/human.h"
#include "base/integers.h"
#include "base/memory.h"
#include "base/tell.h"
#include "cli/eval/eval_parts.h"
#include "cli/join_ranks.h"
#include "cli/model_option.h"
#include "cli/run_options.h"
#include "data/loader.h"
#include "data/strided_batches.h"
#include "folders/adapters/adapter_folder.h"
#include "folders/chat_template.h"
#include "infer/evaluate.h"
#include "infer/open/named_model.h"
#include "infer/runner.h"
#include "machine/device.h"
#include "models/adapters/adapted_model.h"
#include "models/losses/preference_loss.h"
#include "runtime/made_inputs.h"
#include "runtime/ranks/shared_work.h"
#include "train/chat/conversation_file.h"
#include "train/mean_loss.h"
#include "train/options/preference_options.h"
#include "train/tasks/task_loss.h"

namespace brrr::cli {
namespace {

using train::TaskData;
using train::TrainOptions;

/// Returns the folder given by --adapter if that option was given exactly once.
std::optional<fs::path> only_adapter(const infer::EvalOptions& options) {
  const std::vector<io::ChosenAdapter> adapters = io::parse_adapters(options.adapter);
  if (adapters.size() != 1) return std::nullopt;
  return adapters[0].folder;
}

/// Returns the recorded options of the DPO run that trained the adapter, or default options if
/// there is no such record.
TrainOptions recorded_preferences(const infer::EvalOptions& options) {
  const std::optional<fs::path> adapter = only_adapter(options);
  const std::optional<TrainOptions> recorded =
      recorded_options(adapter ? *adapter : find_named_model(options.model));
  return recorded && train::traits_of(*recorded).has_reference ? *recorded : TrainOptions();
}

/// Sets the preference loss, its beta and its label smoothing in `o`. Options left at "auto" take
/// the values that the adapter's run recorded if that run had the same loss, and the defaults of
/// `train` otherwise. Throws UserError if label smoothing is combined with a loss other than
/// sigmoid.
void adopt_preferences(TrainOptions& o, const infer::EvalOptions& options) {
  TrainOptions recorded = recorded_preferences(options);
  o.dpo_loss = options.dpo_loss == "auto" ? recorded.dpo_loss : options.dpo_loss;
  if (o.dpo_loss != recorded.dpo_loss) recorded = {};
  o.dpo_beta = options.dpo_beta.value_or(recorded.dpo_beta);
  o.dpo_label_smoothing = options.dpo_label_smoothing.value_or(recorded.dpo_label_smoothing);
  train::check_label_smoothing_of_pairs(o);
}

/// Formats the preference loss and its parameters: "sigmoid, beta 0.1".
std::string title_of_loss(const TrainOptions& o) {
  std::string title = fmt::format("{}, beta {}", o.dpo_loss, show_real(o.dpo_beta));
  if (o.dpo_label_smoothing > 0)
    title += fmt::format(", label smoothing {}", show_real(o.dpo_label_smoothing));
  return title;
}

/// Returns the training options from which `train` reads the file and builds the loss.
TrainOptions options_of_evaluation(const infer::EvalOptions& options, const io::ModelFolder& model,
                                   train::TrainTask task) {
  const int64_t longest = model.definition->sizes().context;
  if (options.context > longest)
    user_error("--context must be between 1 and the model's {}; got {}", longest, options.context);
  TrainOptions o;
  o.task = task;
  o.val_data = options.data.empty() ? options.text : options.data;
  o.chat_template = options.chat_template;
  o.context = options.context > 0 ? options.context : longest;
  o.truncate = options.truncate;
  o.sampling = "documents";
  o.pack = train::traits_of(task).packs ? "documents" : "none";
  o.batch_size = o.eval_batch_size = options.batch_size;
  o.device = options.device;
  return o;
}

/// Shortens rows and batches to what the data fill.
void fit_to_data(TrainOptions& o, const train::Dataset& data) {
  constexpr int64_t kStep = 8;
  int64_t longest = data.longest_sequence();
  for (const io::Document& d : data.val_documents) longest = std::max(longest, d.end - d.begin - 1);
  o.context = std::min(o.context, round_up(std::max<int64_t>(longest, 1), kStep));
  const int64_t rows = data.preferences ? std::ssize(data.preferences->validation.pairs)
                                        : std::ssize(data.val_documents);
  o.batch_size = o.eval_batch_size = std::min(o.eval_batch_size, rows);
}

/// A model that is run on the validation batches of a dataset, all of one size.
class BatchRuns {
 public:
  /// Called with the requested outputs of a batch and its number of targets or pairs.
  using Use = std::function<void(std::span<const std::vector<float>> outputs, int64_t count)>;
  using Progress = std::function<void(int64_t done, int64_t total)>;  // in batches

  /// `model` must outlive this.
  BatchRuns(const infer::EvalOptions& options, const TrainOptions& o, const io::ModelFolder& model,
            Communicator* communicator)
      : communicator_(communicator) {
    layout_ = train::evaluation_options(o, *model.definition);
    layout_.lengths.clear();
    const train::TaskLoss loss(o, *model.definition);
    const auto runnable =
        runnable_of(loss.evaluation(layout_.batch, loss.longest(layout_.batch)), model.weights);
    const RunPrecision precision = precision_of(options, model);
    RunnableOptions how;
    how.passes = for_inference(precision.dtype, precision.quantization);
    inputs_ = make_inputs(*runnable, {}, {}).values;
    // The batches ahead, one in the hands of the worker, and the current one.
    int64_t batch_bytes = 0;
    for (const auto& [name, value] : inputs_) batch_bytes += std::ssize(value.tensors[0].bytes);
    const int64_t held = layout_.workers * (layout_.prefetch_factor + 1) + 1;
    const infer::Memory memory = memory_of(options, "a smaller --batch-size, a smaller --context");
    run_on_all(communicator, [&] {
      runner_.emplace(runnable, machine::backend_for(options.device), how,
                      infer::counting_all(memory), held * batch_bytes);
      runner_->prepare(inputs_);
    });
    inputs_.insert_or_assign("loss_scale", HostTensor::of<float>({}, {1}));
  }

  /// Calls `use` for every batch of `source`, in order, on all ranks.
  void run(std::unique_ptr<io::BatchSource> source, const std::vector<std::string>& outputs,
           const Use& use, const Progress& progress) {
    constexpr int64_t kBatchesBetweenExchanges = 8;  // of each rank
    const int64_t batches = source->batches_per_pass();
    io::Loader loader(std::make_unique<io::StridedBatches>(
                          std::move(source), rank_of(communicator_), ranks_of(communicator_)),
                      layout_);
    divide_pieces(
        communicator_, batches, kBatchesBetweenExchanges,
        [&](int64_t) {
          const io::Batch& batch = loader.next();
          set_inputs(batch);
          const PortValues values = runner_->run(inputs_, outputs);
          Packed packed;
          packed.put_value(batch.count);
          for (const std::string& name : outputs)
            packed.put<float>(values.at(name).tensors[0].as<float>());
          return packed;
        },
        [&](int64_t batch, Packed& packed) {
          const auto count = packed.take_value<int64_t>();
          std::vector<std::vector<float>> list;
          for (size_t i = 0; i < outputs.size(); ++i) list.push_back(packed.take<float>());
          use(list, count);
          if (progress) progress(batch + 1, batches);
          return true;
        });
  }

  const io::LoaderOptions& layout() const { return layout_; }

 private:
  void set_inputs(const io::Batch& batch) {
    for (const io::Batch::Tensor& t : batch.tensors) {
      const auto input = inputs_.find(t.name);
      if (input == inputs_.end()) continue;
      std::vector<std::byte>& to = input->second.tensors[0].bytes;
      BRRR_CHECK(to.size() == t.bytes().size(), "{}: {} bytes for {}", t.name, t.bytes().size(),
                 to.size());
      std::ranges::copy(t.bytes(), to.begin());
    }
  }

  Communicator* communicator_;
  io::LoaderOptions layout_;
  PortValues inputs_;
  std::optional<infer::Runner> runner_;
};

/// Sums over all validation data, on all ranks.
struct Sums {
  std::vector<double> of_outputs;
  int64_t count = 0;  // targets, or pairs
};

Sums sums_of(BatchRuns& runs, const train::Dataset& data, const std::vector<std::string>& outputs,
             const BatchRuns::Progress& progress) {
  Sums sums{std::vector<double>(outputs.size())};
  runs.run(
      data.val_batches(runs.layout()), outputs,
      [&](std::span<const std::vector<float>> values, int64_t count) {
        for (size_t i = 0; i < values.size(); ++i) sums.of_outputs[i] += values[i].at(0);
        sums.count += count;
      },
      progress);
  for (double& sum : sums.of_outputs) sum /= static_cast<double>(std::max<int64_t>(1, sums.count));
  return sums;
}

/// Opens the model that an adapter was trained over.
io::ModelFolder open_reference(const infer::EvalOptions& options, const io::ModelFolder& model) {
  if (model.definition->adapted() == nullptr)
    usage_error(
        "{}: pairs of answers are scored against a reference, the base of an adapter: add "
        "--adapter FOLDER, or name the folder of an adapter",
        model.folder.string());
  const fs::path named = find_named_model(options.model);
  return io::open_model(io::holds_adapter(named) ? io::base_folder(named) : named,
                        {.reads_tokenizer = false});
}

/// The folder that brings the tokenizer and the chat template: a single adapter's, if it has both,
/// because the adapter learnt answers in that form; else the model's.
std::string folder_of_text(const infer::EvalOptions& options, const io::ModelFolder& model) {
  const std::optional<fs::path> adapter = only_adapter(options);
  if (adapter && io::has_tokenizer(*adapter) && io::ChatTemplate::read(*adapter, false))
    return adapter->string();
  return model.folder.string();
}

/// Computes the reference's log probabilities of the pairs.
void score_by_reference(const infer::EvalOptions& options, const TrainOptions& o,
                        const io::ModelFolder& reference, train::PreferencePart& pairs,
                        Communicator* communicator, const BatchRuns::Progress& progress) {
  BatchRuns runs(options, o, reference, communicator);
  std::vector<float> all;
  runs.run(
      pairs.batches(runs.layout()), {models::kLogProbabilities},
      [&](std::span<const std::vector<float>> values, int64_t) {
        all.insert(all.end(), values[0].begin(), values[0].end());
      },
      progress);
  pairs.set_reference(std::move(all));
}

}  // namespace

std::optional<train::TrainTask> task_of_files(const infer::EvalOptions& options) {
  std::vector<std::string> files = options.data;
  files.insert(files.end(), options.text.begin(), options.text.end());
  if (files.size() != 1 || !train::is_file_of_rows(files[0])) return std::nullopt;
  const bool is_text = options.data.empty();
  if (is_text && !options.text_column.empty()) return std::nullopt;  // it names a field of text
  TaskData data = TaskData::text;
  try {
    data = train::data_of_rows(files[0], is_text);
  } catch (const UserError&) {
    if (!is_text) throw;  // the reader of --text says what is wrong with the file
  }
  for (const train::TaskTraits& task : train::task_table())
    if (task.data == data && task.renders_conversations()) return task.task;
  if (!is_text)
    usage_error(
        "{}: expected rows with \"messages\", with \"prompt\" and \"completion\", or with "
        "\"chosen\" and \"rejected\"; for rows of text take --text",
        files[0]);
  return std::nullopt;
}

int eval_conversations(const infer::EvalOptions& options, const io::ModelFolder& model,
                       train::TrainTask task, Communicator* communicator) {
  const Stopwatch watch;
  TrainOptions o = options_of_evaluation(options, model, task);
  std::optional<io::ModelFolder> reference;
  train::Dataset data;
  run_on_all(communicator, [&] {
    if (train::traits_of(task).has_reference) {
      reference = open_reference(options, model);
      adopt_preferences(o, options);
    }
    data = train::load_dataset(o, folder_of_text(options, model));
  });
  fit_to_data(o, data);
  if (reference) {
    check_same_models(communicator, *reference, options.device);
    check_same_files(communicator, "train_config.json", [&] { return title_of_loss(o); });
  }
  EvalProgress bar(options);
  BatchRuns::Progress progress;
  if (is_first_rank(communicator))
    progress = [&](int64_t done, int64_t total) { bar.update(done, total); };
  if (reference) {
    if (is_first_rank(communicator))
      tell("scoring the pairs with {}\n", reference->folder.string());
    score_by_reference(options, o, *reference, data.preferences->validation, communicator, {});
  }
  BatchRuns runs(options, o, model, communicator);
  check_same_files(communicator, "data",
                   [&] { return data.val_batches(runs.layout())->fingerprint(); });
  std::vector<std::string> outputs{"loss"};
  for (const std::string& figure : train::TaskLoss(o, *model.definition).figures())
    outputs.push_back(figure);
  const Sums sums = sums_of(runs, data, outputs, progress);
  bar.finish();
  if (!is_first_rank(communicator)) return 0;

  for (const std::string& note : data.notes) tell("note: {}\n", note);
  const double loss = sums.of_outputs[0], seconds = watch.seconds();
  const std::string scored = reference ? "pairs" : "tokens";
  const std::string file = o.val_data[0];
  if (options.json) {
    nlohmann::ordered_json j;
    for (size_t i = 0; i < outputs.size(); ++i) j[outputs[i]] = json_number(sums.of_outputs[i]);
    if (!reference) j["perplexity"] = json_number(std::exp(loss));
    j[scored] = sums.count;
    if (reference) {
      j["reference"] = reference->folder.string();
      j["dpo_loss"] = o.dpo_loss;
      j["dpo_beta"] = o.dpo_beta;
      j["dpo_label_smoothing"] = o.dpo_label_smoothing;
    }
    j["seconds"] = seconds;
    j["process_peak_bytes"] = peak_resident_bytes();
    j["model"] = model.folder.string();
    if (const std::vector<std::string> titles = infer::adapter_titles(model); !titles.empty())
      j["adapters"] = titles;
    print_eval_json(j);
  }
  if (!std::isfinite(loss))
    user_error("{}: {}", model.folder.string(), infer::fault_of_loss(loss, model));
  if (options.json) return 0;
  if (!reference) {
    fmt::print("{}: loss {:.4f}, perplexity {:.3f} on {} of the assistant in {}\n",
               infer::title_of(model), loss, std::exp(loss), counted(sums.count, "token"), file);
    return 0;
  }
  std::string line = fmt::format("loss {:.4f}", loss);
  for (size_t i = 1; i < outputs.size(); ++i)
    line += fmt::format(", {} {:.4f}", outputs[i], sums.of_outputs[i]);
  fmt::print("{}: {} ({}) on {} of {}; the reference is {}\n", infer::title_of(model), line,
             title_of_loss(o), counted(sums.count, "pair"), file, reference->folder.string());
  return 0;
}

}  // namespace brrr::cli
