#include "text/tokenizer.h"

#include <utility>

#include "base/errors.h"
#include "base/file.h"
#include "formats/json_file.h"
#include "text/bpe/tokenizer_bpe.h"
#include "text/gguf/gguf_tokenizer.h"
#include "text/ranked/ranked_tokens.h"
#include "text/sentencepiece/sentencepiece_tokenizer.h"
#include "text/text_pipeline.h"
#include "text/tokenizer_char.h"
#include "text/tokenizer_json.h"
#include "text/tokenizer_writer.h"
#include "text/wordpiece/vocab_files.h"

namespace brrr::io {
namespace {

class ByteModel final : public TokenModel {
 public:
  std::string kind() const override { return "byte"; }
  void encode(std::span<const std::string_view> pieces, const char*,
              std::vector<int32_t>& ids) const override {
    for (const std::string_view piece : pieces) {
      const auto* p = reinterpret_cast<const uint8_t*>(piece.data());
      ids.insert(ids.end(), p, p + piece.size());
    }
  }
  bool may_cut(uint32_t, uint32_t) const override { return true; }
  void save(const fs::path& folder) const override { write_files(files_of_bytes(), folder); }
};

/// The length of the longest prefix that ends with a whole UTF-8 character.
size_t whole_characters(std::string_view text) {
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const auto byte = static_cast<uint8_t>(text[text.size() - back]);
    if ((byte & 0xc0) == 0x80) continue;  // inside a character, look further
    const size_t length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    return length > back ? text.size() - back : text.size();
  }
  return text.size();
}

}  // namespace

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<int32_t> ids;
  encode(text, options, ids);
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  DecodeState state;
  std::string out;
  decode(ids, state, out);
  finish(state, out);
  return out;
}

std::string TextStream::settle() {
  if (state_.held.empty()) return {};
  DecodeState state = state_;  // the prompt's tokens stay held: what follows may need them
  std::string text;
  tokenizer_.finish(state, text);
  settled_ = text.size();
  return text;
}

std::string TextStream::finish() {
  tokenizer_.finish(state_, pending_);
  // What is pending now is the whole text; its beginning was returned by settle().
  pending_.erase(0, std::exchange(settled_, 0));
  return std::move(pending_);
}

std::string TextStream::add(std::span<const int32_t> ids) {
  tokenizer_.decode(ids, state_, pending_);
  const size_t whole = whole_characters(pending_);
  std::string text = pending_.substr(0, whole);
  pending_.erase(0, whole);
  return text;
}

std::span<const std::string_view> tokenizer_file_names() {
  static constexpr std::string_view kNames[] = {"tokenizer.json",
                                                "tokenizer.model",
                                                "tekken.json",
                                                "tokenizer_config.json",
                                                "special_tokens_map.json",
                                                "vocab.json",
                                                "merges.txt",
                                                "vocab.txt",
                                                "char.json",
                                                "byte.json"};
  return kNames;
}

std::unique_ptr<Tokenizer> make_byte_tokenizer() {
  TokenizerParts parts;
  std::string bytes;
  std::vector<uint32_t> offsets = {0};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    bytes.push_back(static_cast<char>(byte));
    offsets.push_back(byte + 1);
  }
  parts.texts = TokenTexts(std::move(bytes), std::move(offsets));
  parts.model = std::make_unique<ByteModel>();
  return std::make_unique<TextPipeline>(std::move(parts));
}

std::unique_ptr<Tokenizer> make_gpt2_tokenizer(BpeModel model) {
  TokenizerParts parts;
  parts.pre_tokenizer = PreTokenizer::gpt2();
  parts.texts = TokenTexts(model.bytes, model.offsets);
  parts.begin_of_text = parts.end_of_text = model.end_of_text;
  if (model.end_of_text >= 0) parts.special = {model.end_of_text};
  parts.model = std::make_unique<BpeEncoder>(std::move(model));
  return std::make_unique<TextPipeline>(std::move(parts));
}

std::unique_ptr<Tokenizer> train_bpe(std::string_view text, int32_t vocab_size) {
  // What is written is what is used.
  return read_tokenizer_json(files_of_bpe(train_bpe_model(text, vocab_size)), "");
}

