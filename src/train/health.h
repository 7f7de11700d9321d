#pragma once
// Whether a run is well: pure logic over what each step gave. One note when something begins; when
// it comes back after it has been gone for a while, the second, fourth, eighth time. Medians and
// their absolute deviations (robust: one wild step does not move them) say what is usual; batches
// of different shapes are compared with their own kind. Costs some microseconds a step.

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace brrr::train {

enum class Ailment : uint8_t {
  loss_spike,
  gradient_outlier,
  overflow,
  non_finite,
  data_stall,
  slow_steps,
  straggler
};
inline constexpr size_t kAilments = 7;
std::string_view name_of(Ailment ailment);

struct HealthNote {
  int64_t step = 0;
  Ailment ailment = Ailment::loss_spike;
  std::string text;  // one line
};

/// What a step gave.
struct StepSigns {
  int64_t step = 0;
  double loss = 0, grad_norm = 0;
  bool skipped = false;  // its f16 gradients overflowed
  double loss_scale = 1;
  double seconds = 0;     // the whole step
  double waited = 0;      // of them for data
  int64_t positions = 0;  // rows times length: steps of as many do the same work
};

struct HealthOptions {
  double max_grad_norm = 0;  // 0: no clipping
  int64_t workers = 1;       // that prepare batches
  /// The processors' clock now, in MHz, if the system says; asked for when steps become slow.
  std::function<std::optional<double>()> clock_mhz = [] { return std::optional<double>(); };
};

/// The last values of a series: their median and how far values usually are from it.
class RobustWindow {
 public:
  static constexpr size_t kSize = 64, kLeast = 32;
  void add(double value);
  void clear();
  bool is_filled() const { return count_ >= kLeast; }
  double median() const { return median_; }
  /// 1.4826 times the median absolute deviation: the standard deviation of a normal distribution.
  double deviation() const { return deviation_; }

 private:
  static constexpr size_t kEvery = 8;  // additions between two looks at the whole window
  std::array<double, kSize> values_{};
  size_t count_ = 0, added_ = 0;
  double median_ = 0, deviation_ = 0;
};

/// Something that comes and goes.
class Episode {
 public:
  explicit Episode(int calm) : calm_needed_(calm) {}
  /// Whether it begins here.
  bool update(bool is_bad);
  bool is_on() const { return on_; }
  int64_t count() const { return count_; }

 private:
  int calm_needed_, calm_ = 0;
  bool on_ = false;
  int64_t count_ = 0;
};

class Health {
 public:
  explicit Health(HealthOptions options = {});

  /// After every step; mostly nothing.
  std::vector<HealthNote> record(const StepSigns& signs);
  /// The run ends here: `what` is "the loss is not a number", `origin` the op that made it.
  HealthNote not_finite(int64_t step, const std::string& what, const std::string& origin);

  /// What somebody else noticed, so that it counts in the summary.
  HealthNote noticed(int64_t step, Ailment ailment, const std::string& text);

  int64_t count(Ailment ailment) const { return counts_[static_cast<size_t>(ailment)]; }
  int64_t skipped() const { return skipped_; }
  /// "2 loss spikes, the first at step 120; ...", or "" for a run that was well.
  std::string summary() const;

 private:
  /// What is usual for batches of one shape.
  struct Usual {
    RobustWindow log_loss, log_norm;
    int loss_out = 0, norm_out = 0;   // steps in a row that were left out of the windows
    std::vector<double> block;        // seconds of the last few steps
    std::array<double, 8> medians{};  // of the last blocks that were not slow
    size_t blocks = 0;                // that there were
    double best = 0;                  // the lowest running median of blocks; 0: not known yet
    int slow_blocks = 0;              // in a row
    double slow_seconds = 0;          // of them
    std::optional<double> clock;      // when `best` was found
  };
  using Notes = std::vector<HealthNote>;
  void note(Notes& notes, int64_t step, Ailment ailment, std::string text);
  void look_at_loss(const StepSigns& s, Usual& usual, Notes& notes);
  void look_at_norm(const StepSigns& s, Usual& usual, Notes& notes);
  void look_at_overflow(const StepSigns& s, Notes& notes);
  void look_at_data(const StepSigns& s, Notes& notes);
  void look_at_time(const StepSigns& s, Usual& usual, Notes& notes);
  void end_block(const StepSigns& s, double median, Usual& usual, Notes& notes);
  std::string why_slow(const Usual& usual) const;

  HealthOptions options_;
  std::map<int64_t, Usual> usual_;  // by positions
  Episode loss_, norm_, overflow_, data_, slow_;
  int64_t steps_ = 0, skipped_ = 0;
  std::array<bool, 100> recently_skipped_{};
  int64_t recent_skips_ = 0;
  double stall_seconds_ = 0, stall_waited_ = 0;  // since the last look
  int64_t stall_steps_ = 0;
  std::array<int64_t, kAilments> counts_{}, first_{};
};

}  // namespace brrr::train
