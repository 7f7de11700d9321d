#include "calibration/value_ranges.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/target.h"
#include "infer/runner.h"
#include "ops/ops.h"

namespace brrr::calibration {
namespace {

constexpr size_t kBinsOfPercentile = 8192, kBinsOfEntropy = 2048;
/// Values of so many bytes are outputs of one run at once, for histograms.
constexpr double kBytesAtOnce = 256e6;
constexpr size_t kLevels = 255, kLevelsOfBothSigns = 128;  // of magnitudes in 8 bits

/// A model with the extremes of named values as its outputs, or with the values themselves.
class ObservedValues final : public ObservedModel {
 public:
  enum class Gives { extremes, values };

  ObservedValues(std::shared_ptr<const Runnable> model, std::span<const std::string> values,
                 Gives gives)
      : ObservedModel(std::move(model)), values_(values.begin(), values.end()), gives_(gives) {
    for (size_t i = 0; i < values_.size(); ++i)
      if (gives == Gives::values)
        declare(name_of("value", i));
      else
        for (const char* what : kExtremes) declare(name_of(what, i));
  }

  static std::string name_of(const char* what, size_t index) {
    return fmt::format("{}:{}", what, index);
  }

 protected:
  std::vector<std::string> wanted_of_model() const override { return values_; }

  void observe(Graph& g) const override {
    for (size_t i = 0; i < values_.size(); ++i) {
      const Output* const found = g.find_output(values_[i]);
      BRRR_CHECK(found != nullptr, "the graph does not give {}", values_[i]);
      const Value given = g.value(found->value);
      const int64_t elements = given.shape().elements();
      const Value x = cast(reshape(given, {elements}), DType::f32);
      if (gives_ == Gives::values) {
        g.output(name_of("value", i), x);
        continue;
      }
      const Value zero = full(g, {1}, 0.0);
      g.output(name_of("least", i), elements == 0 ? zero : min(x, {0}, true));
      g.output(name_of("most", i), elements == 0 ? zero : max(x, {0}, true));
      // A sum shows NaN and infinity, which minima and maxima may leave out.
      g.output(name_of("sum", i), elements == 0 ? zero : sum(abs(x), {0}, true));
      g.output(name_of("elements", i), full(g, {1}, static_cast<double>(elements)));
    }
  }

 private:
  static constexpr const char* kExtremes[] = {"least", "most", "sum", "elements"};
  std::vector<std::string> values_;
  Gives gives_;
};

/// The outputs of one run of an observed model.
class ObservedRun {
 public:
  explicit ObservedRun(const PortValues& outputs) : outputs_(outputs) {}
  std::span<const float> numbers(const char* what, size_t index) const {
    return outputs_.at(ObservedValues::name_of(what, index)).tensor().as<float>();
  }

 private:
  const PortValues& outputs_;
};

void run_observed(const std::shared_ptr<const Runnable>& observed, const CalibrationRuns& runs,
                  const infer::Memory& memory, const std::function<void(const ObservedRun&)>& see) {
  infer::Runner runner(observed, cpu::cpu_backend(), {}, memory);
  PortValues outputs;
  for (const PortValues& inputs : runs) {
    runner.run_into(outputs, inputs);
    see(ObservedRun(outputs));
  }
}

struct Extremes {
  ValueRange range;
  double elements = 0;  // of the largest run
};

std::vector<Extremes> gather_extremes(const std::shared_ptr<const Runnable>& model,
                                      const std::vector<std::string>& values,
                                      const CalibrationRuns& runs, const infer::Memory& memory) {
  std::vector<Extremes> all(values.size());
  const auto observed =
      std::make_shared<ObservedValues>(model, values, ObservedValues::Gives::extremes);
  run_observed(observed, runs, memory, [&](const ObservedRun& run) {
    for (size_t i = 0; i < values.size(); ++i) {
      if (!std::isfinite(run.numbers("sum", i)[0]))
        user_error(
            "{} is NaN or infinite on the calibration inputs, so that it has no range; check "
            "--input and the weights",
            values[i]);
      all[i].range.low = std::min(all[i].range.low, run.numbers("least", i)[0]);
      all[i].range.high = std::max(all[i].range.high, run.numbers("most", i)[0]);
      all[i].elements =
          std::max(all[i].elements, static_cast<double>(run.numbers("elements", i)[0]));
    }
  });
  return all;
}

float largest_magnitude(ValueRange r) { return std::max(-r.low, r.high); }

Histogram histogram_for(ValueRange r, RangeMethod method) {
  return method == RangeMethod::entropy ? Histogram(0, largest_magnitude(r), kBinsOfEntropy)
                                        : Histogram(r.low, r.high, kBinsOfPercentile);
}

ValueRange range_of(const Histogram& h, ValueRange all, const RangeOptions& options) {
  if (options.method == RangeMethod::percentile) {
    const ValueRange r = percentile_range(h, options.percentile);
    return {std::min(r.low, 0.0f), std::max(r.high, 0.0f)};
  }
  const bool has_both_signs = all.low < 0 && all.high > 0;
  const float most = entropy_threshold(h, has_both_signs ? kLevelsOfBothSigns : kLevels);
  return {std::max(all.low, -most), std::min(all.high, most)};
}

/// Puts eps in place of zeros, and takes as much from the other numbers, so that logarithms are
/// finite.
void smooth(std::vector<double>& shares) {
  constexpr double kEps = 1e-4;
  const auto zeros = static_cast<double>(std::ranges::count(shares, 0.0));
  const double others = static_cast<double>(shares.size()) - zeros;
  if (others == 0) return;
  for (double& x : shares) x = x == 0 ? kEps : x - kEps * zeros / others;
}

double divergence(std::vector<double> p, std::vector<double> q) {
  for (std::vector<double>* shares : {&p, &q}) {
    double sum = 0;
    for (const double x : *shares) sum += x;
    if (sum == 0) return INFINITY;
    for (double& x : *shares) x /= sum;
    smooth(*shares);
  }
  double kl = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] <= 0 || q[i] <= 0) continue;
    kl += p[i] * std::log(p[i] / q[i]);
  }
  return kl;
}

}  // namespace

