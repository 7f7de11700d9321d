#include <algorithm>
#include <set>

#include "base/encoding/base64.h"
#include "base/errors.h"
#include "formats/json_file.h"
#include "text/bpe/piece_table.h"
#include "text/json_fields.h"
#include "text/ranked/ranked_tokens.h"

namespace brrr::io {
namespace {

/// The special tokens of files that list none (versions up to v7).
constexpr std::string_view kFirstTekkenSpecials[] = {"<unk>",
                                                     "<s>",
                                                     "</s>",
                                                     "[INST]",
                                                     "[/INST]",
                                                     "[AVAILABLE_TOOLS]",
                                                     "[/AVAILABLE_TOOLS]",
                                                     "[TOOL_RESULTS]",
                                                     "[/TOOL_RESULTS]",
                                                     "[TOOL_CALLS]",
                                                     "[IMG]",
                                                     "<pad>",
                                                     "[IMG_BREAK]",
                                                     "[IMG_END]",
                                                     "[PREFIX]",
                                                     "[MIDDLE]",
                                                     "[SUFFIX]",
                                                     "[SYSTEM_PROMPT]",
                                                     "[/SYSTEM_PROMPT]",
                                                     "[TOOL_CONTENT]"};

/// The names of the special tokens, by id; where the file names fewer, the others have numbers.
std::vector<std::string> read_tekken_specials(const JsonFields& file, size_t count) {
  std::vector<std::string> names;
  const Json& listed = file.get("special_tokens");
  if (listed.is_null()) {
    names.assign(std::begin(kFirstTekkenSpecials), std::end(kFirstTekkenSpecials));
  } else {
    const Json& list = file.list("special_tokens");
    for (size_t i = 0; i < list.size(); ++i) {
      const JsonFields token(list[i], fmt::format("{}.special_tokens[{}]", file.where(), i));
      if (token.integer("rank", 0, WordCache::kIdLimit - 1) != static_cast<int32_t>(i))
        user_error("{}.rank is {}; expected {}, its place in the list", token.where(),
                   token.get("rank").dump(), i);
      names.push_back(token.text("token_str"));
    }
  }
  if (names.size() > count)
    user_error("{}: it has {} special tokens, but config.default_num_special_tokens is {}",
               file.where(), names.size(), count);
  while (names.size() < count) names.push_back(fmt::format("<SPECIAL_{}>", names.size()));
  std::set<std::string_view> distinct;
  for (const std::string& name : names)
    if (!distinct.insert(name).second)
      user_error("{}: the special token {} is there twice", file.where(), in_quotes(name));
  return names;
}

}  // namespace

std::unique_ptr<Tokenizer> read_tekken(std::map<std::string, std::string> files,
                                       const std::string& where) {
  const Json root = parse_json(files.at("tekken.json"), where);
  const JsonFields file(root, where);
  const JsonFields config(file.object("config"), where + ": config");
  RankedTokens from;
  from.pattern = config.text("pattern");
  from.special_first = true;
  const auto special =
      static_cast<size_t>(config.integer("default_num_special_tokens", 0, WordCache::kIdLimit - 1));
  const auto all =
      static_cast<size_t>(config.integer("default_vocab_size", 0, WordCache::kIdLimit - 1));
  const Json& vocab = file.list("vocab");
  if (all < special || all - special > vocab.size())
    user_error(
        "{}.default_vocab_size is {}; expected {} special tokens and at most the {} of vocab",
        config.where(), all, special, vocab.size());
  from.special = read_tekken_specials(file, special);
  // Files list more tokens than models use.
  const size_t count = all - special;
  PieceTable rank_of(count);
  from.tokens.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const JsonFields token(vocab[i], fmt::format("{}: vocab[{}]", where, i));
    if (token.integer("rank", 0, WordCache::kIdLimit - 1) != static_cast<int32_t>(i))
      user_error("{}.rank is {}; expected {}, its place in the list", token.where(),
                 token.get("rank").dump(), i);
    const std::string text = token.text("token_bytes");
    auto bytes = decode_base64(text);
    if (!bytes) user_error("{}.token_bytes is {}; expected base64", token.where(), in_quotes(text));
    from.tokens.push_back(*std::move(bytes));
    if (rank_of.add(from.tokens.back(), static_cast<uint32_t>(i)) != PieceTable::kNone)
      user_error("{}.token_bytes is {}, which is another token already", token.where(),
                 in_quotes(text));
  }
  const auto id_of = [&](std::string_view name) {
    const auto found = std::find(from.special.begin(), from.special.end(), name);
    return found == from.special.end() ? -1 : static_cast<int32_t>(found - from.special.begin());
  };
  from.begin_of_text = id_of("<s>");
  from.end_of_text = id_of("</s>");
  return make_ranked_tokenizer(std::move(from), std::move(files), where);
}

}  // namespace brrr::io
