#include "text/gguf/gguf_tokenizer.h"

#include <algorithm>

#include "base/encoding/utf8.h"
#include "base/errors.h"
#include "formats/json_file.h"
#include "text/bpe/bpe_vocabulary.h"
#include "text/gguf/gguf_pre_tokenizers.h"
#include "text/sentencepiece/sentencepiece_model.h"
#include "text/sentencepiece/sentencepiece_tokenizer.h"
#include "text/text_pipeline.h"
#include "text/tokenizer_json.h"
#include "text/tokenizer_writer.h"
#include "text/wordpiece/vocab_files.h"

namespace brrr::io {
namespace {

using GgufKind =
    SentencePieceModel::PieceKind;  // the numbers of tokenizer.ggml.token_type are these
constexpr std::string_view kGgufSpace = "\u2581";
constexpr const char* kTokensKey = "tokenizer.ggml.tokens";
constexpr const char* kKindsKey = "tokenizer.ggml.token_type";
constexpr const char* kScoresKey = "tokenizer.ggml.scores";
constexpr const char* kMergesKey = "tokenizer.ggml.merges";

/// Reads the keys of one file.
class GgufTokenizer {
 public:
  explicit GgufTokenizer(const GgufFile& file)
      : file_(file), tokens_(file.texts(kTokensKey)), kinds_(tokens_.size(), GgufKind::normal) {
    if (tokens_.empty()) user_error("{}: it holds no tokenizer ({})", file.what(), kTokensKey);
    if (std::ssize(tokens_) >= WordCache::kIdLimit)
      user_error("{}: {} holds {} tokens; at most {} are read", file.what(), kTokensKey,
                 tokens_.size(), WordCache::kIdLimit - 1);
    for (size_t id = 0; id < tokens_.size(); ++id)
      if (find_invalid_utf8(tokens_[id]))
        user_error("{}: token {} ({}) is not UTF-8", file.what(), id, in_quotes(tokens_[id]));
    const std::vector<int64_t> kinds = file.integers(kKindsKey);
    check_count(kKindsKey, kinds.size(), true);
    for (size_t id = 0; id < kinds.size(); ++id) {
      if (kinds[id] < 0 || kinds[id] > static_cast<int64_t>(GgufKind::byte))
        user_error("{}: {} of token {} is {}; expected 1 to 6", file.what(), kKindsKey, id,
                   kinds[id]);
      if (kinds[id] > 0) kinds_[id] = static_cast<GgufKind>(kinds[id]);
    }
  }

  std::unique_ptr<Tokenizer> read() {
    const auto model = file_.text("tokenizer.ggml.model");
    if (!model) user_error("{}: the key tokenizer.ggml.model is missing", file_.what());
    if (*model == "llama") return sentencepiece();
    if (*model == "gpt2") return byte_level();
    if (*model == "bert") return wordpiece();
    user_error(
        "{}: the tokenizer {} (tokenizer.ggml.model) is not supported; those that are: "
        "llama, gpt2, bert",
        file_.what(), in_quotes(*model));
  }

  /// The id under a key; -1 where it is missing or no token, as the writers mark "none".
  int32_t id_of(const char* key) const {
    const GgufValue* const value = file_.find(std::string("tokenizer.ggml.") + key);
    if (value == nullptr) return -1;
    const auto id = value->integer();
    return id && *id >= 0 && *id < std::ssize(tokens_) ? static_cast<int32_t>(*id) : -1;
  }
  std::string_view token(int32_t id) const { return tokens_[static_cast<size_t>(id)]; }

 private:
  void check_count(const char* key, size_t count, bool may_be_absent) const {
    if (count == tokens_.size() || (count == 0 && may_be_absent)) return;
    user_error("{}: {} has {} entries for {} tokens", file_.what(), key, count, tokens_.size());
  }
  bool flag(const char* key, bool otherwise) const {
    return file_.flag(std::string("tokenizer.ggml.") + key).value_or(otherwise);
  }

