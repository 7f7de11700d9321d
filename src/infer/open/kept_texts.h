#pragma once
// What a .brrr file keeps beside its graph: the tokenizer, the chat template and the end-of-text
// settings of the model that it was exported from.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "folders/chat_template.h"
#include "runtime/runnable.h"
#include "text/tokenizer.h"

namespace brrr::infer {

/// What a decoder knows of the end of texts.
struct DecoderSettings {
  std::vector<int32_t> ends_of_text;  // any of them ends one; its loop stops there
  std::vector<std::string> stop_strings;
  std::optional<int64_t> max_new_tokens;  // where nothing else is asked for
};
/// The file beside its graph in which it keeps them.
inline constexpr const char* kDecoderSettings = "decoder.json";
std::string settings_text(const DecoderSettings& settings);

/// The tokenizer that a file keeps, null where it keeps none, and how its texts are made.
struct KeptTexts {
  std::unique_ptr<io::Tokenizer> tokenizer;
  std::optional<io::ChatTemplate> chat;
  DecoderSettings settings;
};
KeptTexts kept_texts(const Runnable& module, bool with_tools = false);

}  // namespace brrr::infer
