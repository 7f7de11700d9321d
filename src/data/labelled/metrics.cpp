#include "data/labelled/metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/errors.h"

namespace brrr::io {
namespace {

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

double part_of(int64_t count, int64_t all) {
  return all == 0 ? 0 : static_cast<double>(count) / static_cast<double>(all);
}

ClassScore score_from(int64_t right, int64_t predicted, int64_t truth) {
  return {right,
          predicted,
          truth,
          part_of(right, predicted),
          part_of(right, truth),
          part_of(2 * right, predicted + truth)};
}

double correlation(const std::vector<double>& x, const std::vector<double>& y) {
  const auto n = static_cast<double>(x.size());
  const double mean_x = std::accumulate(x.begin(), x.end(), 0.0) / n;
  const double mean_y = std::accumulate(y.begin(), y.end(), 0.0) / n;
  double xx = 0, yy = 0, xy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double dx = x[i] - mean_x, dy = y[i] - mean_y;
    xx += dx * dx, yy += dy * dy, xy += dx * dy;
  }
  if (!(xx > 0 && yy > 0)) return kNotANumber;
  return std::clamp(xy / std::sqrt(xx) / std::sqrt(yy), -1.0, 1.0);
}

/// Equal numbers have the mean of their ranks.
std::vector<double> mean_ranks(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    while (end < order.size() && !(values[order[begin]] < values[order[end]])) ++end;
    for (size_t i = begin; i < end; ++i) ranks[order[i]] = static_cast<double>(begin + 1 + end) / 2;
  }
  return ranks;
}

// ---- entities

bool is_inside_tag(std::string_view tag) { return tag.starts_with("I-"); }
bool is_entity_tag(std::string_view tag) {
  return tag.size() > 2 && (tag.starts_with("B-") || is_inside_tag(tag));
}

struct Entity {
  std::string_view type;
  size_t begin = 0, end = 0;
  bool operator==(const Entity&) const = default;
};

std::vector<Entity> entities_of(const std::vector<std::string_view>& tags) {
  std::vector<Entity> entities;
  for (size_t i = 0; i < tags.size(); ++i) {
    if (!is_entity_tag(tags[i])) continue;
    const std::string_view type = tags[i].substr(2);
    const bool continues = is_inside_tag(tags[i]) && !entities.empty() &&
                           entities.back().end == i && entities.back().type == type;
    if (continues)
      ++entities.back().end;
    else
      entities.push_back({type, i, i + 1});
  }
  return entities;
}

// ---- tasks

std::vector<Metric> quotient_metrics(const auto& result) {
  return {{"f1", result.f1}, {"precision", result.precision}, {"recall", result.recall}};
}

class ClassTask : public TaskMetrics {
 public:
  explicit ClassTask(std::vector<std::string> labels)
      : labels_(std::move(labels)), metrics_(static_cast<int64_t>(labels_.size())) {}
  void add(std::span<const float> outputs, const Batch& batch) override {
    metrics_.add(argmax_rows(outputs, static_cast<int64_t>(labels_.size())), batch.ids("targets"));
  }
  std::vector<Metric> results() const override {
    const auto result = metrics_.result();
    std::vector<Metric> list = quotient_metrics(result);
    list.insert(list.begin(), {"accuracy", result.accuracy});
    list.push_back({"f1_macro", result.f1_macro});
    list.push_back({"f1_micro", result.f1_micro});
    list.push_back({"matthews_correlation", result.matthews});
    list.push_back({"majority_share", result.majority});
    return list;
  }
  std::vector<LabelScore> by_label() const override {
    std::vector<LabelScore> list;
    for (size_t i = 0; i < labels_.size(); ++i)
      list.push_back({labels_[i], metrics_.score_of(static_cast<int64_t>(i))});
    return list;
  }
  std::vector<std::vector<int64_t>> confusion() const override {
    const std::vector<int64_t>& all = metrics_.confusion();
    std::vector<std::vector<int64_t>> rows;
    const auto K = static_cast<std::ptrdiff_t>(labels_.size());
    for (auto row = all.begin(); row != all.end(); row += K) rows.emplace_back(row, row + K);
    return rows;
  }
  std::string explanation() const override {
    return labels_.size() == 2 ? fmt::format("of the label '{}'", labels_[1])
                               : "mean over the labels that occur (macro)";
  }

 private:
  std::vector<std::string> labels_;
  ClassMetrics metrics_;
};

