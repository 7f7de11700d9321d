#pragma once
// Reads the settings of a cross-encoder, a model that scores a pair of texts, as
// sentence-transformers' CrossEncoder has them.

#include <filesystem>
#include <string>

namespace brrr::io {

/// Whether the folder is one of sentence-transformers that makes a vector of each text
/// (modules.json), whatever the head of its encoder is.
bool makes_vectors(const std::filesystem::path& folder);

/// The activation of the score of a model with one output, a name that models::torch_activation
/// knows: as config_sentence_transformers.json or config.json says, otherwise "Sigmoid". Throws
/// UserError for an activation that is not supported.
std::string score_activation(const std::filesystem::path& folder);

}  // namespace brrr::io
