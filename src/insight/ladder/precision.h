#pragma once
// Which number format to train in on this machine: fast is what the ladder of formats measures;
// safe is what loses nothing. For that a small model of characters is trained in each format from
// the same seed, and in fp32 from two more: a format is safe when its validation loss is no further
// above fp32's than fp32's own seeds are apart. Where numbers end up shows how near they come to
// the ends of a format.

#include "insight/ladder/ladder.h"

namespace brrr::insight {

/// `speeds`: the ladder of formats, fp32 first.
NamedLadder precision_ladder(const Ladder& speeds);

/// How many of the numbers that a model is made of have which exponent.
class Magnitudes {
 public:
  /// Infinities (masks) and NaN are left out.
  void add(double x);
  /// Of all numbers, those that would be infinite, or zero without being zero, in a format whose
  /// numbers are below 2^top and whose smallest halves of a step are 2^bottom, after a
  /// multiplication by 2^scale.
  double overflow(int top, int scale = 0) const;
  double underflow(int bottom, int scale = 0) const;

  /// One count for each power of two from 2^-160, the zeros behind them: for a record.
  const std::vector<double>& counts() const { return counts_; }
  Magnitudes() : counts_(kBins + 1, 0) {}
  explicit Magnitudes(std::vector<double> counts) : counts_(std::move(counts)) {
    counts_.resize(kBins + 1, 0);
  }

 private:
  static constexpr int kLeast = -160, kBins = 300;
  double share(int first, int last) const;
  std::vector<double> counts_;
};

/// A format after its training.
struct FormatRun {
  std::string name;     // of the rung
  double loss = 0;      // on the validation text, at the end
  int64_t skipped = 0;  // steps whose gradients were not finite
  std::string origin;   // where the first of them came from
};

struct FormatVerdict {
  std::string name;
  bool safe = false;
  double speed = 0;  // against fp32; 0: not measured
  std::string line;  // "bf16: safe, but slower (0.83x): ..."
};
struct PrecisionAdvice {
  double spread = 0;  // of fp32's losses over its seeds
  std::vector<FormatVerdict> formats;
  std::string use;  // the last line: "use bf16: ..."
};
/// fp32_losses: one for each seed, the first one's that of the formats. `speeds` go with `runs`.
/// has_unit(name): whether this processor multiplies numbers of that rung's format itself.
PrecisionAdvice advise_format(const std::vector<FormatRun>& runs,
                              const std::vector<double>& fp32_losses,
                              const std::vector<Against>& speeds,
                              const std::function<bool(const std::string&)>& has_unit);

}  // namespace brrr::insight
