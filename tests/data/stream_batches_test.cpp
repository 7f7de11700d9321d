// Batches of text that is tokenised on the way: rows are pieces of the whole text's tokens, epochs
// see every token once, a saved position continues exactly, and files that change are noticed.

#include "data/stream_batches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>

#include "data/loader.h"
#include "support/golden_tokenizer.h"
#include "support/temp_folder.h"

namespace brrr::io {
namespace {

using test::TempFolder;

/// Words, numbers, punctuation, blank lines, some of it not ASCII; from the seed alone.
std::string text_of(size_t bytes, uint32_t seed) {
  static const char* const kWords[] = {"the",   "engine", "naïve",   "it's", "42",
                                       "Größe", "loss",   "日本語",  "a",    "step",
                                       "we'll", "...",    "entropy", "x"};
  std::mt19937 random(seed);
  std::string text;
  while (text.size() < bytes) {
    text += kWords[random() % std::size(kWords)];
    const auto separator = random() % 12;
    text += separator == 0 ? "\n\n" : separator == 1 ? ",  " : " ";
  }
  return text;
}

class Streams : public testing::Test {
 protected:
  TextFiles files(const std::vector<std::string>& texts, bool any_bytes = false) {
    std::vector<fs::path> paths;
    for (size_t i = 0; i < texts.size(); ++i) {
      paths.push_back(folder_ / fmt::format("{}.txt", i));
      write_file_atomically(paths.back(), texts[i]);
    }
    return TextFiles(paths, any_bytes);
  }
  static BatchOptions options(Sampling mode, int64_t batch, int64_t context,
                              const Tokenizer& tokenizer) {
    BatchOptions o;
    o.mode = mode;
    o.batch = batch;
    o.context = context;
    o.vocab = tokenizer.vocab_size();
    o.seed = 42;
    return o;
  }
  static bool occurs(std::span<const int32_t> row, const std::vector<int32_t>& whole) {
    return std::search(whole.begin(), whole.end(), row.begin(), row.end()) != whole.end();
  }

