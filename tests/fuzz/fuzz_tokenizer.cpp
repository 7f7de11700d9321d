// libFuzzer target: whatever the bytes, encoding round-trips, and tokenizer files are loaded or
// refused with a UserError. A file that loads must give a tokenizer that works. The first byte
// chooses.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/errors.h"
#include "text/tokenizer_bpe.h"
#include "text/tokenizer_char.h"

namespace {

using namespace brrr;

void round_trip(const io::Tokenizer& tokenizer, std::string_view text) {
  const auto ids = tokenizer.encode(text);
  if (tokenizer.decode(ids) != text) std::abort();
  if (tokenizer.encode(text) != ids) std::abort();  // the second time from the cache
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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const io::BpeTokenizer trained(io::train_bpe_model(
      "the cat and the hat, the cat's hats and they'll sit; \xd0\xb4\xd0\xb0 \xd0\xb4\xd0\xb0",
      270));
  if (size == 0) return 0;
  std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    switch (data[0] % 6) {
      case 0:
        round_trip(trained, text);
        break;
      case 1: {
        const std::string_view vocab = take_part(text), merges = take_part(text);
        round_trip(
            io::BpeTokenizer(io::parse_vocab_and_merges(vocab, "vocab.json", merges, "merges.txt")),
            text);
        break;
      }
      case 2: {
        const std::string vocab = vocabulary_with(take_part(text));
        const std::string_view merges = take_part(text);
        round_trip(
            io::BpeTokenizer(io::parse_vocab_and_merges(vocab, "vocab.json", merges, "merges.txt")),
            text);
        break;
      }
      case 3: {
        const std::string_view json = take_part(text);
        round_trip(io::BpeTokenizer(io::parse_tokenizer_json(json, "tokenizer.json")), text);
        break;
      }
      case 4: {
        const auto tokenizer = io::parse_char_json(take_part(text), "char.json");
        round_trip(*tokenizer, text);
        break;
      }
      default:
        round_trip(
            io::BpeTokenizer(io::train_bpe_model(text, 257 + static_cast<int32_t>(size % 16))),
            text);
    }
  } catch (const UserError&) {
  }
  return 0;
}
