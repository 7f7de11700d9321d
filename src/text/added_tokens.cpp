#include "text/added_tokens.h"

#include <algorithm>

#include "base/encoding/utf8.h"
#include "text/patterns/split_pattern.h"
#include "text/tokenizer_split.h"

namespace brrr::io {
namespace {

/// Does the text begin with a character of a word?
bool starts_word(std::string_view text) {
  static const SplitPattern word = SplitPattern::regex(
      "\\A[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}]", "characters of words");
  const size_t bytes =
      text.empty() ? 0
                   : decode_utf8(as_bytes(text.data()), as_bytes(text.data() + text.size())).bytes;
  const std::string_view first = text.substr(0, bytes);
  return !first.empty() && !find_invalid_utf8(first) && word.find(first, 0).has_value();
}

/// The beginning of the last character of `text`, which is not empty.
size_t last_character(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && text.size() - begin < 4 && (static_cast<uint8_t>(text[begin]) & 0xc0) == 0x80)
    --begin;
  return begin;
}

bool is_space(std::string_view character) {
  const uint8_t* const p = as_bytes(character.data());
  const DecodedChar c = decode_utf8(p, p + character.size());
  return c.bytes == character.size() && CharTable::get().of(c.code) == CharClass::kSpace;
}

}  // namespace

void AddedTokens::add(const AddedToken& token, const std::string& spelling) {
  if (spelling.empty()) return;
  uint32_t node = 0;
  for (const char c : spelling) {
    const auto [edge, is_new] = edges_.emplace(uint64_t{node} << 8 | static_cast<uint8_t>(c),
                                               static_cast<uint32_t>(token_of_.size()));
    if (is_new) token_of_.push_back(0);
    node = edge->second;
  }
  tokens_.push_back(token);
  spellings_.push_back(spelling);
  if (token_of_[node] == 0) token_of_[node] = static_cast<uint32_t>(tokens_.size());
  starts_[static_cast<uint8_t>(spelling[0])] = true;
  const auto symbol = [](char c) {
    const auto byte = static_cast<uint8_t>(c);
    return byte < 0x80 ? size_t{byte} : kWideSymbol;
  };
  for (const std::string* text : {&spelling, &token.content}) {
    for (size_t at = 1; at < text->size(); ++at)
      pairs_[symbol((*text)[at - 1])].set(symbol((*text)[at]));
    ends_.set(symbol(text->back()));
    if (token.single_word) words_begin_.set(symbol(text->front()));
  }
}

AddedTokens::Found AddedTokens::find(std::string_view text, size_t from, size_t done) const {
  for (size_t at = from; at < text.size(); ++at) {
    if (!starts_[static_cast<uint8_t>(text[at])]) continue;
    uint32_t node = 0, longest = 0;
    size_t stop = at;
    for (size_t i = at; i < text.size(); ++i) {
      const auto edge = edges_.find(uint64_t{node} << 8 | static_cast<uint8_t>(text[i]));
      if (edge == edges_.end()) break;
      node = edge->second;
      if (token_of_[node] != 0) longest = token_of_[node], stop = i + 1;
    }
    if (longest == 0) continue;
    const AddedToken& token = tokens_[longest - 1];
    Found found{&token, at, stop, stop};
    if (token.single_word) {
      const size_t left = at > 0 ? last_character(text.substr(0, at)) : 0;
      if (starts_word(text.substr(left, at - left)) || starts_word(text.substr(stop))) {
        at = stop - 1;
        continue;
      }
    }
    if (token.lstrip) {
      found.begin = std::max(found.begin, done);  // a token before it took the white space
      while (found.begin > done) {
        const size_t begin = last_character(text.substr(0, found.begin));
        if (begin < done || !is_space(text.substr(begin, found.begin - begin))) break;
        found.begin = begin;
      }
    }
    if (token.rstrip) {
      while (found.end < text.size()) {
        const auto* const p = as_bytes(text.data()) + found.end;
        const size_t bytes = decode_utf8(p, as_bytes(text.data() + text.size())).bytes;
        if (!is_space(text.substr(found.end, bytes))) break;
        found.end += bytes;
      }
    }
    return found;
  }
  return {};
}

void AddedTokens::restrict_cuts(CutRule& rule) const {
  for (size_t before = 0; before < kSymbols; ++before)
    for (const char c : kCutsBefore)
      if (const auto after = static_cast<uint8_t>(c); touches(before, after))
        rule.allow(before, after, false);
}

}  // namespace brrr::io