/// Classes of pictures.
class PictureTask final : public ClassTask {
 public:
  explicit PictureTask(const std::vector<std::string>& labels)
      : ClassTask(labels), classes_(labels.size()) {}
  void add(std::span<const float> outputs, const Batch& batch) override {
    ClassTask::add(outputs, batch);
    const std::vector<int32_t>& targets = batch.ids("targets");
    for (size_t row = 0; row < targets.size(); ++row) {
      if (targets[row] == kIgnoreId) continue;
      const auto of_row = outputs.subspan(row * classes_, classes_);
      const float own = of_row[static_cast<size_t>(targets[row])];
      ++count_;
      among_first_ += std::ranges::count_if(of_row, [&](float z) { return z > own; }) <
                      static_cast<std::ptrdiff_t>(kFirst);
    }
  }
  std::vector<Metric> results() const override {
    std::vector<Metric> list = ClassTask::results();
    if (classes_ > kFirst)
      list.insert(list.begin() + 1,
                  {"top5_accuracy", count_ == 0 ? kNotANumber : part_of(among_first_, count_)});
    return list;
  }

 private:
  static constexpr size_t kFirst = 5;
  size_t classes_;
  int64_t count_ = 0, among_first_ = 0;
};

class ValueTask final : public TaskMetrics {
 public:
  explicit ValueTask(int64_t columns) : metrics_(columns) {}
  void add(std::span<const float> outputs, const Batch& batch) override {
    metrics_.add(outputs, batch.values("values"), batch.ids("targets"));
  }
  std::vector<Metric> results() const override {
    const auto result = metrics_.result();
    return {{"pearson", result.pearson},
            {"spearmanr", result.spearman},
            {"mse", result.mean_squared_error},
            {"rmse", std::sqrt(result.mean_squared_error)},
            {"mae", result.mean_absolute_error}};
  }
  std::string explanation() const override { return ""; }

 private:
  ValueMetrics metrics_;
};

class TagTask final : public TaskMetrics {
 public:
  explicit TagTask(const std::vector<std::string>& labels)
      : classes_(static_cast<int64_t>(labels.size())), metrics_(labels) {}
  void add(std::span<const float> outputs, const Batch& batch) override {
    const std::vector<int32_t> predicted = argmax_rows(outputs, classes_);
    const std::span<const int32_t> targets = batch.ids("targets");
    BRRR_CHECK(predicted.size() == targets.size() && targets.size() == batch.positions(),
               "{} predictions, {} targets, {} tokens", predicted.size(), targets.size(),
               batch.positions());
    for (const auto& [begin, tokens] : batch.rows(1))
      metrics_.add(std::span(predicted).subspan(begin, tokens), targets.subspan(begin, tokens));
  }
  std::vector<Metric> results() const override {
    const auto result = metrics_.result();
    std::vector<Metric> list = quotient_metrics(result);
    list.push_back({"accuracy", result.accuracy});
    list.push_back({"f1_macro", result.f1_macro});
    list.push_back({"majority_share", result.majority});
    return list;
  }
  std::vector<LabelScore> by_label() const override { return metrics_.by_label(); }
  std::string explanation() const override {
    return metrics_.counts_entities() ? "of entities" : "of tags, mean over those that occur";
  }

 private:
  int64_t classes_;
  TagMetrics metrics_;
};

}  // namespace

bool is_lower_better(std::string_view metric) {
  return metric == "loss" || metric == "mse" || metric == "rmse" || metric == "mae";
}

std::vector<int32_t> argmax_rows(std::span<const float> logits, int64_t classes) {
  const auto K = static_cast<size_t>(classes);
  BRRR_CHECK(K > 0 && logits.size() % K == 0, "{} logits of {} classes", logits.size(), K);
  std::vector<int32_t> indices(logits.size() / K);
  for (size_t row = 0; row < indices.size(); ++row) {
    const auto of_row = logits.subspan(row * K, K);
    indices[row] =
        static_cast<int32_t>(std::max_element(of_row.begin(), of_row.end()) - of_row.begin());
  }
  return indices;
}

ClassMetrics::ClassMetrics(int64_t classes)
    : classes_(classes),
      confusion_(classes <= kMostConfused ? static_cast<size_t>(classes * classes) : 0),
      right_(static_cast<size_t>(classes)),
      truth_(static_cast<size_t>(classes)),
      predicted_(static_cast<size_t>(classes)) {
  BRRR_CHECK(classes > 0, "{} classes", classes);
}

