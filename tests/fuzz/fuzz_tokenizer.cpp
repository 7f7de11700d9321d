// libFuzzer target: whatever the bytes, encoding round-trips, and tokenizer files are loaded or
// refused with a UserError. A file that loads must give a tokenizer that works. Chat templates are
// rendered or refused. The first byte chooses.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/errors.h"
#include "formats/json_file.h"
#include "fuzz/tokenizer_use.h"
#include "text/bpe/byte_letters.h"
#include "text/bpe/tokenizer_bpe.h"
#include "text/jinja/template.h"
#include "text/tokenizer_char.h"
#include "text/tokenizer_json.h"
#include "text/wordpiece/vocab_files.h"

namespace {

using namespace brrr;
using test::encode_again;
using test::take_part;

void round_trip(const io::Tokenizer& tokenizer, std::string_view text) {
  encode_again(tokenizer, text);
  if (tokenizer.decode(tokenizer.encode(text)) != text) std::abort();
}

/// A vocab.json of all bytes and of what the fuzzer adds, so that inputs reach past the
/// completeness check.
std::string vocabulary_with(std::string_view rest) {
  std::string out = "{";
  for (size_t id = 0; id < 256; ++id) {
    char name[8];
    std::snprintf(name, sizeof(name), "\\u%04x", io::byte_letters()[io::bytes_by_letter()[id]]);
    out += "\"" + std::string(name) + "\":" + std::to_string(id) + ",";
  }
  return out.append("\"<|endoftext|>\":256").append(rest).append("}");
}

/// A tokenizer.json of bytes whose other parts the fuzzer writes, with patterns that reach the
/// engine.
std::string tokenizer_json_with(std::string_view pattern, std::string_view parts) {
  const io::Json regex = std::string(pattern);
  std::string text;
  try {
    text = regex.dump();
  } catch (const io::Json::exception&) {  // no UTF-8
    text = "\"\"";
  }
  return "{\"model\":{\"vocab\":" + vocabulary_with("") +
         ",\"merges\":[]},\"decoder\":{\"type\":\"ByteLevel\"},\"pre_tokenizer\":{\"type\":"
         "\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"behavior\":\"Isolated\","
         "\"pattern\":{\"Regex\":" +
         text + "}},{\"type\":\"ByteLevel\",\"use_regex\":false}]}" + std::string(parts) + "}";
}

/// One of a list, chosen by the next byte of `text`, which is taken off.
template <size_t N>
std::string_view choose(const std::string_view (&list)[N], std::string_view& text) {
  if (text.empty()) return list[0];
  const auto byte = static_cast<uint8_t>(text[0]);
  text.remove_prefix(1);
  return list[byte % N];
}

/// A tokenizer.json whose parts are chosen by bytes of `text`; "PATTERN" and "WORD" in them become
/// what the fuzzer writes next.
std::string tokenizer_json_of_parts(std::string_view& text) {
  static constexpr std::string_view kModels[] = {
      R"({"type":"WordPiece","unk_token":"u","continuing_subword_prefix":"#",
          "max_input_chars_per_word":5,
          "vocab":{"u":0,"a":1,"#a":2,"the":3,"#b":4,"WORD":5,"#c":6}})",
      R"({"type":"WordPiece","continuing_subword_prefix":"","vocab":{"a":0,"b":1,"WORD":2}})",
      R"({"type":"WordLevel","unk_token":"a","vocab":{"a":0,"the":1,"WORD":2}})",
      R"({"type":"Unigram","unk_id":0,"vocab":[["u",0],["a",-1],["WORD",-2],["the",-3.5]]})",
      R"({"type":"Unigram","byte_fallback":true,"vocab":[["a",-1],["WORD",-2],["<0x41>",-3]]})",
      R"({"type":"BPE","unk_token":"u","end_of_word_suffix":"W","fuse_unk":true,
          "continuing_subword_prefix":"#","merges":[["a","#bW"]],
          "vocab":{"u":0,"a":1,"#a":2,"aW":3,"#bW":4,"abW":5,"WORD":6}})",
      R"({"type":"BPE","ignore_merges":true,"merges":[["a","b"]],
          "vocab":{"a":0,"b":1,"ab":2,"WORD":3}})"};
  static constexpr std::string_view kNormalizers[] = {
      "null",
      R"({"type":"BertNormalizer"})",
      R"({"type":"BertNormalizer","lowercase":false,"strip_accents":true,"clean_text":false})",
      R"({"type":"Sequence","normalizers":[{"type":"NFKD"},{"type":"StripAccents"},
          {"type":"Lowercase"}]})",
      R"({"type":"NFC"})",
      R"({"type":"NFKC"})",
      R"({"type":"Sequence","normalizers":[{"type":"Nmt"},{"type":"Strip"}]})",
      R"({"type":"Replace","pattern":{"Regex":"PATTERN"},"content":"xy"})",
      R"({"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"_"},
          {"type":"Replace","pattern":{"String":"WORD"},"content":" z"},{"type":"NFD"}]})",
      R"({"type":"ByteLevel"})"};
  static constexpr std::string_view kPreTokenizers[] = {
      "null",
      R"({"type":"BertPreTokenizer"})",
      R"({"type":"Whitespace"})",
      R"({"type":"UnicodeScripts"})",
      R"({"type":"Sequence","pretokenizers":[{"type":"WhitespaceSplit"},{"type":"Metaspace",
          "replacement":"_","prepend_scheme":"first"}]})",
      R"({"type":"Punctuation","behavior":"MergedWithNext"})",
      R"({"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},
          {"type":"Punctuation","behavior":"Contiguous"}]})",
      R"({"type":"Split","pattern":{"Regex":"PATTERN"},"behavior":"MergedWithPrevious"})",
      R"({"type":"Sequence","pretokenizers":[{"type":"ByteLevel"},{"type":"FixedLength",
          "length":3}]})",
      R"({"type":"CharDelimiterSplit","delimiter":"a"})",
      R"({"type":"Metaspace","replacement":"_"})"};
  static constexpr std::string_view kDecoders[] = {
      "null",
      R"({"type":"WordPiece","prefix":"#"})",
      R"({"type":"Metaspace","replacement":"_"})",
      R"({"type":"CTC","pad_token":"a","word_delimiter_token":"b"})",
      R"({"type":"BPEDecoder","suffix":"W"})",
      R"({"type":"Sequence","decoders":[{"type":"ByteFallback"},{"type":"Fuse"},
          {"type":"Strip","content":" ","start":1,"stop":1}]})",
      R"({"type":"Replace","pattern":{"Regex":"PATTERN"},"content":""})",
      R"({"type":"Sequence","decoders":[{"type":"ByteLevel"},{"type":"Strip","content":"a",
          "start":2,"stop":0}]})"};
  static constexpr std::string_view kProcessors[] = {
      "null", R"({"type":"BertProcessing","sep":["a",1],"cls":["a",0]})",
      R"({"type":"Sequence","processors":[{"type":"ByteLevel"},{"type":"RobertaProcessing",
          "sep":["a",1],"cls":["a",0]}]})"};
  static constexpr std::string_view kAdded[] = {
      "[]", R"([{"id":7,"content":"WORD","lstrip":true,"normalized":true}])",
      R"([{"id":3,"content":"X","rstrip":true,"special":true}])",
      R"([{"id":2,"content":"WORD","single_word":true,"special":true}])"};
  std::string root = R"({"model":)";
  root += choose(kModels, text);
  for (const auto& [key, value] : {std::pair{"normalizer", choose(kNormalizers, text)},
                                   std::pair{"pre_tokenizer", choose(kPreTokenizers, text)},
                                   std::pair{"decoder", choose(kDecoders, text)},
                                   std::pair{"post_processor", choose(kProcessors, text)},
                                   std::pair{"added_tokens", choose(kAdded, text)}})
    root.append(",\"").append(key).append("\":").append(value);
  root += "}";
  for (const std::string_view name : {"PATTERN", "WORD"}) {
    const io::Json json = std::string(take_part(text));
    std::string written = "x";
    try {
      written = json.dump();
      written = written.substr(1, written.size() - 2);
    } catch (const io::Json::exception&) {  // no UTF-8
    }
    for (size_t at = 0; (at = root.find(name, at)) != std::string::npos; at += written.size())
      root.replace(at, name.size(), written);
  }
  return root;
}

