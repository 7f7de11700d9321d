#pragma once
// Progress of a long job on stderr. On a terminal: one line with a bar, redrawn at most ten times a
// second, fitted to the terminal's width; messages scroll above it. Elsewhere (a file, a pipe,
// TERM=dumb): plain lines at the logging interval. Counts steps, or bytes. Not thread-safe.

#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/pace.h"

namespace brrr {

struct ProgressOptions {
  /// What is counted ("step") or, for bytes, what is done ("encode").
  std::string label = "step";
  /// The end of the count; 0 when it is not known: no bar and no ETA then.
  int64_t total = 0;
  /// Where the count begins (a resumed run).
  int64_t start = 0;
  /// Counts are bytes, shown as MB with their rate.
  bool bytes = false;
  /// Without a terminal, update() prints a line itself when so many seconds have passed since the
  /// last; 0: only log() prints.
  double plain_interval_seconds = 0;
  /// On a terminal log() prints its line above the bar, too.
  bool lines = false;
  std::string rate_unit = "tok/s";  // of StepFigures::tokens_per_second

  // For tests; by default what the stream, TERM, NO_COLOR, COLUMNS and the terminal say.
  std::FILE* out = stderr;
  std::optional<bool> is_terminal = {};
  std::optional<bool> colour = {};
  std::optional<int> width = {};
  std::function<double()> now = now_seconds;
};

/// What is known about the step just done, its speed by the pace of recent steps; what is absent is
/// not shown.
struct StepFigures {
  std::optional<double> loss = {};
  std::optional<double> learning_rate = {};
  std::optional<double> grad_norm = {};
  std::optional<double> step_ms = {};
  std::optional<double> tokens_per_second = {};
  std::optional<double> waiting_share = {};  // of the time, for data
};

class Progress {
 public:
  explicit Progress(ProgressOptions options);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  /// Ends the line of the bar.
  ~Progress();

  /// `done` of total are done. Cheap enough for every step.
  void update(int64_t done, const StepFigures& figures = {});
  /// The same at the logging interval: without a terminal, or with `lines`, this prints
  /// "step 100/2000 | loss 2.4531 | lr 9.8e-04 | norm 1.02 | 21.3 ms | 36,012 tok/s | eta 0:41".
  void log(int64_t done, const StepFigures& figures = {});
  /// One line of text, above the bar where there is one.
  void message(std::string_view line);
  /// Draws the final state and ends the line; later calls only print messages.
  void finish();

  bool is_terminal() const { return terminal_; }

 private:
  void note(int64_t done, const StepFigures& figures);
  std::optional<double> units_per_second() const;
  int width() const;
  std::string plain_line() const;
  std::string bar_line() const;
  void draw();
  void print(std::string_view text);

  ProgressOptions options_;
  bool terminal_, colour_;
  bool drawn_ = false, finished_ = false;
  int64_t done_;
  StepFigures figures_;
  double begin_;  // when the job began: elapsed time
  TimeLeft left_;
  double last_draw_ = 0, last_plain_;
};

}  // namespace brrr
