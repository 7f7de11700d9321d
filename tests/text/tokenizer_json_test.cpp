// tokenizer.json against the library `tokenizers`: small tokenizers that differ in one part each
// (tests/golden/tokenizer_cases.json), and published ones (tokenizer_folders.json), whose folders
// are looked for in $BRRR_DATA and $BRRR_MODELS. Both files are made by make_tokenizer_goldens.py.

#include "text/tokenizer_json.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "base/env.h"
#include "base/file.h"
#include "base/sha256.h"
#include "formats/json_file.h"
#include "support/golden_tokenizer.h"
#include "support/long_proof.h"
#include "support/models_folder.h"
#include "support/random_text.h"
#include "support/temp_folder.h"

namespace brrr::io {
namespace {

using test::hash_ids;
using test::hash_text;
using test::kHashStart;
using test::TempFolder;
using Ids = std::vector<int32_t>;

/// What the library's decode shows of bytes that are no UTF-8.
std::string decoded(const Tokenizer& tokenizer, const Ids& ids, bool skip_special_tokens) {
  DecodeState state{.skip_special_tokens = skip_special_tokens};
  std::string out;
  tokenizer.decode(ids, state, out);
  tokenizer.finish(state, out);
  return out;
}

std::string streamed(const Tokenizer& tokenizer, const Ids& ids) {
  TextStream stream(tokenizer);
  std::string out;
  for (const int32_t id : ids) {
    const std::string more = stream.add(std::span(&id, 1));
    EXPECT_FALSE(find_invalid_utf8(more)) << "a piece of a character was given out";
    out += more;
  }
  return out + stream.finish();
}

// The text of a prompt ends where settle() is called; what follows is the continuation alone.
TEST(TokenizerJson, PromptsEndInStreamsOfEveryDecoder) {
  const Json all = test::read_golden("tokenizer_cases.json");
  size_t held = 0;
  for (const Json& item : all["cases"]) {
    const auto name = item["name"].get<std::string>();
    const auto tokenizer = test::tokenizer_of(test::tokenizer_json_of(all, item));
    for (const Json& text : all["texts"]) {
      const Ids ids = tokenizer->encode(text.get<std::string>());
      const std::span<const int32_t> prompt = std::span(ids).first(ids.size() / 2);
      const std::string whole = tokenizer->decode(ids), first = tokenizer->decode(prompt);
      TextStream stream(*tokenizer, false);
      const std::string added = stream.add(prompt), settled = stream.settle();
      std::string rest;
      for (const int32_t& id : std::span(ids).subspan(ids.size() / 2))
        rest += stream.add(std::span(&id, 1));
      rest += stream.finish();
      if (!settled.empty()) {
        ++held;
        EXPECT_EQ(added, "") << name;
        EXPECT_EQ(settled, first) << name;
      }
      if (whole.starts_with(first)) {
        EXPECT_EQ(added + settled + rest, whole) << name << ": " << text.dump();
      }
    }
  }
  EXPECT_GT(held, 100u);
}

TEST(TokenizerJson, EveryPartAsTheLibraryHasIt) {
  const Json all = test::read_golden("tokenizer_cases.json");
  ASSERT_GT(all["cases"].size(), 50u);
  for (const Json& item : all["cases"]) {
    const auto name = item["name"].get<std::string>();
    std::unique_ptr<Tokenizer> tokenizer;
    ASSERT_NO_THROW(tokenizer = test::tokenizer_of(test::tokenizer_json_of(all, item))) << name;
    for (size_t i = 0; i < all["texts"].size(); ++i) {
      const auto text = all["texts"][i].get<std::string>();
      const Json& expected = item["results"][i];
      if (expected.is_null()) continue;  // the library gives no answer
      const std::string where = name + ": " + all["texts"][i].dump();
      const Ids ids = tokenizer->encode(text);
      ASSERT_EQ(ids, expected[0].get<Ids>()) << where;
      ASSERT_EQ(tokenizer->encode(text), ids) << "the second time: " << where;
      const Ids special = tokenizer->encode(text, {.add_special_tokens = true});
      ASSERT_EQ(special, expected[1] == 0 ? ids : expected[1].get<Ids>()) << where;
      const std::string whole = expected[2] == 0 ? text : expected[2].get<std::string>();
      ASSERT_EQ(decoded(*tokenizer, ids, false), whole) << where;
      const std::string shown = expected[3] == 0 ? whole : expected[3].get<std::string>();
      ASSERT_EQ(decoded(*tokenizer, special, true), shown) << where;
      ASSERT_EQ(streamed(*tokenizer, special), shown) << where;
    }
  }
}

// Wherever a tokenizer's rule allows a cut, the parts have the tokens of the whole.
TEST(TokenizerJson, CutsLeaveTokensAsTheyAre) {
  const Json all = test::read_golden("tokenizer_cases.json");
  std::string text;
  for (const Json& part : all["texts"]) text += part.get<std::string>() + "a b\tc\n";
  const std::set<std::string> must_cut = {"gpt2",
                                          "smollm",
                                          "qwen",
                                          "llama 3",
                                          "o200k",
                                          "deepseek",
                                          "stories",
                                          "metaspace first False",
                                          "metaspace always True",
                                          "bert",
                                          "levels Whitespace",
                                          "t5",
                                          "normalizer Lowercase",
                                          "normalizer NFC"};
  std::set<std::string> can_cut;
  for (const Json& item : all["cases"]) {
    const auto name = item["name"].get<std::string>();
    const auto tokenizer = test::tokenizer_of(test::tokenizer_json_of(all, item));
    if (tokenizer->cut_rule().never()) continue;
    can_cut.insert(name);
    const Ids whole = tokenizer->encode(text);
    int cuts = 0;
    for (size_t at = tokenizer->cut_rule().next(text, 0); at < text.size();
         at = tokenizer->cut_rule().next(text, at + 1), ++cuts) {
      Ids ids = tokenizer->encode(std::string_view(text).substr(0, at));
      tokenizer->encode(std::string_view(text).substr(at), {.inside = true}, ids);
      ASSERT_EQ(ids, whole) << name << " cut at " << at << " before "
                            << in_quotes(std::string_view(text).substr(at, 20));
    }
    EXPECT_GT(cuts, 5) << name;
  }
  for (const std::string& name : must_cut) EXPECT_TRUE(can_cut.contains(name)) << name;
  EXPECT_FALSE(can_cut.contains("look behind"));
  EXPECT_FALSE(can_cut.contains("no regex"));
  EXPECT_FALSE(can_cut.contains("Contiguous False"));
}

TEST(TokenizerJson, TheRuleOfGpt2IsDerivedFromItsPattern) {
  const Json all = test::read_golden("tokenizer_cases.json");
  ASSERT_EQ(all["cases"][0]["name"], "gpt2");
  EXPECT_EQ(test::tokenizer_of(test::tokenizer_json_of(all, all["cases"][0]))->cut_rule(),
            CutRule::at_words());
}

TEST(TokenizerJson, SavedFoldersAreTheSame) {
  const Json all = test::read_golden("tokenizer_cases.json");
  const TempFolder folder, copy;
  const std::string text = test::tokenizer_json_of(all, all["cases"][6]).dump(1);
  write_file_atomically(folder / "tokenizer.json", text);
  write_file_atomically(folder / "tokenizer_config.json", R"({"eos_token": {"content": "the"}})");
  write_file_atomically(folder / "special_tokens_map.json",
                        R"({"bos_token": "a", "eos_token": "b"})");
  const auto tokenizer = load_tokenizer(folder.path());
  EXPECT_EQ(tokenizer->encode("the"), Ids{tokenizer->end_of_text()});
  EXPECT_EQ(tokenizer->encode("a"), Ids{tokenizer->begin_of_text()});
  tokenizer->save(copy.path());
  EXPECT_EQ(read_file(copy / "tokenizer.json"), text);
  EXPECT_EQ(load_tokenizer(copy.path())->end_of_text(), tokenizer->end_of_text());
  // vocab.json and merges.txt say less.
  write_file_atomically(copy / "vocab.json", "{}");
  write_file_atomically(copy / "merges.txt", "");
  EXPECT_EQ(load_tokenizer(copy.path())->encode(" the cat"), tokenizer->encode(" the cat"));
  write_file_atomically(folder / "tokenizer_config.json", R"({"eos_token": "<absent>"})");
  EXPECT_USER_ERROR(load_tokenizer(folder.path()), "eos_token is the string '<absent>'");
  write_file_atomically(folder / "tokenizer_config.json", R"({"eos_token": 5})");
  EXPECT_USER_ERROR(load_tokenizer(folder.path()),
                    "tokenizer_config.json: eos_token is the number 5");
}

// ---- hashes of many texts

/// `inserted` before the character number `at`.
std::string insert_at(const std::string& text, size_t at, const std::string& inserted) {
  size_t offset = 0;
  for (; at > 0; --at)
    offset +=
        decode_utf8(as_bytes(text.data()) + offset, as_bytes(text.data() + text.size())).bytes;
  return text.substr(0, offset) + inserted + text.substr(offset);
}

size_t characters_of(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

void check_hashes(const Tokenizer& tokenizer, const std::vector<std::string>& texts,
                  const Json& expected, const std::string& what, const std::string& again = "") {
  uint64_t of_texts = kHashStart, of_ids = kHashStart, of_special = kHashStart,
           of_decoded = kHashStart;
  Ids ids, special;
  for (const std::string& text : texts) {
    ids.clear();
    special.clear();
    tokenizer.encode(text, ids);
    tokenizer.encode(text, {.add_special_tokens = true}, special);
    of_texts = hash_text(of_texts, text);
    of_ids = hash_ids(of_ids, ids);
    of_special = hash_ids(of_special, special);
    of_decoded = hash_text(of_decoded, tokenizer.decode(ids));
  }
  const auto hex = [](uint64_t hash) { return fmt::format("{:016x}", hash); };
  ASSERT_EQ(hex(of_texts), expected[0].get<std::string>()) << "other texts in " << what;
  ASSERT_EQ(hex(of_ids), expected[1].get<std::string>()) << "other ids in " << what << again;
  ASSERT_EQ(hex(of_special), expected[2].get<std::string>())
      << "other ids with special tokens in " << what << again;
  ASSERT_EQ(hex(of_decoded), expected[3].get<std::string>())
      << "other decoded text in " << what << again;
}

/// The random text of a number as both sides make it, some with an added token in its middle.
std::string golden_text(uint32_t index, const test::Assigned& assigned,
                        const std::vector<std::string>& added) {
  const std::string text = assigned.replace_others(test::random_text(index));
  if (index % 4 != 3) return text;
  return insert_at(text, index * size_t{7919} % (characters_of(text) + 1),
                   added[index / 4 % added.size()]);
}

std::vector<std::string> golden_block(uint32_t block, const test::Assigned& assigned,
                                      const std::vector<std::string>& added) {
  constexpr uint32_t kBlock = 1000;
  std::vector<std::string> texts;
  for (uint32_t i = block * kBlock; i < (block + 1) * kBlock; ++i)
    texts.push_back(golden_text(i, assigned, added));
  return texts;
}

// Tokenizers that the library trained, with every stage from the normalizer to the decoder.
TEST(TokenizerJson, TrainedByTheLibrary) {
  const Json all = test::read_golden("tokenizer_trained.json");
  const test::Assigned assigned(test::read_golden("tokenizer_folders.json")["assigned"]);
  ASSERT_GE(all["trained"].size(), 3u);
  for (const auto& [name, golden] : all["trained"].items()) {
    const auto tokenizer = test::tokenizer_of(golden["file"]);
    ASSERT_EQ(golden["random"].size(), 20u);
    std::vector<uint32_t> blocks(20);
    std::iota(blocks.begin(), blocks.end(), 0u);
    for (const uint32_t block : test::sampled_if_sanitized(blocks, 4, name)) {
      check_hashes(*tokenizer,
                   golden_block(block, assigned, {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}),
                   golden["random"][block], fmt::format("{}, block {}", name, block));
      if (HasFatalFailure()) return;
    }
  }
}

// ---- published tokenizers

class TokenizerFolder : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string name = GetParam();
    const bool is_data = name == "stories260K";
    const fs::path root =
        is_data ? fs::path(env::get("BRRR_DATA").value_or("")) : test::models_folder();
    const fs::path folder = root / name;
    if (!fs::exists(folder / "tokenizer.json"))
      GTEST_SKIP() << folder << " has no tokenizer.json; $"
                   << (is_data ? "BRRR_DATA" : "BRRR_MODELS") << " names the folder with " << name;
    all_ = test::read_golden("tokenizer_folders.json");
    golden_ = all_["folders"][name];
    const std::string text = read_file(folder / "tokenizer.json");
    if (sha256_hex(text) != golden_["sha256"].get<std::string>())
      GTEST_SKIP() << folder << " holds another version than the goldens were made of";
    const Json file = parse_json(text, "tokenizer.json");
    for (const Json& token : file["added_tokens"])
      added_.push_back(token["content"].get<std::string>());
    tokenizer_ = load_tokenizer(folder);
  }