  std::unique_ptr<Tokenizer> sentencepiece() {
    const std::vector<float> scores = file_.numbers(kScoresKey);
    check_count(kScoresKey, scores.size(), false);
    SentencePieceModel model;
    model.algorithm = SentencePieceModel::Algorithm::bpe;
    for (size_t id = 0; id < tokens_.size(); ++id) {
      // Padding of the vocabulary is unused, and no merge makes it.
      const bool is_merged = kinds_[id] != GgufKind::unused && !tokens_[id].empty();
      model.pieces.push_back({tokens_[id], scores[id], is_merged ? kinds_[id] : GgufKind::control});
      model.byte_fallback |= kinds_[id] == GgufKind::byte;
    }
    const bool adds_space = flag("add_space_prefix", true);
    model.unknown = id_of("unknown_token_id");
    if (model.byte_fallback) check_bytes();
    TokenizerParts parts;
    parts.named.unknown = model.unknown;
    Json normalizers = Json::array();
    if (adds_space) normalizers.push_back({{"type", "Prepend"}, {"prepend", kGgufSpace}});
    normalizers.push_back(
        {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kGgufSpace}});
    Json decoders = {{{"type", "Replace"}, {"pattern", {{"String", kGgufSpace}}}, {"content", " "}},
                     {{"type", "ByteFallback"}},
                     {{"type", "Fuse"}}};
    if (adds_space)
      decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    Json root;
    root["normalizer"] = {{"type", "Sequence"}, {"normalizers", std::move(normalizers)}};
    root["pre_tokenizer"] = nullptr;
    root["decoder"] = {{"type", "Sequence"}, {"decoders", std::move(decoders)}};
    root["model"] = {{"type", "BPE"},
                     {"byte_fallback", model.byte_fallback},
                     {"fuse_unk", true},
                     {"ignore_merges", false},
                     {"unk_token", model.unknown < 0 ? Json() : Json(token(model.unknown))}};
    parts.model = std::make_unique<BpeEncoder>(bpe_model_of(model, file_.what()));
    return finish(std::move(parts), std::move(root), true);
  }

  /// Every byte needs a token where unknown characters become bytes.
  void check_bytes() const {
    std::vector<bool> has_byte(256);
    uint8_t byte = 0;
    for (size_t id = 0; id < tokens_.size(); ++id)
      if (kinds_[id] == GgufKind::byte && is_byte_piece(tokens_[id], byte)) has_byte[byte] = true;
    const auto missing = std::ranges::find(has_byte, false);
    if (missing != has_byte.end())
      user_error("{}: it has tokens for bytes, but none for the byte {}", file_.what(),
                 missing - has_byte.begin());
  }

  std::unique_ptr<Tokenizer> byte_level() {
    const GgufPreTokenizer pre =
        gguf_pre_tokenizer(file_.text("tokenizer.ggml.pre").value_or("default"), file_.what());
    TokenizerParts parts;
    parts.vocabulary = names();
    BpeModel model = byte_level_model(parts.vocabulary, file_.what());
    model.ignore_merges = pre.ignore_merges;
    const std::string what = file_.what(), where = what + ": " + kMergesKey;
    MergeReader reader(parts.vocabulary, what, where, "merge", model);
    const std::vector<std::string_view> merges = file_.texts(kMergesKey);
    reader.reserve(merges.size());
    for (size_t i = 0; i < merges.size(); ++i) {
      const auto pair = split_pair(merges[i]);
      if (!pair)
        user_error("{}: merge {}: {}, got {}", where, i + 1, kPairExpected, in_quotes(merges[i]));
      reader.add(pair->first, pair->second, i + 1);
    }
    if (!model.ignore_merges) reader.check_complete();
    Json root;
    root["normalizer"] = nullptr;
    root["pre_tokenizer"] = pre.json;
    root["decoder"] = {{"type", "ByteLevel"},
                       {"add_prefix_space", false},
                       {"trim_offsets", true},
                       {"use_regex", true}};
    root["model"] = {{"type", "BPE"},
                     {"byte_fallback", false},
                     {"fuse_unk", false},
                     {"ignore_merges", model.ignore_merges},
                     {"unk_token", nullptr}};
    parts.model = std::make_unique<BpeEncoder>(std::move(model));
    return finish(std::move(parts), std::move(root), pre.adds_begin);
  }

