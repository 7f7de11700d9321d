#include "train/health.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/env.h"
#include "base/human.h"

namespace brrr::train {
namespace {

constexpr double kDeviations = 8;    // what is farther out than so many is unusual
constexpr double kLossFactor = 1.1;  // and a loss of so many medians
constexpr double kLeastLossJump = 0.05;
constexpr double kNormFactor = 4;  // and a norm of so many medians
constexpr int kCalm = 50;          // steps without, then it is over
constexpr int kAccept = 64;        // unusual steps in a row are the new usual
constexpr int64_t kSkipsOfHundred = 10;
constexpr int64_t kSearchSteps = 100;  // in which a loss scale may be found
constexpr double kStallShare = 0.10, kStallOver = 0.05;
constexpr int64_t kStallSteps = 50;
constexpr double kLookSeconds = 3;  // shorter than that nothing is said about time
constexpr size_t kBlock = 16;       // steps
constexpr double kSlow = 1.5, kSlowOver = 1.2;
constexpr int kSlowCalm = 4;  // blocks
constexpr int kNewUsualBlocks = 64;
constexpr double kClockFell = 0.9;

double median_of(double* begin, double* end) {
  double* middle = begin + (end - begin) / 2;
  std::nth_element(begin, middle, end);
  return *middle;
}

}  // namespace

std::string_view name_of(Ailment ailment) {
  constexpr std::string_view kNames[kAilments] = {"loss_spike", "gradient_outlier", "overflow",
                                                  "non_finite", "data_stall",       "slow_steps",
                                                  "straggler"};
  return kNames[static_cast<size_t>(ailment)];
}

void RobustWindow::add(double value) {
  values_[added_++ % kSize] = value;
  count_ = std::min(count_ + 1, kSize);
  if (count_ < kLeast || (added_ - kLeast) % kEvery != 0) return;
  std::array<double, kSize> room = values_;
  double* end = room.data() + count_;
  median_ = median_of(room.data(), end);
  for (double* v = room.data(); v != end; ++v) *v = std::fabs(*v - median_);
  deviation_ = 1.4826 * median_of(room.data(), end);
}

void RobustWindow::clear() { count_ = added_ = 0; }

bool Episode::update(bool is_bad) {
  if (is_bad) {
    calm_ = 0;
    const bool begins = !on_;
    on_ = true;
    count_ += begins;
    return begins;
  }
  if (on_ && ++calm_ >= calm_needed_) on_ = false;
  return false;
}

Health::Health(HealthOptions options)
    : options_(std::move(options)),
      loss_(kCalm),
      norm_(kCalm),
      overflow_(1),
      data_(1),
      slow_(kSlowCalm) {
  first_.fill(-1);
}

namespace {

/// "2nd", "3rd", "4th", "11th".
std::string ordinal(uint64_t n) {
  const bool is_teen = n % 100 >= 11 && n % 100 <= 13;
  const char* ending = is_teen || n % 10 > 3 || n % 10 == 0 ? "th"
                       : n % 10 == 1                        ? "st"
                       : n % 10 == 2                        ? "nd"
                                                            : "rd";
  return fmt::format("{}{}", n, ending);
}

}  // namespace

void Health::note(Notes& notes, int64_t step, Ailment ailment, std::string text) {
  const auto i = static_cast<size_t>(ailment);
  const auto count = static_cast<uint64_t>(++counts_[i]);
  if (count == 1) first_[i] = step;
  // What comes again and again is said less and less often.
  if (!std::has_single_bit(count)) return;
  if (count > 1) text += fmt::format(" ({} time)", ordinal(count));
  notes.push_back({step, ailment, std::move(text)});
}

std::vector<HealthNote> Health::record(const StepSigns& s) {
  Notes notes;
  ++steps_;
  Usual& usual = usual_[s.positions];
  look_at_overflow(s, notes);
  if (!s.skipped && std::isfinite(s.loss) && std::isfinite(s.grad_norm)) {
    look_at_loss(s, usual, notes);
    look_at_norm(s, usual, notes);
  }
  look_at_data(s, notes);
  look_at_time(s, usual, notes);
  return notes;
}

// Losses and norms are compared as factors. Unusual values stay out of the window, which would
// otherwise take them for usual; when they stay, they are.
void Health::look_at_loss(const StepSigns& s, Usual& usual, Notes& notes) {
  RobustWindow& w = usual.log_loss;
  const double value = std::log(std::max(s.loss, 1e-30)), median = std::exp(w.median());
  const double room = std::max(kDeviations * w.deviation(), std::log(kLossFactor));
  const bool is_bad =
      w.is_filled() && value > w.median() + room && s.loss > median + kLeastLossJump;
  if (loss_.update(is_bad))
    note(notes, s.step, Ailment::loss_spike,
         fmt::format("the loss jumped to {:.4f}; the median of the steps before is {:.4f}. If it "
                     "stays there, try a lower --learning-rate or more --warmup-steps",
                     s.loss, median));
  usual.loss_out = is_bad ? usual.loss_out + 1 : 0;
  if (usual.loss_out >= kAccept) w.clear();
  if (!is_bad || usual.loss_out >= kAccept) w.add(value);
}

void Health::look_at_norm(const StepSigns& s, Usual& usual, Notes& notes) {
  RobustWindow& w = usual.log_norm;
  const double value = std::log(std::max(s.grad_norm, 1e-30));
  const double room = std::max(kDeviations * w.deviation(), std::log(kNormFactor));
  const bool is_bad = w.is_filled() && value > w.median() + room;
  if (norm_.update(is_bad))
    note(notes, s.step, Ailment::gradient_outlier,
         fmt::format("the gradient norm is {:.3g}, {:.3g} times its median of {:.3g}; {}",
                     s.grad_norm, std::exp(value - w.median()), std::exp(w.median()),
                     options_.max_grad_norm > 0
                         ? fmt::format("it was clipped to {:g}", options_.max_grad_norm)
                         : std::string("it is not clipped; see --max-grad-norm")));
  usual.norm_out = is_bad ? usual.norm_out + 1 : 0;
  if (usual.norm_out >= kAccept) w.clear();
  if (!is_bad || usual.norm_out >= kAccept) w.add(value);
}

// Skipping some steps is how the loss scale is found, and one now and then how it is kept.
void Health::look_at_overflow(const StepSigns& s, Notes& notes) {
  skipped_ += s.skipped;
  bool& slot = recently_skipped_[static_cast<size_t>(steps_) % recently_skipped_.size()];
  const bool is_late = s.skipped && steps_ > kSearchSteps;
  recent_skips_ += static_cast<int64_t>(is_late) - static_cast<int64_t>(slot);
  slot = is_late;
  const bool is_bad = recent_skips_ >= kSkipsOfHundred;
  const bool lasts = overflow_.is_on() && recent_skips_ > 0;
  if (overflow_.update(is_bad || lasts))
    note(notes, s.step, Ailment::overflow,
         fmt::format("{} of the last 100 steps were skipped because f16 gradients overflowed, at "
                     "loss scale {:g}: try --precision bf16 or a lower --learning-rate",
                     recent_skips_, s.loss_scale));
}

void Health::look_at_data(const StepSigns& s, Notes& notes) {
  if (steps_ == 1) return;  // nothing could be ready
  stall_seconds_ += s.seconds;
  stall_waited_ += s.waited;
  if (++stall_steps_ < kStallSteps || stall_seconds_ < kLookSeconds) return;
  const double share = stall_waited_ / stall_seconds_;
  if (data_.update(share > (data_.is_on() ? kStallOver : kStallShare)))
    note(notes, s.step, Ailment::data_stall,
         env::as_typed(fmt::format(
             "{:.0f}% of the time of the last {} steps was spent waiting for data: try more "
             "--dataloader-num-workers (now {}), or tokenise ahead with `brrr data prepare`",
             100 * share, stall_steps_, options_.workers)));
  stall_seconds_ = stall_waited_ = 0;
  stall_steps_ = 0;
}

void Health::look_at_time(const StepSigns& s, Usual& usual, Notes& notes) {
  usual.block.push_back(s.seconds - s.waited);
  if (usual.block.size() < kBlock) return;
  double* begin = usual.block.data();
  const double median = median_of(begin, begin + usual.block.size());
  end_block(s, median, usual, notes);
  usual.block.clear();
}

// The best that was kept up is what steps of this shape can take: their work is the same.
void Health::end_block(const StepSigns& s, double median, Usual& usual, Notes& notes) {
  const bool is_slow = usual.best > 0 && median > kSlow * usual.best;
  if (!is_slow) {
    usual.medians[usual.blocks++ % usual.medians.size()] = median;
    if (usual.blocks >= usual.medians.size()) {
      std::array<double, 8> room = usual.medians;
      const double now = median_of(room.data(), room.data() + room.size());
      if (usual.best == 0) usual.clock = options_.clock_mhz();
      usual.best = usual.best == 0 ? now : std::min(usual.best, now);
    }
  }
  usual.slow_blocks = is_slow ? usual.slow_blocks + 1 : 0;
  usual.slow_seconds = is_slow ? usual.slow_seconds + median * kBlock : 0;
  const bool is_bad = usual.slow_blocks >= 2 && usual.slow_seconds >= kLookSeconds;
  const bool lasts = slow_.is_on() && usual.best > 0 && median > kSlowOver * usual.best;
  if (slow_.update(is_bad || lasts))
    note(notes, s.step, Ailment::slow_steps,
         fmt::format("steps are {:.1f}x slower ({} -> {}): {}", median / usual.best,
                     duration_text(usual.best), duration_text(median), why_slow(usual)));
  if (usual.slow_blocks >= kNewUsualBlocks) {
    usual.best = 0;
    usual.blocks = 0;
    usual.slow_blocks = 0;
  }
}

std::string Health::why_slow(const Usual& usual) const {
  const std::optional<double> now = options_.clock_mhz();
  if (!now || !usual.clock) return "the CPU is shared or throttled";
  if (*now < kClockFell * *usual.clock)
    return fmt::format("the CPU clock fell from {:.0f} to {:.0f} MHz", *usual.clock, *now);
  return fmt::format("the CPU is shared (its clock is unchanged, {:.0f} MHz)", *now);
}

HealthNote Health::not_finite(int64_t step, const std::string& what, const std::string& origin) {
  return noticed(step, Ailment::non_finite, what + "; it began in " + origin);
}

HealthNote Health::noticed(int64_t step, Ailment ailment, const std::string& text) {
  Notes notes;
  note(notes, step, ailment, text);
  return notes[0];
}

std::string Health::summary() const {
  constexpr const char* kNames[kAilments] = {
      "loss spike",       "gradient outlier", "overflows",  "a value that is not finite",
      "waiting for data", "slow steps",       "a slow rank"};
  int64_t warnings = 0;
  std::string text;
  for (size_t i = 0; i < kAilments; ++i) {
    if (counts_[i] == 0) continue;
    warnings += counts_[i];
    text += fmt::format("{}{} ({}step {})", text.empty() ? "" : ", ", kNames[i],
                        counts_[i] == 1 ? "" : fmt::format("{} times, first at ", counts_[i]),
                        first_[i]);
  }
  if (warnings > 0) text = fmt::format("{}: {}", counted(warnings, "warning"), text);
  if (skipped_ > 0) text += (text.empty() ? "" : ", ") + counted(skipped_, "skipped step");
  return text;
}

}  // namespace brrr::train
