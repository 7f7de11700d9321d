// libFuzzer target: tokenizer.model of SentencePiece, charsmaps, tiktoken's files and tekken.json
// are loaded or refused with a UserError, and what loads works. The first byte chooses.

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/encoding/base64.h"
#include "base/errors.h"
#include "fuzz/tokenizer_use.h"
#include "support/protobuf_writer.h"
#include "text/precompiled.h"
#include "text/ranked/ranked_tokens.h"
#include "text/sentencepiece/sentencepiece_tokenizer.h"

namespace {

using namespace brrr;
using test::encode_again;
using test::take_part;

/// A model of letters with the pieces and the specs that the fuzzer writes: what it adds reaches
/// past the checks of the whole.
std::string model_with(std::string_view pieces, std::string_view specs) {
  std::string out = test::piece_field("<unk>", 0, 2) + test::piece_field("<s>", 0, 3);
  for (const char* letter : {"\u2581", "a", "b", "c", "\u00e9"})
    out += test::piece_field(letter, -9);
  for (float score = -1; !pieces.empty(); score -= 0.5f) {
    const std::string_view piece = pieces.substr(0, pieces.find('\n'));
    pieces.remove_prefix(std::min(pieces.size(), piece.size() + 1));
    // The first character is the kind of the piece, where it is a digit.
    const bool has_kind = !piece.empty() && piece[0] >= '1' && piece[0] <= '6';
    out += test::piece_field(piece.substr(has_kind), score,
                             has_kind ? static_cast<uint64_t>(piece[0] - '0') : 1);
  }
  return out.append(specs);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    switch (data[0] % 5) {
      case 0: {
        const std::string model(text.substr(0, text.size() / 2));
        encode_again(*io::read_sentencepiece({{"tokenizer.model", model}}, "m"),
                     text.substr(model.size()));
        break;
      }
      case 1: {
        const std::string_view pieces = take_part(text), specs = take_part(text);
        encode_again(*io::read_sentencepiece({{"tokenizer.model", model_with(pieces, specs)}}, "m"),
                     text);
        break;
      }
      case 2: {
        const std::string_view map = text.substr(0, text.size() / 2);
        const auto charsmap = io::Precompiled::read(map, "map");
        text.remove_prefix(map.size());
        const std::string normalized = charsmap.normalized(text);
        if (normalized.size() > text.size() * charsmap.most_growth()) std::abort();
        for (; !text.empty(); text.remove_prefix(1))
          if (const auto found = charsmap.longest(text); found && found->length > text.size())
            std::abort();
        break;
      }
      case 3: {
        std::string lines;
        io::RankedTokens from;
        for (int byte = 0; byte < 256; ++byte)
          lines += encode_base64(std::string(1, static_cast<char>(byte))) + " " +
                   std::to_string(byte) + "\n";
        from.tokens = io::parse_tiktoken(lines.append(take_part(text)), "lines");
        from.pattern = "\\S+|\\s+";
        from.special = {"<end>"};
        const auto tokenizer = io::make_ranked_tokenizer(std::move(from), {}, "lines");
        encode_again(*tokenizer, text);
        if (tokenizer->decode(tokenizer->encode(text)) != text) std::abort();
        break;
      }
      default: {
        const std::string json(take_part(text));
        encode_again(*io::read_tekken({{"tekken.json", json}}, "tekken.json"), text.substr(0, 200));
      }
    }
  } catch (const UserError&) {
  }
  return 0;
}
