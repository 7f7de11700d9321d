// libFuzzer target: whatever the bytes, encoding round-trips, and tokenizer files are loaded or
// refused with a UserError. A file that loads must give a tokenizer that works. The first byte
// chooses.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/errors.h"
#include "formats/json_file.h"
#include "text/bpe/byte_letters.h"
#include "text/bpe/tokenizer_bpe.h"
#include "text/tokenizer_char.h"
#include "text/tokenizer_json.h"

namespace {

using namespace brrr;

/// Encoding is the same a second time, from the cache, and in pieces where the tokenizer says so.
void encode_again(const io::Tokenizer& tokenizer, std::string_view text) {
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
}

void round_trip(const io::Tokenizer& tokenizer, std::string_view text) {
  encode_again(tokenizer, text);
  if (tokenizer.decode(tokenizer.encode(text)) != text) std::abort();
}

/// `text` up to the first 0xff byte, which is taken off with it: 0xff appears in no valid file.
std::string_view take_part(std::string_view& text) {
  const size_t end = text.find('\xff');
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return part;
}

/// A vocab.json of all bytes and of what the fuzzer adds, so that inputs reach past the
/// completeness check.
std::string vocabulary_with(std::string_view rest) {
  std::string out = "{";
  for (size_t id = 0; id < 256; ++id) {
    char name[8];
    std::snprintf(name, sizeof(name), "\\u%04x", io::byte_letters()[io::bytes_by_letter()[id]]);
    out += "\"" + std::string(name) + "\":" + std::to_string(id) + ",";
  }
  return out.append("\"<|endoftext|>\":256").append(rest).append("}");
}

/// A tokenizer.json of bytes whose other parts the fuzzer writes, with patterns that reach the
/// engine.
std::string tokenizer_json_with(std::string_view pattern, std::string_view parts) {
  const io::Json regex = std::string(pattern);
  std::string text;
  try {
    text = regex.dump();
  } catch (const io::Json::exception&) {  // no UTF-8
    text = "\"\"";
  }
  return "{\"model\":{\"vocab\":" + vocabulary_with("") +
         ",\"merges\":[]},\"decoder\":{\"type\":\"ByteLevel\"},\"pre_tokenizer\":{\"type\":"
         "\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"behavior\":\"Isolated\","
         "\"pattern\":{\"Regex\":" +
         text + "}},{\"type\":\"ByteLevel\",\"use_regex\":false}]}" + std::string(parts) + "}";
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto trained = io::train_bpe(
      "the cat and the hat, the cat's hats and they'll sit; \xd0\xb4\xd0\xb0 \xd0\xb4\xd0\xb0",
      270);
  if (size == 0) return 0;
  std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    switch (data[0] % 7) {
      case 0:
        round_trip(*trained, text);
        break;
      case 1: {
        const std::string_view vocab = take_part(text), merges = take_part(text);
        round_trip(*io::make_gpt2_tokenizer(
                       io::parse_vocab_and_merges(vocab, "vocab.json", merges, "merges.txt")),
                   text);
        break;
      }
      case 2: {
        const std::string vocab = vocabulary_with(take_part(text));
        const std::string_view merges = take_part(text);
        round_trip(*io::make_gpt2_tokenizer(
                       io::parse_vocab_and_merges(vocab, "vocab.json", merges, "merges.txt")),
                   text);
        break;
      }
      case 3: {
        const std::string json(take_part(text));
        encode_again(*io::read_tokenizer_json({{"tokenizer.json", json}}, ""), text);
        break;
      }
      case 5: {
        const std::string_view pattern = take_part(text), parts = take_part(text);
        const std::string json = tokenizer_json_with(pattern, parts);
        // A long text would only show that quadratic patterns are slow.
        encode_again(*io::read_tokenizer_json({{"tokenizer.json", json}}, ""), text.substr(0, 200));
        break;
      }
      case 4: {
        const auto tokenizer = io::parse_char_json(take_part(text), "char.json");
        round_trip(*tokenizer, text);
        break;
      }
      default:
        round_trip(*io::train_bpe(text, 257 + static_cast<int32_t>(size % 16)), text);
    }
  } catch (const UserError&) {
  }
  return 0;
}