void ClassMetrics::add(std::span<const int32_t> predicted, std::span<const int32_t> truth) {
  BRRR_CHECK(predicted.size() == truth.size(), "{} predictions, {} truths", predicted.size(),
             truth.size());
  for (size_t i = 0; i < truth.size(); ++i) {
    if (truth[i] == kIgnoreId) continue;
    BRRR_CHECK(truth[i] >= 0 && truth[i] < classes_ && predicted[i] >= 0 && predicted[i] < classes_,
               "{} predicted for {} of {} classes", predicted[i], truth[i], classes_);
    const auto t = static_cast<size_t>(truth[i]), p = static_cast<size_t>(predicted[i]);
    ++truth_[t];
    ++predicted_[p];
    right_[t] += t == p;
    if (!confusion_.empty()) ++confusion_[t * static_cast<size_t>(classes_) + p];
  }
}

ClassScore ClassMetrics::score_of(int64_t label) const {
  const auto c = static_cast<size_t>(label);
  return score_from(right_[c], predicted_[c], truth_[c]);
}

ClassMetrics::Result ClassMetrics::result() const {
  Result result;
  result.count = std::accumulate(truth_.begin(), truth_.end(), int64_t{0});
  const int64_t right = std::accumulate(right_.begin(), right_.end(), int64_t{0});
  if (result.count == 0) {
    result.accuracy = result.f1_micro = result.matthews = kNotANumber;
    return result;
  }
  result.accuracy = result.f1_micro = part_of(right, result.count);
  result.majority = part_of(*std::max_element(truth_.begin(), truth_.end()), result.count);
  const bool is_binary = classes_ == 2;
  double occurring = 0, all_occurring = 0;
  // Matthews' correlation for any number of classes (Gorodkin, Comput. Biol. Chem. 28, 2004).
  const auto n = static_cast<double>(result.count);
  double covariance = static_cast<double>(right) * n, of_truth = n * n, of_predicted = n * n;
  for (size_t c = 0; c < truth_.size(); ++c) {
    const int64_t t = truth_[c], p = predicted_[c];
    covariance -= static_cast<double>(t) * static_cast<double>(p);
    of_truth -= static_cast<double>(t) * static_cast<double>(t);
    of_predicted -= static_cast<double>(p) * static_cast<double>(p);
    if (t + p == 0) continue;
    const ClassScore q = score_from(right_[c], p, t);
    result.f1_macro += q.f1;
    ++all_occurring;
    if (is_binary && c != 1) continue;
    result.precision += q.precision, result.recall += q.recall, result.f1 += q.f1;
    ++occurring;
  }
  if (occurring > 1)
    result.precision /= occurring, result.recall /= occurring, result.f1 /= occurring;
  result.f1_macro /= all_occurring;
  if (of_truth > 0 && of_predicted > 0)
    result.matthews = covariance / std::sqrt(of_truth) / std::sqrt(of_predicted);
  return result;
}

ValueMetrics::ValueMetrics(int64_t columns)
    : columns_(static_cast<size_t>(columns)), predicted_(columns_), truth_(columns_) {
  BRRR_CHECK(columns > 0, "{} columns", columns);
}

void ValueMetrics::add(std::span<const float> predicted, std::span<const float> truth,
                       std::span<const int32_t> scored) {
  BRRR_CHECK(predicted.size() == scored.size() * columns_ && truth.size() == predicted.size(),
             "{} predictions, {} truths, {} rows", predicted.size(), truth.size(), scored.size());
  for (size_t row = 0; row < scored.size(); ++row) {
    if (scored[row] == kIgnoreId) continue;
    for (size_t c = 0; c < columns_; ++c) {
      predicted_[c].push_back(static_cast<double>(predicted[row * columns_ + c]));
      truth_[c].push_back(static_cast<double>(truth[row * columns_ + c]));
    }
  }
}

