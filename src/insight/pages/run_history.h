#pragma once
// What a run has gone through, as columns for a page: a live run adds to it step by step, a
// finished one is read from its log. Columns stay short however long the run is. Not thread-safe.

#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "train/run_watch.h"

namespace brrr::insight {

/// Columns of numbers, the first `counts` of which count (steps, tokens so far). When there are
/// kMost rows, neighbours become one: its counts are the later one's, its other values are means.
/// What is not finite is left out of means. With `grouped` the second column names a group, and
/// rows of two groups have no mean: the later one stays.
class Columns {
 public:
  static constexpr size_t kMost = 2048;
  explicit Columns(std::vector<std::string> names, size_t counts = 1, bool grouped = false);

  void add(const std::vector<double>& row);
  size_t rows() const { return columns_[0].size(); }
  /// Increases when rows that were there have become others.
  int64_t generation() const { return generation_; }
  const std::vector<double>& column(size_t i) const { return columns_[i]; }
  const std::vector<double>& column(std::string_view name) const;
  const std::vector<std::string>& names() const { return names_; }

  /// What a reader has who has seen `rows` of a generation.
  struct Place {
    int64_t generation = -1;
    size_t rows = 0;
  };
  /// {"from": rows that stay, "columns": {name: [...]}} for what is new to a reader, whose place
  /// moves on; null when nothing is.
  nlohmann::json news(Place& place) const;

 private:
  void halve();
  void finish_row();

  std::vector<std::string> names_;
  size_t first_mean_;  // the columns before it count
  bool grouped_;
  std::vector<std::vector<double>> columns_;
  size_t stride_ = 1;  // rows that came to one that is kept
  int64_t generation_ = 0;
  // The row that is being made.
  size_t waiting_ = 0;
  std::vector<double> sums_;
  std::vector<size_t> counts_;
};

class RunHistory {
 public:
  enum Table : size_t { steps, evaluations, host, gpu, regimes };
  static constexpr size_t kTables = 5;
  static constexpr size_t kMostNotes = 200;  // that are kept
  static constexpr size_t kMostSamples = 100;
  RunHistory();

  void add(const train::StepRecord& record);
  /// `set` and `tokens`: what it was measured on (Score::set); "" and 0 if unknown.
  void evaluation(int64_t step, double val_loss, const std::string& set, int64_t tokens);
  /// The mean steps of all ranks since the last call.
  void ranks(int64_t step, std::span<const train::RankStep> means);
  void note(int64_t step, std::string kind, std::string text);
  /// A text that the model wrote after a step.
  void sample(int64_t step, std::string text);
  /// One record of log.jsonl; what it does not understand it leaves out.
  void add_logged(const nlohmann::json& record);

  struct Place {
    std::array<Columns::Place, kTables> tables;
    std::vector<Columns::Place> ranks;
    size_t notes = 0, samples = 0, sets = 0;  // how many there were
  };
  /// {"tables": {name: Columns::news}, "sets": [...], "notes": [...], "samples": [...]}, without
  /// what is not new; an empty object when nothing is. The column "set" of the evaluations counts
  /// in "sets".
  nlohmann::json news(Place& place) const;

  struct Note {
    int64_t step = 0;
    std::string kind, text;
    size_t number = 0;  // of all there were
  };
  const Columns& table(Table t) const { return tables_[t]; }
  /// A table for each rank that was heard of: step, compute_ms, waited_ms, sent_bytes,
  /// process_bytes. In news() it is called "rank 3".
  const std::vector<Columns>& rank_tables() const { return ranks_; }
  const std::vector<Note>& notes() const { return notes_; }
  struct Sample {
    int64_t step = 0;
    std::string text;
    size_t number = 0;  // of all there were
  };
  const std::vector<Sample>& samples() const { return samples_; }

 private:
  void add_logged_ranks(double step, const nlohmann::json& record);

  std::array<Columns, kTables> tables_;
  std::vector<Columns> ranks_;
  /// Validation losses of one set can be compared.
  struct EvaluationSet {
    std::string name;
    int64_t tokens = 0;
  };
  std::vector<EvaluationSet> sets_;
  std::vector<Note> notes_;
  size_t notes_there_were_ = 0;
  std::vector<Sample> samples_;
  size_t samples_there_were_ = 0;
};

}  // namespace brrr::insight
