// Tokenizer files of every kind that are broken: each is refused by what is wrong with it.

#include <gtest/gtest.h>

#include <set>

#include "base/rng.h"
#include "formats/json_file.h"
#include "support/bpe_model.h"
#include "support/temp_folder.h"
#include "text/bpe/byte_letters.h"
#include "text/bpe/tokenizer_bpe.h"
#include "text/tokenizer.h"
#include "text/tokenizer_json.h"
#include "text/tokenizer_split.h"

namespace brrr::io {
namespace {

using test::bpe_model;
using test::TempFolder;
using Ids = std::vector<int32_t>;

/// A small valid pair of files: the 256 bytes, "ab", " ab" and the end of text.
class BrokenBpe : public ::testing::Test {
 protected:
  void SetUp() override {
    vocab_ = Json::object();
    for (int id = 0; id < 256; ++id) {
      std::string name;
      append_utf8(name, byte_letters()[bytes_by_letter()[static_cast<size_t>(id)]]);
      vocab_[name] = id;
    }
    vocab_["ab"] = 256;
    vocab_["Ġab"] = 257;
    vocab_["<|endoftext|>"] = 258;
  }
  BpeModel load(const std::string& merges = "#version: 0.2\na b\nĠ ab\n") const {
    return parse_vocab_and_merges(vocab_.dump(), "vocab.json", merges, "merges.txt");
  }
  Json tokenizer_json() const {
    return {{"model", {{"type", "BPE"}, {"vocab", vocab_}, {"merges", {"a b", "Ġ ab"}}}},
            {"normalizer", nullptr},
            {"pre_tokenizer",
             {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
            {"decoder", {{"type", "ByteLevel"}}},
            {"added_tokens", {{{"id", 258}, {"content", "<|endoftext|>"}, {"special", true}}}}};
  }
  static std::unique_ptr<Tokenizer> load_text(const std::string& json) {
    return read_tokenizer_json({{"tokenizer.json", json}}, "");
  }
  static std::unique_ptr<Tokenizer> load_json(const Json& root) { return load_text(root.dump()); }
  static BpeModel model_in(const std::string& json) { return bpe_model(*load_text(json)); }
  Json vocab_;
};

TEST_F(BrokenBpe, TheUnbrokenForms) {
  const BpeModel model = load();
  EXPECT_EQ(model.end_of_text, 258);
  EXPECT_EQ(make_gpt2_tokenizer(model)->encode("ab ab"), (Ids{256, 257}));
  EXPECT_EQ(load("a b\r\nĠ ab\r\n"), model);           // no version line, Windows line ends
  EXPECT_EQ(load("#version: 0.2\na b\nĠ ab"), model);  // no newline at the end
  EXPECT_EQ(model_in(tokenizer_json().dump()), model);
  EXPECT_EQ(load_json(tokenizer_json())->end_of_text(), 258);
  Json pairs = tokenizer_json();
  pairs["model"]["merges"] = Json::parse(R"([["a","b"],["Ġ","ab"]])");
  EXPECT_EQ(model_in(pairs.dump()), model);
  for (const Json& root : {tokenizer_json(), pairs}) {
    EXPECT_EQ(model_in(root.dump(2) + "\n"), model);
    EXPECT_EQ(model_in(root.dump(-1, ' ', true)), model);  // \u escapes
  }
  EXPECT_EQ(parse_vocab_and_merges("\n" + vocab_.dump(2) + "\n", "v", "a b\nĠ ab\n", "m"), model);
  EXPECT_EQ(parse_vocab_and_merges(vocab_.dump(-1, ' ', true), "v", "a b\nĠ ab\n", "m"),
            model);  // \u escapes
}

// Merges out of order load as another tokenizer, which no shape of the file gives away but the ids.
TEST_F(BrokenBpe, TheOrderOfMerges) {
  EXPECT_USER_ERROR(load("Ġ ab\na b\n"),
                    "merges.txt: line 1: this merge makes 'Ġab' with the id 257");
  EXPECT_USER_ERROR(load("a b\na b\nĠ ab\n"),
                    "merges.txt: line 2: the merge of 'a' and 'b' is already in line 1");
  EXPECT_USER_ERROR(load("#version: 0.2\nĠ ab\n"), "line 2");  // the line before it is missing
  // Two merges may make one token, and others number as they like.
  vocab_["Ġa"] = 259;
  EXPECT_USER_ERROR(load("a b\nĠ a\nĠa b\n"), "merges.txt: line 2");
  vocab_["Ġa"] = 257;
  vocab_["Ġab"] = 259;
  vocab_["<|endoftext|>"] = 260;
  vocab_["ba"] = 258;
  EXPECT_EQ(load("a b\nĠ a\nb a\nĠa b\nĠ ab\n").merges.size(), 5u);
  std::swap(vocab_["a"], vocab_["b"]);
  EXPECT_EQ(load("Ġ a\na b\n").merges.size(), 2u);
}

TEST_F(BrokenBpe, AddedTokensOfTokenizerJson) {
  Json root = tokenizer_json();
  root["added_tokens"].push_back({{"id", 259}, {"content", "<пад ding>"}, {"special", true}});
  const auto tokenizer = load_json(root);
  EXPECT_EQ(tokenizer->vocab_size(), 260);
  EXPECT_EQ(tokenizer->decode(Ids{259}), "<пад ding>");
  EXPECT_EQ(tokenizer->encode("ab<пад ding>ab"), (Ids{256, 259, 256}));
  EXPECT_TRUE(tokenizer->is_special(259));
  const TempFolder folder;
  tokenizer->save(folder.path());
  EXPECT_EQ(load_tokenizer(folder.path())->decode(Ids{259}), "<пад ding>");
  root["added_tokens"][1] = {{"id", 300}, {"content", "<x>"}, {"special", true}};
  EXPECT_USER_ERROR(load_json(root), "none with id 259");
  root["added_tokens"][1] = {{"id", 1}, {"content", "<|endoftext|>"}, {"special", true}};
  EXPECT_USER_ERROR(load_json(root), "is listed twice in added_tokens");
  root["added_tokens"][0]["id"] = 7;
  EXPECT_USER_ERROR(load_json(root), "has id 258 in the vocabulary and id 7 in added_tokens");
  root["added_tokens"] = 5;
  EXPECT_USER_ERROR(load_json(root), "\"added_tokens\" is the number 5");
  root["added_tokens"] = {1};
  EXPECT_USER_ERROR(load_json(root), "added_tokens[0] is the number 1; expected an object");
  root["added_tokens"] = {{{"id", 258}, {"content", ""}}};
  EXPECT_USER_ERROR(load_json(root), "added_tokens[0].content is empty");
  root["added_tokens"] = {{{"id", 5e9}, {"content", "x"}}};
  EXPECT_USER_ERROR(load_json(root), "added_tokens[0].id is the number");
  root["added_tokens"] = {{{"id", 258}, {"content", "x"}, {"lstrip", 1}}};
  EXPECT_USER_ERROR(load_json(root), "lstrip is the number 1; expected true or false");
}

TEST_F(BrokenBpe, Vocabulary) {
  const auto with = [&](const std::string& text) {
    return parse_vocab_and_merges(text, "vocab.json", "", "merges.txt");
  };
  EXPECT_USER_ERROR(with(""), "vocab.json: not valid JSON");
  EXPECT_USER_ERROR(with(vocab_.dump().substr(0, 1000)), "vocab.json: not valid JSON");
  EXPECT_USER_ERROR(with("hello"), "vocab.json: not valid JSON at line 1");
  EXPECT_USER_ERROR(with("\xff\xfe"), "vocab.json: not valid JSON");
  EXPECT_USER_ERROR(with("{\"\xff\": 0}"), "vocab.json: not valid JSON");
  EXPECT_USER_ERROR(with("[1, 2]"), "vocab.json: it holds an array");
  EXPECT_USER_ERROR(with("{}"), "vocab.json: no tokens");
  EXPECT_USER_ERROR(with("{\"a\": 0, \"a\": 1}"), "appears twice");
  EXPECT_USER_ERROR(with("{\"a\": \"0\"}"), "expected a whole number");
  EXPECT_USER_ERROR(with("{\"a\": 1.5}"), "expected a whole number");
  EXPECT_USER_ERROR(with("{\"a\": 18446744073709551615}"), "expected a whole number");
  EXPECT_USER_ERROR(with("{\"a\": -1}"), "the id of token 'a' is -1");
  EXPECT_USER_ERROR(with("{\"[PAD]\": 0, \"##ing\": 1}"), "not a byte-level BPE vocabulary");
  vocab_["ab"] = 255;
  EXPECT_USER_ERROR(load(), "id 255 belongs to two tokens");
  vocab_["ab"] = 1000;
  EXPECT_USER_ERROR(load(), "none with id 256");
  vocab_["ab"] = 256;
  vocab_.erase("Ġ");
  EXPECT_USER_ERROR(load(), "none with id 220");
}

TEST_F(BrokenBpe, Merges) {
  EXPECT_USER_ERROR(load("#version: 0.2\na b\nĠab\n"),
                    "merges.txt: line 3: expected two tokens with one space");
  EXPECT_USER_ERROR(load("a b\nĠ a b\n"), "merges.txt: line 2: expected two tokens");
  EXPECT_USER_ERROR(load("a b\n\nĠ ab\n"), "merges.txt: line 2: expected two tokens");
  EXPECT_USER_ERROR(load(" b\n"), "line 1: expected two tokens");
  EXPECT_USER_ERROR(load("a \n"), "line 1: expected two tokens");
  EXPECT_USER_ERROR(
      load("a b\nb a\n"),
      "line 2: the merge of 'b' and 'a' needs the token 'ba', which is not in vocab.json");
  EXPECT_USER_ERROR(load("a b\nb zz\n"), "line 2");
  EXPECT_USER_ERROR(load(""), "0 merges, and 2 tokens of vocab.json are made by none");
  EXPECT_USER_ERROR(load(std::string("a b\n\0\xff b\n", 9)), "line 2");
  for (int i = 0; i < 1100; ++i) vocab_["xx" + std::to_string(i)] = 259 + i;
  EXPECT_USER_ERROR(load(), "1100 tokens of vocab.json are made by none");
}

TEST_F(BrokenBpe, TokenizerJsonOfAnotherKind) {
  const auto with = [&](const char* pointer, const Json& value) {
    Json root = tokenizer_json();
    root[Json::json_pointer(pointer)] = value;
    return load_json(root);
  };
  EXPECT_USER_ERROR(with("/model/type", "Phrase"), "model.type is 'Phrase'");
  EXPECT_USER_ERROR(with("/model/type", 5), "model.type is the number 5; expected a string");
  EXPECT_USER_ERROR(with("/model/dropout", 0.1), "model.dropout is the number 0.1");
  EXPECT_USER_ERROR(with("/model/end_of_word_suffix", 5), "model.end_of_word_suffix");
  EXPECT_USER_ERROR(with("/model/continuing_subword_prefix", true),
                    "model.continuing_subword_prefix is true; expected a string");
  EXPECT_USER_ERROR(with("/normalizer", {{"type", "NFX"}}),
                    "normalizer.type is 'NFX', which is not supported");
  EXPECT_USER_ERROR(with("/pre_tokenizer", {{"type", "Words"}}),
                    "pre_tokenizer.type is 'Words', which is not supported");
  EXPECT_USER_ERROR(with("/pre_tokenizer/add_prefix_space", 1),
                    "pre_tokenizer.add_prefix_space is the number 1");
  EXPECT_USER_ERROR(with("/decoder/type", "Words"), "decoder.type is 'Words'");
  EXPECT_USER_ERROR(with("/post_processor", {{"type", "Other"}}), "post_processor.type is 'Other'");
  EXPECT_USER_ERROR(with("/post_processor", {{"type", "BertProcessing"}}),
                    "post_processor.cls is missing; expected a list");
  EXPECT_USER_ERROR(with("/post_processor", {{"type", "BertProcessing"}, {"cls", {"a", 999}}}),
                    "post_processor.cls holds the number 999; expected ids from 0 to 258");
  EXPECT_USER_ERROR(with("/post_processor", {{"type", "BertProcessing"}, {"cls", {"a"}}}),
                    "post_processor.cls is [\"a\"]; expected a token and its id");
  EXPECT_USER_ERROR(with("/truncation", 5), "truncation is the number 5; expected an object");
  EXPECT_USER_ERROR(with("/truncation", {{"max_length", -5}}), "truncation.max_length is");
  EXPECT_USER_ERROR(with("/truncation", {{"max_length", 5}, {"strategy", "Longest"}}),
                    "truncation.strategy is 'Longest'; expected LongestFirst, OnlyFirst");
  EXPECT_USER_ERROR(with("/truncation", {{"max_length", 5}, {"direction", "Up"}}),
                    "truncation.direction is 'Up'; expected Left or Right");
  EXPECT_USER_ERROR(with("/truncation", {{"max_length", 5}, {"stride", 2}}),
                    "truncation.stride is the number 2, which is not supported");
  EXPECT_USER_ERROR(with("/padding", {{"strategy", 5}}), "padding.strategy is the number 5");
  EXPECT_USER_ERROR(with("/padding", {{"direction", "Up"}}), "padding.direction is 'Up'");
  EXPECT_USER_ERROR(with("/padding", {{"pad_id", 300}}), "padding.pad_id is the number 300");
  EXPECT_USER_ERROR(with("/model", nullptr), "model is null; expected an object");
  EXPECT_USER_ERROR(with("/model/vocab", Json::array()), "model.vocab is an array");
  EXPECT_USER_ERROR(with("/model/merges", "x"), "model.merges is the string 'x'");
  EXPECT_USER_ERROR(with("/model/merges/1", "ab"), "merge 2: expected two tokens");
  EXPECT_USER_ERROR(with("/model/merges/1", {"a", 1}), "merge 2: expected two tokens");
  EXPECT_USER_ERROR(with("/model/merges/1", {"b", "b"}), "merge 2: the merge of 'b' and 'b'");
  EXPECT_USER_ERROR(with("/model/merges/1", "a b"),
                    "merge 2: the merge of 'a' and 'b' is already in merge 1");
  EXPECT_USER_ERROR(with("/model/vocab/ab", "256"), "the id of token 'ab' is the string '256'");
  EXPECT_USER_ERROR(load_text("7"), "tokenizer.json: it holds the number 7");
  EXPECT_USER_ERROR(load_text("{}"), "model is missing");
  EXPECT_USER_ERROR(load_text("{"), "not valid JSON");
  EXPECT_USER_ERROR(load_text(std::string(100'000, '[')), "nested more than 256 levels");
}

// Parts of parts, each broken in its own way: the error names the field and the value.
TEST_F(BrokenBpe, PartsOfTokenizerJson) {
  const auto split = [&](const Json& pattern, const Json& behavior = "Isolated") {
    Json root = tokenizer_json();
    root["pre_tokenizer"] = {
        {"type", "Sequence"},
        {"pretokenizers",
         {{{"type", "Split"}, {"pattern", pattern}, {"behavior", behavior}},
          {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
    return load_json(root);
  };
  const auto regex = [&](const std::string& text) { return split({{"Regex", text}}); };
  EXPECT_NO_THROW(regex(R"(a|[^\s\p{L}]+(?!\S))"));
  EXPECT_USER_ERROR(split(5), "pretokenizers[0].pattern is the number 5; expected {\"Regex\"");
  EXPECT_USER_ERROR(split({{"Regex", "a"}}, "Merged"), "behavior is 'Merged'; expected Removed");
  EXPECT_USER_ERROR(regex("a(b"), "the pattern 'a(b' has a group without its )");
  EXPECT_USER_ERROR(regex("a)b"), "an unmatched )");
  EXPECT_USER_ERROR(regex("[a"), "a class without its ]");
  EXPECT_USER_ERROR(regex("[]"), "a class without its ]");
  EXPECT_USER_ERROR(regex("(?i)[a&&b]"), "an intersection of classes that ignores case");
  EXPECT_USER_ERROR(regex("(?i)[a[^b]]"), "a class of classes that ignores case");
  EXPECT_USER_ERROR(regex("[z-a]"), "a range whose end comes before");
  EXPECT_USER_ERROR(regex(R"((a)\2)"), "a reference to a group that is not there: 2");
  EXPECT_USER_ERROR(regex(R"(\yword)"), "the escape \\y");
  EXPECT_USER_ERROR(regex(R"(\p{Nonsense})"), "the property 'Nonsense'");
  EXPECT_USER_ERROR(regex(R"(\pL)"), "the escape \\p");
  EXPECT_USER_ERROR(regex(R"(\x{110000})"), "a hexadecimal escape");
  EXPECT_USER_ERROR(regex("a" + std::string(50, '*')), "too many quantifiers");
  EXPECT_USER_ERROR(regex("a{2,100000}"), "the quantifier {2,100000}");
  EXPECT_USER_ERROR(regex("((a{1000}){1000}){1000}"), "cannot be compiled");
  EXPECT_USER_ERROR(regex("*"), "nothing before the quantifier *");
  EXPECT_USER_ERROR(regex("(?P<name>a)"), "the group (?P<n");
  EXPECT_USER_ERROR(regex("(?s:a)"), "the group (?s:a");
  EXPECT_USER_ERROR(regex("\\"), "a backslash at its end");
  EXPECT_USER_ERROR(regex(std::string(200, '(') + std::string(200, ')')), "nested deeper than 100");
  EXPECT_USER_ERROR(regex(std::string(20'000, 'a')), "a pattern of 20000 bytes");
  const auto nested = [](const char* list, Json inner) {
    for (int i = 0; i < 50; ++i) inner = {{"type", "Sequence"}, {list, {inner}}};
    return inner;
  };
  const auto with = [&](const char* part, const Json& value) {
    Json root = tokenizer_json();
    root[part] = value;
    return load_json(root);
  };
  EXPECT_USER_ERROR(with("pre_tokenizer", nested("pretokenizers", {{"type", "ByteLevel"}})),
                    "sequences nested deeper than 16");
  EXPECT_USER_ERROR(with("normalizer", nested("normalizers", nullptr)), "nested deeper than 16");
  EXPECT_USER_ERROR(with("decoder", nested("decoders", {{"type", "Fuse"}})),
                    "nested deeper than 16");
  EXPECT_USER_ERROR(with("post_processor", nested("processors", {{"type", "ByteLevel"}})),
                    "nested deeper than 16");
  const Json replace = {
      {"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aaaaaaaaaaaaaaaaaaaa"}};
  EXPECT_USER_ERROR(
      with("normalizer", {{"type", "Sequence"}, {"normalizers", {replace, replace, replace}}}),
      "make a text more than 1000 times as long");
  const Json longer = {
      {"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(60, 'a')}};
  EXPECT_USER_ERROR(
      with("decoder",
           {{"type", "Sequence"}, {"decoders", {longer, longer, longer, longer, longer, longer}}}),
      "a token decodes to more than 1048576 bytes");
  EXPECT_USER_ERROR(
      with("normalizer", {{"type", "Replace"}, {"pattern", {{"Regex", "a("}}}, {"content", ""}}),
      "normalizer.pattern: the pattern 'a(' has a group without its )");
  EXPECT_USER_ERROR(
      with("post_processor", {{"type", "TemplateProcessing"},
                              {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {99999}}}}}},
                              {"single", {{{"SpecialToken", {{"id", "<s>"}}}}}}}),
      "special_tokens.<s>.ids holds the number 99999; expected ids from 0 to 258");
  EXPECT_USER_ERROR(with("post_processor", {{"type", "TemplateProcessing"},
                                            {"special_tokens", Json::object()},
                                            {"single", Json::array()}}),
                    "single has 0 times the sequence A and 0 times B; expected A once");
}

// Parts of the other kinds of tokenizer, each broken in its own way.
TEST_F(BrokenBpe, PartsOfOtherKinds) {
  const auto with = [&](const char* part, const Json& value) {
    Json root = tokenizer_json();
    root[part] = value;
    return load_json(root);
  };
  const std::string long_text(65, 'x');
  EXPECT_USER_ERROR(with("normalizer", {{"type", "Prepend"}, {"prepend", long_text}}),
                    "normalizer.prepend has 65 bytes; the limit is 64");
  EXPECT_USER_ERROR(
      with("normalizer",
           {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", long_text}}),
      "normalizer.content has 65 bytes; the limit is 64");
  EXPECT_USER_ERROR(
      with("normalizer", {{"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", "x"}}),
      "normalizer.pattern is empty; expected the text to replace");
  EXPECT_USER_ERROR(with("normalizer", {{"type", "BertNormalizer"}, {"lowercase", "yes"}}),
                    "normalizer.lowercase is the string 'yes'; expected true or false");
  EXPECT_USER_ERROR(with("normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", "AAAA"}}),
                    "normalizer.precompiled_charsmap");
  const Json form = {{"type", "NFKD"}},
             back = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\ufdfa"}};
  EXPECT_NO_THROW(
      with("normalizer", {{"type", "Sequence"}, {"normalizers", {form, form, form, form}}}));
  EXPECT_USER_ERROR(
      with("normalizer", {{"type", "Sequence"}, {"normalizers", {form, back, form, back, form}}}),
      "make a text more than 1000 times as long");
  EXPECT_USER_ERROR(
      with("normalizer", {{"type", "Sequence"}, {"normalizers", Json(100, {{"type", "NFC"}})}}),
      "more than 64 normalizers");
  EXPECT_USER_ERROR(with("pre_tokenizer", {{"type", "Punctuation"}, {"behavior", "Merged"}}),
                    "pre_tokenizer.behavior is 'Merged'; expected Removed");
  for (const char* delimiter : {"", "ab"})
    EXPECT_USER_ERROR(
        with("pre_tokenizer", {{"type", "CharDelimiterSplit"}, {"delimiter", delimiter}}),
        "pre_tokenizer.delimiter is '" + std::string(delimiter) + "'; expected one character");
  EXPECT_USER_ERROR(with("pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "__"}}),
                    "pre_tokenizer.replacement is '__'; expected one character");
  EXPECT_USER_ERROR(with("pre_tokenizer", {{"type", "FixedLength"}, {"length", 0}}),
                    "pre_tokenizer.length is the number 0; expected a whole number from 1");
  EXPECT_USER_ERROR(with("decoder", {{"type", "BPEDecoder"}, {"suffix", ""}}),
                    "decoder.suffix is empty; expected a text");
  EXPECT_USER_ERROR(with("decoder", {{"type", "CTC"}, {"pad_token", ""}}),
                    "\"pad_token\" and \"word_delimiter_token\" must not be empty");
  const Json sequence = {{"Sequence", {{"id", "A"}}}};
  const auto pair = [&](const Json& items) {
    return with("post_processor", {{"type", "TemplateProcessing"},
                                   {"special_tokens", Json::object()},
                                   {"single", {sequence}},
                                   {"pair", items}});
  };
  EXPECT_USER_ERROR(pair(Json::array({sequence})), "pair has 1 times the sequence A and 0 times B");
  EXPECT_USER_ERROR(pair({sequence, {{"Sequence", {{"id", "C"}}}}}),
                    "expected the sequence A or B");
  EXPECT_USER_ERROR(pair(Json::parse(R"([{"Sequence": {"id": "A", "type_id": -1}}])")),
                    "type_id is the number -1; expected");
}

TEST_F(BrokenBpe, ModelsOfOtherKinds) {
  const auto model = [&](const Json& value) { return load_json(Json{{"model", value}}); };
  const auto unigram = [&](const char* vocab, int unknown = 0) {
    return model({{"type", "Unigram"}, {"vocab", Json::parse(vocab)}, {"unk_id", unknown}});
  };
  EXPECT_NO_THROW(unigram(R"([["<unk>", 0], ["a", -1.5]])"));
  EXPECT_USER_ERROR(unigram(R"([["<unk>", 0], ["a"]])"), "model.vocab[1] is [\"a\"]; expected");
  EXPECT_USER_ERROR(unigram(R"([["<unk>", 0], ["a", "b"]])"), "model.vocab[1] is [\"a\",\"b\"]");
  EXPECT_USER_ERROR(unigram(R"([["<unk>", 0], ["<unk>", 0]])"), "'<unk>' is listed twice");
  EXPECT_USER_ERROR(unigram(R"([["<unk>", 0]])", 1), "model.unk_id is the number 1; expected");
  EXPECT_USER_ERROR(unigram("{}"), "model.vocab is an object; expected a list");
  EXPECT_USER_ERROR(unigram("[]"), "no tokens in it");
  const auto words = [&](const Json& more) {
    Json value = {{"type", "WordPiece"}, {"vocab", {{"a", 0}, {"##b", 1}}}};
    value.update(more);
    return model(value);
  };
  EXPECT_EQ(words(Json::object())->encode("ab"), (Ids{0, 1}));
  EXPECT_USER_ERROR(words(Json::object())->encode("b"),
                    "the word 'b' is not in the vocabulary, and the tokenizer has no token for");
  Ids ids = {7};
  EXPECT_USER_ERROR(words(Json::object())->encode("b", ids), "the word 'b'");
  EXPECT_EQ(ids, Ids{7});
  EXPECT_USER_ERROR(words({{"max_input_chars_per_word", -1}}), "model.max_input_chars_per_word is");
  EXPECT_USER_ERROR(words({{"vocab", Json::array()}}), "model.vocab is an array");
  EXPECT_USER_ERROR(words({{"vocab", {{"a", 1}}}}), "none with id 0");
  EXPECT_USER_ERROR(words({{"continuing_subword_prefix", 5}}), "continuing_subword_prefix is the");
}

// A pattern that doubles its work with every character ends in an error, and soon.
TEST_F(BrokenBpe, CatastrophicPatterns) {
  for (const char* pattern : {"(a+)+c", "(a|aa)+c", "(a|a)*c", "(?:a*)*c", "(?=(a+)+c)a"}) {
    Json root = tokenizer_json();
    root["pre_tokenizer"] = {
        {"type", "Sequence"},
        {"pretokenizers",
         {{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}},
          {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
    const auto tokenizer = load_json(root);
    EXPECT_EQ(tokenizer->encode("ab"), Ids{256});
    EXPECT_USER_ERROR(
        tokenizer->encode(std::string(5000, 'a') + "bc"),
        "pretokenizers[0].pattern: the pattern '" + std::string(pattern) + "' takes too long");
    Ids ids = {7};
    EXPECT_USER_ERROR(tokenizer->encode(std::string(5000, 'a') + "bc", ids), "takes too long");
    EXPECT_EQ(ids, Ids{7});
  }
}

TEST_F(BrokenBpe, Folders) {
  const TempFolder folder;
  EXPECT_USER_ERROR(load_tokenizer(folder / "absent"), "no such folder");
  EXPECT_USER_ERROR(load_tokenizer(folder.path()), "no tokenizer in this folder");
  write_file_atomically(folder / "byte.json", "{}");
  EXPECT_USER_ERROR(load_tokenizer(folder.path()), "byte.json: expected");
  write_file_atomically(folder / "char.json", "");
  EXPECT_USER_ERROR(load_tokenizer(folder.path()), "char.json: not valid JSON");
  write_file_atomically(folder / "vocab.json", vocab_.dump());
  EXPECT_USER_ERROR(load_tokenizer(folder.path()), "merges.txt is missing");
  fs::rename(folder / "vocab.json", folder / "aside");
  write_file_atomically(folder / "merges.txt", "a b\nĠ ab\n");
  EXPECT_USER_ERROR(load_tokenizer(folder.path()), "vocab.json is missing");
  write_file_atomically(folder / "tokenizer.json", tokenizer_json().dump());
  EXPECT_EQ(load_tokenizer(folder.path())->vocab_size(), 259);
  fs::rename(folder / "aside", folder / "vocab.json");
  const auto tokenizer = load_tokenizer(folder.path());
  EXPECT_EQ(tokenizer->encode("ab"), Ids{256});
  EXPECT_USER_ERROR(tokenizer->decode(Ids{0, 259}),
                    "token 259 (at position 1) is not in the vocabulary: ids go from 0 to 258");
  EXPECT_USER_ERROR(tokenizer->decode(Ids{-5}), "token -5");
}

// A vocabulary cut anywhere, or with a byte changed anywhere, is loaded or refused, never worse.
TEST_F(BrokenBpe, DamagedAnywhere) {
  const std::string vocab = vocab_.dump(), merges = "#version: 0.2\na b\nĠ ab\n",
                    tokenizer = tokenizer_json().dump();
  const auto try_load = [](auto&& load) {
    try {
      load();
    } catch (const UserError& e) {
      ASSERT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what();
    }
  };
  for (uint32_t i = 0; i < 1500; ++i) {
    RngStream rng({.seed = 15, .step = 0}, i);
    const auto damage = [&](std::string text) {
      if (rng.next_below(3) == 0) return text.substr(0, rng.next_below(text.size()));
      for (uint64_t n = 1 + rng.next_below(3); n > 0; --n)
        text[rng.next_below(text.size())] = static_cast<char>(rng.next_u32());
      return text;
    };
    const std::string broken_vocab = damage(vocab), broken_merges = damage(merges),
                      broken_json = damage(tokenizer);
    try_load([&] { (void)parse_vocab_and_merges(broken_vocab, "v", merges, "m"); });
    try_load([&] { (void)parse_vocab_and_merges(vocab, "v", broken_merges, "m"); });
    try_load([&] { (void)load_text(broken_json)->encode("ab cd"); });
  }
}

}  // namespace
}  // namespace brrr::io