Histogram::Histogram(float low, float high, size_t bins) : low_(low), high_(high), counts_(bins) {
  BRRR_CHECK(low < high && bins > 0, "no histogram from {} to {} in {} bins", low, high, bins);
}

template <typename Of>
void Histogram::count(std::span<const float> numbers, const Of& of) {
  const double last = static_cast<double>(counts_.size() - 1);
  const double per_bin = static_cast<double>(counts_.size()) /
                         (static_cast<double>(high_) - static_cast<double>(low_));
  for (const float x : numbers) {
    const double at = (static_cast<double>(of(x)) - static_cast<double>(low_)) * per_bin;
    counts_[static_cast<size_t>(std::clamp(at, 0.0, last))] += 1;
  }
}
void Histogram::add(std::span<const float> numbers) {
  count(numbers, [](float x) { return x; });
}
void Histogram::add_magnitudes(std::span<const float> numbers) {
  count(numbers, [](float x) { return std::fabs(x); });
}

float Histogram::edge(size_t bin) const {
  const double share = static_cast<double>(bin) / static_cast<double>(counts_.size());
  return static_cast<float>(static_cast<double>(low_) +
                            share * (static_cast<double>(high_) - static_cast<double>(low_)));
}

ValueRange percentile_range(const Histogram& h, double percentile) {
  const std::vector<double>& counts = h.counts();
  double all = 0;
  for (const double c : counts) all += c;
  const double outside = all * (100 - percentile) / 200;
  size_t first = 0, last = counts.size() - 1;
  for (double sum = 0; first < last && sum + counts[first] <= outside; ++first)
    sum += counts[first];
  for (double sum = 0; last > first && sum + counts[last] <= outside; --last) sum += counts[last];
  return {h.edge(first), h.edge(last + 1)};
}

float entropy_threshold(const Histogram& magnitudes, size_t levels) {
  const std::vector<double>& counts = magnitudes.counts();
  BRRR_CHECK(levels > 0 && levels <= counts.size(), "{} levels of {} bins", levels, counts.size());
  double beyond = 0;  // in the bins from `kept` on
  double least = INFINITY;
  size_t best = counts.size();
  for (size_t kept = counts.size(); kept >= levels; --kept) {
    if (kept < counts.size()) beyond += counts[kept];
    std::vector<double> p(counts.begin(), counts.begin() + static_cast<ptrdiff_t>(kept));
    std::vector<double> q(kept);
    for (size_t level = 0; level < levels; ++level) {
      const size_t begin = level * kept / levels, end = (level + 1) * kept / levels;
      double sum = 0, filled = 0;
      for (size_t i = begin; i < end; ++i) {
        sum += p[i];
        filled += p[i] > 0 ? 1 : 0;
      }
      for (size_t i = begin; i < end; ++i) q[i] = p[i] > 0 ? sum / filled : 0;
    }
    p.back() += beyond;
    const double kl = divergence(std::move(p), std::move(q));
    if (kl >= least) continue;
    least = kl;
    best = kept;
  }
  return magnitudes.edge(best);
}

std::map<std::string, ValueRange, std::less<>> gather_ranges(
    const std::shared_ptr<const Runnable>& model, const std::vector<std::string>& values,
    const CalibrationRuns& runs, const RangeOptions& options, const infer::Memory& memory) {
  BRRR_CHECK(!runs.empty(), "no inputs to calibrate on");
  std::map<std::string, ValueRange, std::less<>> ranges;
  if (values.empty()) return ranges;
  const std::vector<Extremes> extremes = gather_extremes(model, values, runs, memory);
  for (size_t i = 0; i < values.size(); ++i) ranges[values[i]] = extremes[i].range;
  if (options.method == RangeMethod::minmax) return ranges;
  for (size_t first = 0; first < values.size();) {
    size_t end = first;
    double bytes = 0;
    do bytes += extremes[end++].elements * double{sizeof(float)};
    while (end < values.size() &&
           bytes + extremes[end].elements * double{sizeof(float)} <= kBytesAtOnce);
    const std::span<const std::string> part = std::span(values).subspan(first, end - first);
    std::vector<std::optional<Histogram>> histograms(part.size());
    for (size_t i = 0; i < part.size(); ++i)
      if (const ValueRange r = extremes[first + i].range; r.low < r.high)
        histograms[i] = histogram_for(r, options.method);
    const auto observed =
        std::make_shared<ObservedValues>(model, part, ObservedValues::Gives::values);
    run_observed(observed, runs, memory, [&](const ObservedRun& run) {
      for (size_t i = 0; i < part.size(); ++i) {
        if (!histograms[i]) continue;
        const std::span<const float> numbers = run.numbers("value", i);
        if (options.method == RangeMethod::entropy)
          histograms[i]->add_magnitudes(numbers);
        else
          histograms[i]->add(numbers);
      }
    });
    for (size_t i = 0; i < part.size(); ++i)
      if (histograms[i])
        ranges[part[i]] = range_of(*histograms[i], extremes[first + i].range, options);
    first = end;
  }
  return ranges;
}

}  // namespace brrr::calibration
