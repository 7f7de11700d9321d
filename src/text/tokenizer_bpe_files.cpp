#include <algorithm>
#include <bit>
#include <charconv>
#include <optional>
#include <unordered_map>

#include "base/errors.h"
#include "base/file.h"
#include "base/utf8.h"
#include "formats/json_file.h"
#include "text/tokenizer_bpe.h"
#include "text/tokenizer_json_parts.h"
#include "text/tokenizer_vocab_json.h"

namespace brrr::io {

const std::array<uint16_t, 256>& byte_letters() {
  static const auto table = [] {
    std::array<uint16_t, 256> letters{};
    uint16_t next = 256;
    for (unsigned b = 0; b < 256; ++b) {
      const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b != 173);
      letters[b] = printable ? static_cast<uint16_t>(b) : next++;
    }
    return letters;
  }();
  return table;
}

const std::array<uint8_t, 256>& bytes_by_letter() {
  static const auto table = [] {
    std::array<uint8_t, 256> order{};
    for (size_t b = 0; b < 256; ++b) order[b] = static_cast<uint8_t>(b);
    std::sort(order.begin(), order.end(),
              [](uint8_t a, uint8_t b) { return byte_letters()[a] < byte_letters()[b]; });
    return order;
  }();
  return table;
}

namespace {

/// The bytes that a name spells in byte letters; nothing when some character is no byte letter.
bool spell_bytes(std::string_view name, std::string& out) {
  static const auto byte_of = [] {
    std::array<int16_t, 324> bytes;
    bytes.fill(-1);
    for (size_t b = 0; b < 256; ++b) bytes[byte_letters()[b]] = static_cast<int16_t>(b);
    return bytes;
  }();
  const size_t start = out.size();
  const uint8_t* p = as_bytes(name.data());
  const uint8_t* const end = p + name.size();
  while (p < end) {
    const DecodedChar c = decode_utf8(p, end);
    if (c.code >= byte_of.size() || byte_of[c.code] < 0) {
      out.resize(start);
      return false;
    }
    out.push_back(static_cast<char>(byte_of[c.code]));
    p += c.bytes;
  }
  return true;
}

std::string spell_letters(std::string_view bytes) {
  std::string name;
  for (const char c : bytes) append_utf8(name, byte_letters()[static_cast<uint8_t>(c)]);
  return name;
}

/// Turns the named tokens into a model without merges. Checks that ids are 0 .. V-1, each once, and
/// that all 256 bytes are there.
BpeModel model_of_tokens(const VocabTokens& tokens, const std::string& file) {
  const size_t count = tokens.size();
  if (count == 0) user_error("{}: no tokens in it; expected {{\"token\": id, ...}}", file);
  if (count >= static_cast<size_t>(WordCache::kIdLimit)) user_error("{}: too many tokens", file);
  std::vector<int64_t> entry_of(count, -1);
  for (size_t i = 0; i < count; ++i) {
    const int64_t id = tokens.id(i);
    if (id < 0)
      user_error("{}: the id of token {} is {}; ids start at 0", file, in_quotes(tokens.name(i)),
                 id);
    if (id >= static_cast<int64_t>(count)) continue;  // then another id is missing: reported below
    auto& entry = entry_of[static_cast<size_t>(id)];
    if (entry >= 0)
      user_error("{}: id {} belongs to two tokens, {} and {}; every token needs an id of its own",
                 file, id, in_quotes(tokens.name(static_cast<size_t>(entry))),
                 in_quotes(tokens.name(i)));
    entry = static_cast<int64_t>(i);
  }
  const auto hole = std::find(entry_of.begin(), entry_of.end(), -1);
  if (hole != entry_of.end())
    user_error("{}: it has {} tokens but none with id {}; ids must run from 0 to {} without holes",
               file, count, hole - entry_of.begin(), count - 1);

  BpeModel model;
  model.offsets.reserve(count + 1);
  model.offsets.push_back(0);
  std::array<bool, 256> have{};
  for (size_t id = 0; id < count; ++id) {
    const auto entry = static_cast<size_t>(entry_of[id]);
    const std::string_view name = tokens.name(entry);
    const size_t start = model.bytes.size();
    if (tokens.is_added(entry) || !spell_bytes(name, model.bytes)) {
      model.bytes += name;
      model.verbatim.push_back(static_cast<uint32_t>(id));
    } else if (model.bytes.size() - start == 1) {
      const auto byte = static_cast<uint8_t>(model.bytes[start]);
      model.byte_ids[byte] = static_cast<uint32_t>(id);
      have[byte] = true;
    }
    if (name == kEndOfText) model.end_of_text = static_cast<int32_t>(id);
    if (model.bytes.size() > 0xffffffffu) user_error("{}: more than 4 GiB of tokens", file);
    model.offsets.push_back(static_cast<uint32_t>(model.bytes.size()));
  }
  for (size_t b = 0; b < 256; ++b)
    if (!have[b])
      user_error(
          "{}: no token for the byte 0x{:02x} (written {}); this is not a byte-level BPE "
          "vocabulary like "
          "GPT-2's",
          file, b, in_quotes(spell_letters(std::string(1, static_cast<char>(b)))));
  // A name that byte letters spell the same way needs no exception ("<|endoftext|>").
  std::erase_if(model.verbatim, [&](uint32_t id) {
    const std::string_view name = tokens.name(static_cast<size_t>(entry_of[id]));
    return spell_letters(name) == name;
  });
  return model;
}

class MergeReader {
 public:
  MergeReader(const VocabTokens& tokens, const std::string& vocab_name, BpeModel& model)
      : tokens_(tokens), vocab_name_(vocab_name), model_(model) {}

