// brrr rerank: documents in the order of their scores for a query, by a cross-encoder, which reads
// query and document together, or by the similarity of the vectors of an embedding model.

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "backend/cpu/target.h"
#include "base/clock.h"
#include "cli/commands.h"
#include "cli/model_option.h"
#include "cli/runnable_option.h"
#include "cli/texts/class_scores.h"
#include "cli/texts/text_vectors.h"
#include "folders/cross_encoder.h"
#include "formats/json_file.h"
#include "models/torch_activation.h"
#include "runtime/runnable_session.h"

namespace brrr::cli {

using infer::check_finite;
using infer::encoder_of;
using infer::longest_text;
using infer::rows_of;
namespace {

using models::Head;

constexpr const char* kQuery = "the query";  // in messages

/// Scores documents, which are read in windows of lines.
class DocumentScorer {
 public:
  virtual ~DocumentScorer() = default;
  virtual EncoderTexts& texts() = 0;
  /// Returns a score for each line of the current window, texts().lines().
  virtual std::vector<double> scores() = 0;
  /// The model for messages.
  virtual std::string model() const = 0;
};

class VectorScorer final : public DocumentScorer {
 public:
  explicit VectorScorer(const infer::RerankOptions& options)
      : options_(embed_options(options)),
        vectors_(options_),
        query_(vectors_.of_query(options.query, kQuery)) {
    if (!options.label.empty())
      usage_error("--label: {} gives vectors, which have no classes; leave --label out",
                  vectors_.model().path.string());
  }
  EncoderTexts& texts() override { return vectors_.texts(); }
  std::vector<double> scores() override {
    const std::vector<float> vectors = vectors_.of_lines();
    const size_t width = query_.size();
    std::vector<double> scores;
    for (size_t at = 0; at < vectors.size(); at += width)
      scores.push_back(similarity_of(query_, std::span(vectors).subspan(at, width),
                                     vectors_.model().settings.similarity));
    return scores;
  }
  std::string model() const override {
    const auto& folder = vectors_.model().folder;
    return folder ? infer::title_of(*folder) : vectors_.model().path.string();
  }

 private:
  static infer::EmbedOptions embed_options(const infer::RerankOptions& options) {
    infer::EmbedOptions embed;
    static_cast<infer::TextsOptions&>(embed) = options;
    embed.similarity = options.query;  // chooses the folder's prompts of query and documents
    return embed;
  }

  infer::EmbedOptions options_;
  TextVectors vectors_;
  std::vector<float> query_;
};

/// Applies an activation to a logit, in f64 so that scores near 0 or 1 stay distinct.
class ScoreActivation {
 public:
  explicit ScoreActivation(const std::string& name) {
    Graph g;
    g.output("y", models::torch_activation(name)(g.input("x", {1}, DType::f64)));
    session_ = std::make_unique<RunnableSession>(runnable_of(g), cpu::cpu_backend());
  }
  double operator()(double x) {
    const PortValues inputs{{"x", HostTensor::of<double>({1}, {x})}};
    return session_->run(inputs).at("y").tensor().number(0);
  }

 private:
  std::unique_ptr<RunnableSession> session_;
};

class PairScorer final : public DocumentScorer {
 public:
  PairScorer(const infer::RerankOptions& options, const fs::path& folder)
      : options_(options),
        model_(io::open_model(folder, {.adapters = io::parse_adapters(options.adapter)})),
        task_(model_.definition->task()),
        label_(label_of(options, task_, folder)),
        encoder_(encoder_of(model_, options)),
        texts_(options, *model_.tokenizer,
               longest_text(options, model_.definition->sizes().context)) {
    if (task_.labels.size() == 1) activation_.emplace(io::score_activation(folder));
  }
  EncoderTexts& texts() override { return texts_; }
  std::vector<double> scores() override {
    std::vector<io::ModelInput> inputs;
    for (size_t i = 0; i < texts_.lines().size(); ++i)
      inputs.push_back(texts_.encode(i, options_.query, texts_.lines()[i]));
    std::vector<double> scores(inputs.size());
    encoder_.run(rows_of(inputs), [&](size_t row, std::span<const float> logits) {
      check_finite(logits, texts_.where(row));
      scores[row] = activation_ ? (*activation_)(static_cast<double>(logits[0]))
                                : probabilities_of(logits, task_)[label_];
    });
    return scores;
  }
  std::string model() const override { return infer::title_of(model_); }

