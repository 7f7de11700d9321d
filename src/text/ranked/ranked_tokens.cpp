#include "text/ranked/ranked_tokens.h"

#include <algorithm>

#include "base/errors.h"
#include "formats/json_file.h"
#include "text/bpe/piece_table.h"
#include "text/bpe/tokenizer_bpe.h"
#include "text/text_pipeline.h"
#include "text/unigram/piece_trie.h"

namespace brrr::io {
namespace {

/// A merge for every two tokens that make a third. Merges that make the same token have one rank:
/// of two places where it can be made, the left one counts.
void add_merges(BpeModel& model, uint32_t first, uint32_t count) {
  PieceTable ids(count);
  std::vector<PieceTrie::Entry> entries;
  entries.reserve(count);
  for (uint32_t id = first; id < first + count; ++id) {
    ids.add(model.token(id), id);
    entries.emplace_back(model.token(id), id);
  }
  const PieceTrie trie(std::move(entries));
  model.merges.reserve(3 * size_t{count});
  model.ranks.reserve(3 * size_t{count});
  for (uint32_t id = first; id < first + count; ++id) {
    const std::string_view token = model.token(id);
    const auto* const begin = reinterpret_cast<const uint8_t*>(token.data());
    trie.visit(begin, begin + token.size(), [&](const uint8_t* stop, uint32_t left) {
      const auto length = static_cast<size_t>(stop - begin);
      if (length == token.size()) return;
      const uint32_t right = ids.find(token.substr(length));
      if (right == PieceTable::kNone) return;
      model.merges.push_back({left, right, id});
      model.ranks.push_back(id - first);
    });
  }
}

}  // namespace

std::unique_ptr<Tokenizer> make_ranked_tokenizer(RankedTokens from,
                                                 std::map<std::string, std::string> files,
                                                 const std::string& where) {
  if (from.tokens.size() + from.special.size() >= static_cast<size_t>(WordCache::kIdLimit))
    user_error("{}: too many tokens", where);
  BpeModel model;
  model.ignore_merges = true;
  const auto first = static_cast<uint32_t>(from.special_first ? from.special.size() : 0);
  const auto count = static_cast<uint32_t>(from.tokens.size());
  std::vector<int32_t> special;
  const auto add = [&](std::string_view text) {
    model.bytes += text;
    if (model.bytes.size() > 0xffffffffu) user_error("{}: more than 4 GiB of tokens", where);
    model.offsets.push_back(static_cast<uint32_t>(model.bytes.size()));
  };
  const auto add_special = [&] {
    for (const std::string& name : from.special) {
      special.push_back(static_cast<int32_t>(model.size()));
      model.verbatim.push_back(model.size());
      add(name);
    }
  };
  if (from.special_first) add_special();
  std::array<bool, 256> have{};
  for (uint32_t rank = 0; rank < count; ++rank) {
    const std::string& token = from.tokens[rank];
    if (token.empty()) user_error("{}: the token of rank {} is empty", where, rank);
    if (token.size() == 1) {
      const auto byte = static_cast<uint8_t>(token[0]);
      model.byte_ids[byte] = first + rank;
      have[byte] = true;
    }
    add(token);
  }
  if (!from.special_first) add_special();
  for (size_t byte = 0; byte < 256; ++byte)
    if (!have[byte]) user_error("{}: no token for the byte 0x{:02x}", where, byte);
  add_merges(model, first, count);

  TokenizerParts parts;
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", from.pattern}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  parts.pre_tokenizer =
      PreTokenizer::read({{"type", "Sequence"}, {"pretokenizers", Json::array({split, bytes})}},
                         where + ": the split");
  parts.texts = TokenTexts(model.bytes, model.offsets);
  parts.model = std::make_unique<BpeEncoder>(std::move(model));
  parts.special = std::move(special);
  parts.begin_of_text = from.begin_of_text;
  parts.end_of_text = from.end_of_text;
  if (from.begin_of_text >= 0) parts.prefix = {from.begin_of_text};
  parts.files = std::move(files);
  return std::make_unique<TextPipeline>(std::move(parts));
}

}  // namespace brrr::io
