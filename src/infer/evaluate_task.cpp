#include "infer/evaluate_task.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/human.h"
#include "data/labelled/encode_labelled.h"
#include "data/masked_batches.h"
#include "data/window_batches.h"
#include "formats/json_file.h"
#include "infer/encoder.h"
#include "infer/generator.h"
#include "runtime/ranks/shared_work.h"

namespace brrr::infer {

double cross_entropy_of(std::span<const float> logits, int32_t label) {
  const auto top = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - top);
  return top + std::log(sum) - static_cast<double>(logits[static_cast<size_t>(label)]);
}

void check_logits(std::span<const float> logits, const std::string& where) {
  if (!std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); }))
    user_error(
        "{}: the model gives NaN or infinity: its weights are damaged, its run diverged, or "
        "numbers overflow; try --precision fp32 or an earlier checkpoint",
        where);
}

namespace {

using models::Head;

constexpr size_t kTextsAtOnce = 256;
constexpr int64_t kRowsBetweenExchanges = 16;  // of masked tokens, of each rank

io::LabelKind kind_of(Head head) {
  return head == Head::values          ? io::LabelKind::kValues
         : head == Head::token_classes ? io::LabelKind::kTags
                                       : io::LabelKind::kClasses;
}

double squared_error_of(std::span<const float> values, std::span<const float> truth) {
  double sum = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double error = static_cast<double>(values[i]) - static_cast<double>(truth[i]);
    sum += error * error;
  }
  return sum / static_cast<double>(values.size());
}

bool holds_all(const std::vector<std::string>& known, const std::vector<std::string>& labels) {
  return std::ranges::all_of(labels, [&](const std::string& label) {
    return std::ranges::find(known, label) != known.end();
  });
}

/// "0", "1", ...
std::vector<std::string> numbers_below(size_t count) {
  std::vector<std::string> numbers;
  for (size_t i = 0; i < count; ++i) numbers.push_back(std::to_string(i));
  return numbers;
}

/// One row as a batch, for the metrics.
void add_row(io::TaskMetrics& metrics, io::LabelKind kind, const io::EncodedRow& row,
             std::span<const float> outputs, TaskEvaluation& result) {
  io::Batch batch;
  batch.tensors.push_back({"tokens", row.ids});
  const size_t K = outputs.size() / (kind == io::LabelKind::kTags ? row.ids.size() : 1);
  switch (kind) {
    case io::LabelKind::kClasses:
      batch.make("targets", 1, row.label);
      result.loss += cross_entropy_of(outputs, row.label);
      ++result.scored;
      break;
    case io::LabelKind::kValues:
      batch.make<int32_t>("targets", 1, 0);
      batch.tensors.push_back({"values", row.values});
      result.loss += squared_error_of(outputs, row.values);
      ++result.scored;
      break;
    case io::LabelKind::kTags:
      batch.tensors.push_back({"targets", row.tags});
      for (size_t i = 0; i < row.tags.size(); ++i) {
        if (row.tags[i] == io::kIgnoreId) continue;
        result.loss += cross_entropy_of(outputs.subspan(i * K, K), row.tags[i]);
        ++result.scored;
      }
      break;
  }
  metrics.add(outputs, batch);
}

/// `communicator`: divides the batches of the encoder.
std::unique_ptr<Encoder> encoder_for(const io::ModelFolder& model, const Backend& backend,
                                     const TaskEvaluationOptions& options,
                                     Communicator* communicator) {
  std::unique_ptr<Encoder> encoder;
  run_on_all(options.communicator, [&] {
    encoder = std::make_unique<Encoder>(model.definition, backend, model.weights,
                                        EncoderOptions{.precision = options.precision,
                                                       .quantization = options.quantization,
                                                       .batch_size = options.batch_size,
                                                       .memory = options.memory,
                                                       .communicator = communicator});
  });
  return encoder;
}

int64_t context_of(const io::ModelFolder& model, const TaskEvaluationOptions& options) {
  const int64_t longest = model.definition->sizes().context;
  if (options.context < 0 || options.context > longest)
    user_error("--context must be between 1 and the model's {}; got {}", longest, options.context);
  return options.context > 0 ? options.context : longest;
}

void finish(TaskEvaluation& result, const Stopwatch& watch) {
  result.loss /= static_cast<double>(std::max<int64_t>(1, result.scored));
  result.seconds = watch.seconds();
}

}  // namespace

io::LabelledFile read_file_for(const models::Model& model, const fs::path& path,
                               io::LabelledFileOptions options) {
  const models::Task task = model.task();
  if (task.several)
    user_error(
        "the model tells classes of which several may hold, and a file has one label for a text: "
        "such models are not scored");
  options.kind = kind_of(task.head);
  if (options.kind == io::LabelKind::kValues) {
    io::LabelledFile file = io::read_labelled_file(path, options);
    if (file.values_per_row != std::ssize(task.labels))
      user_error("{} has {} for a text, and the model gives {}", file.name,
                 counted(file.values_per_row, "number"), task.labels.size());
    return file;
  }
  options.any_labels = true;
  io::LabelledFile file = io::read_labelled_file(path, options);
  const std::vector<std::string> numbers = numbers_below(task.labels.size());
  const bool has_numbers = !holds_all(task.labels, file.labels) && holds_all(numbers, file.labels);
  // Read again, with the labels of the model in their order; another label is an error.
  options.labels = has_numbers ? numbers : task.labels;
  file = io::read_labelled_file(path, options);
  if (has_numbers) {
    std::vector<std::string> names;
    for (size_t i = 0; i < numbers.size(); ++i)
      names.push_back(fmt::format("{} is {}", i, io::in_quotes(task.labels[i])));
    file.notes.push_back(fmt::format("{}: labels are numbers: {}", file.name, listed(names)));
    file.labels = task.labels;
  }
  return file;
}

