#include "text/tokenizer_char.h"

#include "base/encoding/utf8.h"
#include "base/errors.h"
#include "base/file.h"
#include "formats/json_file.h"
#include "text/text_pipeline.h"
#include "text/tokenizer_writer.h"

namespace brrr::io {
namespace {

constexpr uint32_t kPageSize = 256;
constexpr uint32_t kPages = 0x110000 / kPageSize;

class CharModel final : public TokenModel {
 public:
  /// `codes`: distinct and ascending.
  explicit CharModel(const std::vector<uint32_t>& codes)
      : codes_(codes), page_of_(kPages, 0), ids_(kPageSize, -1) {
    for (size_t i = 0; i < codes.size(); ++i) {
      uint16_t& page = page_of_[codes[i] / kPageSize];
      if (page == 0) {
        page = static_cast<uint16_t>(ids_.size() / kPageSize);
        ids_.resize(ids_.size() + kPageSize, -1);
      }
      ids_[page * kPageSize + codes[i] % kPageSize] = static_cast<int32_t>(i);
    }
  }

  std::string kind() const override { return "char"; }

  void encode(std::span<const std::string_view> pieces, const char*,
              std::vector<int32_t>& ids) const override {
    for (const std::string_view text : pieces) {
      const uint8_t* const begin = as_bytes(text.data());
      const uint8_t* const end = begin + text.size();
      for (const uint8_t* p = begin; p < end;) {
        const DecodedChar c = decode_utf8(p, end);
        const int32_t id =
            c.code == kInvalidByte
                ? -1
                : ids_[page_of_[c.code / kPageSize] * kPageSize + c.code % kPageSize];
        if (id < 0) fail(c, *p, p - begin);
        ids.push_back(id);
        p += c.bytes;
      }
    }
  }
  bool may_cut(uint32_t, uint32_t) const override { return true; }

  void save(const fs::path& folder) const override {
    write_files(files_of_characters(codes_), folder);
  }

  static std::string character(uint32_t code) {
    std::string text;
    append_utf8(text, code);
    return text;
  }

 private:
  [[noreturn]] void fail(DecodedChar c, uint8_t byte, ptrdiff_t offset) const {
    if (c.code == kInvalidByte)
      user_error(
          "the text is not UTF-8 at byte {} (0x{:02x}); a character tokenizer needs UTF-8, or use "
          "the byte or BPE tokenizer",
          offset, byte);
    user_error(
        "the character {} (U+{:04X}, at byte {}) is not among the {} characters of this tokenizer; "
        "use text with the characters it was made from, or the byte or BPE tokenizer",
        in_quotes(character(c.code)), c.code, offset, codes_.size());
  }

  std::vector<uint32_t> codes_;
  std::vector<uint16_t> page_of_;  // page 0 holds no character
  std::vector<int32_t> ids_;       // by page
};

}  // namespace

std::unique_ptr<Tokenizer> tokenizer_of_characters(const std::vector<uint32_t>& codes) {
  TokenizerParts parts;
  std::string characters;
  std::vector<uint32_t> offsets = {0};
  for (const uint32_t code : codes) {
    append_utf8(characters, code);
    offsets.push_back(static_cast<uint32_t>(characters.size()));
  }
  parts.texts = TokenTexts(std::move(characters), std::move(offsets));
  parts.model = std::make_unique<CharModel>(codes);
  return std::make_unique<TextPipeline>(std::move(parts));
}

std::unique_ptr<Tokenizer> make_char_tokenizer(std::string_view text) {
  if (text.empty())
    user_error("the text is empty; a character tokenizer needs at least one character");
  std::vector<bool> seen(0x110000, false);
  const uint8_t* const begin = as_bytes(text.data());
  const uint8_t* const end = begin + text.size();
  for (const uint8_t* p = begin; p < end;) {
    const DecodedChar c = decode_utf8(p, end);
    if (c.code == kInvalidByte)
      user_error(
          "the text is not UTF-8 at byte {} (0x{:02x}); convert it to UTF-8, or use the byte or "
          "BPE tokenizer",
          p - begin, *p);
    seen[c.code] = true;
    p += c.bytes;
  }
  std::vector<uint32_t> codes;
  for (uint32_t code = 0; code < seen.size(); ++code)
    if (seen[code]) codes.push_back(code);
  return tokenizer_of_characters(codes);
}

std::unique_ptr<Tokenizer> parse_char_json(std::string_view text, const std::string& name) {
  const Json root = parse_json(text, name);
  if (!root.is_object() || root.value("type", Json()) != "char" || !root.contains("characters") ||
      !root["characters"].is_array() || root["characters"].empty())
    user_error("{}: expected {{\"type\": \"char\", \"characters\": [\"a\", ...]}}, got {}", name,
               root.is_object() ? "an object with other members" : describe(root));
  std::vector<uint32_t> codes;
  for (const Json& entry : root["characters"]) {
    DecodedChar c{kInvalidByte, 0};
    if (entry.is_string()) {
      const auto& s = entry.get_ref<const std::string&>();
      if (!s.empty()) c = decode_utf8(as_bytes(s.data()), as_bytes(s.data() + s.size()));
      if (c.bytes != s.size()) c.code = kInvalidByte;
    }
    if (c.code == kInvalidByte)
      user_error("{}: character {} is {}; expected a string of one character", name, codes.size(),
                 describe(entry));
    if (!codes.empty() && c.code <= codes.back())
      user_error(
          "{}: character {} ({}) does not come after the one before it; they must be distinct and "
          "in "
          "code-point order",
          name, codes.size(), describe(entry));
    codes.push_back(c.code);
  }
  return tokenizer_of_characters(codes);
}

}  // namespace brrr::io
