#pragma once
// What every fuzzer of tokenizers asks of one that was loaded, and how it cuts its input.

#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace brrr::test {

/// Encoding is the same a second time, from the cache, and in pieces where the tokenizer says so.
inline void encode_again(const io::Tokenizer& tokenizer, std::string_view text) {
  const auto ids = tokenizer.encode(text);
  if (tokenizer.encode(text) != ids) std::abort();
  std::vector<int32_t> pieces;
  for (size_t at = 0; at < text.size();) {
    const size_t end = tokenizer.cut_rule().next(text, at + 1);
    tokenizer.encode(text.substr(at, end - at), {.inside = at > 0}, pieces);
    at = end;
  }
  if (pieces != ids) std::abort();
  io::TextStream stream(tokenizer, false);
  std::string text_of_ids;
  for (const int32_t id : ids) text_of_ids += stream.add(std::span(&id, 1));
  if (text_of_ids + stream.finish() != tokenizer.decode(ids)) std::abort();
  // The same ids with their words, in an input of one text or two.
  const auto tokens = [](const io::ModelInput& input, int32_t which) {
    std::vector<int32_t> out;
    for (size_t i = 0; i < input.ids.size(); ++i)
      if (input.texts[i] == which) out.push_back(input.ids[i]);
    return out;
  };
  const io::ModelInput whole = tokenizer.model_input(text, std::nullopt, std::nullopt, true);
  if (tokens(whole, 0) != ids) std::abort();
  const std::string_view half = text.substr(0, text.size() / 2), words[] = {half, text};
  const size_t longest = 4 + text.size() % 9;
  for (const io::ModelInput& input :
       {tokenizer.model_input(text, half, longest, true),
        tokenizer.model_input_of_words(words, std::nullopt, longest)}) {
    const size_t size = input.ids.size();
    if (size > longest || input.types.size() != size || input.words.size() != size ||
        input.texts.size() != size)
      std::abort();
  }
}

/// `text` up to the first 0xff byte, which is taken off with it: 0xff appears in no valid file.
inline std::string_view take_part(std::string_view& text) {
  const size_t end = text.find('\xff');
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return part;
}

}  // namespace brrr::test
