// Byte, character and BPE tokenizers: round trips, long words, caches.

#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "base/rng.h"
#include "formats/json_file.h"
#include "support/bpe_model.h"
#include "support/temp_folder.h"
#include "text/bpe/byte_letters.h"
#include "text/bpe/tokenizer_bpe.h"
#include "text/tokenizer_char.h"
#include "text/tokenizer_json.h"
#include "text/tokenizer_split.h"

namespace brrr::io {
namespace {

using test::bpe_model;
using test::TempFolder;
using Ids = std::vector<int32_t>;

std::string random_bytes(uint32_t stream, size_t longest) {
  RngStream rng({.seed = 11, .step = 0}, stream);
  std::string out(rng.next_below(longest + 1), '\0');
  const bool textual = stream % 2 == 0;
  for (char& c : out)
    c = static_cast<char>(textual ? "etaoin 'shrdl\n.1\xc3\xa9"[rng.next_below(18)]
                                  : rng.next_u32());
  return out;
}

/// A vocabulary with merges of every kind: `pairs` are merged in order.
BpeModel model_of_merges(const std::vector<std::pair<std::string, std::string>>& pairs) {
  BpeModel model;
  std::vector<std::string> tokens;
  const auto id = [&](const std::string& token) -> uint32_t {
    for (size_t i = 0; i < tokens.size(); ++i)
      if (tokens[i] == token) return static_cast<uint32_t>(i);
    tokens.push_back(token);
    model.bytes += token;
    model.offsets.push_back(static_cast<uint32_t>(model.bytes.size()));
    return static_cast<uint32_t>(tokens.size() - 1);
  };
  for (const uint8_t b : bytes_by_letter())
    model.byte_ids[b] = id(std::string(1, static_cast<char>(b)));
  for (const auto& [left, right] : pairs)
    model.merges.push_back({id(left), id(right), id(left + right)});
  return model;
}

/// The definition, word by word: merge the adjacent pair of lowest rank, leftmost first, until none
/// is left.
Ids encode_naively(const BpeModel& model, std::string_view text) {
  Ids out;
  for (const uint8_t *p = as_bytes(text.data()), *end = p + text.size(); p < end;) {
    const uint8_t* const q = next_piece(CharTable::get(), p, end);
    std::vector<uint32_t> ids;
    for (; p < q; ++p) ids.push_back(model.byte_ids[*p]);
    for (;;) {
      size_t at = 0, rank = model.merges.size();
      for (size_t i = 0; i + 1 < ids.size(); ++i)
        for (size_t r = 0; r < rank; ++r)
          if (model.merges[r].left == ids[i] && model.merges[r].right == ids[i + 1])
            rank = r, at = i;
      if (rank == model.merges.size()) break;
      ids[at] = model.merges[rank].result;
      ids.erase(ids.begin() + static_cast<ptrdiff_t>(at) + 1);
    }
    out.insert(out.end(), ids.begin(), ids.end());
  }
  return out;
}

TEST(BpeEncode, EqualsTheDefinition) {
  for (uint32_t stream = 0; stream < 60; ++stream) {
    RngStream rng({.seed = 12, .step = 0}, stream);
    std::vector<std::string> parts = {"a", "b", "c", " "};
    std::vector<std::pair<std::string, std::string>> pairs;
    // Merges in an order that training would never give: results before their parts, several ways
    // to one token.
    for (int i = 0; i < 30; ++i) {
      const std::string left = parts[rng.next_below(parts.size())],
                        right = parts[rng.next_below(parts.size())];
      const std::pair<std::string, std::string> pair{left, right};
      if (left.size() + right.size() > 12 ||
          std::find(pairs.begin(), pairs.end(), pair) != pairs.end())
        continue;
      pairs.push_back(pair);
      parts.push_back(left + right);
    }
    for (size_t i = pairs.size(); i > 1; --i) std::swap(pairs[i - 1], pairs[rng.next_below(i)]);
    const BpeModel model = model_of_merges(pairs);
    const auto tokenizer = make_gpt2_tokenizer(model);
    for (int repeat = 0; repeat < 20; ++repeat) {
      std::string text;
      const size_t length =
          repeat < 15 ? rng.next_below(60) : 150 + rng.next_below(400);  // both algorithms
      while (text.size() < length) text += "aaabbc "[rng.next_below(repeat % 2 == 0 ? 6 : 7)];
      const Ids expected = encode_naively(model, text);
      ASSERT_EQ(tokenizer->encode(text), expected) << "stream " << stream << ": " << text;
      ASSERT_EQ(tokenizer->encode(text), expected) << "from the cache: " << text;
    }
  }
}

TEST(BpeEncode, RandomBytesRoundTrip) {
  const auto tokenizer =
      train_bpe("the rain in Spain stays mainly on the plain, the rain in Spain", 268);
  for (uint32_t stream = 0; stream < 4000; ++stream) {
    const std::string text = random_bytes(stream, stream % 50 == 0 ? 5000 : 80);
    ASSERT_EQ(tokenizer->decode(tokenizer->encode(text)), text) << "stream " << stream;
  }
}

TEST(BpeEncode, AppendsAndAgreesAtEveryEnd) {
  // The last words of a text are read differently (no 16 bytes ahead): cut everywhere.
  const auto tokenizer =
      train_bpe("some words some more words and some more, don't they? some words", 269);
  const std::string text = "don't some more internationalisations words  and,  they?";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    const std::string exact(text.data(), cut);
    Ids ids = {-7};
    tokenizer->encode(std::string_view(text).substr(0, cut), ids);
    ASSERT_EQ(ids.front(), -7);
    ids.erase(ids.begin());
    ASSERT_EQ(ids, tokenizer->encode(exact));
    ASSERT_EQ(tokenizer->decode(ids), exact);
  }
}

TEST(BpeEncode, CachesStayRightWhenOverfilled) {
  const std::string sample =
      "aa ab ba bb aab abb bba baa aabb abab baba aa ab ba bb aab abb bba baa aabb abab baba";
  const BpeModel model = train_bpe_model(sample, 270);
  const auto tokenizer = make_gpt2_tokenizer(model);
  // 300,000 distinct words, short and long: many times what the caches hold. Twice, for hits and
  // refills.
  for (int pass = 0; pass < 2; ++pass)
    for (uint32_t block = 0; block < 300; ++block) {
      RngStream rng({.seed = 13, .step = 0}, block);
      std::string text;
      for (int word = 0; word < 1000; ++word) {
        text += ' ';
        for (uint64_t n = 3 + rng.next_below(word % 4 == 0 ? 40 : 14); n > 0; --n)
          text += "abAB"[rng.next_below(4)];
      }
      const Ids ids = tokenizer->encode(text);
      ASSERT_EQ(tokenizer->decode(ids), text);
      if (block % 60 == 0) {
        ASSERT_EQ(ids, encode_naively(model, text));
      }
    }
}

TEST(BpeEncode, MegabyteWordsAreNotQuadratic) {
  // A quadratic merge would need about 10^12 steps for each of these.
  const auto tokenizer = train_bpe("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa abababababababababab", 264);
  std::string mixed;
  RngStream rng({.seed = 14, .step = 0}, 0);
  while (mixed.size() < 1'000'000) mixed += "ab"[rng.next_below(2)];
  for (const std::string& word : {std::string(1'000'000, 'a'), mixed, std::string(1'000'000, ' '),
                                  std::string(1'000'000, '\''), std::string(1'000'000, '\xff')}) {
    const Ids ids = tokenizer->encode(word);
    EXPECT_EQ(tokenizer->decode(ids), word);
  }
}

TEST(BpeEncode, ThreadsAgree) {
  const auto tokenizer = train_bpe("one two three four five six one two three four five six", 276);
  std::string text;
  for (uint32_t i = 0; i < 2000; ++i) text += random_bytes(2 * i, 12);
  const Ids expected = tokenizer->encode(text);
  std::vector<Ids> results(4);
  std::vector<std::thread> threads;
  for (Ids& result : results)
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) result = tokenizer->encode(text);
    });
  for (std::thread& thread : threads) thread.join();
  for (const Ids& result : results) EXPECT_EQ(result, expected);
}

