#pragma once
// Who looks on while a run goes: its health, the readings of the machine (once a second at most),
// and an observer such as the live page. Nothing here changes a bit of the run.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "base/host_load.h"
#include "base/pace.h"
#include "runtime/device.h"
#include "runtime/timeline.h"
#include "train/health.h"
#include "train/options.h"
#include "train/ranks/rank_watch.h"
#include "train/session.h"
#include "train/tasks/score.h"

namespace brrr::train {

/// How the wall time of one step divides, as shares: kernels by what bounds them (and the time
/// between kernels, which is overhead), waiting for data or for other ranks, the rest.
struct RegimeShares {
  double compute = 0, bandwidth = 0, overhead = 0, waiting = 0, other = 0;
};

/// What a rank exchanged with the others in a step.
struct RankReading {
  int64_t bytes_sent = 0;
  double exchange_seconds = 0;  // of the thread that exchanges
  double waited_seconds = 0;    // of the thread that computes, for the other
};

/// One optimizer step, as it is logged and shown.
struct StepRecord : StepSigns {
  double learning_rate = 0;
  std::vector<io::Metric> figures = {};  // of Session::figures()
  int64_t tokens = 0;
  int64_t tokens_so_far = 0;  // of the run
  double seconds_so_far = 0;  // of the run, evaluations and saving among them
  Pace recent = {};           // RunWatch fills it in
  int64_t arena_bytes = 0;
  std::optional<int64_t> skipped_steps = {};  // so far, of a run whose gradients are scaled
  std::optional<DeviceReading> device = {};
  std::optional<RankReading> ranks = {};  // of a run on several
  std::optional<HostReading> host = {};
  std::optional<RegimeShares> regimes = {};
  double tokens_per_second() const {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
  }
  double waiting_share() const { return seconds > 0 ? waited / seconds : 0; }
};

struct RunStart {
  const fs::path& run;
  const TrainOptions& options;  // resolved, with all steps known
  const Session& session;       // allocated; it lives until the last call
  int64_t first_step = 0;       // done already
  int64_t parameters = 0;
  std::string machine = {};  // "cpu:avx512, 2 threads of AMD EPYC 9B14"
};

/// Called by the thread that trains: to be brief.
class RunObserver {
 public:
  virtual ~RunObserver() = default;
  virtual void started(const RunStart& start) { static_cast<void>(start); }
  /// Where the kernels of the next step are to be written down; null for most steps.
  virtual Timeline* timeline() { return nullptr; }
  /// What that timeline says, after the step.
  virtual std::optional<RegimeShares> regimes(const StepSigns& step) {
    static_cast<void>(step);
    return std::nullopt;
  }
  virtual void step(const StepRecord& record) { static_cast<void>(record); }
  virtual void evaluation(int64_t step, const Score& score) {
    static_cast<void>(step), static_cast<void>(score);
  }
  /// Texts that the model wrote after a step.
  virtual void samples(int64_t step, const std::vector<std::string>& texts) {
    static_cast<void>(step), static_cast<void>(texts);
  }
  /// Steps of all ranks, now and then: means of those since the last call.
  virtual void ranks(int64_t step, const std::vector<RankStep>& means) {
    static_cast<void>(step), static_cast<void>(means);
  }
  virtual void health(const HealthNote& note) { static_cast<void>(note); }
  /// Asked after each step: whether the run is to save a checkpoint and end.
  virtual bool wants_stop() const { return false; }
};

class RunWatch {
 public:
  /// `say` gets every note, before the observer.
  RunWatch(HealthOptions options, RunObserver* observer, std::function<void(const HealthNote&)> say)
      : health_(std::move(options)), observer_(observer), say_(std::move(say)) {}

  Timeline* timeline() { return timeline_ = observer_ ? observer_->timeline() : nullptr; }

  /// After a step: adds readings and the pace to the record, and says what is not as it should be.
  /// `is_logged`: the record is written down; readings of steps that are not go to the next one
  /// that is.
  void step(StepRecord& record, bool is_logged) {
    if (const double now = now_seconds(); now - last_reading_ >= kReadingSeconds) {
      last_reading_ = now;
      record.host = load_.read();
    }
    if (timeline_) record.regimes = observer_->regimes(record);
    timeline_ = nullptr;
    recent_.add(record.seconds, record.waited, record.tokens);
    record.recent = recent_.pace();
    for (const HealthNote& note : health_.record(record)) pass_on(note);
    if (observer_) observer_->step(record);
    if (record.host) host_ = record.host;
    if (record.regimes) regimes_ = record.regimes;
    if (!is_logged) return;
    record.host.swap(host_);
    record.regimes.swap(regimes_);
    host_.reset();
    regimes_.reset();
  }
  void evaluation(int64_t step, const Score& score) {
    if (observer_) observer_->evaluation(step, score);
  }
  void samples(int64_t step, const std::vector<std::string>& texts) {
    if (observer_) observer_->samples(step, texts);
  }
  void not_finite(int64_t step, const std::string& what, const std::string& origin) {
    pass_on(health_.not_finite(step, what, origin));
  }
  void ranks(int64_t step, const std::vector<RankStep>& means) {
    if (observer_) observer_->ranks(step, means);
  }
  void noticed(int64_t step, Ailment ailment, const std::string& text) {
    pass_on(health_.noticed(step, ailment, text));
  }
  const Health& health() const { return health_; }

 private:
  static constexpr double kReadingSeconds = 1;
  void pass_on(const HealthNote& note) {
    say_(note);
    if (observer_) observer_->health(note);
  }

  Health health_;
  RunObserver* observer_;
  std::function<void(const HealthNote&)> say_;
  HostLoad load_;
  RecentSteps recent_;
  double last_reading_ = 0;
  Timeline* timeline_ = nullptr;
  std::optional<HostReading> host_;      // not written down yet
  std::optional<RegimeShares> regimes_;  // the same
};

}  // namespace brrr::train
