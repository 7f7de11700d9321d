#pragma once
// Rotary position embeddings (Su et al. 2021): how fast each pair of a head's columns turns with
// the position. The variants that stretch a trained context differ in these frequencies alone.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace brrr::models {

struct RopeConfig {
  /// plain: as trained. linear: positions divided by `factor` (Chen et al. 2023). llama3: only low
  /// frequencies are slowed down. yarn: between interpolation and extrapolation by frequency (Peng
  /// et al. 2023). dynamic: plain within the trained length, which is the longest context here:
  /// keys in a cache could not follow a base that changes with the length.
  enum class Kind { plain, linear, dynamic, llama3, yarn };
  Kind kind = Kind::plain;
  double theta = 10000;
  double factor = 1;
  int64_t original_context = 0;  // the length that the model was trained with; 0: not said
  double low_freq_factor = 1, high_freq_factor = 4;  // of llama3
  double beta_fast = 32, beta_slow = 1;              // of yarn, and what follows
  double attention_factor = 0;                       // 0: from the factor and the mscales
  double mscale = 0, mscale_all_dim = 0;
  bool truncate = true;
  double partial_rotary_factor = 1;  // the share of a head's columns that turn: the first ones

  bool operator==(const RopeConfig&) const = default;
};

/// "default", "linear", ...: the rope_type of config.json.
const std::string& name_of(RopeConfig::Kind kind);

struct RopeFrequencies {
  std::vector<double> radians_per_position;  // [width / 2]
  double scale = 1;                          // of cosines and sines (yarn's attention factor)
};
/// For `width` rotated columns of a head; width is even.
RopeFrequencies rope_frequencies(const RopeConfig& config, int64_t width);

/// How many of a model's `positions` it may use: a dynamic embedding ends at its trained length.
int64_t longest_context(const RopeConfig& config, int64_t positions);

/// Throws UserError "[MODEL config] ..." that names the field, what is allowed and what it holds.
void check_rope(const RopeConfig& config, std::string_view model);

}  // namespace brrr::models
