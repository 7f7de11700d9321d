// vocab.json and merges.txt.

#include <algorithm>

#include "base/errors.h"
#include "base/file.h"
#include "formats/json_file.h"
#include "text/bpe/bpe_vocabulary.h"
#include "text/bpe/byte_letters.h"
#include "text/bpe/tokenizer_bpe.h"

namespace brrr::io {

BpeModel parse_vocab_and_merges(std::string_view vocab, const std::string& vocab_name,
                                std::string_view merges, const std::string& merges_name) {
  const VocabTokens tokens = VocabTokens::parse(vocab, vocab_name);
  BpeModel model = byte_level_model(tokens, vocab_name);
  MergeReader reader(tokens, vocab_name, merges_name, "line", model);
  size_t number = 0;
  while (!merges.empty()) {
    ++number;
    const size_t newline = merges.find('\n');
    std::string_view line = merges.substr(0, newline);
    merges.remove_prefix(newline == std::string_view::npos ? merges.size() : newline + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (number == 1 && line.starts_with("#version")) continue;
    if (line.empty() && merges.empty()) break;
    const auto pair = split_pair(line);
    if (!pair)
      user_error("{}: line {}: {}, got {}", merges_name, number, kPairExpected, in_quotes(line));
    reader.add(pair->first, pair->second, number);
    reader.check_order(number);
  }
  reader.check_complete();
  return model;
}

void save_bpe(const BpeModel& model, const fs::path& folder) {
  const auto name_of = [&](uint32_t id) {
    const bool verbatim = std::binary_search(model.verbatim.begin(), model.verbatim.end(), id);
    return verbatim ? std::string(model.token(id)) : spell_letters(model.token(id));
  };
  std::string vocab = "{", merges = "#version: 0.2\n";
  for (uint32_t id = 0; id < model.size(); ++id)
    vocab += fmt::format("{}{}: {}", id == 0 ? "" : ", ", Json(name_of(id)).dump(), id);
  vocab += "}\n";
  for (const BpeMerge& merge : model.merges)
    merges += name_of(merge.left) + " " + name_of(merge.right) + "\n";
  write_file_atomically(folder / "vocab.json", vocab);
  write_file_atomically(folder / "merges.txt", merges);
}

}  // namespace brrr::io
