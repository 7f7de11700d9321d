#pragma once
// How a folder of sentence-transformers wants the vectors of its texts to be made: modules.json,
// the pooling module's config.json and sentence_bert_config.json beside the model.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "models/task.h"

namespace brrr::io {

struct SentenceSettings {
  models::Task task{.head = models::Head::embedding};  // the mean, where the folder says nothing
  std::optional<int64_t> longest;                      // tokens of a text, special ones counted
  std::string prompt;                                  // what is put before every text
  bool lowercase = false;       // capitals become small letters before all else
  std::filesystem::path model;  // the folder of the encoder: this one, or one in it
  bool is_said = false;         // the folder says how rows become a vector
};

/// Throws UserError that names the file and the value for a module or a pooling that is not
/// supported.
SentenceSettings read_sentence_settings(const std::filesystem::path& folder);

/// The most tokens of a text by config.json and tokenizer_config.json, for a model that is not
/// described otherwise; nothing where they do not say.
std::optional<int64_t> read_context(const std::filesystem::path& folder);

}  // namespace brrr::io
