// tiktoken's and tekken's files: BPE by the ranks of tokens. That ids are those of the libraries is
// in tokenizer_models_test.cpp.

#include "text/ranked/ranked_tokens.h"

#include <algorithm>
#include <random>

#include "base/encoding/base64.h"
#include "formats/json_file.h"
#include "support/temp_folder.h"

namespace brrr::io {
namespace {

using Ids = std::vector<int32_t>;

std::vector<std::string> ranked_with(std::initializer_list<const char*> more) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  tokens.insert(tokens.end(), more.begin(), more.end());
  return tokens;
}

std::string tiktoken_of(const std::vector<std::string>& tokens) {
  std::string out;
  for (size_t rank = 0; rank < tokens.size(); ++rank)
    out += encode_base64(tokens[rank]) + " " + std::to_string(rank) + "\n";
  return out;
}

Json tekken_of(const std::vector<std::string>& tokens) {
  Json vocab = Json::array();
  for (size_t rank = 0; rank < tokens.size(); ++rank)
    vocab.push_back(
        {{"rank", rank}, {"token_bytes", encode_base64(tokens[rank])}, {"token_str", nullptr}});
  return {{"config",
           {{"pattern", "\\S+|\\s+"},
            {"num_vocab_tokens", tokens.size()},
            {"default_vocab_size", tokens.size() + 30},
            {"default_num_special_tokens", 30},
            {"version", "v3"}}},
          {"vocab", vocab}};
}

std::unique_ptr<Tokenizer> read_tekken_of(const Json& tekken) {
  return read_tekken({{"tekken.json", tekken.dump()}}, "d/tekken.json");
}

TEST(RankedTokens, MergesByRankFromTheLeft) {
  // "aaa" can be made of "a" and "aa" in two ways, which have one rank.
  RankedTokens from;
  from.tokens = ranked_with({"aa", "aaa", "ab", "abcab", "bc"});
  from.pattern = "\\S+|\\s+";
  from.special = {"<end>"};
  from.end_of_text = 261;
  const auto t = make_ranked_tokenizer(std::move(from), {}, "f");
  EXPECT_EQ(t->vocab_size(), 262);
  EXPECT_EQ(t->encode("aaaaa"), (Ids{256, 257}));
  EXPECT_EQ(t->encode("aaaa"), (Ids{256, 256}));
  EXPECT_EQ(t->encode("abcab"), Ids{259}) << "a piece that is a token needs no merges";
  EXPECT_EQ(t->encode("abcabx"), (Ids{258, 'c', 258, 'x'}));
  EXPECT_EQ(t->encode("xbc bc"), (Ids{'x', 260, ' ', 260}));
  EXPECT_EQ(t->encode("<end>"), (Ids{'<', 'e', 'n', 'd', '>'})) << "names are ordinary text";
  EXPECT_EQ(t->decode(Ids{259, 261, 0x80}), "abcab<end>\x80");
  EXPECT_TRUE(t->is_special(261));
  EXPECT_EQ(t->encode("\xff\xfe"), (Ids{0xff, 0xfe}));
}

/// What tiktoken says it does, literally.
Ids merge_by_rank(const std::vector<std::string>& tokens, const std::string& piece) {
  const auto rank_of = [&](const std::string& text) {
    return static_cast<size_t>(std::find(tokens.begin(), tokens.end(), text) - tokens.begin());
  };
  std::vector<std::string> parts;
  for (const char c : piece) parts.emplace_back(1, c);
  if (rank_of(piece) < tokens.size()) parts = {piece};
  for (;;) {
    size_t best = tokens.size(), at = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i)
      if (const size_t rank = rank_of(parts[i] + parts[i + 1]); rank < best) best = rank, at = i;
    if (best == tokens.size()) break;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(at) + 1);
  }
  Ids ids;
  for (const std::string& part : parts) ids.push_back(static_cast<int32_t>(rank_of(part)));
  return ids;
}

TEST(RankedTokens, RandomVocabulariesMergeAsTiktokenDoes) {
  std::mt19937 random(11);
  const auto word = [&](size_t longest) {
    std::string out;
    for (size_t length = 1 + random() % longest; length > 0; --length)
      out.push_back(static_cast<char>('a' + random() % 3));
    return out;
  };
  for (int round = 0; round < 50; ++round) {
    RankedTokens from;
    from.tokens = ranked_with({});
    for (int i = 0; i < 30; ++i) {
      const std::string token = word(5);
      if (std::find(from.tokens.begin(), from.tokens.end(), token) == from.tokens.end())
        from.tokens.push_back(token);
    }
    from.pattern = "\\S+|\\s+";
    const auto tokens = from.tokens;
    const auto t = make_ranked_tokenizer(std::move(from), {}, "f");
    // Long words take another way through the merges.
    for (int i = 0; i < 40; ++i) {
      const std::string text = word(i == 0 ? 400 : 30);
      ASSERT_EQ(t->encode(text), merge_by_rank(tokens, text)) << text;
    }
  }
}