  void add(std::string_view left, std::string_view right, const std::string& file, size_t number,
           const char* unit) {
    joined_.assign(left).append(right);
    model_.merges.push_back({id(left, left, right, file, number, unit),
                             id(right, left, right, file, number, unit),
                             id(joined_, left, right, file, number, unit)});
    const BpeMerge& merge = model_.merges.back();
    const auto [first, is_new] =
        number_of_.emplace(uint64_t{merge.left} << 32 | merge.right, number);
    if (!is_new)
      user_error(
          "{}: {} {}: the merge of {} and {} stands in {} {} already; every pair has one rank",
          file, unit, number, in_quotes(left), in_quotes(right), unit, first->second);
    check_order(file, number, unit);
  }

  /// A merges file cut short would silently encode differently: tokens that no merge makes are
  /// special tokens, and of those there are few.
  void check_complete(const std::string& file) const {
    std::vector<bool> made(model_.size(), false);
    for (const uint32_t byte : model_.byte_ids) made[byte] = true;
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
          "{}: it has {} merges, and {} tokens of {} are made by none of them; is it cut short, or "
          "of "
          "another tokenizer?",
          file, model_.merges.size(), orphans, vocab_name_);
  }

 private:
  /// Where the ids are GPT-2's way (the bytes in the order of their letters, then what each merge
  /// makes), they show the order of the merges. Other vocabularies number as they like.
  void check_order(const std::string& file, size_t number, const char* unit) {
    const uint32_t made = model_.merges.back().result;
    if (!ids_follow_merges_ || made_[made]) return;  // "a bc" after "ab c"
    made_[made] = true;
    if (made == next_) {
      ++next_;
      return;
    }
    user_error(
        "{}: {} {}: this merge makes {} with the id {}, but by its place it would have {}: the "
        "lines "
        "are out of order, or one is missing; take the file as its maker wrote it",
        file, unit, number, in_quotes(joined_), made, next_);
  }

  bool has_gpt2_ids() const {
    for (uint32_t i = 0; i < 256; ++i)
      if (model_.byte_ids[bytes_by_letter()[i]] != i) return false;
    return true;
  }

