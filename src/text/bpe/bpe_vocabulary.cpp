#include "text/bpe/bpe_vocabulary.h"

#include <algorithm>

#include "base/encoding/utf8.h"
#include "base/errors.h"
#include "text/bpe/byte_letters.h"

namespace brrr::io {
namespace {

bool has_gpt2_ids(const BpeModel& model) {
  if (model.alphabet != BpeModel::Alphabet::bytes) return false;
  for (uint32_t i = 0; i < 256; ++i)
    if (model.byte_ids[bytes_by_letter()[i]] != i) return false;
  return true;
}

void append_token(BpeModel& model, std::string_view text, const std::string& file) {
  model.bytes += text;
  if (model.bytes.size() > 0xffffffffu) user_error("{}: more than 4 GiB of tokens", file);
  model.offsets.push_back(static_cast<uint32_t>(model.bytes.size()));
}

}  // namespace

std::vector<size_t> entries_by_id(const VocabTokens& tokens, const std::string& file) {
  const size_t count = tokens.size();
  if (count == 0) user_error("{}: no tokens in it; expected {{\"token\": id, ...}}", file);
  if (count >= static_cast<size_t>(WordCache::kIdLimit)) user_error("{}: too many tokens", file);
  constexpr size_t kNone = ~size_t{0};
  std::vector<size_t> entry_of(count, kNone);
  for (size_t i = 0; i < count; ++i) {
    const int64_t id = tokens.id(i);
    if (id < 0)
      user_error("{}: the id of token {} is {}; ids start at 0", file, in_quotes(tokens.name(i)),
                 id);
    if (id >= static_cast<int64_t>(count)) continue;  // then another id is missing: reported below
    size_t& entry = entry_of[static_cast<size_t>(id)];
    if (entry != kNone)
      user_error("{}: id {} belongs to two tokens, {} and {}; every token needs its own id", file,
                 id, in_quotes(tokens.name(entry)), in_quotes(tokens.name(i)));
    entry = i;
  }
  const auto hole = std::find(entry_of.begin(), entry_of.end(), kNone);
  if (hole != entry_of.end())
    user_error("{}: it has {} tokens but none with id {}; ids must run from 0 to {} without gaps",
               file, count, hole - entry_of.begin(), count - 1);
  return entry_of;
}

BpeModel byte_level_model(const VocabTokens& tokens, const std::string& file) {
  const std::vector<size_t> entry_of = entries_by_id(tokens, file);
  BpeModel model;
  model.offsets.reserve(entry_of.size() + 1);
  std::array<bool, 256> have{};
  std::string spelled;
  for (size_t id = 0; id < entry_of.size(); ++id) {
    const std::string_view name = tokens.name(entry_of[id]);
    spelled.clear();
    if (tokens.is_added(entry_of[id]) || !spell_bytes(name, spelled)) {
      spelled = name;
      model.verbatim.push_back(static_cast<uint32_t>(id));
    } else if (spelled.size() == 1) {
      const auto byte = static_cast<uint8_t>(spelled[0]);
      model.byte_ids[byte] = static_cast<uint32_t>(id);
      have[byte] = true;
    }
    if (name == kEndOfText) model.end_of_text = static_cast<int32_t>(id);
    append_token(model, spelled, file);
  }
  for (size_t b = 0; b < 256; ++b)
    if (!have[b])
      user_error(
          "{}: no token for the byte 0x{:02x} (written {}); this is not a byte-level BPE "
          "vocabulary "
          "like GPT-2's",
          file, b, in_quotes(spell_letters(std::string(1, static_cast<char>(b)))));
  // A name that byte letters spell the same way needs no exception ("<|endoftext|>").
  std::erase_if(model.verbatim, [&](uint32_t id) {
    const std::string_view name = tokens.name(entry_of[id]);
    return spell_letters(name) == name;
  });
  return model;
}

BpeModel character_model(const VocabTokens& tokens, const std::string& file) {
  BpeModel model;
  model.alphabet = BpeModel::Alphabet::characters;
  const std::vector<size_t> entry_of = entries_by_id(tokens, file);
  for (size_t id = 0; id < entry_of.size(); ++id) {
    const std::string_view name = tokens.name(entry_of[id]);
    append_token(model, name, file);
    if (name.empty() || tokens.is_added(entry_of[id])) continue;
    const DecodedChar c = decode_utf8(as_bytes(name.data()), as_bytes(name.data() + name.size()));
    if (c.bytes == name.size() && c.code != kInvalidByte)
      model.character_ids.emplace_back(c.code, static_cast<uint32_t>(id));
  }
  return model;
}

std::optional<std::pair<std::string_view, std::string_view>> split_pair(std::string_view line) {
  const size_t space = line.find(' ');
  if (space == 0 || space == std::string_view::npos || space + 1 == line.size() ||
      line.find(' ', space + 1) != std::string_view::npos)
    return std::nullopt;
  return std::pair{line.substr(0, space), line.substr(space + 1)};
}

MergeReader::MergeReader(const VocabTokens& tokens, const std::string& vocab_name,
                         const std::string& file, const char* unit, BpeModel& model)
    : tokens_(tokens),
      vocab_name_(vocab_name),
      file_(file),
      unit_(unit),
      model_(model),
      made_(model.size()),
      ids_follow_merges_(has_gpt2_ids(model)) {}

void MergeReader::add(std::string_view left, std::string_view right, size_t number) {
  // A token that continues a word loses the mark of it.
  const bool continues = !model_.continuing.empty() && right.starts_with(model_.continuing);
  joined_.assign(left).append(continues ? right.substr(model_.continuing.size()) : right);
  model_.merges.push_back({id(left, left, right, number), id(right, left, right, number),
                           id(joined_, left, right, number)});
  const BpeMerge& merge = model_.merges.back();
  const auto [first, is_new] = number_of_.emplace(uint64_t{merge.left} << 32 | merge.right, number);
  if (!is_new)
    user_error("{}: {} {}: the merge of {} and {} is already in {} {}; every pair has one rank",
               file_, unit_, number, in_quotes(left), in_quotes(right), unit_, first->second);
}

void MergeReader::check_order(size_t number) {
  const uint32_t made = model_.merges.back().result;
  if (!ids_follow_merges_ || made_[made]) return;  // "a bc" after "ab c"
  made_[made] = true;
  if (made == next_) {
    ++next_;
    return;
  }
  user_error(
      "{}: {} {}: this merge makes {} with the id {}, but by its place it would have {}: the lines "
      "are out of order, or one is missing; use the original file",
      file_, unit_, number, in_quotes(joined_), made, next_);
}

void MergeReader::check_complete() const {
  std::vector<bool> made(model_.size(), false);
  if (model_.alphabet == BpeModel::Alphabet::bytes)
    for (const uint32_t byte : model_.byte_ids) made[byte] = true;
  for (const auto& [code, id] : model_.character_ids) made[id] = true;
  for (const BpeMerge& merge : model_.merges) made[merge.result] = true;
  size_t orphans = 0;
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const std::string_view name = tokens_.name(i);
    const bool bracketed = name.starts_with('<') || name.starts_with('[');
    orphans += !made[static_cast<size_t>(tokens_.id(i))] && !bracketed && !tokens_.is_added(i);
  }
  constexpr size_t kMostSpecialTokens = 1024;
  if (orphans > kMostSpecialTokens || (model_.merges.empty() && orphans > 0))
    user_error(
        "{}: it has {} merges, and {} tokens of {} are made by none of them; is it truncated, or "
        "of another tokenizer?",
        file_, model_.merges.size(), orphans, vocab_name_);
}

uint32_t MergeReader::id(std::string_view token, std::string_view left, std::string_view right,
                         size_t number) const {
  const auto entry = tokens_.find(token);
  if (!entry || tokens_.is_added(*entry))
    user_error(
        "{}: {} {}: the merge of {} and {} needs the token {}, which is not in {}; do the two "
        "belong "
        "together?",
        file_, unit_, number, in_quotes(left), in_quotes(right), in_quotes(token), vocab_name_);
  return static_cast<uint32_t>(tokens_.id(*entry));
}

}  // namespace brrr::io
