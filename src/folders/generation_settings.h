#pragma once
// How a model folder wants its texts to be made: generation_config.json, and what config.json says
// of the tokens that begin and end a text.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "models/model.h"

namespace brrr::io {

constexpr const char* kGenerationConfig = "generation_config.json";

/// What the folder says; what it does not say is absent.
struct GenerationSettings {
  std::optional<int32_t> begin_of_text;
  std::vector<int32_t> ends_of_text;  // any of them ends a text
  std::optional<bool> samples;        // do_sample; false: always the likeliest token
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<int64_t> top_k;
  /// The most tokens of an answer, or of the prompt and the answer together; the first one counts
  /// where both are there.
  std::optional<int64_t> max_new_tokens, max_length;
  std::vector<std::string> stop_strings;
  /// What the file asks for and Brrr does not do: "num_beams = 4".
  std::vector<std::string> ignored;
};

/// The text of generation_config.json, "" where there is none: a model that is trained on keeps it.
std::string generation_config_text(const fs::path& folder);

/// Reads generation_config.json where there is one; it comes before config.json. Of a GGUF file
/// reads general.sampling.*. Throws UserError for values of another type, out of range, or ids
/// outside the vocabulary.
GenerationSettings read_generation_settings(const fs::path& folder, const models::Model& model);

}  // namespace brrr::io
