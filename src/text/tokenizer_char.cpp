#include "text/tokenizer_char.h"

#include "base/errors.h"
#include "base/file.h"
#include "base/utf8.h"
#include "formats/json_file.h"

namespace brrr::io {
namespace {

constexpr uint32_t kPageSize = 256;
constexpr uint32_t kPages = 0x110000 / kPageSize;

class CharTokenizer final : public Tokenizer {
 public:
  /// `codes`: distinct and ascending.
  explicit CharTokenizer(const std::vector<uint32_t>& codes)
      : page_of_(kPages, 0), ids_(kPageSize, -1) {
    ends_.push_back(0);
    for (const uint32_t code : codes) {
      uint16_t& page = page_of_[code / kPageSize];
      if (page == 0) {
        page = static_cast<uint16_t>(ids_.size() / kPageSize);
        ids_.resize(ids_.size() + kPageSize, -1);
      }
      ids_[page * kPageSize + code % kPageSize] = static_cast<int32_t>(ends_.size()) - 1;
      append_utf8(characters_, code);
      ends_.push_back(static_cast<uint32_t>(characters_.size()));
    }
  }

  std::string kind() const override { return "char"; }
  int32_t vocab_size() const override { return static_cast<int32_t>(ends_.size()) - 1; }
  using Tokenizer::encode;

  void encode(std::string_view text, std::vector<int32_t>& ids) const override {
    const size_t before = ids.size();
    const uint8_t* const begin = as_bytes(text.data());
    const uint8_t* const end = begin + text.size();
    for (const uint8_t* p = begin; p < end;) {
      const DecodedChar c = decode_utf8(p, end);
      const int32_t id = c.code == kInvalidByte
                             ? -1
                             : ids_[page_of_[c.code / kPageSize] * kPageSize + c.code % kPageSize];
      if (id < 0) {
        ids.resize(before);
        fail(c, *p, p - begin);
      }
      ids.push_back(id);
      p += c.bytes;
    }
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string out;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || ids[i] >= vocab_size())
        user_error(
            "token {} (at position {}) is not in the vocabulary: ids go from 0 to {}; were these "
            "ids made "
            "by another tokenizer?",
            ids[i], i, vocab_size() - 1);
      out += character(static_cast<size_t>(ids[i]));
    }
    return out;
  }

  void save(const fs::path& folder) const override {
    Json characters = Json::array();
    for (size_t i = 0; i + 1 < ends_.size(); ++i) characters.push_back(character(i));
    const Json root = {{"type", "char"}, {"characters", std::move(characters)}};
    write_file_atomically(folder / "char.json", root.dump() + "\n");
  }

 private:
  std::string_view character(size_t id) const {
    return std::string_view(characters_).substr(ends_[id], ends_[id + 1] - ends_[id]);
  }

  [[noreturn]] void fail(DecodedChar c, uint8_t byte, ptrdiff_t offset) const {
    if (c.code == kInvalidByte)
      user_error(
          "the text is not UTF-8 at byte {} (0x{:02x}); a character tokenizer needs UTF-8, or use "
          "the byte or "
          "BPE tokenizer",
          offset, byte);
    std::string shown;
    append_utf8(shown, c.code);
    user_error(
        "the character {} (U+{:04X}, at byte {}) is not among the {} characters of this tokenizer; "
        "use text "
        "with the characters it was made from, or the byte or BPE tokenizer",
        in_quotes(shown), c.code, offset, vocab_size());
  }

  std::vector<uint16_t> page_of_;  // page 0 holds no character
  std::vector<int32_t> ids_;       // by page
  std::string characters_;         // UTF-8, end to end
  std::vector<uint32_t> ends_;     // [V + 1]
};

}  // namespace

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
  return std::make_unique<CharTokenizer>(codes);
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
  return std::make_unique<CharTokenizer>(codes);
}

}  // namespace brrr::io
