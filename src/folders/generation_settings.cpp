#include "folders/generation_settings.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/errors.h"
#include "formats/gguf/gguf_file.h"
#include "models/config_reader.h"

namespace brrr::io {
namespace {

// Keys that would change the text, and the value with which they do not.
constexpr std::pair<const char*, double> kNotDone[] = {{"encoder_repetition_penalty", 1},
                                                       {"no_repeat_ngram_size", 0},
                                                       {"typical_p", 1},
                                                       {"epsilon_cutoff", 0},
                                                       {"eta_cutoff", 0},
                                                       {"num_beams", 1},
                                                       {"penalty_alpha", 0},
                                                       {"diversity_penalty", 0},
                                                       {"guidance_scale", 1},
                                                       {"min_length", 0},
                                                       {"min_new_tokens", 0}};
// Likewise; any value changes the text.
constexpr const char* kNeverDone[] = {
    "bad_words_ids",       "begin_suppress_tokens", "exponential_decay_length_penalty",
    "forced_bos_token_id", "forced_eos_token_id",   "sequence_bias",
    "suppress_tokens"};

/// What a GGUF file recommends, in llama.cpp's words.
void read_gguf_sampling(const GgufFile& file, GenerationSettings& s) {
  const std::string prefix = "general.sampling.";
  const auto number = [&](const char* key, double low, double high) {
    const auto value = file.number(prefix + key);
    if (value && !(*value >= low && *value <= high))
      user_error("{}: {}{} must be from {} to {}; found {}", file.what(), prefix, key, low, high,
                 *value);
    return value;
  };
  s.temperature = number("temp", 0, 100);
  s.top_p = number("top_p", 0, 1);
  if (s.top_p == 0) s.top_p = std::nullopt;  // none there
  s.min_p = number("min_p", 0, 1);
  s.repetition_penalty = number("penalty_repeat", 0.01, 100);
  if (const auto top_k = number("top_k", std::numeric_limits<int32_t>::min(), 1 << 24))
    s.top_k = std::max<int64_t>(0, static_cast<int64_t>(*top_k));  // none below 1
}

}  // namespace

std::string generation_config_text(const fs::path& folder) {
  const fs::path path = folder / kGenerationConfig;
  std::error_code ignored;
  return fs::exists(path, ignored) ? read_file(path) : "";
}

GenerationSettings read_generation_settings(const fs::path& folder, const models::Model& model) {
  GenerationSettings s;
  const models::TextEnds ends = model.text_ends();
  s.begin_of_text = ends.begin;
  s.ends_of_text = ends.ends;
  if (is_gguf_file(folder)) {
    read_gguf_sampling(GgufFile(folder), s);
    return s;
  }
  const fs::path path = folder / kGenerationConfig;
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return s;
  const models::ConfigReader keys(read_file(path), path.string());
  const auto id_of = [&](const char* key, int64_t id) {
    if (id < 0 || id >= model.sizes().vocabulary)
      user_error("{}: {} = {} lies outside the vocabulary of {}", keys.what(), key, id,
                 model.sizes().vocabulary);
    return static_cast<int32_t>(id);
  };
  if (const auto id = keys.optional_integer("bos_token_id"))
    s.begin_of_text = id_of("bos_token_id", *id);
  if (keys.has("eos_token_id")) {
    s.ends_of_text.clear();
    for (const int64_t id : keys.integers("eos_token_id"))
      s.ends_of_text.push_back(id_of("eos_token_id", id));
  }
  const auto number = [&](const char* key, double low, double high) -> std::optional<double> {
    if (!keys.has(key)) return std::nullopt;
    const double value = keys.number(key, 0);
    if (!(value >= low && value <= high))
      user_error("{}: {} must be from {} to {}; found {}", keys.what(), key, low, high, value);
    return value;
  };
  if (keys.has("do_sample")) s.samples = keys.flag("do_sample", false);
  s.temperature = number("temperature", 0, 100);
  s.top_p = number("top_p", 0, 1);
  if (s.top_p == 0) user_error("{}: top_p must be above 0 and at most 1; found 0", keys.what());
  s.min_p = number("min_p", 0, 1);
  s.repetition_penalty = number("repetition_penalty", 0.01, 100);
  if (keys.has("stop_strings")) s.stop_strings = keys.strings("stop_strings");
  const auto count = [&](const char* key) -> std::optional<int64_t> {
    const auto value = keys.optional_integer(key);
    if (constexpr int64_t most = 1 << 30; value && !(*value >= 1 && *value <= most))
      user_error("{}: {} must be from 1 to {}; found {}", keys.what(), key, most, *value);
    return value;
  };
  s.max_new_tokens = count("max_new_tokens");
  s.max_length = count("max_length");
  s.top_k = keys.optional_integer("top_k");
  if (constexpr int64_t most = 1 << 24; s.top_k && !(*s.top_k >= 0 && *s.top_k <= most))
    user_error("{}: top_k must be from 0 to {}; found {}", keys.what(), most, *s.top_k);
  for (const auto& [key, without] : kNotDone)
    if (keys.has(key) && keys.number(key, without) != without)
      s.ignored.push_back(fmt::format("{} = {}", key, keys.number(key, without)));
  for (const char* key : kNeverDone)
    if (keys.has(key) && !keys.find(key)->empty()) s.ignored.push_back(key);
  return s;
}

}  // namespace brrr::io