ValueMetrics::Result ValueMetrics::result() const {
  Result result;
  result.count = static_cast<int64_t>(truth_[0].size());
  for (size_t c = 0; c < columns_; ++c) {
    const std::vector<double>&p = predicted_[c], &t = truth_[c];
    result.pearson += correlation(p, t);
    // What is not a number has no rank.
    const bool has_ranks = std::none_of(p.begin(), p.end(), [](double x) { return std::isnan(x); });
    result.spearman += has_ranks ? correlation(mean_ranks(p), mean_ranks(t)) : kNotANumber;
    for (size_t i = 0; i < t.size(); ++i) {
      result.mean_squared_error += (p[i] - t[i]) * (p[i] - t[i]);
      result.mean_absolute_error += std::fabs(p[i] - t[i]);
    }
  }
  const auto columns = static_cast<double>(columns_);
  const double all = columns * static_cast<double>(result.count);
  result.pearson /= columns, result.spearman /= columns;
  result.mean_squared_error /= all, result.mean_absolute_error /= all;  // 0 / 0 is NaN
  return result;
}

TagMetrics::TagMetrics(std::vector<std::string> labels)
    : labels_(std::move(labels)), tokens_(static_cast<int64_t>(labels_.size())) {
  const auto is_outside = [](const std::string& label) { return label == "O"; };
  counts_entities_ = std::any_of(labels_.begin(), labels_.end(), is_entity_tag) &&
                     std::all_of(labels_.begin(), labels_.end(), [&](const std::string& l) {
                       return is_outside(l) || is_entity_tag(l);
                     });
}

void TagMetrics::add(std::span<const int32_t> predicted, std::span<const int32_t> truth) {
  tokens_.add(predicted, truth);  // checks the ids
  if (!counts_entities_) return;
  std::vector<std::string_view> tags_predicted, tags_true;
  for (size_t i = 0; i < truth.size(); ++i) {
    if (truth[i] == kIgnoreId) continue;
    tags_predicted.push_back(labels_[static_cast<size_t>(predicted[i])]);
    tags_true.push_back(labels_[static_cast<size_t>(truth[i])]);
  }
  const auto found = entities_of(tags_predicted), expected = entities_of(tags_true);
  for (const Entity& e : found) ++entities_[std::string(e.type)].predicted;
  for (const Entity& e : expected) ++entities_[std::string(e.type)].truth;
  // Both are in the order of their beginnings, and no two of a side begin at one place.
  for (size_t i = 0, j = 0; i < found.size() && j < expected.size();) {
    if (found[i] == expected[j]) ++entities_[std::string(found[i].type)].right;
    if (found[i].begin < expected[j].begin)
      ++i;
    else if (found[i].begin > expected[j].begin)
      ++j;
    else
      ++i, ++j;
  }
}

TagMetrics::Result TagMetrics::result() const {
  const ClassMetrics::Result of_tokens = tokens_.result();
  Result result;
  result.count = of_tokens.count;
  result.accuracy = of_tokens.accuracy;
  result.majority = of_tokens.majority;
  if (!counts_entities_) {
    result.precision = of_tokens.precision;
    result.recall = of_tokens.recall;
    result.f1 = of_tokens.f1;
    result.f1_macro = of_tokens.f1_macro;
    return result;
  }
  int64_t right = 0, predicted = 0, truth = 0;
  for (const auto& [type, s] : entities_) {
    right += s.right, predicted += s.predicted, truth += s.truth;
    result.f1_macro += score_from(s.right, s.predicted, s.truth).f1;
  }
  if (!entities_.empty()) result.f1_macro /= static_cast<double>(entities_.size());
  const ClassScore q = score_from(right, predicted, truth);
  result.precision = q.precision;
  result.recall = q.recall;
  result.f1 = q.f1;
  return result;
}

std::vector<LabelScore> TagMetrics::by_label() const {
  std::vector<LabelScore> list;
  if (counts_entities_) {
    for (const auto& [type, s] : entities_)
      list.push_back({type, score_from(s.right, s.predicted, s.truth)});
    return list;
  }
  for (size_t i = 0; i < labels_.size(); ++i)
    list.push_back({labels_[i], tokens_.score_of(static_cast<int64_t>(i))});
  return list;
}

std::unique_ptr<TaskMetrics> make_task_metrics(LabelKind kind,
                                               const std::vector<std::string>& labels,
                                               int64_t values_per_row) {
  if (kind == LabelKind::kValues) return std::make_unique<ValueTask>(values_per_row);
  if (kind == LabelKind::kTags) return std::make_unique<TagTask>(labels);
  return std::make_unique<ClassTask>(labels);
}

std::unique_ptr<TaskMetrics> make_picture_metrics(const std::vector<std::string>& labels) {
  return std::make_unique<PictureTask>(labels);
}

}  // namespace brrr::io
