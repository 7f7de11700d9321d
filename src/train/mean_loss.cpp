#include "train/mean_loss.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>

#include "base/hash.h"
#include "base/integers.h"
#include "data/loader.h"
#include "data/window_batches.h"
#include "machine/process.h"
#include "runtime/ranks/shared_work.h"
#include "train/parts.h"

namespace brrr::train {
namespace {

using MakeBatches = std::function<std::unique_ptr<io::BatchSource>(const io::BatchOptions&)>;

io::LoaderOptions loader_of_evaluation(const TrainOptions& options, int64_t vocabulary) {
  io::LoaderOptions l;
  l.batch = options.eval_batch_size;
  l.context = row_tokens(options);
  l.seed = static_cast<uint32_t>(options.seed) ^ 0x0e7a1u;
  l.vocab = vocabulary;
  l.mode = io::Sampling::kSequential;
  return l;
}

/// Identifies the rows of an evaluation, independent of their order and of the batch size.
class SetName {
 public:
  /// `rows`: number of rows of the batch.
  void add(const io::Batch& batch, int64_t rows) {
    if (batch.ids("tokens").empty()) return add_pictures(batch);
    const std::span<const int32_t> tokens = batch.ids("tokens"), targets = batch.ids("targets");
    const std::span<const float> values = batch.values("values");
    const std::vector<io::Batch::Row> all = batch.rows(rows);
    const size_t numbers = values.size() / all.size();
    for (size_t row = 0; row < all.size(); ++row) {
      const auto [begin, length] = all[row];
      const auto scored = targets.size() == tokens.size() ? targets.subspan(begin, length)
                                                          : targets.subspan(row, 1);
      if (std::ranges::all_of(scored, [](int32_t t) { return t == io::kIgnoreId; })) continue;
      Hash hash;
      for (const int32_t token : tokens.subspan(begin, length)) hash.add(token);
      for (const int32_t target : scored) hash.add(target);
      for (const float value : values.subspan(row * numbers, numbers))
        hash.add(std::bit_cast<uint32_t>(value));
      sum_ += hash.value();  // the order of rows does not count
    }
  }
  std::string str() const { return fmt::format("{:08x}", static_cast<uint32_t>(sum_ >> 32)); }

 private:
  void add_pictures(const io::Batch& batch) {
    constexpr size_t kStep = 61;  // one of so many values of a picture is hashed
    const std::span<const float> pixels = batch.values("pixels");
    const std::vector<int32_t>& targets = batch.ids("targets");
    const size_t size = pixels.size() / targets.size();
    for (size_t row = 0; row < targets.size(); ++row) {
      if (targets[row] == io::kIgnoreId) continue;
      Hash hash;
      hash.add(targets[row]);
      for (size_t i = 0; i < size; i += kStep)
        hash.add(std::bit_cast<uint32_t>(pixels[row * size + i]));
      sum_ += hash.value();
    }
  }

  uint64_t sum_ = 0;
};

/// A copy of a batch without its pixels: what metrics read.
io::Batch without_pixels(const io::Batch& batch) {
  io::Batch light;
  light.count = batch.count;
  for (const io::Batch::Tensor& tensor : batch.tensors)
    if (tensor.name != "pixels") light.tensors.push_back(tensor);
  return light;
}

/// Metrics of batches that are divided among ranks: every rank adds all batches, in order.
class DividedMetrics {
 public:
  DividedMetrics(io::TaskMetrics& task, Communicator& communicator)
      : task_(task), communicator_(communicator) {}

  /// `logits`: of this rank's own batch, else empty. Batches of as many ranks as there are make a
  /// round; `ends`: the last one.
  void add(const io::Batch& batch, std::span<const float> logits, bool ends) {
    round_.push_back(without_pixels(batch));
    if (!logits.empty())
      own_.assign(reinterpret_cast<const char*>(logits.data()), logits.size_bytes());
    if (std::ssize(round_) < communicator_.ranks() && !ends) return;
    const std::vector<std::string> all = gather_texts(communicator_, own_);
    for (size_t rank = 0; rank < round_.size(); ++rank) {
      std::vector<float> of_rank(all[rank].size() / sizeof(float));
      std::memcpy(of_rank.data(), all[rank].data(), of_rank.size() * sizeof(float));
      task_.add(of_rank, round_[rank]);
    }
    round_.clear();
    own_.clear();
  }