TEST(RankedTokens, ReadsTekken) {
  Json root = tekken_of(ranked_with({"ab"}));
  const auto t = read_tekken_of(root);
  EXPECT_EQ(t->kind(), "bpe");
  EXPECT_EQ(t->vocab_size(), 287);
  EXPECT_EQ(t->begin_of_text(), 1);
  EXPECT_EQ(t->end_of_text(), 2);
  EXPECT_TRUE(t->is_special(29));
  EXPECT_FALSE(t->is_special(30));
  EXPECT_EQ(t->encode("ab a", {.add_special_tokens = true}), (Ids{1, 286, 30 + ' ', 30 + 'a'}));
  EXPECT_EQ(t->decode(Ids{3, 286, 29}), "[INST]ab<SPECIAL_29>");
  root["special_tokens"] = Json::array({{{"rank", 0}, {"token_str", "<s>"}, {"is_control", true}}});
  EXPECT_EQ(read_tekken_of(root)->decode(Ids{0, 1}), "<s><SPECIAL_1>");
  EXPECT_EQ(read_tekken_of(root)->end_of_text(), -1);
  // More tokens are listed than models use.
  root["config"]["default_vocab_size"] = 286;
  EXPECT_EQ(read_tekken_of(root)->encode("ab"), (Ids{30 + 'a', 30 + 'b'}));
}

TEST(RankedTokens, LoadsAndSavesFolders) {
  const test::TempFolder folder;
  const std::string text = tekken_of(ranked_with({"ab"})).dump();
  write_file_atomically(folder / "tekken.json", text);
  create_folder(folder / "again");
  load_tokenizer(folder.path())->save(folder / "again");
  EXPECT_EQ(read_file(folder / "again/tekken.json"), text);
  fs::rename(folder / "tekken.json", folder / "tekken_1.json");
  EXPECT_EQ(load_tokenizer(folder / "tekken_1.json")->encode("ab"), Ids{286});
  write_file_atomically(folder / "tokenizer.model", tiktoken_of(ranked_with({"ab"})));
  EXPECT_USER_ERROR(
      load_tokenizer(folder.path()),
      "a tiktoken file of 257 tokens; only that of Llama 3, with 128000, can be read");
}

TEST(RankedTokens, RefusesBrokenTiktokenFiles) {
  const auto parse = [](const std::string& text) { return parse_tiktoken(text, "f"); };
  EXPECT_EQ(parse("YQ== 1\r\nYg== 0\n\n"), (std::vector<std::string>{"b", "a"}));
  EXPECT_TRUE(is_tiktoken("YQ== 1\nx"));
  EXPECT_FALSE(is_tiktoken("\x0a\x05YQ== 1"));
  EXPECT_FALSE(is_tiktoken(""));
  EXPECT_FALSE(is_tiktoken("YQ=="));
  EXPECT_USER_ERROR(parse("YQ== 0\nYQ=\n"),
                    "f: line 2: expected a token in base64, a space and its rank; got 'YQ='");
  EXPECT_USER_ERROR(parse("YQ== -1\n"), "line 1");
  EXPECT_USER_ERROR(parse(" 0\n"), "line 1");
  EXPECT_USER_ERROR(parse("YQ== 0\nYg== 0\n"),
                    "f: the rank 0 is there twice; expected the ranks 0 to 1, each once");
  EXPECT_USER_ERROR(parse("YQ== 7\n"), "the rank 7 is too large");
  EXPECT_USER_ERROR(parse("YQ== 0\nYQ== 1\n"), "the token 'a' has the ranks 0 and 1");
}

TEST(RankedTokens, RefusesBrokenTekkenFiles) {
  const Json fine = tekken_of(ranked_with({"ab"}));
  const auto with = [&](const char* at, const Json& value) {
    Json root = fine;
    root[Json::json_pointer(at)] = value;
    return root;
  };
  EXPECT_USER_ERROR(read_tekken_of(Json::array()), "d/tekken.json is an array; expected an object");
  EXPECT_USER_ERROR(read_tekken_of(with("/config/pattern", 3)), "config.pattern is the number 3");
  EXPECT_USER_ERROR(read_tekken_of(with("/config/pattern", "(")), "d/tekken.json: the split");
  EXPECT_USER_ERROR(read_tekken_of(with("/config/default_vocab_size", 400)),
                    "config.default_vocab_size is 400; expected 30 special tokens and at most the "
                    "257 of vocab");
  EXPECT_USER_ERROR(read_tekken_of(with("/config/default_vocab_size", 29)),
                    "default_vocab_size is 29");
  EXPECT_USER_ERROR(read_tekken_of(with("/config/default_vocab_size", 285)),
                    "d/tekken.json: no token for the byte 0xff");
  Json few = with("/config/default_num_special_tokens", 7);
  few["config"]["default_vocab_size"] = 264;
  EXPECT_USER_ERROR(read_tekken_of(few),
                    "it has 20 special tokens, but config.default_num_special_tokens is 7");
  EXPECT_USER_ERROR(read_tekken_of(with("/vocab/3/rank", 4)),
                    "d/tekken.json: vocab[3].rank is 4; expected 3, its place in the list");
  EXPECT_USER_ERROR(read_tekken_of(with("/vocab/3/token_bytes", "=")),
                    "vocab[3].token_bytes is '='; expected base64");
  EXPECT_USER_ERROR(read_tekken_of(with("/vocab/3/token_bytes", "")),
                    "the token of rank 3 is empty");
  EXPECT_USER_ERROR(read_tekken_of(with("/vocab/3/token_bytes", "AA==")),
                    "vocab[3].token_bytes is 'AA==', which is another token already");
  EXPECT_USER_ERROR(
      read_tekken_of(with("/special_tokens", Json::array({{{"rank", 1}, {"token_str", "<s>"}}}))),
      "special_tokens[0].rank is 1; expected 0");
  EXPECT_USER_ERROR(
      read_tekken_of(
          with("/special_tokens", Json::array({{{"rank", 0}, {"token_str", "<SPECIAL_1>"}}}))),
      "the special token '<SPECIAL_1>' is there twice");
}

}  // namespace
}  // namespace brrr::io