 private:
  /// Returns the index of the output that is the score.
  static size_t label_of(const infer::RerankOptions& options, const models::Task& task,
                         const fs::path& folder) {
    const std::vector<std::string>& labels = task.labels;
    if (!options.label.empty()) {
      const auto found = std::ranges::find(labels, options.label);
      if (found == labels.end())
        usage_error("--label {}: {} has the labels {}", options.label, folder.string(),
                    fmt::join(labels, ", "));
      return static_cast<size_t>(found - labels.begin());
    }
    if (labels.size() == 1) return 0;
    if (labels.size() == 2 && task.head == Head::classes) return 1;
    usage_error("{} has the labels {}: name the one whose score counts by --label", folder.string(),
                fmt::join(labels, ", "));
  }

  const infer::RerankOptions& options_;
  io::ModelFolder model_;
  models::Task task_;
  size_t label_;
  infer::Encoder encoder_;
  EncoderTexts texts_;
  std::optional<ScoreActivation> activation_;
};

std::unique_ptr<DocumentScorer> scorer_for(const infer::RerankOptions& options) {
  const bool is_file = !module_files(options.model).file.empty();
  if (is_file || (!options.model.empty() && io::makes_vectors(options.model)))
    return std::make_unique<VectorScorer>(options);
  const fs::path folder = find_named_model(options.model);
  const Head head = io::read_definition(folder)->task().head;
  if (!io::makes_vectors(folder) && (head == Head::classes || head == Head::values))
    return std::make_unique<PairScorer>(options, folder);
  if (head == Head::token_classes)
    user_error("{} cannot rank documents: its model is for {}", folder.string(),
               models::description(head));
  return std::make_unique<VectorScorer>(options);
}

/// Keeps the documents with the best scores. Documents with equal scores keep their order.
class Ranking {
 public:
  explicit Ranking(int64_t top_k) : most_(static_cast<size_t>(top_k)) {}

  void add(double score, const std::string& text) {
    list_.push_back({score, count_++, text});
    constexpr size_t kSpare = 4096;
    if (most_ > 0 && list_.size() >= most_ + kSpare) shorten();
  }
  void print(bool as_json) {
    shorten();
    if (as_json) fmt::print("[");
    const char* separator = "";
    for (const Document& d : list_) {
      if (as_json)
        fmt::print("{}{{\"index\":{},\"score\":{}}}", std::exchange(separator, ","), d.index,
                   io::Json(d.score).dump());
      else
        fmt::print("{:.4f}\t{}\n", d.score, d.text);
    }
    if (as_json) fmt::print("]\n");
    flush_output();
  }

 private:
  struct Document {
    double score;
    int64_t index;  // from 0, over all files
    std::string text;
  };
  void shorten() {
    std::ranges::stable_sort(list_, std::greater<>(), &Document::score);
    if (most_ > 0 && list_.size() > most_) list_.resize(most_);
  }

  size_t most_;  // 0: all
  int64_t count_ = 0;
  std::vector<Document> list_;
};

}  // namespace

int rerank_main(const infer::RerankOptions& options) {
  const std::unique_ptr<DocumentScorer> scorer = scorer_for(options);
  EncoderTexts& texts = scorer->texts();
  Ranking ranking(options.top_k);
  const Stopwatch watch;
  while (texts.next()) {
    const std::vector<double> scores = scorer->scores();
    for (size_t i = 0; i < scores.size(); ++i)
      ranking.add(scores[i], options.json ? std::string() : texts.lines()[i]);
  }
  const double seconds = watch.seconds() - texts.seconds_waited();
  ranking.print(options.json);
  texts.say_notes();
  say_rate(texts.count(), seconds, scorer->model());
  return 0;
}

}  // namespace brrr::cli