  /// The names as vocab.txt has them: the file marks beginnings of words, not continuations.
  std::unique_ptr<Tokenizer> wordpiece() const {
    std::string vocab;
    bool has_capitals = false;
    for (size_t id = 0; id < tokens_.size(); ++id) {
      const std::string_view token = tokens_[id];
      if (token.find('\n') != std::string_view::npos)
        user_error("{}: token {} ({}) holds a line's end", file_.what(), id, in_quotes(token));
      const bool is_text = kinds_[id] == GgufKind::normal;
      if (is_text)
        has_capitals |=
            std::ranges::any_of(token, [](char c) { return c >= 'A' && c <= 'Z'; }) &&
            !token.substr(token.starts_with(kGgufSpace) ? kGgufSpace.size() : 0).starts_with('[');
      if (!is_text)
        vocab += token;
      else if (token.starts_with(kGgufSpace))
        vocab += token.substr(kGgufSpace.size());
      else
        vocab.append("##").append(token);
      vocab += '\n';
    }
    Json config;
    // A vocabulary without capitals is that of a model that reads small letters.
    config["do_lower_case"] = !has_capitals;
    for (const auto& [key, name] : {std::pair{"unknown_token_id", "unk_token"},
                                    {"cls_token_id", "cls_token"},
                                    {"bos_token_id", "cls_token"},
                                    {"separator_token_id", "sep_token"},
                                    {"seperator_token_id", "sep_token"},
                                    {"padding_token_id", "pad_token"},
                                    {"mask_token_id", "mask_token"}})
      if (const int32_t id = id_of(key); id >= 0) config[name] = name_in_vocab(id);
    return read_tokenizer_json(
        {{"tokenizer.json", json_line(bert_tokenizer_json(vocab, config, file_.what()))},
         {"tokenizer_config.json", json_line(config)}},
        file_.what());
  }
  std::string name_in_vocab(int32_t id) const {
    const std::string_view name = token(id);
    const bool is_marked = kinds_[static_cast<size_t>(id)] == GgufKind::normal;
    if (!is_marked) return std::string(name);
    return name.starts_with(kGgufSpace) ? std::string(name.substr(kGgufSpace.size()))
                                        : "##" + std::string(name);
  }

  bool is_added(size_t id) const {
    return kinds_[id] == GgufKind::control || kinds_[id] == GgufKind::unknown ||
           kinds_[id] == GgufKind::user_defined;
  }

  VocabTokens names() const {
    VocabTokens names;
    for (size_t id = 0; id < tokens_.size(); ++id)
      names.add_json(tokens_[id], Json(id), is_added(id), file_.what());
    return names;
  }

