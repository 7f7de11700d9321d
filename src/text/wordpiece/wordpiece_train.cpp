// WordPiece from a text: words as BERT's tokenizer without capitals cuts them, the most frequent
// pair of tokens merged first (pair_merger.h). The result is a tokenizer.json.

#include <algorithm>
#include <map>
#include <unordered_map>

#include "base/encoding/utf8.h"
#include "base/errors.h"
#include "base/threads/parallel.h"
#include "formats/json_file.h"
#include "text/bpe/pair_merger.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer.h"
#include "text/tokenizer_json.h"

namespace brrr::io {
namespace {

constexpr std::string_view kContinuing = "##";
constexpr const char* kSpecial[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
constexpr int32_t kClass = 2, kSeparator = 3;
// Rare characters are no tokens: they would take the place of words.
constexpr size_t kMostCharacters = 1000;
constexpr size_t kLongestWord = 100;  // characters, as the model has it

using PieceCounts = std::unordered_map<std::string, int64_t>;

/// A model that counts the pieces it gets.
class PieceCounter final : public TokenModel {
 public:
  std::string kind() const override { return "counter"; }
  void encode(std::span<const std::string_view> pieces, const char*,
              std::vector<int32_t>&) const override {
    for (const std::string_view piece : pieces) ++counts_[std::string(piece)];
  }
  bool may_cut(uint32_t, uint32_t) const override { return false; }
  void save(const std::filesystem::path&) const override {}
  const PieceCounts& counts() const { return counts_; }

 private:
  mutable PieceCounts counts_;
};

/// In chunks that end with lines, where a word ends as well.
PieceCounts count_pieces(std::string_view text) {
  constexpr size_t kChunkBytes = size_t{1} << 20;
  std::vector<size_t> cuts = {0};
  while (cuts.back() < text.size()) {
    const size_t end = text.find('\n', std::min(cuts.back() + kChunkBytes, text.size()));
    cuts.push_back(end == std::string_view::npos ? text.size() : end + 1);
  }
  const Normalizer normalizer = Normalizer::bert(true, true, std::nullopt, true);
  const PreTokenizer pre_tokenizer = PreTokenizer::bert();
  std::vector<PieceCounter> parts(cuts.size() - 1);
  parallel_chunks(static_cast<int64_t>(parts.size()), [&](int64_t i) {
    const auto part = static_cast<size_t>(i);
    const std::string chunk =
        normalizer.apply(text.substr(cuts[part], cuts[part + 1] - cuts[part]), true);
    std::vector<int32_t> none;
    PieceSink sink(parts[part], none);
    PieceSink::Buffer buffer(sink, chunk);
    pre_tokenizer.split(chunk, sink, false);
    buffer.done();
  });
  PieceCounts all;
  for (const PieceCounter& part : parts)
    for (const auto& [piece, count] : part.counts()) all[piece] += count;
  return all;
}

std::vector<std::string_view> utf8_characters(std::string_view piece) {
  std::vector<std::string_view> characters;
  const uint8_t* p = as_bytes(piece.data());
  const uint8_t* const end = p + piece.size();
  while (p < end) {
    const size_t bytes = decode_utf8(p, end).bytes;
    characters.emplace_back(reinterpret_cast<const char*>(p), bytes);
    p += bytes;
  }
  return characters;
}

struct CountedPiece {
  std::string text;
  int64_t count = 0;
};

std::string without_prefix_of(const std::string& token) {
  return token.starts_with(kContinuing) && token.size() > kContinuing.size()
             ? token.substr(kContinuing.size())
             : token;
}

Json tokenizer_of(const std::vector<std::string>& tokens) {
  Json vocabulary = Json::object(), added = Json::array();
  int32_t id = 0;
  for (const char* token : kSpecial) {
    added.push_back({{"id", id},
                     {"content", token},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
    vocabulary[token] = id++;
  }
  for (const std::string& token : tokens) vocabulary[token] = id++;
  const auto sequence = [](const char* name, int type) {
    return Json{{"Sequence", {{"id", name}, {"type_id", type}}}};
  };
  const auto special = [](const char* name, int type) {
    return Json{{"SpecialToken", {{"id", name}, {"type_id", type}}}};
  };
  const auto special_ids = [](const char* name, int32_t token) {
    return Json{{"id", name}, {"ids", {token}}, {"tokens", {name}}};
  };
  const char *cls = kSpecial[kClass], *sep = kSpecial[kSeparator];
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer",
           {{"type", "BertNormalizer"},
            {"clean_text", true},
            {"handle_chinese_chars", true},
            {"strip_accents", nullptr},
            {"lowercase", true}}},
          {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single", Json::array({special(cls, 0), sequence("A", 0), special(sep, 0)})},
            {"pair", Json::array({special(cls, 0), sequence("A", 0), special(sep, 0),
                                  sequence("B", 1), special(sep, 1)})},
            {"special_tokens",
             {{cls, special_ids(cls, kClass)}, {sep, special_ids(sep, kSeparator)}}}}},
          {"decoder", {{"type", "WordPiece"}, {"prefix", kContinuing}, {"cleanup", true}}},
          {"model",
           {{"type", "WordPiece"},
            {"unk_token", "[UNK]"},
            {"continuing_subword_prefix", kContinuing},
            {"max_input_chars_per_word", kLongestWord},
            {"vocab", vocabulary}}}};
}

}  // namespace

std::unique_ptr<Tokenizer> train_wordpiece(std::string_view text, int32_t vocab_size) {
  constexpr size_t kSpecialTokens = std::size(kSpecial);
  std::vector<CountedPiece> pieces;
  for (auto& [piece, count] : count_pieces(text)) pieces.push_back({piece, count});
  // A hash table has no order of its own.
  std::sort(pieces.begin(), pieces.end(), [](const CountedPiece& a, const CountedPiece& b) {
    return a.count != b.count ? a.count > b.count : a.text < b.text;
  });

  std::map<std::string_view, int64_t> occurrences;
  for (const CountedPiece& piece : pieces)
    for (const std::string_view c : utf8_characters(piece.text)) occurrences[c] += piece.count;
  std::vector<std::pair<int64_t, std::string_view>> by_count;
  for (const auto& [c, count] : occurrences) by_count.emplace_back(-count, c);
  std::sort(by_count.begin(), by_count.end());
  // Each may begin a word and continue one, and a third of the vocabulary is for more than letters.
  const size_t room =
      static_cast<size_t>(std::max<int32_t>(vocab_size - static_cast<int32_t>(kSpecialTokens), 0)) /
      3;
  by_count.resize(std::min({by_count.size(), kMostCharacters, std::max<size_t>(room, 1)}));

  std::vector<std::string> tokens;
  std::map<std::string, uint32_t, std::less<>> id_of;
  std::vector<std::string_view> alphabet;
  for (const auto& [count, c] : by_count) alphabet.push_back(c);
  std::sort(alphabet.begin(), alphabet.end());
  for (const bool continues : {false, true})
    for (const std::string_view c : alphabet) {
      std::string token = continues ? std::string(kContinuing) : std::string();
      token += c;
      id_of.emplace(token, static_cast<uint32_t>(tokens.size()));
      tokens.push_back(std::move(token));
    }
  PairMerger merger(std::move(tokens),
                    [](const std::string& left, const std::string& right) {
                      return left + without_prefix_of(right);
                    },
                    {std::begin(kSpecial), std::end(kSpecial)});
  std::vector<uint32_t> symbols;
  for (const CountedPiece& piece : pieces) {
    symbols.clear();
    const auto characters = utf8_characters(piece.text);
    if (characters.size() > kLongestWord) continue;
    bool is_known = true;
    for (size_t i = 0; i < characters.size() && is_known; ++i) {
      const std::string token =
          (i > 0 ? std::string(kContinuing) : "") + std::string(characters[i]);
      const auto at = id_of.find(token);
      is_known = at != id_of.end();
      if (is_known) symbols.push_back(at->second);
    }
    if (is_known) merger.add_word(symbols, piece.count);
  }
  const size_t wanted = static_cast<size_t>(std::max<int32_t>(vocab_size, 0));
  if (kSpecialTokens + merger.tokens().size() > wanted)
    user_error(
        "a WordPiece vocabulary of {} tokens is too small for this text: its characters and "
        "the {} special tokens are {}",
        vocab_size, kSpecialTokens, kSpecialTokens + merger.tokens().size());
  while (kSpecialTokens + merger.tokens().size() < wanted)
    if (!merger.step())
      user_error(
          "a WordPiece vocabulary of {} tokens needs more text: after {} tokens no pair of tokens "
          "occurs twice in these {} bytes; ask for {} or fewer",
          vocab_size, kSpecialTokens + merger.tokens().size(), text.size(),
          kSpecialTokens + merger.tokens().size());
  const Json config{{"tokenizer_class", "PreTrainedTokenizerFast"},
                    {"do_lower_case", true},
                    {"pad_token", "[PAD]"},
                    {"unk_token", "[UNK]"},
                    {"cls_token", "[CLS]"},
                    {"sep_token", "[SEP]"},
                    {"mask_token", "[MASK]"}};
  return read_tokenizer_json({{"tokenizer.json", tokenizer_of(merger.tokens()).dump(2) + "\n"},
                              {"tokenizer_config.json", config.dump(2) + "\n"}},
                             "");
}

}  // namespace brrr::io