  uint32_t id(std::string_view token, std::string_view left, std::string_view right,
              const std::string& file, size_t number, const char* unit) const {
    const auto entry = tokens_.find(token);
    if (!entry || tokens_.is_added(*entry))
      user_error(
          "{}: {} {}: the merge of {} and {} needs the token {}, which is not in {}; do the two "
          "belong "
          "together?",
          file, unit, number, in_quotes(left), in_quotes(right), in_quotes(token), vocab_name_);
    return static_cast<uint32_t>(tokens_.id(*entry));
  }

  const VocabTokens& tokens_;
  const std::string& vocab_name_;
  BpeModel& model_;
  std::string joined_;
  std::unordered_map<uint64_t, size_t> number_of_;  // a pair -> its line
  std::vector<bool> made_ = std::vector<bool>(model_.size());
  bool ids_follow_merges_ = has_gpt2_ids();
  uint32_t next_ = 256;
};

/// "left right" with exactly one space.
std::optional<std::pair<std::string_view, std::string_view>> split_pair(std::string_view line) {
  const size_t space = line.find(' ');
  if (space == 0 || space == std::string_view::npos || space + 1 == line.size() ||
      line.find(' ', space + 1) != std::string_view::npos)
    return std::nullopt;
  return std::pair{line.substr(0, space), line.substr(space + 1)};
}

constexpr const char* kPairExpected = "expected two tokens with one space between them";

}  // namespace

BpeModel parse_vocab_and_merges(std::string_view vocab, const std::string& vocab_name,
                                std::string_view merges, const std::string& merges_name) {
  const VocabTokens tokens = VocabTokens::parse(vocab, vocab_name);
  BpeModel model = model_of_tokens(tokens, vocab_name);
  MergeReader reader(tokens, vocab_name, model);
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
    reader.add(pair->first, pair->second, merges_name, number, "line");
  }
  reader.check_complete(merges_name);
  return model;
}

namespace {

/// Fails unless `object[key]` is absent, null, or one of the values that mean GPT-2's behaviour.
void expect(const Json& object, const char* where, const char* key,
            std::initializer_list<Json> allowed, const std::string& file) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return;
  for (const Json& value : allowed)
    if (*found == value) return;
  user_error("{}: {}.{} is {}: only byte-level BPE with GPT-2's settings can be read (expected {})",
             file, where, key, describe(*found),
             allowed.size() == 0 ? "null" : allowed.begin()->dump());
}

const Json& member(const Json& object, const char* where, const char* key, Json::value_t type,
                   const char* expected, const std::string& file) {
  const auto found = object.find(key);
  if (found == object.end())
    user_error("{}: \"{}\" is missing in {}; expected {}", file, key, where, expected);
  if (found->type() != type)
    user_error("{}: \"{}\" in {} is {}; expected {}", file, key, where, describe(*found), expected);
  return *found;
}

void check_like_gpt2(const Json& root, const Json& model, const std::string& file) {
  expect(model, "model", "type", {"BPE"}, file);
  expect(model, "model", "dropout", {0.0}, file);
  expect(model, "model", "continuing_subword_prefix", {""}, file);
  expect(model, "model", "end_of_word_suffix", {""}, file);
  expect(model, "model", "byte_fallback", {false}, file);
  expect(model, "model", "ignore_merges", {false}, file);
  if (root.contains("normalizer") && !root["normalizer"].is_null())
    user_error(
        "{}: it has a normalizer; only byte-level BPE with GPT-2's settings can be read, which has "
        "none",
        file);
  const Json& split = member(root, "the file", "pre_tokenizer", Json::value_t::object,
                             "{\"type\": \"ByteLevel\"}", file);
  const Json type = split.value("type", Json());
  if (type != "ByteLevel")
    user_error("{}: pre_tokenizer.type is {}: only GPT-2's split (\"ByteLevel\") can be read", file,
               describe(type));
  expect(split, "pre_tokenizer", "add_prefix_space", {false}, file);
  expect(split, "pre_tokenizer", "use_regex", {true}, file);
}

}  // namespace