  /// What all models share. `root` is a tokenizer.json without vocabulary and merges.
  std::unique_ptr<Tokenizer> finish(TokenizerParts parts, Json root, bool adds_begin) {
    const std::string& what = file_.what();
    parts.normalizer = Normalizer::read(root["normalizer"], what);
    parts.pre_tokenizer = PreTokenizer::read(root["pre_tokenizer"], what);
    parts.texts = TokenTexts::read(root["decoder"], tokens_, what);
    if (parts.vocabulary.size() == 0) parts.vocabulary = names();
    parts.begin_of_text = id_of("bos_token_id");
    parts.end_of_text = id_of("eos_token_id");
    Json added = Json::array();
    for (size_t id = 0; id < tokens_.size(); ++id) {
      if (!is_added(id) || tokens_[id].empty()) continue;
      const bool is_special = kinds_[id] != GgufKind::user_defined;
      const AddedToken token{std::string(tokens_[id]), static_cast<int32_t>(id), is_special};
      parts.added.add(token, token.content);
      if (is_special) parts.special.push_back(token.id);
      added.push_back({{"id", token.id},
                       {"content", token.content},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", is_special}});
    }
    root["added_tokens"] = std::move(added);
    std::vector<int32_t> prefix, suffix;
    if (flag("add_bos_token", adds_begin) && parts.begin_of_text >= 0)
      prefix = {parts.begin_of_text};
    if (flag("add_eos_token", false) && parts.end_of_text >= 0) suffix = {parts.end_of_text};
    parts.post_processor = PostProcessor::around(prefix, suffix);
    root["post_processor"] = template_of(prefix, suffix);
    if (parts.begin_of_text < 0) parts.begin_of_text = parts.end_of_text;
    NamedTokens& named = parts.named;
    for (const auto& [key, id] : {std::pair{"mask_token_id", &named.mask},
                                  {"padding_token_id", &named.pad},
                                  {"unknown_token_id", &named.unknown},
                                  {"separator_token_id", &named.separator},
                                  {"seperator_token_id", &named.separator},
                                  {"cls_token_id", &named.classifier}})
      if (const int32_t known = id_of(key); known >= 0) *id = known;
    parts.make_files = [root = std::move(root), config = config()](const TokenizerParts& made) {
      return files_of_parts(made, root, config);
    };
    return std::make_unique<TextPipeline>(std::move(parts));
  }

  Json template_of(const std::vector<int32_t>& prefix, const std::vector<int32_t>& suffix) const {
    if (prefix.empty() && suffix.empty()) return nullptr;
    Json single = Json::array(), pair = Json::array(), special = Json::object();
    const auto add = [&](Json& list, const std::vector<int32_t>& ids, int type) {
      for (const int32_t id : ids) {
        const std::string name(token(id));
        list.push_back({{"SpecialToken", {{"id", name}, {"type_id", type}}}});
        special[name] = {{"id", name}, {"ids", {id}}, {"tokens", {name}}};
      }
    };
    for (const auto& [text, type] : {std::pair{"A", 0}, {"B", 1}}) {
      for (Json* const list : {&single, &pair}) {
        if (type == 1 && list == &single) continue;
        add(*list, prefix, type);
        list->push_back({{"Sequence", {{"id", text}, {"type_id", type}}}});
        add(*list, suffix, type);
      }
    }
    return {{"type", "TemplateProcessing"},
            {"single", std::move(single)},
            {"pair", std::move(pair)},
            {"special_tokens", std::move(special)}};
  }

  /// tokenizer_config.json.
  Json config() const {
    Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                   {"clean_up_tokenization_spaces", false}};
    for (const auto& [key, name] : {std::pair{"bos_token_id", "bos_token"},
                                    {"eos_token_id", "eos_token"},
                                    {"unknown_token_id", "unk_token"},
                                    {"padding_token_id", "pad_token"}})
      if (const int32_t id = id_of(key); id >= 0) config[name] = token(id);
    if (const auto chat = file_.text("tokenizer.chat_template")) config["chat_template"] = *chat;
    return config;
  }

  static std::map<std::string, std::string> files_of_parts(const TokenizerParts& parts, Json root,
                                                           const Json& config) {
    std::vector<std::string_view> names(parts.vocabulary.size());
    Json vocab = Json::object(), merges = Json::array();
    for (size_t i = 0; i < names.size(); ++i) {
      names[static_cast<size_t>(parts.vocabulary.id(i))] = parts.vocabulary.name(i);
      vocab[std::string(parts.vocabulary.name(i))] = parts.vocabulary.id(i);
    }
    const auto& model = static_cast<const BpeEncoder&>(*parts.model).model();
    for (const BpeMerge& merge : model.merges)
      merges.push_back({names[merge.left], names[merge.right]});
    root["version"] = "1.0";
    root["truncation"] = root["padding"] = nullptr;
    root["model"]["vocab"] = std::move(vocab);
    root["model"]["merges"] = std::move(merges);
    return {{"tokenizer.json", json_line(root) + "\n"},
            {"tokenizer_config.json", json_line(config) + "\n"}};
  }

  const GgufFile& file_;
  std::vector<std::string_view> tokens_;
  std::vector<GgufKind> kinds_;
};

}  // namespace

std::unique_ptr<Tokenizer> read_gguf_tokenizer(const GgufFile& file) {
  return GgufTokenizer(file).read();
}

std::optional<std::string> gguf_token(const GgufFile& file, std::string_view key) {
  const auto id = file.integer(key);
  const GgufValue* const tokens = file.find(kTokensKey);
  if (!id || *id < 0 || tokens == nullptr || tokens->type != GgufType::array) return std::nullopt;
  std::optional<std::string> found;
  int64_t at = 0;
  tokens->each([&](const GgufValue& token) {
    if (at++ == *id) found = token.text();
  });
  return found;
}

}  // namespace brrr::io
