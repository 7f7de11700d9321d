#include "text/wordpiece/vocab_files.h"

#include <algorithm>
#include <set>

#include "base/encoding/utf8.h"
#include "base/errors.h"
#include "text/bpe/bpe_vocabulary.h"

namespace brrr::io {
namespace {

/// The text of a token that a configuration names, as a string or as an object with "content".
std::string named_token(const Json& config, const char* key, const char* otherwise) {
  Json value = config.value(key, Json());
  if (value.is_object()) value = value.value("content", Json());
  return value.is_string() ? value.get<std::string>() : std::string(otherwise);
}

bool flag_of(const Json& config, const char* key, bool otherwise, const std::string& where) {
  const Json value = config.value(key, Json());
  if (value.is_null()) return otherwise;
  if (!value.is_boolean())
    user_error("{}: its configuration has \"{}\" as {}; expected true or false", where, key,
               describe(value));
  return value.get<bool>();
}

int32_t id_in(const Json& vocab, const std::string& token, const std::string& where) {
  const auto found = vocab.find(token);
  if (found == vocab.end())
    user_error("{}: it has no token {}, which the tokenizer puts around texts", where,
               in_quotes(token));
  if (!found->is_number_integer() || (found->is_number_unsigned() && *found > 0x7fffffff))
    user_error("{}: the id of token {} is {}; expected a whole number", where, in_quotes(token),
               describe(*found));
  return found->get<int32_t>();
}

/// The special tokens that the vocabulary has, each once.
Json special_tokens(const Json& vocab, const std::vector<std::string>& tokens,
                    const std::string& mask, bool mask_takes_spaces) {
  Json added = Json::array();
  std::set<std::string> seen;
  for (const std::string& token : tokens) {
    const auto found = vocab.find(token);
    if (found == vocab.end() || !seen.insert(token).second) continue;
    added.push_back({{"id", *found},
                     {"content", token},
                     {"single_word", false},
                     {"lstrip", token == mask && mask_takes_spaces},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  std::sort(added.begin(), added.end(),
            [](const Json& a, const Json& b) { return a["id"] < b["id"]; });
  return added;
}

}  // namespace

Json bert_tokenizer_json(std::string_view text, const Json& config, const std::string& where) {
  if (const auto bad = find_invalid_utf8(text))
    user_error("{}: it is not UTF-8 at byte {}; expected one token per line", where, *bad);
  Json vocab = Json::object();
  int32_t id = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!vocab.emplace(line, id).second)
      user_error("{}: line {}: the token {} is listed twice", where, id + 1, in_quotes(line));
    ++id;
  }
  const std::string unknown = named_token(config, "unk_token", "[UNK]"),
                    sep = named_token(config, "sep_token", "[SEP]"),
                    cls = named_token(config, "cls_token", "[CLS]"),
                    pad = named_token(config, "pad_token", "[PAD]"),
                    mask = named_token(config, "mask_token", "[MASK]");
  Json root;
  root["added_tokens"] = special_tokens(vocab, {pad, unknown, cls, sep, mask}, mask, false);
  root["normalizer"] = {
      {"type", "BertNormalizer"},
      {"clean_text", true},
      {"handle_chinese_chars", flag_of(config, "tokenize_chinese_chars", true, where)},
      {"strip_accents", config.value("strip_accents", Json())},
      {"lowercase", flag_of(config, "do_lower_case", true, where)}};
  root["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
  root["post_processor"] = {{"type", "BertProcessing"},
                            {"sep", {sep, id_in(vocab, sep, where)}},
                            {"cls", {cls, id_in(vocab, cls, where)}}};
  root["decoder"] = {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}};
  root["model"] = {{"type", "WordPiece"},
                   {"unk_token", unknown},
                   {"continuing_subword_prefix", "##"},
                   {"max_input_chars_per_word", 100},
                   {"vocab", std::move(vocab)}};
  return root;
}

bool is_roberta(const Json& config, const Json& model) {
  std::string kind;
  if (model.is_object()) kind = named_token(model, "model_type", "");
  for (const char* known : {"roberta", "bart", "longformer", "led"})
    if (kind == known) return true;
  const std::string name = named_token(config, "tokenizer_class", "");
  for (const char* known : {"Roberta", "Bart", "Longformer", "LED"})
    if (name == known + std::string("Tokenizer") || name == known + std::string("TokenizerFast"))
      return true;
  return false;
}

Json roberta_tokenizer_json(std::string_view vocab_text, std::string_view merges,
                            const Json& config, const std::string& where_vocab,
                            const std::string& where_merges) {
  Json vocab = parse_json(vocab_text, where_vocab);
  if (!vocab.is_object())
    user_error("{}: it holds {}; expected {{\"token\": id, ...}}", where_vocab, describe(vocab));
  if (const auto bad = find_invalid_utf8(merges))
    user_error("{}: it is not UTF-8 at byte {}", where_merges, *bad);
  Json list = Json::array();
  for (size_t number = 1; !merges.empty(); ++number) {
    const size_t end = std::min(merges.find('\n'), merges.size());
    std::string_view line = merges.substr(0, end);
    merges.remove_prefix(std::min(end + 1, merges.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || (number == 1 && line.starts_with("#version"))) continue;
    const auto pair = split_pair(line);
    if (!pair)
      user_error("{}: line {}: {}, got {}", where_merges, number, kPairExpected, in_quotes(line));
    list.push_back({pair->first, pair->second});
  }
  const std::string cls = named_token(config, "cls_token", "<s>"),
                    sep = named_token(config, "sep_token", "</s>"),
                    mask = named_token(config, "mask_token", "<mask>");
  const bool prefix_space = flag_of(config, "add_prefix_space", false, where_vocab);
  Json root;
  root["added_tokens"] = special_tokens(
      vocab,
      {named_token(config, "bos_token", "<s>"), named_token(config, "eos_token", "</s>"), cls, sep,
       named_token(config, "pad_token", "<pad>"), named_token(config, "unk_token", "<unk>"), mask},
      mask, true);
  root["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", prefix_space}};
  root["post_processor"] = {{"type", "RobertaProcessing"},
                            {"sep", {sep, id_in(vocab, sep, where_vocab)}},
                            {"cls", {cls, id_in(vocab, cls, where_vocab)}},
                            {"trim_offsets", true},
                            {"add_prefix_space", prefix_space}};
  root["decoder"] = {{"type", "ByteLevel"}};
  root["model"] = {{"type", "BPE"}, {"vocab", std::move(vocab)}, {"merges", std::move(list)}};
  return root;
}

}  // namespace brrr::io