TEST(ByteTokenizer, EveryByteIsItself) {
  const TempFolder folder;
  make_byte_tokenizer()->save(folder.path());
  const auto tokenizer = load_tokenizer(folder.path());
  EXPECT_EQ(tokenizer->kind(), "byte");
  EXPECT_EQ(tokenizer->vocab_size(), 256);
  EXPECT_EQ(tokenizer->end_of_text(), -1);
  EXPECT_EQ(tokenizer->encode(std::string_view("a\0\xff", 3)), (Ids{97, 0, 255}));
  EXPECT_EQ(tokenizer->decode(Ids{97, 0, 255}), std::string("a\0\xff", 3));
  EXPECT_USER_ERROR(tokenizer->decode(Ids{1, 256}), "token 256 (at position 1)");
  EXPECT_USER_ERROR(tokenizer->decode(Ids{-1}), "token -1");
}

TEST(ByteTokenizer, OldFolders) {
  const TempFolder folder;
  write_file_atomically(folder / "byte.json", "{\"type\": \"byte\"}\n");
  EXPECT_EQ(load_tokenizer(folder.path())->kind(), "byte");
  write_file_atomically(folder / "char.json", R"({"type": "char", "characters": ["a", "b"]})");
  EXPECT_EQ(load_tokenizer(folder.path())->encode("ba"), (Ids{1, 0}));
}

