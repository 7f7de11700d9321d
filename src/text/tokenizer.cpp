#include "text/tokenizer.h"

#include "base/errors.h"
#include "base/file.h"
#include "formats/json_file.h"
#include "text/tokenizer_bpe.h"
#include "text/tokenizer_char.h"

namespace brrr::io {
namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  std::string kind() const override { return "byte"; }
  int32_t vocab_size() const override { return 256; }
  using Tokenizer::encode;

  void encode(std::string_view text, std::vector<int32_t>& ids) const override {
    const auto* p = reinterpret_cast<const uint8_t*>(text.data());
    ids.insert(ids.end(), p, p + text.size());
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string out(ids.size(), '\0');
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || ids[i] > 255)
        user_error(
            "token {} (at position {}) is not a byte: ids go from 0 to 255; were these ids made by "
            "another "
            "tokenizer?",
            ids[i], i);
      out[i] = static_cast<char>(ids[i]);
    }
    return out;
  }

  void save(const fs::path& folder) const override {
    write_file_atomically(folder / "byte.json", "{\"type\": \"byte\"}\n");
  }
};

}  // namespace

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  encode(text, ids);
  return ids;
}

std::span<const std::string_view> tokenizer_file_names() {
  static constexpr std::string_view kNames[] = {"vocab.json", "merges.txt", "tokenizer.json",
                                                "char.json", "byte.json"};
  return kNames;
}

std::unique_ptr<Tokenizer> make_byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

std::unique_ptr<Tokenizer> train_bpe(std::string_view text, int32_t vocab_size) {
  return std::make_unique<BpeTokenizer>(train_bpe_model(text, vocab_size));
}

std::unique_ptr<Tokenizer> load_tokenizer(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored))
    user_error(
        "{}: no such folder; expected one with a tokenizer (vocab.json and merges.txt, "
        "tokenizer.json, "
        "char.json or byte.json)",
        folder.string());
  const auto has = [&](const char* name) { return fs::exists(folder / name, ignored); };
  const fs::path vocab = folder / "vocab.json", merges = folder / "merges.txt";
  if (has("vocab.json") && has("merges.txt"))
    return std::make_unique<BpeTokenizer>(parse_vocab_and_merges(
        MappedFile(vocab).text(), vocab.string(), MappedFile(merges).text(), merges.string()));
  if (has("tokenizer.json")) {
    const fs::path path = folder / "tokenizer.json";
    return std::make_unique<BpeTokenizer>(
        parse_tokenizer_json(MappedFile(path).text(), path.string()));
  }
  if (has("vocab.json") || has("merges.txt"))
    user_error("{}: {} is missing; GPT-2's BPE needs both vocab.json and merges.txt",
               folder.string(), has("vocab.json") ? "merges.txt" : "vocab.json");
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
      "{}: no tokenizer in this folder; expected vocab.json and merges.txt, tokenizer.json, "
      "char.json or "
      "byte.json",
      folder.string());
}

}  // namespace brrr::io
