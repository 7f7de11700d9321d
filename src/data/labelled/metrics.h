#pragma once
// How good predictions are, added up batch by batch: for classes, for numbers and for tags. The
// numbers are those of scikit-learn, scipy and seqeval, in double.

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/batch_source.h"
#include "data/labelled/labelled_file.h"

namespace brrr::io {

/// The index of the largest of each row of `logits` [rows, classes], the first of equals.
std::vector<int32_t> argmax_rows(std::span<const float> logits, int64_t classes);

/// A number under the name that logs give it: "accuracy", "f1".
struct Metric {
  std::string name;
  double value = 0;
};

/// Whether smaller values of a metric are better, as for the loss and for errors.
bool is_lower_better(std::string_view metric);

/// How good the predictions of one class are.
struct ClassScore {
  int64_t right = 0, predicted = 0, truth = 0;  // examples
  double precision = 0, recall = 0, f1 = 0;     // 0 where a quotient is 0 / 0
};

/// The score of one class, or of one type of entities, under its name.
struct LabelScore {
  std::string label;
  ClassScore score;
};

/// Predictions of one class out of some.
class ClassMetrics {
 public:
  /// The most classes for which a confusion matrix is kept.
  static constexpr int64_t kMostConfused = 256;

  explicit ClassMetrics(int64_t classes);
  /// Both [n]. Places whose truth is kIgnoreId do not count; all other ids are in [0, classes).
  void add(std::span<const int32_t> predicted, std::span<const int32_t> truth);

  struct Result {
    int64_t count = 0;    // places that counted; 0: accuracy and matthews are NaN
    double accuracy = 0;  // part that is right
    /// They are those of the second of two classes; of more classes the mean over those that occur
    /// in the truth or in the predictions (macro). 0 where a quotient is 0 / 0.
    double precision = 0, recall = 0, f1 = 0;
    double f1_macro = 0;  // the mean over the classes that occur, two classes or more
    double f1_micro = 0;  // of all decisions together, which is the accuracy
    double matthews = 0;  // Matthews' correlation; 0 where one side is constant
    double majority = 0;  // part that the most frequent class has: the accuracy of saying only it
  };
  Result result() const;
  ClassScore score_of(int64_t label) const;
  /// [truth, predicted], by rows; empty for more than kMostConfused classes.
  const std::vector<int64_t>& confusion() const { return confusion_; }

 private:
  int64_t classes_;
  std::vector<int64_t> confusion_;
  std::vector<int64_t> right_, truth_, predicted_;  // by class
};

/// Predictions of numbers, `columns` for each row; results are means over the columns. Keeps all
/// that is added, because ranks need it.
class ValueMetrics {
 public:
  explicit ValueMetrics(int64_t columns);
  /// predicted, truth: [rows, columns]; scored: [rows], kIgnoreId where a row does not count.
  void add(std::span<const float> predicted, std::span<const float> truth,
           std::span<const int32_t> scored);

  struct Result {
    int64_t count = 0;  // rows; 0: all are NaN
    /// Correlations of the numbers and of their ranks, equals having their mean rank. NaN where
    /// one side is constant or there are fewer than two rows.
    double pearson = 0, spearman = 0;
    double mean_squared_error = 0, mean_absolute_error = 0;
  };
  Result result() const;

 private:
  size_t columns_;
  std::vector<std::vector<double>> predicted_, truth_;  // by column
};

/// Predictions of a tag for each word. Where all labels are O, B-x or I-x, entities are counted, as
/// seqeval's default and the script conlleval do: an entity begins at B-x, and at an I-x that does
/// not continue one of x; it is right when type, begin and end are. Otherwise tags are classes.
class TagMetrics {
 public:
  explicit TagMetrics(std::vector<std::string> labels);
  /// One sentence. Tokens whose truth is kIgnoreId do not count and part nothing.
  void add(std::span<const int32_t> predicted, std::span<const int32_t> truth);

  bool counts_entities() const { return counts_entities_; }
  struct Result {
    int64_t count = 0;    // tokens; 0: accuracy is NaN
    double accuracy = 0;  // of tokens
    /// They are those of entities, all types together (micro); else those of tags, as ClassMetrics
    /// has them (macro).
    double precision = 0, recall = 0, f1 = 0;
    double f1_macro = 0;  // the mean over the types that occur, or the tags
    double majority = 0;  // part of the tokens that the most frequent tag has
  };
  Result result() const;
  /// Each type of entities that occurs, or each tag.
  std::vector<LabelScore> by_label() const;

 private:
  std::vector<std::string> labels_;
  bool counts_entities_ = false;
  ClassMetrics tokens_;
  std::map<std::string, ClassScore, std::less<>> entities_;  // by type; only what is counted
};

/// The metrics of a task, fed with what its model gives for LabelledBatches.
class TaskMetrics {
 public:
  virtual ~TaskMetrics() = default;
  /// `outputs`: logits [B, classes] or [B, T, classes], or numbers [B, K]. Empty rows of the batch
  /// do not count.
  virtual void add(std::span<const float> outputs, const Batch& batch) = 0;
  /// The one that tells which model is best comes first; greater is better there.
  virtual std::vector<Metric> results() const = 0;
  /// The score of each class or tag, or of each type of entities; empty for numbers.
  virtual std::vector<LabelScore> by_label() const { return {}; }
  /// The confusion matrix of classes: rows are true labels, columns are predictions. Empty for
  /// other tasks and for more than ClassMetrics::kMostConfused classes.
  virtual std::vector<std::vector<int64_t>> confusion() const { return {}; }
  /// What precision, recall and F1 are of, for the user: "of the label 'pos'"; empty for numbers.
  virtual std::string explanation() const = 0;
};
/// `labels`: of classes and tags; `values_per_row`: of numbers.
std::unique_ptr<TaskMetrics> make_task_metrics(LabelKind kind,
                                               const std::vector<std::string>& labels,
                                               int64_t values_per_row);

/// The metrics of classes of pictures: those of classes, and "top5_accuracy", the share of pictures
/// whose class is among the five most likely, where there are more than five classes.
std::unique_ptr<TaskMetrics> make_picture_metrics(const std::vector<std::string>& labels);

}  // namespace brrr::io
