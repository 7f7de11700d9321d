#pragma once
// The tokenizers of tests/golden/tokenizer_cases.json, which differ in one part each, and what the
// texts of goldens are made of.

#include <algorithm>
#include <stdexcept>

#include "base/file.h"
#include "formats/json_file.h"
#include "support/random_text.h"
#include "text/tokenizer_json.h"

namespace brrr::test {

inline io::Json read_golden(const std::string& name) {
  const fs::path path = fs::path(BRRR_SOURCE_DIR) / "tests/golden" / name;
  return io::parse_json(read_file(path), path.string());
}

/// A case's tokenizer.json: its parts, with the model that it shares with others.
inline io::Json tokenizer_json_of(const io::Json& all, const io::Json& item) {
  io::Json root = item["root"];
  root["model"] = all["models"][item["base"].get<std::string>()];
  root["model"].update(item["model"]);
  return root;
}

inline std::unique_ptr<io::Tokenizer> tokenizer_of(const io::Json& root) {
  return io::read_tokenizer_json({{"tokenizer.json", root.dump()}}, "");
}

/// The tokenizer of the case `name`.
inline std::unique_ptr<io::Tokenizer> golden_tokenizer(const std::string& name) {
  const io::Json all = read_golden("tokenizer_cases.json");
  for (const io::Json& item : all["cases"])
    if (item["name"] == name) return tokenizer_of(tokenizer_json_of(all, item));
  throw std::runtime_error("tokenizer_cases.json has no case " + name);
}

/// The code points that Unicode 14 assigns, in order.
class Assigned {
 public:
  explicit Assigned(const io::Json& ranges) : is_assigned_(0x110000) {
    for (const io::Json& range : ranges)
      for (auto code = range[0].get<uint32_t>(); code <= range[1].get<uint32_t>(); ++code) {
        codes_.push_back(code);
        is_assigned_[code] = true;
      }
  }
  std::string replace_others(std::string_view text) const {
    std::string out;
    const uint8_t* const end = as_bytes(text.data() + text.size());
    for (const uint8_t* p = as_bytes(text.data()); p < end;) {
      const DecodedChar c = decode_utf8(p, end);
      append_utf8(out, is_assigned_[c.code] ? c.code : codes_[c.code % codes_.size()]);
      p += c.bytes;
    }
    return out;
  }

 private:
  std::vector<uint32_t> codes_;
  std::vector<bool> is_assigned_;
};

/// Text number `index` of make_tokenizer_goldens.py: a random one with assigned code points, and
/// every fourth with one of `tokens` inside.
inline std::string text_with_token(const Assigned& assigned, uint32_t index,
                                   const std::vector<std::string>& tokens) {
  std::string text = assigned.replace_others(random_text(index));
  if (index % 4 != 3 || tokens.empty()) return text;
  const auto is_start = [](char c) { return (c & 0xc0) != 0x80; };
  const auto count = static_cast<size_t>(std::count_if(text.begin(), text.end(), is_start));
  size_t offset = 0;
  for (size_t at = index * size_t{7919} % (count + 1); at > 0; --at)
    for (++offset; offset < text.size() && !is_start(text[offset]);) ++offset;
  return text.insert(offset, tokens[index / 4 % tokens.size()]);
}

/// The lines of $BRRR_DATA/sentences.
inline std::vector<std::string> sentences(const fs::path& folder) {
  std::vector<std::string> lines;
  for (const char* name : {"editorials", "movies", "products", "tweets"}) {
    const std::string text = read_file(folder / (std::string(name) + ".tsv"));
    for (std::string_view rest = text; !rest.empty();) {
      const size_t end = std::min(rest.find('\n'), rest.size());
      const std::string_view line = rest.substr(0, end);
      if (!line.empty()) lines.emplace_back(line.substr(line.find('\t') + 1));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }
  return lines;
}

}  // namespace brrr::test