  TempFolder folder_;
};

std::vector<std::unique_ptr<Tokenizer>> all_tokenizers(const std::string& text) {
  std::vector<std::unique_ptr<Tokenizer>> list;
  list.push_back(make_byte_tokenizer());
  list.push_back(make_char_tokenizer(text));
  list.push_back(train_bpe(text.substr(0, 20000), 300));
  for (const char* name : {"stories", "deepseek"}) list.push_back(test::golden_tokenizer(name));
  return list;
}

TEST_F(Streams, WindowsArePiecesOfTheTextsTokens) {
  const std::vector<std::string> texts{text_of(30'000, 1), text_of(50, 2), text_of(9'000, 3)};
  const TextFiles text = files(texts);
  for (const auto& tokenizer : all_tokenizers(texts[0] + texts[1] + texts[2])) {
    std::vector<int32_t> circle;  // the files' tokens, and the first ones again
    for (int round = 0; round < 2; ++round)
      for (const std::string& t : texts) tokenizer->encode(t, circle);
    for (const int64_t T : {1, 17, 300}) {
      const StreamBatches batches(text, *tokenizer, options(Sampling::kRandom, 3, T, *tokenizer));
      Batch batch;
      for (int64_t index = 0; index < 20; ++index) {
        batches.fill(index, batch);
        ASSERT_EQ(batch.count, 3 * T);
        for (int64_t b = 0; b < 3; ++b) {
          std::vector<int32_t> row(batch.ids("tokens").begin() + b * T,
                                   batch.ids("tokens").begin() + (b + 1) * T);
          row.push_back(batch.ids("targets")[static_cast<size_t>((b + 1) * T - 1)]);
          ASSERT_TRUE(std::equal(row.begin() + 1, row.end(), batch.ids("targets").begin() + b * T));
          ASSERT_TRUE(occurs(row, circle)) << tokenizer->kind() << " T " << T << " batch " << index;
        }
      }
    }
  }
}

TEST_F(Streams, WindowsComeFromEverywhere) {
  // Words that say where they stand.
  std::string text;
  for (int i = 0; i < 5000; ++i) text += fmt::format("w{:05} ", i);
  const TextFiles stream = files({text});
  const auto tokenizer = make_byte_tokenizer();
  const StreamBatches batches(stream, *tokenizer, options(Sampling::kRandom, 50, 8, *tokenizer));
  std::map<int, int> tenths;
  Batch batch;
  for (int64_t index = 0; index < 40; ++index) {
    batches.fill(index, batch);
    for (size_t b = 0; b < 50; ++b) {
      const std::vector<int32_t> row(batch.ids("tokens").begin() + 8 * static_cast<int64_t>(b),
                                     batch.ids("tokens").begin() + 8 * static_cast<int64_t>(b) + 8);
      const std::string piece = tokenizer->decode(row) + tokenizer->decode(row);
      const size_t at = piece.find('w');
      ++tenths[std::stoi(piece.substr(at + 1, 5)) / 500];
    }
  }
  ASSERT_EQ(tenths.size(), 10u);
  for (const auto& [tenth, count] : tenths) EXPECT_NEAR(count, 200, 70) << tenth;
}

TEST_F(Streams, AnEpochSeesEveryTokenOnce) {
  const std::vector<std::string> texts{text_of(700'000, 4), text_of(3, 5), text_of(40'000, 6),
                                       std::string(100'000, 'y')};  // one word beyond any search
  const TextFiles text = files(texts);
  for (const auto& tokenizer : all_tokenizers(texts[0] + texts[1] + texts[2] + "y")) {
    std::map<int32_t, int64_t> expected, seen;
    int64_t targets = 0;
    for (const std::string& t : texts) {
      const std::vector<int32_t> ids = std::as_const(*tokenizer).encode(t);
      for (size_t i = 1; i < ids.size(); ++i) ++expected[ids[i]];
      targets += static_cast<int64_t>(ids.size()) - 1;
    }
    StreamBatches batches(text, *tokenizer, options(Sampling::kEpoch, 5, 32, *tokenizer));
    EXPECT_LT(std::abs(batches.tokens() - targets), targets / 5);
    Batch batch;
    int64_t total = 0;
    for (int64_t index = 0; batches.epoch_of(index) == 0; ++index) {
      batches.fill(index, batch);
      for (const int32_t target : batch.ids("targets"))
        if (target != kIgnoreId) ++seen[target], ++total;
    }
    // The last batch of the epoch may hold rows of the next one: at most four.
    EXPECT_GE(total, targets);
    EXPECT_LE(total, targets + 4 * 32);
    for (const auto& [id, count] : expected) {
      EXPECT_GE(seen[id], count) << tokenizer->kind() << " id " << id;
      EXPECT_LE(seen[id], count + 4 * 32);
    }
  }
}

TEST_F(Streams, EpochsDifferInOrder) {
  const TextFiles text = files({text_of(600'000, 7)});
  const auto tokenizer = make_byte_tokenizer();
  const StreamBatches batches(text, *tokenizer, options(Sampling::kEpoch, 1, 64, *tokenizer));
  int64_t second = 0;
  while (batches.epoch_of(second) == 0) ++second;
  Batch a, b, c;
  int same = 0, in_order = 0;
  for (int64_t i = 0; i < 200; ++i) {
    batches.fill(i, a);
    batches.fill(second + i, b);
    batches.fill(i + 1, c);
    same += a.ids("tokens") == b.ids("tokens");
    in_order += a.ids("targets").back() == c.ids("tokens").front() &&
                a.ids("targets")[62] == c.ids("tokens")[0];
  }
  EXPECT_LT(same, 5);
  EXPECT_LT(in_order, 60);
}

TEST_F(Streams, ManyWorkersMakeTheSameBatches) {
  const std::string content = text_of(900'000, 8);
  const TextFiles text = files({content, text_of(5000, 88)});
  const auto tokenizer = train_bpe(content.substr(0, 20000), 300);
  for (const Sampling mode : {Sampling::kRandom, Sampling::kEpoch}) {
    LoaderOptions o;
    static_cast<BatchOptions&>(o) = options(mode, 4, 32, *tokenizer);
    const auto loader = [&](int64_t workers) {
      o.workers = workers;
      return std::make_unique<Loader>(std::make_unique<StreamBatches>(text, *tokenizer, o), o);
    };
    const auto direct = loader(0), many = loader(4);
    for (int i = 0; i < 3000; ++i) {
      const Batch &a = direct->next(), &b = many->next();
      ASSERT_EQ(a.ids("tokens"), b.ids("tokens")) << i;
      ASSERT_EQ(a.ids("targets"), b.ids("targets")) << i;
      ASSERT_EQ(a.count, b.count) << i;
    }
  }
}

TEST_F(Streams, RestoreContinuesExactlyWithoutReadingWhatWas) {
  const std::string content = text_of(900'000, 9);
  const TextFiles text = files({content});
  const auto tokenizer = make_byte_tokenizer();
  for (const Sampling mode : {Sampling::kRandom, Sampling::kEpoch}) {
    LoaderOptions o;
    static_cast<BatchOptions&>(o) = options(mode, 4, 64, *tokenizer);
    for (const int at : {0, 1, 1500, 3000, 3600}) {  // 3520 batches are an epoch
      Loader first(std::make_unique<StreamBatches>(text, *tokenizer, o), o);
      for (int i = 0; i < at; ++i) first.next();
      const std::string saved = first.state().to_json();
      Loader second(std::make_unique<StreamBatches>(text, *tokenizer, o), o);
      second.restore(LoaderState::from_json(saved));
      EXPECT_EQ(second.state().to_json(), saved);
      for (int i = 0; i < 100; ++i) {
        const Batch &a = first.next(), &b = second.next();
        ASSERT_EQ(a.ids("tokens"), b.ids("tokens")) << at << " + " << i;
        ASSERT_EQ(a.ids("targets"), b.ids("targets"));
      }
      first.restore(LoaderState::from_json(saved));  // back in time
      EXPECT_EQ(first.state().to_json(), saved);
      first.next();
    }
  }
}

TEST_F(Streams, DamagedAndForeignStatesAreRefused) {
  const TextFiles text = files({text_of(900'000, 10)});
  const auto tokenizer = make_byte_tokenizer();
  LoaderOptions o;
  static_cast<BatchOptions&>(o) = options(Sampling::kEpoch, 4, 64, *tokenizer);
  Loader loader(std::make_unique<StreamBatches>(text, *tokenizer, o), o);
  for (int i = 0; i < 1500; ++i) loader.next();
  const LoaderState good = loader.state();
  ASSERT_GT(good.anchor.group, 0);
  LoaderState bad = good;
  bad.anchor.row += 100'000;
  EXPECT_USER_ERROR(loader.restore(bad), "damaged");
  bad = good;
  bad.anchor = {};
  EXPECT_USER_ERROR(loader.restore(bad), "damaged");
  bad = good;
  bad.epoch = 3;
  EXPECT_USER_ERROR(loader.restore(bad), "damaged");
  EXPECT_EQ(loader.state(), good);
  write_file_atomically(folder_ / "other.txt", text_of(900'000, 11));
  const TextFiles other({folder_ / "other.txt"}, false);
  Loader elsewhere(std::make_unique<StreamBatches>(other, *tokenizer, o), o);
  EXPECT_USER_ERROR(elsewhere.restore(good), "cannot resume reading");
}

TEST_F(Streams, FilesThatChangeAreNoticed) {
  const auto tokenizer = make_byte_tokenizer();
  const std::string content = text_of(100'000, 12);
  for (const Sampling mode : {Sampling::kRandom, Sampling::kEpoch}) {
    for (const std::string& now : {content + " more", content.substr(0, 50), std::string()}) {
      const TextFiles text = files({content});
      const StreamBatches batches(text, *tokenizer, options(mode, 2, 16, *tokenizer));
      write_file_atomically(folder_ / "0.txt", now);
      Batch batch;
      EXPECT_USER_ERROR(batches.fill(0, batch), "0.txt changed while it was read");
    }
    const TextFiles text = files({content});
    const StreamBatches batches(text, *tokenizer, options(mode, 2, 16, *tokenizer));
    fs::remove(folder_ / "0.txt");
    Batch batch;
    EXPECT_USER_ERROR(batches.fill(0, batch), "0.txt: No such file");
  }
}

TEST_F(Streams, WhatIsNoTextComesWithItsPlace) {
  EXPECT_USER_ERROR(files({std::string("\xff\xfe") + "a\0b"}), "UTF-16");
  EXPECT_USER_ERROR(files({std::string("abc\0def", 7)}), "NUL at byte 3");
  std::string content = text_of(200'000, 13);
  const size_t at = content.find(' ', 150'000);  // behind what is looked at first
  content[at] = '\xff';
  const TextFiles text = files({content});
  const auto tokenizer = make_byte_tokenizer();
  LoaderOptions o;
  static_cast<BatchOptions&>(o) = options(Sampling::kEpoch, 8, 64, *tokenizer);
  const auto read_all = [&] {
    Loader loader(std::make_unique<StreamBatches>(text, *tokenizer, o), o);
    for (int i = 0; i < 1000; ++i) loader.next();
  };
  EXPECT_USER_ERROR(read_all(), fmt::format("0.txt is not UTF-8 (byte 0xff at offset {})", at));
  // As bytes it is what it is.
  const TextFiles bytes({folder_ / "0.txt"}, true);
  Loader loader(std::make_unique<StreamBatches>(bytes, *tokenizer, o), o);
  for (int i = 0; i < 1000; ++i) loader.next();
}

TEST_F(Streams, ATokenizerForWhichNoCutIsKnown) {
  const auto tokenizer = test::golden_tokenizer("no regex");
  EXPECT_USER_ERROR(StreamBatches(files({text_of(9'000, 3)}), *tokenizer,
                                  options(Sampling::kRandom, 4, 32, *tokenizer)),
                    "cannot tokenise a text in pieces");
}

TEST_F(Streams, CharactersThatTheTokenizerLacks) {
  const TextFiles text = files({text_of(100'000, 14) + "Ω the end"});
  const auto tokenizer = make_char_tokenizer(text_of(100'000, 14));
  const BatchOptions o = options(Sampling::kEpoch, 8, 64, *tokenizer);
  const auto read_all = [&] {
    const StreamBatches batches(text, *tokenizer, o);
    Batch batch;
    for (int64_t i = 0; i < 500; ++i) batches.fill(i, batch);
  };
  EXPECT_USER_ERROR(read_all(), "0.txt");
}

TEST_F(Streams, TooLittleText) {
  const auto tokenizer = make_byte_tokenizer();
  for (const Sampling mode : {Sampling::kRandom, Sampling::kEpoch}) {
    const TextFiles text = files({"some words", " here"});
    EXPECT_NO_THROW(StreamBatches(text, *tokenizer, options(mode, 2, 14, *tokenizer)));
    EXPECT_USER_ERROR(StreamBatches(text, *tokenizer, options(mode, 2, 15, *tokenizer)),
                      "longer than the text, which has 15");
  }
  const TextFiles none({}, false);
  EXPECT_USER_ERROR(StreamBatches(none, *tokenizer, options(Sampling::kRandom, 1, 1, *tokenizer)),
                    "which has 0");
  const TextFiles letters = files({"a", "b", "c", "d"});
  const StreamBatches batches(letters, *tokenizer, options(Sampling::kEpoch, 1, 2, *tokenizer));
  Batch batch;
  EXPECT_USER_ERROR(batches.fill(0, batch), "no file of the text has two tokens");
}

TEST_F(Streams, FilesSplitAtACut) {
  const std::vector<std::string> texts{text_of(5000, 15), text_of(4000, 16)};
  const TextFiles text = files(texts);
  const std::string whole = texts[0] + texts[1];
  for (const uint64_t at :
       {uint64_t{0}, uint64_t{3}, uint64_t{4999}, uint64_t{7000}, text.bytes() - 1, text.bytes()}) {
    const auto [before, behind] = text.split(at);
    std::string joined;
    for (const TextFiles* part : {&before, &behind})
      for (size_t file = 0; file < part->count(); ++file)
        joined += part->read(file, 0, part->bytes(file));
    EXPECT_EQ(joined, whole);
    EXPECT_GE(before.bytes(), at);
    EXPECT_LT(before.bytes(), at + 30);
  }
}

}  // namespace
}  // namespace brrr::io