/// Files that other programs read, too: as a tokenizer.json of no particular kind they give the
/// same ids and the same text.
TEST(WrittenTokenizers, AreOrdinaryTokenizerJson) {
  const std::string text = "the cat \n and the h\u00e9\u65e5, the  cat's \r\n hat";
  std::vector<std::unique_ptr<Tokenizer>> made;
  made.push_back(make_byte_tokenizer());
  made.push_back(make_char_tokenizer(text));
  made.push_back(train_bpe(text + text, 262));
  for (const auto& tokenizer : made) {
    const TempFolder folder;
    tokenizer->save(folder.path());
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder.path()))
      names.insert(entry.path().filename().string());
    EXPECT_EQ(names, (std::set<std::string>{"tokenizer.json", "tokenizer_config.json"}));
    const auto again = load_tokenizer(folder.path());
    EXPECT_EQ(again->kind(), tokenizer->kind());
    EXPECT_EQ(again->end_of_text(), tokenizer->end_of_text());
    const auto other =
        read_tokenizer_json({{"tokenizer.json", read_file(folder / "tokenizer.json")}}, "");
    const Ids ids = tokenizer->encode(text);
    for (const Tokenizer* t : {again.get(), other.get()}) {
      EXPECT_EQ(t->vocab_size(), tokenizer->vocab_size());
      EXPECT_EQ(t->encode(text), ids);
      EXPECT_EQ(t->decode(ids), text);
    }
    // Written anew as `transformers` does it.
    Json root = parse_json(read_file(folder / "tokenizer.json"), "tokenizer.json");
    root["post_processor"] = {{"type", "TemplateProcessing"},
                              {"single", {{{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
                              {"pair",
                               {{{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
                                {{"Sequence", {{"id", "B"}, {"type_id", 1}}}}}},
                              {"special_tokens", Json::object()}};
    write_file_atomically(folder / "tokenizer.json", root.dump(2));
    EXPECT_EQ(load_tokenizer(folder.path())->kind(), tokenizer->kind());
  }
  EXPECT_EQ(made[2]->encode("<|endoftext|>"), Ids{261});
}

TEST(WrittenTokenizers, OthersAreReadAsWhatTheyAre) {
  const TempFolder folder;
  make_char_tokenizer("abc")->save(folder.path());
  Json root = parse_json(read_file(folder / "tokenizer.json"), "tokenizer.json");
  const auto kind_with = [&](const char* at, const Json& value) {
    Json changed = root;
    changed[Json::json_pointer(at)] = value;
    write_file_atomically(folder / "tokenizer.json", changed.dump());
    return load_tokenizer(folder.path())->kind();
  };
  EXPECT_EQ(kind_with("/version", "1.0"), "char");
  EXPECT_EQ(kind_with("/model/vocab", {{"b", 0}, {"a", 1}}), "wordlevel") << "not in their order";
  EXPECT_EQ(kind_with("/model/vocab", {{"a", 0}, {"bc", 1}}), "wordlevel");
  EXPECT_EQ(kind_with("/pre_tokenizer/behavior", "Removed"), "wordlevel");
}

TEST(CharTokenizer, SortedCodePoints) {
  const TempFolder folder;
  make_char_tokenizer("hello\n world é日😀é\"\\\u0001")->save(folder.path());
  const auto tokenizer = load_tokenizer(folder.path());
  EXPECT_EQ(tokenizer->kind(), "char");
  EXPECT_EQ(tokenizer->vocab_size(), 15);
  EXPECT_EQ(tokenizer->end_of_text(), -1);
  EXPECT_EQ(tokenizer->encode("\u0001\n \"\\dehlorwé日😀"),
            (Ids{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}));
  EXPECT_EQ(tokenizer->decode(Ids{14, 12, 5}), "😀éd");
  EXPECT_EQ(tokenizer->encode(""), Ids{});
}

TEST(CharTokenizer, Errors) {
  const auto tokenizer = make_char_tokenizer("abc");
  EXPECT_USER_ERROR(tokenizer->encode("abé"), "'é' (U+00E9, at byte 2)");
  EXPECT_USER_ERROR(tokenizer->encode("ab\xff"), "not UTF-8 at byte 2 (0xff)");
  EXPECT_USER_ERROR(tokenizer->decode(Ids{0, 3}), "token 3 (at position 1)");
  EXPECT_USER_ERROR(make_char_tokenizer("ab\xc3"), "not UTF-8 at byte 2");
  EXPECT_USER_ERROR(make_char_tokenizer(""), "empty");
  Ids ids = {5};
  EXPECT_USER_ERROR(tokenizer->encode("abx", ids), "U+0078");
  EXPECT_EQ(ids, Ids{5});
  EXPECT_USER_ERROR(parse_char_json("", "char.json"), "the file is empty");
  EXPECT_USER_ERROR(parse_char_json("[]", "char.json"), "expected {\"type\": \"char\"");
  EXPECT_USER_ERROR(parse_char_json(R"({"type":"char","characters":[]})", "char.json"),
                    "char.json: expected");
  EXPECT_USER_ERROR(parse_char_json(R"({"type":"char","characters":["a",7]})", "char.json"),
                    "character 1 is the number 7");
  EXPECT_USER_ERROR(parse_char_json(R"({"type":"char","characters":["ab"]})", "char.json"),
                    "a string of one character");
  EXPECT_USER_ERROR(parse_char_json(R"({"type":"char","characters":["b","a"]})", "char.json"),
                    "code-point order");
  EXPECT_USER_ERROR(parse_char_json(R"({"type":"char","characters":["a","a"]})", "char.json"),
                    "distinct");
}

}  // namespace
}  // namespace brrr::io
