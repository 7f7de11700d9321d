#pragma once
// Scores a model with a task (classes, ratings, tags) on a file of texts and labels, and a masked
// language model on a text whose tokens are masked as in training.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/labelled/labelled_file.h"
#include "data/labelled/metrics.h"
#include "data/token_source.h"
#include "folders/model_folder.h"
#include "infer/room.h"
#include "passes/weights/weight_choice.h"
#include "runtime/backend.h"

namespace brrr {
class Communicator;
}

namespace brrr::infer {

struct TaskEvaluationOptions {
  int64_t batch_size = 32;
  int64_t context = 0;   // 0: the model's
  bool truncate = true;  // texts that are too long are cut; false: they are an error
  DType precision = DType::f32;
  WeightQuantization quantization = {};  // of weights
  Memory memory = {};
  std::function<void(int64_t done, int64_t total)> progress = {};  // in texts or rows
  /// Divides the batches among these ranks, which all get the whole result. Null: no others.
  Communicator* communicator = nullptr;
};

struct TaskEvaluation {
  double loss = 0;     // mean, per scored text, word or masked token
  int64_t scored = 0;  // such texts, words or tokens
  int64_t texts = 0;
  std::vector<io::Metric> metrics;
  std::vector<io::LabelScore> by_label;
  std::vector<std::vector<int64_t>> confusion;  // as TaskMetrics has it
  std::string explanation;                      // what precision, recall and F1 are of
  std::vector<std::string> notes;               // for the user
  double seconds = 0;
};

/// -log softmax(logits)[label]
double cross_entropy_of(std::span<const float> logits, int32_t label);
/// Throws UserError, with the place, for logits that are no numbers.
void check_logits(std::span<const float> logits, const std::string& where);

/// Reads a file for the task of `model`, with the model's labels; where the file has numbers for
/// labels that the model names, they are the numbers of the labels, and a note says so. Throws
/// UserError as read_labelled_file does, and for a multi-label classifier.
io::LabelledFile read_file_for(const models::Model& model, const fs::path& path,
                               io::LabelledFileOptions options);

/// Throws UserError for a row that does not fit and for a model that gives NaN.
TaskEvaluation evaluate_task(const io::ModelFolder& model, const io::LabelledFile& file,
                             const Backend& backend, const TaskEvaluationOptions& options = {});

/// Head::masked_token: every token of the text is seen once, in rows of `context` tokens with
/// special ones around, and `probability` of them are masked. Metrics: accuracy, perplexity.
TaskEvaluation evaluate_masked(const io::ModelFolder& model, const io::TokenSource& tokens,
                               double probability, const Backend& backend,
                               const TaskEvaluationOptions& options = {});

}  // namespace brrr::infer
