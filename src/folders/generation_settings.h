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

/// What the folder says; what it does not say is absent.
struct GenerationSettings {
  std::optional<int32_t> begin_of_text;
  std::vector<int32_t> ends_of_text;  // any of them ends a text
  std::optional<bool> samples;        // do_sample; false: always the likeliest token
  std::optional<double> temperature, top_p;
  std::optional<int64_t> top_k;
  /// What the file asks for and Brrr does not do: "repetition_penalty = 1.1".
  std::vector<std::string> ignored;
};

/// Reads generation_config.json where there is one; it comes before config.json. Throws UserError
/// for values of another type, out of range, or ids outside the vocabulary.
GenerationSettings read_generation_settings(const fs::path& folder, const models::Model& model);

}  // namespace brrr::io
