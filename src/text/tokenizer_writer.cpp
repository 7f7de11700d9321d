#include "text/tokenizer_writer.h"

#include <algorithm>

#include "base/encoding/utf8.h"
#include "base/file.h"
#include "formats/json_file.h"
#include "text/bpe/byte_letters.h"

namespace brrr::io {
namespace {

// A byte tokenizer's file is smaller, also when another program has indented it.
constexpr size_t kLargestByteFile = size_t{1} << 16;

Json byte_level(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

Json root_of(Json added, Json pre_tokenizer, Json decoder, Json model) {
  return {{"version", "1.0"},          {"truncation", nullptr},
          {"padding", nullptr},        {"added_tokens", std::move(added)},
          {"normalizer", nullptr},     {"pre_tokenizer", std::move(pre_tokenizer)},
          {"post_processor", nullptr}, {"decoder", std::move(decoder)},
          {"model", std::move(model)}};
}

Json bpe_of(Json vocab, Json merges) {
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", false},
          {"vocab", std::move(vocab)},
          {"merges", std::move(merges)}};
}

Json root_of_bytes() {
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte)
    vocab[spell_letters(std::string(1, static_cast<char>(byte)))] = byte;
  return root_of(Json::array(), byte_level(false), byte_level(false),
                 bpe_of(std::move(vocab), Json::array()));
}

/// A character that the vocabulary lacks has no id, in `tokenizers` either: no word is unknown.
Json root_of_characters(Json vocab) {
  return root_of(Json::array(),
                 {{"type", "Split"},
                  {"pattern", {{"Regex", "[\\s\\S]"}}},
                  {"behavior", "Isolated"},
                  {"invert", false}},
                 {{"type", "Fuse"}},
                 {{"type", "WordLevel"}, {"vocab", std::move(vocab)}, {"unk_token", "<unk>"}});
}

TokenizerFiles files_of(const Json& root, Json config) {
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  config["clean_up_tokenization_spaces"] = false;
  return {{"tokenizer.json", root.dump() + "\n"}, {"tokenizer_config.json", config.dump(2) + "\n"}};
}

/// The code points of a vocabulary by id; empty when it is none of characters in their order.
std::vector<uint32_t> characters_of(const Json& vocab) {
  std::vector<uint32_t> codes(vocab.size());
  std::vector<bool> have(vocab.size());
  for (const auto& [text, id] : vocab.items()) {
    if (text.empty() || !id.is_number_unsigned() || id.get<uint64_t>() >= codes.size()) return {};
    const DecodedChar c = decode_utf8(as_bytes(text.data()), as_bytes(text.data() + text.size()));
    if (c.code == kInvalidByte || c.bytes != text.size()) return {};
    codes[id.get<size_t>()] = c.code;
    have[id.get<size_t>()] = true;
  }
  const bool whole = std::all_of(have.begin(), have.end(), [](bool b) { return b; });
  return whole && std::is_sorted(codes.begin(), codes.end()) ? codes : std::vector<uint32_t>();
}

}  // namespace

TokenizerFiles files_of_bpe(const BpeModel& model) {
  const auto name_of = [&](uint32_t id) {
    const bool verbatim = std::binary_search(model.verbatim.begin(), model.verbatim.end(), id);
    return verbatim ? std::string(model.token(id)) : spell_letters(model.token(id));
  };
  Json vocab = Json::object(), merges = Json::array(), added = Json::array(), config;
  for (uint32_t id = 0; id < model.size(); ++id) vocab[name_of(id)] = id;
  for (const BpeMerge& merge : model.merges)
    merges.push_back({name_of(merge.left), name_of(merge.right)});
  if (model.end_of_text >= 0) {
    added.push_back({{"id", model.end_of_text},
                     {"content", kEndOfText},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
    config["bos_token"] = config["eos_token"] = kEndOfText;
  }
  return files_of(root_of(std::move(added), byte_level(true), byte_level(true),
                          bpe_of(std::move(vocab), std::move(merges))),
                  std::move(config));
}

TokenizerFiles files_of_characters(const std::vector<uint32_t>& codes) {
  Json vocab = Json::object();
  for (size_t id = 0; id < codes.size(); ++id) {
    std::string text;
    append_utf8(text, codes[id]);
    vocab[text] = id;
  }
  return files_of(root_of_characters(std::move(vocab)), Json::object());
}

TokenizerFiles files_of_bytes() { return files_of(root_of_bytes(), Json::object()); }

void write_files(const TokenizerFiles& files, const fs::path& folder) {
  for (const auto& [name, text] : files) write_file_atomically(folder / name, text);
}

std::unique_ptr<Tokenizer> read_written_tokenizer(std::string_view text) {
  const bool may_be_characters = text.find("\"WordLevel\"") != std::string_view::npos;
  if (!may_be_characters && text.size() > kLargestByteFile) return nullptr;
  if (!Json::accept(text)) return nullptr;
  Json root = parse_json(text, "tokenizer.json");
  if (!root.is_object()) return nullptr;
  // `transformers` writes a post-processor that adds no tokens.
  const Json post_processor = root.value("post_processor", Json());
  if (post_processor.is_object() && post_processor.value("type", Json()) == "TemplateProcessing" &&
      post_processor.value("special_tokens", Json()) == Json::object())
    root["post_processor"] = nullptr;
  if (!may_be_characters) return root == root_of_bytes() ? make_byte_tokenizer() : nullptr;
  const Json::json_pointer at_vocab("/model/vocab");
  if (!root.contains(at_vocab) || !root[at_vocab].is_object()) return nullptr;
  const Json vocab = std::move(root[at_vocab]);
  root[at_vocab] = Json::object();
  if (root != root_of_characters(Json::object())) return nullptr;
  const std::vector<uint32_t> codes = characters_of(vocab);
  return codes.empty() ? nullptr : tokenizer_of_characters(codes);
}

}  // namespace brrr::io