/// A chat template over variables that the fuzzer writes, too, or over a conversation.
void render_template(std::string_view text) {
  const std::string source(take_part(text));
  nlohmann::ordered_json variables = nlohmann::ordered_json::parse(text, nullptr, false);
  if (!variables.is_object())
    variables = {{"messages",
                  {{{"role", "user"}, {"content", text.size() % 2 == 1 ? "Hello, you" : ""}},
                   {{"role", "assistant"}, {"content", "4"}}}},
                 {"n", 3},
                 {"x", 2.5},
                 {"bos_token", "<s>"}};
  jinja::Template::Variables values;
  for (auto member = variables.begin(); member != variables.end(); ++member)
    values.emplace_back(member.key(), jinja::Value::from_json(member.value()));
  const jinja::Template chat(source, "input");
  const jinja::Limits limits{.work = 100'000, .output = 1 << 18, .depth = 200};
  const std::string once = chat.render(values, {}, limits);
  if (chat.render(values, {}, limits) != once) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto trained = io::train_bpe(
      "the cat and the hat, the cat's hats and they'll sit; \xd0\xb4\xd0\xb0 \xd0\xb4\xd0\xb0",
      270);
  if (size == 0) return 0;
  std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    switch (data[0] % 10) {
      case 0:
        round_trip(*trained, text);
        break;
      case 1: {
        const std::string_view vocab = take_part(text), merges = take_part(text);
        round_trip(*io::make_gpt2_tokenizer(
                       io::parse_vocab_and_merges(vocab, "vocab.json", merges, "merges.txt")),
                   text);
        break;
      }
      case 2: {
        const std::string vocab = vocabulary_with(take_part(text));
        const std::string_view merges = take_part(text);
        round_trip(*io::make_gpt2_tokenizer(
                       io::parse_vocab_and_merges(vocab, "vocab.json", merges, "merges.txt")),
                   text);
        break;
      }
      case 3: {
        const std::string json(take_part(text));
        encode_again(*io::read_tokenizer_json({{"tokenizer.json", json}}, ""), text);
        break;
      }
      case 5: {
        const std::string_view pattern = take_part(text), parts = take_part(text);
        const std::string json = tokenizer_json_with(pattern, parts);
        // A long text would only show that quadratic patterns are slow.
        encode_again(*io::read_tokenizer_json({{"tokenizer.json", json}}, ""), text.substr(0, 200));
        break;
      }
      case 9:
        render_template(text);
        break;
      case 4: {
        const auto tokenizer = io::parse_char_json(take_part(text), "char.json");
        round_trip(*tokenizer, text);
        break;
      }
      case 7: {
        const std::string json = tokenizer_json_of_parts(text);
        encode_again(*io::read_tokenizer_json({{"tokenizer.json", json}}, ""), text.substr(0, 200));
        break;
      }
      case 8: {
        const std::string_view vocab = take_part(text), config = take_part(text);
        io::Json members = io::Json::parse(config, nullptr, false);
        if (!members.is_object()) members = io::Json::object();
        const io::Json root = io::bert_tokenizer_json(
            std::string("[UNK]\n[CLS]\n[SEP]\n").append(vocab), members, "vocab.txt");
        encode_again(*io::read_tokenizer_json({{"tokenizer.json", root.dump()}}, ""), text);
        break;
      }
      default:
        round_trip(*io::train_bpe(text, 257 + static_cast<int32_t>(size % 16)), text);
    }
  } catch (const UserError&) {
  }
  return 0;
}