namespace {

/// A tokenizer.model: SentencePiece and Llama 3 use the name for different things.
std::unique_ptr<Tokenizer> read_model_file(std::map<std::string, std::string> files,
                                           const fs::path& path) {
  return is_tiktoken(files.at("tokenizer.model"))
             ? read_llama3(std::move(files), path.string())
             : read_sentencepiece(std::move(files), path.string());
}

/// One file, which may have a name of its own (tokenizer.model.v3, tekken_240911.json).
std::unique_ptr<Tokenizer> load_tokenizer_file(const fs::path& path) {
  if (is_gguf_file(path)) return read_gguf_tokenizer(GgufFile(path));
  const std::string name = path.filename().string();
  if (name == "tokenizer.json") return load_tokenizer(path.parent_path());
  if (name.starts_with("tekken") && name.ends_with(".json"))
    return read_tekken({{"tekken.json", read_file(path)}}, path.string());
  if (name.ends_with(".json") || name.ends_with(".txt"))
    user_error(
        "{}: expected a folder with a tokenizer, or the file tokenizer.json, tokenizer.model or "
        "tekken.json",
        path.string());
  return read_model_file({{"tokenizer.model", read_file(path)}}, path);
}

/// The files of a folder that say which tokens are special, by name.
std::map<std::string, std::string> read_token_configs(const fs::path& folder) {
  std::error_code ignored;
  std::map<std::string, std::string> files;
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"})
    if (fs::exists(folder / name, ignored)) files.emplace(name, read_file(folder / name));
  return files;
}

/// What they hold together; tokenizer_config.json wins.
Json merged_configs(const std::map<std::string, std::string>& files, const fs::path& folder) {
  Json all = Json::object();
  for (const auto& [name, text] : files) {  // special_tokens_map.json comes first
    const std::string where = (folder / name).string();
    const Json root = parse_json(text, where);
    if (!root.is_object()) user_error("{}: it holds {}; expected an object", where, describe(root));
    all.update(root);
  }
  return all;
}

std::unique_ptr<Tokenizer> load_as_json(const Json& root, std::map<std::string, std::string> files,
                                        const fs::path& folder) {
  files["tokenizer.json"] = root.dump();
  return read_tokenizer_json(std::move(files), folder.string());
}

std::unique_ptr<Tokenizer> load_vocab_and_merges(const fs::path& folder) {
  const fs::path vocab = folder / "vocab.json", merges = folder / "merges.txt",
                 model = folder / "config.json";
  const MappedFile vocab_file(vocab), merges_file(merges);
  std::error_code ignored;
  const auto files = read_token_configs(folder);
  const Json config = merged_configs(files, folder);
  Json of_model;
  if (fs::exists(model, ignored)) of_model = parse_json(read_file(model), model.string());
  if (is_roberta(config, of_model))
    return load_as_json(roberta_tokenizer_json(vocab_file.text(), merges_file.text(), config,
                                               vocab.string(), merges.string()),
                        files, folder);
  return make_gpt2_tokenizer(parse_vocab_and_merges(vocab_file.text(), vocab.string(),
                                                    merges_file.text(), merges.string()));
}

std::unique_ptr<Tokenizer> load_vocab_txt(const fs::path& folder) {
  const fs::path vocab = folder / "vocab.txt";
  const auto files = read_token_configs(folder);
  const MappedFile file(vocab);
  return load_as_json(
      bert_tokenizer_json(file.text(), merged_configs(files, folder), vocab.string()), files,
      folder);
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const fs::path& folder) {
  std::error_code ignored;
  if (fs::is_regular_file(folder, ignored)) return load_tokenizer_file(folder);
  if (!fs::is_directory(folder, ignored))
    user_error(
        "{}: no such folder; expected one with a tokenizer (tokenizer.json, tokenizer.model, "
        "tekken.json, vocab.json and merges.txt, vocab.txt, char.json or byte.json), or the file "
        "of one",
        folder.string());
  const auto has = [&](const char* name) { return fs::exists(folder / name, ignored); };
  if (has("tokenizer.json")) {
    auto files = read_token_configs(folder);
    files["tokenizer.json"] = read_file(folder / "tokenizer.json");
    if (auto written = read_written_tokenizer(files["tokenizer.json"])) return written;
    return read_tokenizer_json(std::move(files), folder.string());
  }
  if (has("tokenizer.model")) {
    std::map<std::string, std::string> files;
    for (const char* name : {"tokenizer.model", "tokenizer_config.json"})
      if (has(name)) files.emplace(name, read_file(folder / name));
    return read_model_file(std::move(files), folder / "tokenizer.model");
  }
  if (has("tekken.json")) return load_tokenizer_file(folder / "tekken.json");
  if (has("vocab.json") && has("merges.txt")) return load_vocab_and_merges(folder);
  if (has("vocab.json") || has("merges.txt"))
    user_error("{}: {} is missing; GPT-2's BPE needs both vocab.json and merges.txt",
               folder.string(), has("vocab.json") ? "merges.txt" : "vocab.json");
  if (has("vocab.txt")) return load_vocab_txt(folder);
  if (has("char.json")) {
    const fs::path path = folder / "char.json";
    return parse_char_json(MappedFile(path).text(), path.string());
  }
  if (has("byte.json")) {
    const fs::path path = folder / "byte.json";
    const Json root = parse_json(MappedFile(path).text(), path.string());
    if (!root.is_object() || root.value("type", Json()) != "byte")
      user_error("{}: expected {{\"type\": \"byte\"}}", path.string());
    return make_byte_tokenizer();
  }
  user_error(
      "{}: no tokenizer in this folder; expected tokenizer.json, tokenizer.model, "
      "tekken.json, vocab.json and merges.txt, vocab.txt, char.json or byte.json",
      folder.string());
}

}  // namespace brrr::io
