#include "models/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/errors.h"
#include "models/config_limits.h"

namespace brrr::models {
namespace {

constexpr double kTurn = 2 * std::numbers::pi;

// Frequencies whose waves are longer than the trained context are slowed down by `factor`, short
// ones not at all, those between in proportion.
double slowed_by_llama3(const RopeConfig& c, double frequency) {
  const double length = kTurn / frequency, trained = static_cast<double>(c.original_context);
  if (length > trained / c.low_freq_factor) return frequency / c.factor;
  if (length < trained / c.high_freq_factor) return frequency;
  const double share =
      (trained / length - c.low_freq_factor) / (c.high_freq_factor - c.low_freq_factor);
  return (1 - share) * frequency / c.factor + share * frequency;
}

// The pair of columns that makes so many turns over the trained context.
double pair_of_turns(const RopeConfig& c, double turns, int64_t width) {
  return static_cast<double>(width) *
         std::log(static_cast<double>(c.original_context) / (turns * kTurn)) /
         (2 * std::log(c.theta));
}

double yarn_scale(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

RopeFrequencies yarn(const RopeConfig& c, int64_t width, RopeFrequencies f) {
  double low = pair_of_turns(c, c.beta_fast, width), high = pair_of_turns(c, c.beta_slow, width);
  if (c.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(width - 1));
  if (low == high) high += 0.001;
  for (size_t i = 0; i < f.radians_per_position.size(); ++i) {
    double& frequency = f.radians_per_position[i];
    const double interpolated = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequency = interpolated * frequency / c.factor + (1 - interpolated) * frequency;
  }
  f.scale = c.attention_factor;
  if (f.scale == 0)
    f.scale = c.mscale != 0 && c.mscale_all_dim != 0
                  ? yarn_scale(c.factor, c.mscale) / yarn_scale(c.factor, c.mscale_all_dim)
                  : yarn_scale(c.factor, 1);
  return f;
}

}  // namespace

const std::string& name_of(RopeConfig::Kind kind) {
  static const std::string names[] = {"default", "linear", "dynamic", "llama3", "yarn"};
  return names[static_cast<size_t>(kind)];
}

RopeFrequencies rope_frequencies(const RopeConfig& c, int64_t width) {
  BRRR_CHECK(width > 0 && width % 2 == 0, "{} rotated columns", width);
  RopeFrequencies f;
  for (int64_t i = 0; i < width; i += 2)
    f.radians_per_position.push_back(
        std::pow(c.theta, -static_cast<double>(i) / static_cast<double>(width)));
  using Kind = RopeConfig::Kind;
  if (c.kind == Kind::yarn) return yarn(c, width, std::move(f));
  for (double& frequency : f.radians_per_position)
    if (c.kind == Kind::linear)
      frequency /= c.factor;
    else if (c.kind == Kind::llama3)
      frequency = slowed_by_llama3(c, frequency);
  return f;
}

int64_t longest_context(const RopeConfig& c, int64_t positions) {
  if (c.kind != RopeConfig::Kind::dynamic || c.original_context <= 0) return positions;
  return std::min(positions, c.original_context);
}

void check_rope(const RopeConfig& c, std::string_view model) {
  const ConfigLimits limits(model);
  using Kind = RopeConfig::Kind;
  if (!(c.theta > 1)) limits.fail("rope_theta", "above 1", c.theta);
  if (!(c.partial_rotary_factor > 0 && c.partial_rotary_factor <= 1))
    limits.fail("partial_rotary_factor", "above 0 and at most 1", c.partial_rotary_factor);
  if (!(c.factor >= 1 && c.factor <= 1e6))
    limits.fail("the rope factor", "from 1 to 1e6", c.factor);
  if ((c.kind == Kind::llama3 || c.kind == Kind::yarn) && c.original_context < 1)
    limits.fail("original_max_position_embeddings", "at least 1", c.original_context);
  if (c.kind == Kind::llama3 && !(c.low_freq_factor > 0 && c.high_freq_factor > c.low_freq_factor))
    limits.fail("high_freq_factor",
                fmt::format("above low_freq_factor {}, which is above 0", c.low_freq_factor),
                c.high_freq_factor);
  if (c.kind == Kind::yarn && !(c.beta_slow > 0 && c.beta_fast >= c.beta_slow))
    limits.fail("beta_fast", fmt::format("at least beta_slow {}, which is above 0", c.beta_slow),
                c.beta_fast);
  if (c.kind == Kind::yarn)
    for (const auto& [name, value] :
         {std::pair{"attention_factor", c.attention_factor}, std::pair{"mscale", c.mscale},
          std::pair{"mscale_all_dim", c.mscale_all_dim}})
      if (!(value >= 0 && value <= 1e6)) limits.fail(name, "from 0 to 1e6", value);
}

}  // namespace brrr::models
