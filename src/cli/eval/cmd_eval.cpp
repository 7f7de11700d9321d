// brrr eval: loss and perplexity of a language model on any text or shards, or its loss on a file
// of conversations; the scores of a model with a task on a file of texts and labels.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>

#include "base/human.h"
#include "base/memory.h"
#include "base/tell.h"
#include "cli/commands.h"
#include "cli/eval/eval_conversations.h"
#include "cli/eval/eval_parts.h"
#include "cli/join_ranks.h"
#include "cli/model_option.h"
#include "data/corpus.h"
#include "infer/evaluate.h"
#include "infer/evaluate_task.h"
#include "infer/picture_model.h"
#include "machine/device.h"

namespace brrr::cli {
namespace {

struct Source {
  io::TokenSource tokens;
  std::string description;
  int64_t bytes = 0;  // size of the text; 0 for shards

  std::string identity() const {
    return fmt::format("{} ({})", tokens.fingerprint(), counted(tokens.tokens(), "token"));
  }
};

/// Identifies the rows of a labelled file.
std::string identity_of(const io::LabelledFile& file) {
  uint32_t crc = 0;
  const auto add = [&]<typename T>(const T& list) {
    crc = crc32c(list.data(), list.size() * sizeof(list[0]), crc);
  };
  for (const io::LabelledRow& row : file.rows) {
    add(row.text);
    add(row.text2);
    for (const std::string& word : row.words) add(word);
    add(std::span(&row.label, 1));
    add(row.values);
    add(row.tags);
  }
  return fmt::format("{} ({})", counted(std::ssize(file.rows), "row"), crc_text(crc));
}

// Refuses a text that does not fit in memory, before it is read. Tokens count only for a byte
// tokenizer: with another one their number is not known yet.
void check_room(const io::CorpusFiles& corpus, const io::Tokenizer& tokenizer,
                const MemoryLimit& limit) {
  int64_t bytes = 0;
  std::error_code ignored;
  for (const fs::path& file : corpus.files)
    bytes += static_cast<int64_t>(fs::file_size(file, ignored));
  const int64_t ids = tokenizer.kind() == "byte" ? bytes * int64_t{sizeof(int32_t)} : 0;
  const int64_t now = resident_memory().needed(), needed = now + bytes + ids;
  if (needed <= limit.bytes) return;
  // The limit is below what the program alone takes: opening the model names a sufficient limit.
  constexpr int64_t kLittle = int64_t{8} << 20;
  if (limit.bytes < now && bytes <= kLittle) return;
  throw UserError(
      fmt::format("the text does not fit in memory: {} of it are read at once, the process then "
                  "needs {} or more, and {} is {}. Make shards of it with `brrr data prepare` and "
                  "pass them by --data",
                  memory_text(bytes), memory_text(needed), limit.source, memory_text(limit.bytes)),
      ExitCode::kNoMemory);
}

Source open_source(const infer::EvalOptions& options, const io::Tokenizer& tokenizer,
                   const Backend& backend, const infer::Memory& memory) {
  if (!options.data.empty()) {
    io::TokenSource tokens = io::TokenSource::open_validation(options.data);
    std::string description = tokens.description();
    return {std::move(tokens), std::move(description), 0};
  }
  io::CorpusOptions c;
  for (const std::string& path : options.text) c.text.emplace_back(path);
  c.accept_bytes = tokenizer.kind() == "byte";
  c.text_field = options.text_column;
  if (backend.memory_bytes == 0) check_room(io::find_corpus(c), tokenizer, memory.limit);
  const io::Corpus corpus = io::load_corpus(c);
  std::vector<int32_t> ids;
  if (const auto begin = infer::begin_of_windows(tokenizer)) ids.push_back(*begin);
  tokenizer.encode(corpus.text, ids);
  return {io::TokenSource::from_ids(std::move(ids), corpus.description), corpus.description,
          static_cast<int64_t>(corpus.text.size())};
}

int eval_language_model(const infer::EvalOptions& options, const io::ModelFolder& model,
                        Communicator* communicator) {
  const Backend backend = machine::backend_for(options.device);
  const infer::Memory memory = memory_of(options, "a smaller --batch-size, a smaller --context");
  std::optional<Source> source;
  run_on_all(communicator,
             [&] { source = open_source(options, *model.tokenizer, backend, memory); });
  check_same_files(communicator, "data", [&] { return source->identity(); });
  EvalProgress progress(options);
  infer::EvaluateOptions e;
  e.batch_size = options.batch_size;
  e.context = options.context;
  if (options.data.empty()) e.begin = infer::begin_of_windows(*model.tokenizer);
  const RunPrecision precision = precision_of(options, model);
  e.precision = precision.dtype;
  e.quantization = precision.quantization;
  e.memory = memory;
  e.communicator = communicator;
  if (is_first_rank(communicator))
    e.progress = [&](int64_t done, int64_t total) { progress.update(done, total); };
  const infer::Evaluation r = infer::evaluate(model, source->tokens, backend, e);
  progress.finish();

  const double bits = r.loss * static_cast<double>(r.tokens) / std::log(2.0);
  if (options.json) {
    nlohmann::ordered_json j;
    j["loss"] = r.loss;  // null if it is not finite
    j["perplexity"] = r.perplexity;
    j["tokens"] = r.tokens;
    if (!r.fault.empty()) j["reason"] = r.fault;
    if (source->bytes > 0 && r.fault.empty())
      j["bits_per_byte"] = bits / static_cast<double>(source->bytes);
    j["seconds"] = r.seconds;
    j["tokens_per_second"] = static_cast<double>(r.tokens) / r.seconds;
    j["process_peak_bytes"] = peak_resident_bytes();
    j["model"] = model.folder.string();
    if (const auto adapters = infer::adapter_titles(model); !adapters.empty())
      j["adapters"] = adapters;
    print_eval_json(j);
  }
  if (!r.fault.empty()) user_error("{}: {}", model.folder.string(), r.fault);
  if (options.json) return 0;
  fmt::print("{}: loss {:.4f}, perplexity {:.3f}{} on {} of {} ({:.0f} tokens/s)\n",
             infer::title_of(model), r.loss, r.perplexity,
             source->bytes > 0
                 ? fmt::format(", {:.4f} bits per byte", bits / static_cast<double>(source->bytes))
                 : "",
             counted(r.tokens, "token"), source->description,
             static_cast<double>(r.tokens) / r.seconds);
  return 0;
}

/// Prints a row for each label with its precision, recall and F1.
void print_labels(const std::vector<io::LabelScore>& labels) {
  constexpr size_t kMostShown = 50, kWidest = 40;
  size_t width = 5;
  for (const auto& [label, score] : labels)
    width = std::max(width, std::min(label.size(), kWidest));
  fmt::print("\n{:<{}}  precision  recall      F1  examples\n", "label", width);
  for (size_t i = 0; i < std::min(labels.size(), kMostShown); ++i) {
    const auto& [label, s] = labels[i];
    fmt::print("{:<{}}  {:>9.4f}  {:>6.4f}  {:>6.4f}  {:>8}\n", fit_for_a_line(label), width,
               s.precision, s.recall, s.f1, s.truth);
  }
  if (labels.size() > kMostShown)
    fmt::print("and {} more (--json has all)\n", labels.size() - kMostShown);
}

/// Prints the confusion matrix, with a row for each label and a column for each prediction.
void print_confusion(const std::vector<std::vector<int64_t>>& confusion,
                     const std::vector<std::string>& labels) {
  constexpr size_t kMostShown = 12, kWidest = 16;
  if (confusion.empty()) return;
  if (labels.size() > kMostShown) {
    fmt::print("\nconfusion matrix: {} x {} (--json has it)\n", labels.size(), labels.size());
    return;
  }
  const auto shown = [&](size_t i) {
    const std::string label = fit_for_a_line(labels[i]);
    return label.size() <= kWidest ? label : std::to_string(i);
  };
  size_t width = 8;
  for (size_t i = 0; i < labels.size(); ++i) width = std::max(width, shown(i).size());
  fmt::print("\nconfusion matrix (rows: true labels, columns: predictions)\n{:<{}}", "", width);
  for (size_t i = 0; i < labels.size(); ++i) fmt::print("  {:>{}}", shown(i), width);
  fmt::print("\n");
  for (size_t row = 0; row < confusion.size(); ++row) {
    fmt::print("{:<{}}", shown(row), width);
    for (const int64_t n : confusion[row]) fmt::print("  {:>{}}", n, width);
    fmt::print("\n");
  }
}

nlohmann::ordered_json evaluation_json(const infer::TaskEvaluation& r,
                                       const io::ModelFolder& model) {
  nlohmann::ordered_json j;
  j["loss"] = json_number(r.loss);
  for (const io::Metric& m : r.metrics) j[m.name] = json_number(m.value);
  j["scored"] = r.scored;
  j[model.definition->sees_pictures() ? "pictures" : "texts"] = r.texts;
  if (!r.by_label.empty()) {
    auto list = nlohmann::ordered_json::array();
    for (const auto& [label, s] : r.by_label)
      list.push_back({{"label", label},
                      {"precision", s.precision},
                      {"recall", s.recall},
                      {"f1", s.f1},
                      {"examples", s.truth},
                      {"predicted", s.predicted}});
    j["labels"] = list;
  }
  if (!r.confusion.empty()) j["confusion_matrix"] = r.confusion;
  j["seconds"] = r.seconds;
  j["process_peak_bytes"] = peak_resident_bytes();
  j["model"] = model.folder.string();
  if (const auto adapters = infer::adapter_titles(model); !adapters.empty())
    j["adapters"] = adapters;
  return j;
}

/// Prints the notes, and the result on standard output.
int say_evaluation(const infer::EvalOptions& options, const infer::TaskEvaluation& r,
                   const io::ModelFolder& model, const std::string& what,
                   const std::string& source) {
  for (const std::string& note : r.notes) tell("note: {}\n", note);
  if (!r.explanation.empty()) tell("note: precision, recall and F1: {}\n", r.explanation);
  if (options.json) {
    print_eval_json(evaluation_json(r, model));
    return 0;
  }
  std::string line = fmt::format("loss {:.4f}", r.loss);
  for (const io::Metric& m : r.metrics)
    if (m.name != "majority_share") {
      line += fmt::format(", {} {:.4f}", m.name, m.value);
      for (const io::Metric& other : r.metrics)
        if (m.name == "accuracy" && other.name == "majority_share")
          line += fmt::format(" (majority class {:.4f})", other.value);
    }
  fmt::print("{}: {} on {} {} of {}\n", infer::title_of(model), line, with_commas(r.scored), what,
             source);
  if (!r.by_label.empty()) print_labels(r.by_label);
  print_confusion(r.confusion, model.definition->task().labels);
  return 0;
}

infer::TaskEvaluationOptions task_options(const infer::EvalOptions& options,
                                          const io::ModelFolder& model, EvalProgress& progress,
                                          Communicator* communicator) {
  infer::TaskEvaluationOptions e;
  e.batch_size = options.batch_size;
  e.context = options.context;
  e.truncate = options.truncate;
  const RunPrecision precision = precision_of(options, model);
  e.precision = precision.dtype;
  e.quantization = precision.quantization;
  e.memory = memory_of(options, "a smaller --batch-size, a smaller --context");
  e.communicator = communicator;
  if (is_first_rank(communicator))
    e.progress = [&](int64_t done, int64_t total) { progress.update(done, total); };
  return e;
}

int eval_masked_model(const infer::EvalOptions& options, const io::ModelFolder& model,
                      Communicator* communicator) {
  const Backend backend = machine::backend_for(options.device);
  EvalProgress progress(options);
  const infer::TaskEvaluationOptions e = task_options(options, model, progress, communicator);
  std::optional<Source> source;
  run_on_all(communicator,
             [&] { source = open_source(options, *model.tokenizer, backend, e.memory); });
  check_same_files(communicator, "data", [&] { return source->identity(); });
  const infer::TaskEvaluation r =
      infer::evaluate_masked(model, source->tokens, options.mlm_probability, backend, e);
  progress.finish();
  return say_evaluation(options, r, model, "masked tokens", source->description);
}

int eval_task_model(const infer::EvalOptions& options, const io::ModelFolder& model,
                    Communicator* communicator) {
  std::vector<std::string> files = options.data;
  files.insert(files.end(), options.text.begin(), options.text.end());
  if (files.size() != 1)
    usage_error("{} is for {}: expected one file of texts and labels, got {}",
                model.folder.string(), models::description(model.definition->task().head),
                files.size());
  io::LabelledFileOptions f;
  f.text_column = options.text_column;
  f.text2_column = options.text2_column;
  f.label_column = options.label_column;
  f.header = io::header_from_name(options.header);
  f.quoting = io::quoting_from_name(options.quoting);
  io::LabelledFile file;
  run_on_all(communicator, [&] { file = infer::read_file_for(*model.definition, files[0], f); });
  check_same_files(communicator, "data", [&] { return identity_of(file); });
  const Backend backend = machine::backend_for(options.device);
  EvalProgress progress(options);
  const infer::TaskEvaluation r = infer::evaluate_task(
      model, file, backend, task_options(options, model, progress, communicator));
  progress.finish();
  return say_evaluation(options, r, model, file.kind == io::LabelKind::kTags ? "words" : "texts",
                        file.name);
}

int eval_pictures(const infer::EvalOptions& options, const io::ModelFolder& model,
                  Communicator* communicator) {
  const fs::path& folder = model.folder;
  const models::Task task = model.definition->task();
  if (task.head != models::Head::classes)
    user_error("{}: its model gives feature vectors, which have no loss", folder.string());
  if (options.data.size() != 1 || !options.text.empty())
    usage_error("{} sees pictures: expected --data with one folder of pictures", folder.string());
  const infer::EvalOptions usual;
  const auto refuse = [&](bool is_given, const char* name) {
    if (is_given)
      usage_error("--{} is for text: {} sees pictures; leave it out", name, folder.string());
  };
  refuse(options.context != usual.context, "context");
  refuse(options.text_column != usual.text_column, "text-column");
  refuse(options.text2_column != usual.text2_column, "text2-column");
  refuse(options.label_column != usual.label_column, "label-column");
  refuse(options.header != usual.header, "header");
  refuse(options.quoting != usual.quoting, "quoting");
  refuse(options.truncate != usual.truncate, "no-truncate");
  refuse(options.mlm_probability != usual.mlm_probability, "mlm-probability");
  std::optional<io::ImageSet> set;
  run_on_all(communicator,
             [&] { set = io::open_images_to_evaluate(options.data[0], {.classes = task.labels}); });
  check_same_files(communicator, "data", [&] { return set->fingerprint(); });
  EvalProgress progress(options);
  infer::TaskEvaluationOptions e = task_options(options, model, progress, communicator);
  e.memory = memory_of(options, "a smaller --batch-size");
  const infer::TaskEvaluation r =
      infer::evaluate_pictures(model, *set, machine::backend_for(options.device),
                               {.run = {.precision = e.precision,
                                        .quantization = e.quantization,
                                        .batch_size = options.batch_size,
                                        .memory = e.memory},
                                .skip_bad_images = options.skip_bad_images,
                                .max_pixels = options.max_pixels,
                                .progress = e.progress,
                                .communicator = communicator});
  progress.finish();
  return say_evaluation(options, r, model, "pictures", set->what());
}

/// Refuses options that do nothing for a model. `task`: of a file of conversations or of pairs.
void check_options_for(const infer::EvalOptions& o, models::Head head, const std::string& model,
                       std::optional<train::TrainTask> task) {
  const bool has_labels = head == models::Head::classes || head == models::Head::values ||
                          head == models::Head::token_classes;
  const infer::EvalOptions usual;
  const auto refuse = [&](const char* name) {
    usage_error("--{}: {} is for {}, which does not use it; leave it out", name, model,
                models::description(head));
  };
  if (!has_labels) {
    if (o.text2_column != usual.text2_column) refuse("text2-column");
    if (o.label_column != usual.label_column) refuse("label-column");
    if (o.header != usual.header) refuse("header");
    if (o.quoting != usual.quoting) refuse("quoting");
    if (o.truncate != usual.truncate && task != train::TrainTask::dpo) refuse("no-truncate");
  }
  const auto needs = [](bool is_given, const char* name, const char* what) {
    if (is_given) usage_error("--{} is for a .jsonl file of {}; leave it out", name, what);
  };
  if (task && o.text_column != usual.text_column)
    usage_error("--text-column: the file holds {}, which have no column of text; leave it out",
                train::traits_of(*task).reads);
  if (!task) needs(o.chat_template != usual.chat_template, "chat-template", "conversations");
  if (task != train::TrainTask::dpo) {
    needs(o.dpo_loss != usual.dpo_loss, "dpo-loss", "pairs of answers");
    needs(o.dpo_beta != usual.dpo_beta, "dpo-beta", "pairs of answers");
    needs(o.dpo_label_smoothing != usual.dpo_label_smoothing, "dpo-label-smoothing",
          "pairs of answers");
  }
  if (head != models::Head::masked_token && o.mlm_probability != usual.mlm_probability)
    refuse("mlm-probability");
}

/// Opens the model that --model names, without a tokenizer if it is a model for pictures.
std::unique_ptr<io::ModelFolder> open_evaluated(const infer::EvalOptions& options) {
  const fs::path folder = find_named_model(options.model);
  const bool sees_pictures = io::read_definition(folder)->sees_pictures();
  return std::make_unique<io::ModelFolder>(io::open_model(
      folder,
      {.reads_tokenizer = !sees_pictures, .adapters = io::parse_adapters(options.adapter)}));
}

int eval(const infer::EvalOptions& options, const io::ModelFolder& model,
         Communicator* communicator) {
  check_same_models(communicator, model, options.device);
  if (model.definition->sees_pictures()) return eval_pictures(options, model, communicator);
  const models::Head head = model.definition->task().head;
  std::optional<train::TrainTask> task;
  if (head == models::Head::next_token)
    run_on_all(communicator, [&] { task = task_of_files(options); });
  check_same_files(communicator, "data",
                   [&] { return std::string(task ? train::name_of(*task) : "text"); });
  check_options_for(options, head, model.folder.string(), task);
  switch (head) {
    case models::Head::next_token:
      if (task) return eval_conversations(options, model, *task, communicator);
      return eval_language_model(options, model, communicator);
    case models::Head::masked_token:
      return eval_masked_model(options, model, communicator);
    case models::Head::embedding:
      user_error("{}: its model is for {}, which have no loss; compare vectors of `brrr embed`",
                 model.folder.string(), models::description(head));
    default:
      return eval_task_model(options, model, communicator);
  }
}

}  // namespace

int eval_main(const infer::EvalOptions& options) {
  Communicator* ranks = nullptr;
  return share_work(
      options.threads,
      [&](Communicator* communicator) {
        ranks = communicator;
        return open_evaluated(options);
      },
      [&](const io::ModelFolder& model) { return eval(options, model, ranks); });
}

}  // namespace brrr::cli
