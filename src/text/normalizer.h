#pragma once
// The normalizer of tokenizer.json: steps that rewrite a text before it is cut. Read from JSON;
// whatever is not supported is refused by name.

#include <optional>
#include <string>
#include <vector>

#include "formats/json_file.h"

namespace brrr::io {

class Normalizer {
 public:
  /// It changes nothing.
  Normalizer() = default;
  static Normalizer read(const Json& json, const std::string& where);

  bool empty() const { return steps_.empty(); }
  /// `inside`: the text continues another, so nothing is put before it.
  std::string apply(std::string_view text, bool inside) const;

  /// What becomes of an ASCII character inside a text: the first code point. Nothing when the steps
  /// rewrite more than one character at a time, so that what it becomes depends on its neighbours.
  std::optional<uint32_t> mapped(uint8_t character) const;

 private:
  struct Step {
    bool prepend;
    std::string from, to;  // `from` only of a replacement
  };
  void read_into(const Json& json, const std::string& where, int depth);
  std::vector<Step> steps_;
};

}  // namespace brrr::io