TaskEvaluation evaluate_task(const io::ModelFolder& model, const io::LabelledFile& file,
                             const Backend& backend, const TaskEvaluationOptions& options) {
  const Stopwatch watch;
  const models::Task task = model.definition->task();
  const io::EncodedFile encoded =
      io::encode_labelled(file, *model.tokenizer, context_of(model, options), options.truncate);
  const auto metrics = io::make_task_metrics(file.kind, task.labels, std::ssize(task.labels));
  const std::unique_ptr<Encoder> encoder =
      encoder_for(model, backend, options, options.communicator);
  TaskEvaluation result;
  result.notes = file.notes;
  result.notes.insert(result.notes.end(), encoded.notes.begin(), encoded.notes.end());
  for (size_t begin = 0; begin < encoded.rows.size(); begin += kTextsAtOnce) {
    const size_t count = std::min(kTextsAtOnce, encoded.rows.size() - begin);
    const auto chosen = std::span(encoded.rows).subspan(begin, count);
    std::vector<EncoderRow> rows;
    for (const io::EncodedRow& row : chosen) rows.push_back({row.ids, row.types});
    // Kept until all are there: the order of a file is that of its metrics.
    std::vector<std::vector<float>> outputs(count);
    encoder->run(rows, [&](size_t row, std::span<const float> numbers) {
      outputs[row].assign(numbers.begin(), numbers.end());
    });
    for (size_t i = 0; i < count; ++i) {
      check_logits(outputs[i], fmt::format("{}: line {}", file.name, file.rows[begin + i].line));
      add_row(*metrics, file.kind, chosen[i], outputs[i], result);
    }
    result.texts += static_cast<int64_t>(count);
    if (options.progress) options.progress(result.texts, std::ssize(encoded.rows));
  }
  result.metrics = metrics->results();
  result.by_label = metrics->by_label();
  result.confusion = metrics->confusion();
  result.explanation = metrics->explanation();
  finish(result, watch);
  return result;
}

TaskEvaluation evaluate_masked(const io::ModelFolder& model, const io::TokenSource& tokens,
                               double probability, const Backend& backend,
                               const TaskEvaluationOptions& options) {
  const Stopwatch watch;
  if (tokens.tokens() < 1) user_error("{} has no tokens", tokens.description());
  tokens.verify(model.definition->sizes().vocabulary);
  const io::MaskOptions masks = io::mask_options(*model.tokenizer, probability);
  constexpr int64_t kSpecialTokens = 2;
  io::BatchOptions b;
  b.mode = io::Sampling::kSequential;
  b.vocab = model.definition->sizes().vocabulary;
  b.batch = 1;
  // A window of text has a token behind it, which is not needed here.
  b.context = std::min(context_of(model, options), tokens.tokens() - 1 + kSpecialTokens);
  const io::MaskedBatches rows(
      std::make_unique<io::WindowBatches>(tokens, io::MaskedBatches::options_for_text(b)), b,
      masks);
  const std::unique_ptr<Encoder> encoder =
      encoder_for(model, backend, options, nullptr);  // rows are divided here
  TaskEvaluation result;
  int64_t right = 0;
  io::Batch batch;
  const int64_t count = rows.batches_per_pass();
  // The losses of a row's masked tokens, and how many of them are predicted.
  const auto score_row = [&](int64_t i) {
    rows.fill(i, batch);
    const std::vector<int32_t>& targets = batch.ids("targets");
    const auto length = static_cast<size_t>(batch.ids("lengths").at(0));
    std::vector<int32_t> places;
    for (size_t t = 0; t < length; ++t)
      if (targets[t] != io::kIgnoreId) places.push_back(static_cast<int32_t>(t));
    std::vector<double> losses;
    int64_t right_here = 0;
    if (!places.empty()) {
      const std::span<const float> logits =
          encoder->logits_at({std::span(batch.ids("tokens")).first(length), {}}, places);
      check_logits(logits, tokens.description());
      const size_t V = logits.size() / places.size();
      for (size_t p = 0; p < places.size(); ++p) {
        const auto row = logits.subspan(p * V, V);
        const int32_t truth = targets[static_cast<size_t>(places[p])];
        losses.push_back(cross_entropy_of(row, truth));
        right_here += std::max_element(row.begin(), row.end()) - row.begin() == truth;
      }
    }
    Packed packed;
    packed.put<double>(losses);
    packed.put_value(right_here);
    return packed;
  };
  divide_pieces(options.communicator, count, kRowsBetweenExchanges, score_row,
                [&](int64_t i, Packed& packed) {
                  const std::vector<double> losses = packed.take<double>();
                  for (const double loss : losses) result.loss += loss;
                  right += packed.take_value<int64_t>();
                  result.scored += std::ssize(losses);
                  result.texts += !losses.empty();
                  if (options.progress) options.progress(i + 1, count);
                  return true;
                });
  finish(result, watch);
  const auto scored = static_cast<double>(std::max<int64_t>(1, result.scored));
  result.metrics = {{"accuracy", static_cast<double>(right) / scored},
                    {"perplexity", std::exp(result.loss)}};
  return result;
}

}  // namespace brrr::infer
