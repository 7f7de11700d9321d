#pragma once
// Ids back to text: the bytes that each token stands for, and what is special at the beginning. The
// decoder of tokenizer.json is worked out once, token by token, so decoding is one look-up, and a
// stream of ids can be decoded as it grows. A decoder whose text for a token depends on other
// tokens is applied to all ids of a text at once.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json_file.h"

namespace brrr::io {

struct DecoderStep;

class TokenTexts {
 public:
  TokenTexts() = default;
  /// Tokens whose bytes are known.
  TokenTexts(std::string bytes, std::vector<uint32_t> offsets)
      : bytes_(std::move(bytes)), offsets_(std::move(offsets)) {}
  /// `json` is the value of "decoder"; `names` are the tokens as the vocabulary writes them.
  static TokenTexts read(const Json& json, const std::vector<std::string_view>& names,
                         const std::string& where);
  /// The decoder of WordPiece, as vocab.txt has it.
  static TokenTexts wordpiece(const std::vector<std::string_view>& names, bool cleanup);

  int32_t size() const { return static_cast<int32_t>(offsets_.size()) - 1; }
  /// The bytes of a token inside a text (of its name, when needs_all()); id in [0, size).
  std::string_view inside(int32_t id) const {
    const auto i = static_cast<size_t>(id);
    return std::string_view(bytes_).substr(offsets_[i], offsets_[i + 1] - offsets_[i]);
  }
  /// Appends the bytes of a token. `begun`: a token came before it in the text. `stripped`: how
  /// much has been taken from the beginning of the text so far; 0 at first.
  void append(int32_t id, bool begun, size_t& stripped, std::string& out) const;

  /// The text of a token depends on others: append_all() alone knows it.
  bool needs_all() const { return all_steps_ != nullptr; }
  /// Appends the text that `ids` are, from its first to its last token.
  void append_all(std::span<const int32_t> ids, std::string& out) const;

 private:
  void fill(const std::vector<DecoderStep>& steps, const std::vector<std::string_view>& names,
            const std::string& where);
  void add_bytes(std::string_view text, const std::string& where);

  std::string bytes_;  // end to end
  std::vector<uint32_t> offsets_ = {0};
  // The same for the first token of a text, where that differs.
  std::string first_bytes_;
  std::vector<uint32_t> first_offsets_ = {};
  std::string between_;     // stands between two tokens
  std::string strip_;       // taken from the beginning of the text ...
  size_t most_strips_ = 0;  // ... up to so many times
  std::shared_ptr<const std::vector<DecoderStep>> all_steps_;  // where needs_all()
};

}  // namespace brrr::io