BpeModel parse_tokenizer_json(std::string_view text, const std::string& name) {
  std::optional<TokenizerJsonParts> parts = split_tokenizer_json(text);
  if (parts && !Json::accept(parts->rest)) parts.reset();  // errors count lines of the whole file
  const Json root = parse_json(parts ? std::string_view(parts->rest) : text, name);
  if (!root.is_object())
    user_error("{}: it holds {}; expected an object with \"model\"", name, describe(root));
  const Json& bpe = member(root, "the file", "model", Json::value_t::object, "an object", name);
  check_like_gpt2(root, bpe, name);

  VocabTokens tokens = parts ? std::move(parts->vocab) : VocabTokens();
  const Json& vocab =
      member(bpe, "model", "vocab", Json::value_t::object, "{\"token\": id, ...}", name);
  for (const auto& [token, id] : vocab.items()) tokens.add_json(token, id, false, name);
  if (const auto added = root.find("added_tokens"); added != root.end() && !added->is_null()) {
    if (!added->is_array())
      user_error("{}: \"added_tokens\" is {}; expected a list", name, describe(*added));
    for (const Json& token : *added) {
      if (!token.is_object() || !token.contains("content") || !token["content"].is_string() ||
          !token.contains("id"))
        user_error("{}: \"added_tokens\" holds {}; expected {{\"id\": ..., \"content\": ...}}",
                   name, describe(token));
      const auto& content = token["content"].get_ref<const std::string&>();
      const auto special = token.find("special");
      if (special == token.end() || *special != true)
        user_error(
            "{}: the added token {} is not special, so it would be cut out of ordinary text; only "
            "special "
            "added tokens can be read",
            name, in_quotes(content));
      if (const auto known = tokens.find(content)) {
        if (token["id"] != tokens.id(*known))
          user_error("{}: the token {} has id {} in the vocabulary and another in added_tokens",
                     name, in_quotes(content), tokens.id(*known));
        continue;
      }
      tokens.add_json(content, token["id"], true, name);
    }
  }

  BpeModel model = model_of_tokens(tokens, name);
  MergeReader reader(tokens, name, model);
  if (parts)
    for (size_t i = 0; i < parts->merges.size(); ++i)
      reader.add(parts->merges[i].first, parts->merges[i].second, name, i + 1, "merge");
  const Json& merges =
      member(bpe, "model", "merges", Json::value_t::array, "a list of pairs", name);
  for (size_t i = 0; i < merges.size(); ++i) {
    const Json& merge = merges[i];
    std::optional<std::pair<std::string_view, std::string_view>> pair;
    if (merge.is_string()) pair = split_pair(merge.get_ref<const std::string&>());
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
      pair = {merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>()};
    if (!pair) user_error("{}: merge {}: {}, got {}", name, i + 1, kPairExpected, describe(merge));
    reader.add(pair->first, pair->second, name, i + 1, "merge");
  }
  reader.check_complete(name);
  return model;
}

void save_bpe(const BpeModel& model, const fs::path& folder) {
  const auto name_of = [&](uint32_t id) {
    const bool verbatim = std::binary_search(model.verbatim.begin(), model.verbatim.end(), id);
    return verbatim ? std::string(model.token(id)) : spell_letters(model.token(id));
  };
  std::string vocab = "{", merges = "#version: 0.2\n", spelled;
  for (uint32_t id = 0; id < model.size(); ++id) {
    const std::string name = name_of(id);
    // vocab.json has one name space for letters and special tokens; these rare ones do not survive
    // it.
    if (std::binary_search(model.verbatim.begin(), model.verbatim.end(), id) &&
        spell_bytes(name, spelled))
      user_error(
          "the special token {} cannot be written to {}: there its letters stand for other bytes; "
          "keep the "
          "tokenizer.json it came from",
          in_quotes(name), (folder / "vocab.json").string());
    vocab += fmt::format("{}{}: {}", id == 0 ? "" : ", ", Json(name).dump(), id);
  }
  vocab += "}\n";
  for (const BpeMerge& merge : model.merges)
    merges += name_of(merge.left) + " " + name_of(merge.right) + "\n";
  write_file_atomically(folder / "vocab.json", vocab);
  write_file_atomically(folder / "merges.txt", merges);
}

}  // namespace brrr::io