 private:
  io::TaskMetrics& task_;
  Communicator& communicator_;
  std::vector<io::Batch> round_;
  std::string own_;  // the bytes of logits
};

Score score_of(Session& session, const models::Model& model, const MakeBatches& make,
               const TrainOptions& options, int64_t batches, io::TaskMetrics* task,
               Communicator* communicator) {
  io::LoaderOptions l = evaluation_options(options, model);
  std::unique_ptr<io::BatchSource> source = make(l);
  int64_t count = source->batches_per_pass();
  if (task == nullptr && batches > 0 && batches < count) {
    count = batches;
    l.mode = io::Sampling::kRandom;
    source = make(l);
  }
  io::Loader loader(std::move(source), l);
  Score score;
  SetName set;
  std::vector<float> logits;
  const bool divides = communicator != nullptr;
  const int64_t ranks = divides ? communicator->ranks() : 1;
  const int64_t rank = divides ? communicator->rank() : 0;
  std::optional<DividedMetrics> divided;
  if (divides && task != nullptr) divided.emplace(*task, *communicator);
  // Per batch of this rank: the loss, then the figures.
  const std::vector<std::string>& figures = session.figures();
  const size_t width = 1 + figures.size();
  std::vector<double> sums(static_cast<size_t>(ceil_div(count, ranks)) * width);
  // Several ranks do not stop here: they agree on it after the evaluation.
  const auto stops = [&] {
    return communicator == nullptr && machine::SignalGuard::received() != 0;
  };
  for (int64_t i = 0; i < count && !stops(); ++i) {
    const io::Batch& batch = loader.next();
    score.tokens += batch.count;
    set.add(batch, l.batch);
    // Evaluation programs may contain collectives, so every rank runs the same number of them:
    // ranks without a batch of their own evaluate the last one and drop its loss.
    const bool is_own = i % ranks == rank;
    const bool fills_in = i + 1 == count && rank > i % ranks;
    if (is_own || fills_in) {
      const std::vector<double> of_batch =
          session.sums(batch, "logits", task != nullptr ? &logits : nullptr);
      if (is_own) std::ranges::copy(of_batch, sums.begin() + i / ranks * std::ssize(of_batch));
    }
    if (divided)
      divided->add(batch, is_own ? std::span<const float>(logits) : std::span<const float>(),
                   i + 1 == count);
    else if (task != nullptr)
      task->add(logits, batch);
  }
  std::vector<double> totals(width);
  const auto add = [&](const double* of_batch) {
    for (size_t k = 0; k < width; ++k) totals[k] += of_batch[k];
  };
  if (ranks == 1) {
    for (size_t at = 0; at < sums.size(); at += width) add(&sums[at]);
  } else {
    const auto all = communicator->gather(std::as_bytes(std::span(sums)));
    for (int64_t i = 0; i < count; ++i)
      add(reinterpret_cast<const double*>(all[static_cast<size_t>(i % ranks)].data()) +
          i / ranks * static_cast<int64_t>(width));
  }
  for (double& total : totals) total /= static_cast<double>(std::max<int64_t>(1, score.tokens));
  score.loss = totals[0];
  for (size_t k = 0; k < figures.size(); ++k) score.metrics.push_back({figures[k], totals[1 + k]});
  if (!figures.empty()) score.decided_by = "loss";
  if (task != nullptr) score.metrics = task->results();
  score.set = set.str();
  return score;
}

}  // namespace

io::LoaderOptions evaluation_options(const TrainOptions& options, const models::Model& model) {
  io::LoaderOptions l = loader_of_evaluation(options, model.sizes().vocabulary);
  l.flat = trains_flat(options, model);
  l.sequences_per_row = sequences_per_row(options);
  if (learns_labels(options) || joins_sequences(options))
    l.lengths = batch_lengths(options, l.flat, l.batch);
  return l;
}

std::string Score::str() const {
  std::string text = fmt::format("loss {:.4f}", loss);
  constexpr size_t kMost = 2;  // the log and --json have all of them
  const auto value_of = [&](std::string_view name) -> const double* {
    for (const io::Metric& m : metrics)
      if (m.name == name) return &m.value;
    return nullptr;
  };
  const auto add = [&](const io::Metric& m) {
    text += fmt::format(", {} {:.4f}", m.name, m.value);
    const double* majority = value_of("majority_share");
    if (m.name == "accuracy" && majority)
      text += fmt::format(" (majority class {:.4f})", *majority);
  };
  bool says_what_decides = false;
  for (size_t i = 0; i < std::min(metrics.size(), kMost); ++i) {
    add(metrics[i]);
    says_what_decides = says_what_decides || metrics[i].name == decided_by;
  }
  if (const double* value = value_of(decided_by); value && !says_what_decides)
    add({decided_by, *value});
  return text;
}

bool Score::is_better_than(const Score& other) const {
  const std::string name =
      !decided_by.empty() || metrics.empty() ? decided_by : metrics.front().name;
  const auto value_in = [&](const Score& s) {
    for (const io::Metric& m : s.metrics)
      if (m.name == name) return m.value;
    return std::numeric_limits<double>::quiet_NaN();
  };
  // NaN, the correlation with a constant, is worse than any number.
  const double own = value_in(*this), others = value_in(other);
  if (std::isnan(own) && std::isnan(others)) return loss < other.loss;
  if (std::isnan(own) || std::isnan(others)) return !std::isnan(own);
  if (own == others) return loss < other.loss;
  return io::is_lower_better(name) ? own < others : own > others;
}

int64_t evaluation_batches(const Dataset& data, const TrainOptions& options, int64_t batches) {
  io::LoaderOptions l = loader_of_evaluation(options, data.vocabulary());
  l.flat = joins_sequences(options);
  l.sequences_per_row = sequences_per_row(options);
  const int64_t all = data.val_batches(l)->batches_per_pass();
  return batches == 0 || data.has_task() ? all : std::min(batches, all);
}

Score evaluate(Session& session, const models::Model& model, const Dataset& data,
               const TrainOptions& options, int64_t batches, Communicator* communicator) {
  std::unique_ptr<io::TaskMetrics> task;
  if (data.task) {
    const std::vector<std::string> labels = model.task().labels;
    task = io::make_task_metrics(data.task->labels.kind, labels, std::ssize(labels));
  } else if (data.pictures) {
    task = io::make_picture_metrics(model.task().labels);
  }
  Score score = score_of(
      session, model, [&](const io::BatchOptions& l) { return data.val_batches(l); }, options,
      batches, task.get(), communicator);
  if (!options.metric_for_best_model.empty()) score.decided_by = options.metric_for_best_model;
  return score;
}

Score mean_loss(Session& session, const models::Model& model, const io::TokenSource& source,
                const TrainOptions& options, int64_t batches) {
  return score_of(
      session, model,
      [&](const io::BatchOptions& l) { return std::make_unique<io::WindowBatches>(source, l); },
      options, batches, nullptr, nullptr);
}

}  // namespace brrr::train
