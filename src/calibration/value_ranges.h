#pragma once
// The ranges that values inside a model take on calibration inputs: what static quantisation rounds
// activations in.

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "calibration/observed_model.h"
#include "infer/room.h"
#include "runtime/runnable.h"

namespace brrr::calibration {

enum class RangeMethod {
  minmax,      // all numbers
  percentile,  // all but a share of the smallest and of the largest numbers
  entropy,     // the range whose integers lose least information: the KL divergence of histograms
};

struct RangeOptions {
  RangeMethod method = RangeMethod::minmax;
  double percentile = 99.99;  // percent of the numbers that are inside
};

struct ValueRange {
  float low = 0, high = 0;
};

/// How often numbers lie in bins of equal width from `low` to `high`; others go to the outer bins.
class Histogram {
 public:
  /// `high` above `low`.
  Histogram(float low, float high, size_t bins);
  void add(std::span<const float> numbers);
  /// Adds the magnitudes.
  void add_magnitudes(std::span<const float> numbers);

  const std::vector<double>& counts() const { return counts_; }
  /// Where a bin begins; of the number of bins: where the last one ends.
  float edge(size_t bin) const;

 private:
  template <typename Of>
  void count(std::span<const float> numbers, const Of& of);

  float low_, high_;
  std::vector<double> counts_;
};

/// The range without (100 - percentile) / 2 percent of the numbers on each side.
ValueRange percentile_range(const Histogram& histogram, double percentile);

/// The threshold of magnitudes whose integers of so many levels have the smallest KL divergence
/// from the histogram of magnitudes (Migacz, "8-bit inference with TensorRT", 2017).
float entropy_threshold(const Histogram& magnitudes, size_t levels);

/// Runs the model in fp32 on all of `runs`, and finds the range of each of `values`, names of f32
/// or f16 values inside its graph, or of its inputs. A range includes 0. Throws UserError (exit 3)
/// where there is too little memory, for values that are not finite, and as a run does.
std::map<std::string, ValueRange, std::less<>> gather_ranges(
    const std::shared_ptr<const Runnable>& model, const std::vector<std::string>& values,
    const CalibrationRuns& runs, const RangeOptions& options = {},
    const infer::Memory& memory = {});

}  // namespace brrr::calibration