  void check(const std::vector<std::string>& texts, const Json& expected, const std::string& what) {
    check_hashes(
        *tokenizer_, texts, expected, what,
        fmt::format("; to see its texts and ids: python3 "
                    "tests/golden/make_tokenizer_goldens.py folders DATA MODELS --block {} N",
                    GetParam()));
  }

  Json all_, golden_;
  std::vector<std::string> added_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_P(TokenizerFolder, RandomTexts) {
  const test::Assigned assigned(all_["assigned"]);
  ASSERT_EQ(golden_["random"].size(), 100u);
  for (uint32_t block = 0; block < 100; ++block) {
    check(golden_block(block, assigned, added_), golden_["random"][block],
          fmt::format("block {}", block));
    if (HasFatalFailure()) return;
  }
}

TEST_P(TokenizerFolder, Sentences) {
  const auto data = env::get("BRRR_DATA");
  const fs::path folder = fs::path(data.value_or("")) / "sentences";
  if (!data || !fs::exists(folder)) GTEST_SKIP() << "BRRR_DATA has no sentences/";
  std::vector<std::string> lines;
  for (const char* name : {"editorials", "movies", "products", "tweets"}) {
    const std::string text = read_file(folder / (std::string(name) + ".tsv"));
    for (std::string_view rest = text; !rest.empty();) {
      const size_t end = std::min(rest.find('\n'), rest.size());
      const std::string_view line = rest.substr(0, end);
      if (!line.empty()) lines.emplace_back(line.substr(line.find('\t') + 1));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }
  ASSERT_EQ(lines.size(), all_["sentences"].get<size_t>());
  for (size_t at = 0; at < lines.size(); at += 1000) {
    const auto begin = lines.begin() + static_cast<ptrdiff_t>(at);
    const auto end = lines.begin() + static_cast<ptrdiff_t>(std::min(at + 1000, lines.size()));
    check({begin, end}, golden_["sentences"][at / 1000], fmt::format("sentences {}", at));
    if (HasFatalFailure()) return;
  }
  // All of them as one text, whole and in pieces.
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  const Ids whole = tokenizer_->encode(text);
  ASSERT_FALSE(tokenizer_->cut_rule().never());
  Ids ids;
  for (size_t at = 0, pieces = 0; at < text.size(); ++pieces) {
    const size_t end = tokenizer_->cut_rule().next(text, at + 1 + pieces % 5000);
    tokenizer_->encode(std::string_view(text).substr(at, end - at), {.inside = at > 0}, ids);
    at = end;
  }
  EXPECT_EQ(ids, whole);
}

INSTANTIATE_TEST_SUITE_P(Published, TokenizerFolder,
                         ::testing::Values("stories260K", "tokenizer-deepseek", "minilm"),
                         [](const auto& given) {
                           std::string name = given.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST(TokenizerJson, Stories260KByName) {
  const auto data = env::get("BRRR_DATA");
  if (!data || !fs::exists(fs::path(*data) / "stories260K"))
    GTEST_SKIP() << "BRRR_DATA has no stories260K/";
  const auto tokenizer = load_tokenizer(fs::path(*data) / "stories260K");
  EXPECT_EQ(tokenizer->vocab_size(), 512);
  EXPECT_EQ(tokenizer->begin_of_text(), 1);
  EXPECT_EQ(tokenizer->end_of_text(), 2);
  EXPECT_TRUE(tokenizer->is_special(1) && !tokenizer->is_special(3));
  EXPECT_EQ(tokenizer->encode("", {.add_special_tokens = true}), Ids{1});
  EXPECT_EQ(tokenizer->encode("<s>"), Ids{1});
  const fs::path folder = fs::path(*data) / "stories260K";
  const Json greedy = parse_json(read_file(folder / "greedy-200.json"), "greedy-200.json");
  EXPECT_EQ(decoded(*tokenizer, greedy.get<Ids>(), true), read_file(folder / "greedy-200.txt"));
  TextStream stream(*tokenizer);
  EXPECT_EQ(stream.add(tokenizer->encode("Once upon", {.add_special_tokens = true})), "Once upon");
  EXPECT_EQ(stream.add(tokenizer->encode(" a", {.inside = true})), " a");
  // The bytes of a character come one by one.
  EXPECT_EQ(stream.add(Ids{3 + 0xe2, 3 + 0x82}), "");
  EXPECT_EQ(stream.add(Ids{3 + 0xac}), "€");
  EXPECT_EQ(stream.add(Ids{3 + 0xe2}), "");
  EXPECT_EQ(stream.finish(), "\xe2");
}

}  // namespace
}  // namespace brrr::io
