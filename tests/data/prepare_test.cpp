#include "data/prepare.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <map>

#include "base/env.h"
#include "base/rng.h"
#include "base/threads/thread_team.h"
#include "data/prepare/prepare_plan.h"
#include "data/text_samples.h"
#include "data/token_source.h"
#include "support/golden_tokenizer.h"
#include "support/temp_folder.h"

namespace brrr::io {
namespace {

using test::TempFolder;

/// Every byte is a token; id 256 ends a document. A vocabulary of any size, to choose the id width.
class FakeTokenizer : public Tokenizer {
 public:
  explicit FakeTokenizer(int32_t vocab = 257, std::string kind = "byte")
      : vocab_(vocab), kind_(std::move(kind)) {}
  std::string kind() const override { return kind_; }
  int32_t vocab_size() const override { return vocab_; }
  int32_t end_of_text() const override { return 256; }
  const CutRule& cut_rule() const override { return CutRule::at_words(); }
  using Tokenizer::encode;
  void encode(std::string_view text, const EncodeOptions&,
              std::vector<int32_t>& ids) const override {
    if (text.find('~') != std::string_view::npos) user_error("the character '~' is unknown");
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  }
  void decode(std::span<const int32_t>, DecodeState&, std::string&) const override {}
  void save(const fs::path& folder) const override {
    write_file_atomically(folder / "fake.json", std::to_string(vocab_));
  }

 private:
  int32_t vocab_;
  std::string kind_;
};

fs::path put(const fs::path& path, std::string_view content) {
  write_file_atomically(path, content);
  return path;
}

std::string words(size_t bytes, uint32_t seed) {
  static const char* kWords[] = {"the", " of", "\n",   " ",  "\n\n",   "don't", " 1984", "été",
                                 ", ",  "  ",  "日本", "\t", "\u3000", "\r\n",  "x"};
  RngStream rng({seed, 0}, 0);
  std::string out;
  while (out.size() < bytes) out += kWords[rng.next_below(std::size(kWords))];
  return out;
}

std::vector<int32_t> all_ids(const fs::path& folder, const std::string& split) {
  const TokenSource source = TokenSource::open_split(folder, split);
  std::vector<int32_t> ids(static_cast<size_t>(source.tokens()));
  source.read(0, ids);
  return ids;
}

/// Name -> content of the shards.
std::map<std::string, std::string> shards_of(const fs::path& folder) {
  std::map<std::string, std::string> out;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name != "prepare.json") out[name] = read_file(entry.path());
  }
  return out;
}

std::vector<int32_t> ids_of(std::string_view text, bool end = false) {
  std::vector<int32_t> ids = FakeTokenizer().encode(text);
  if (end) ids.push_back(256);
  return ids;
}

PrepareOptions small(const fs::path& output, std::vector<fs::path> inputs) {
  PrepareOptions options;
  options.inputs = std::move(inputs);
  options.output = output;
  options.piece_bytes = 50;
  options.checkpoint_bytes = 300;
  return options;
}

TEST(SafeCut, LiesBetweenNonSpaceAndAsciiSpace) {
  EXPECT_EQ(CutRule::at_words().next("ab cd", 0), 2u);
  EXPECT_EQ(CutRule::at_words().next("ab cd", 2), 2u);
  EXPECT_EQ(CutRule::at_words().next("ab cd", 3), 5u);
  EXPECT_EQ(CutRule::at_words().next("ab\n\n  cd\r\nx", 3), 8u);
  EXPECT_EQ(CutRule::at_words().next(" \n ", 0), 3u);
  EXPECT_EQ(CutRule::at_words().next("", 0), 0u);
  EXPECT_EQ(CutRule::at_words().next("\xc3\xa9 a", 0), 2u);  // a letter beyond ASCII
  EXPECT_EQ(CutRule::at_words().next("\xc2\xa0 a", 0), 4u);  // a no-break space is white space
  EXPECT_EQ(CutRule::at_words().next("\xe3\x80\x80\n\xf0\x9f\x98\x80\n", 0), 8u);
  EXPECT_EQ(CutRule::at_words().next("\xa9 a", 0), 3u);        // invalid UTF-8: not sure
  EXPECT_EQ(CutRule::at_words().next("\x1f a\x7f b", 0), 6u);  // control characters: not sure
}

TEST(SafeCut, RealBpeTokensDoNotChange) {
  const auto data = env::get("BRRR_DATA");
  if (!data || !fs::exists(fs::path(*data) / "gpt2")) GTEST_SKIP() << "BRRR_DATA has no gpt2/";
  const auto bpe = load_tokenizer(fs::path(*data) / "gpt2");
  static const char* kParts[] = {" ",
                                 "  ",
                                 "\n",
                                 "\r\n",
                                 "\t",
                                 "\n\n\n",
                                 "'",
                                 "'s",
                                 "'ll",
                                 "'re",
                                 "can't",
                                 "a",
                                 "word",
                                 " word",
                                 "42",
                                 " 7",
                                 "!?",
                                 " ...",
                                 "\xc2\xa0",
                                 "\xe3\x80\x80",
                                 "\xe2\x80\x83",
                                 "\xc3\xa9",
                                 "\xe6\x97\xa5\xe6\x9c\xac",
                                 "\xf0\x9f\x98\x80",
                                 "\xcc\x81",
                                 "\xe0\xa4\xa8",
                                 "\x1c",
                                 "\x0b",
                                 "\x0c",
                                 "\x7f",
                                 "\xff",
                                 "\xc3"};
  RngStream rng({11, 0}, 0);
  int cuts = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string text;
    for (uint64_t n = 2 + rng.next_below(12); n > 0; --n)
      text += kParts[rng.next_below(std::size(kParts))];
    const auto whole = bpe->encode(text);
    for (size_t at = bpe->cut_rule().next(text, 1); at < text.size();
         at = bpe->cut_rule().next(text, at + 1), ++cuts) {
      auto halves = bpe->encode(std::string_view(text).substr(0, at));
      const auto rest = bpe->encode(std::string_view(text).substr(at));
      halves.insert(halves.end(), rest.begin(), rest.end());
      ASSERT_EQ(halves, whole) << testing::PrintToString(text) << " cut at " << at;
    }
  }
  EXPECT_GT(cuts, 10'000);
}

// A tokenizer that begins a text with a mark, one whose pattern allows cuts, and one for which no
// cut is known, whose documents stay whole.
TEST(Prepare, TokenizerJsonInPieces) {
  const TempFolder folder;
  const std::string text = words(20'000, 3);
  const fs::path input = put(folder / "input.txt", text);
  for (const char* name : {"stories", "deepseek", "look behind"}) {
    const auto tokenizer = test::golden_tokenizer(name);
    PrepareOptions options = small(folder / name, {input});
    options.val_fraction = 0.25;
    options.end_of_text = false;
    prepare_shards(*tokenizer, options);
    EXPECT_EQ(all_ids(options.output, "train"), tokenizer->encode(text.substr(0, 15'000))) << name;
    EXPECT_EQ(all_ids(options.output, "val"), tokenizer->encode(text.substr(15'000))) << name;
    EXPECT_EQ(load_tokenizer(options.output)->encode("the cat"), tokenizer->encode("the cat"));
    const TextFiles files({input}, false);
    EXPECT_EQ(encode_all(files, *tokenizer), tokenizer->encode(text)) << name;
  }
}

// The figures that nanoGPT's data folders publish for tiny Shakespeare.
TEST(Prepare, TinyShakespeareAsNanoGptCountsIt) {
  const auto data = env::get("BRRR_DATA");
  if (!data || !fs::exists(fs::path(*data) / "shakespeare") ||
      !fs::exists(fs::path(*data) / "gpt2"))
    GTEST_SKIP() << "BRRR_DATA has no shakespeare/ and gpt2/";
  TempFolder folder;
  PrepareOptions options;
  options.inputs = {fs::path(*data) / "shakespeare" / "input.txt"};
  options.output = folder / "bpe";
  options.format = ShardFormat::kNanogpt;
  options.end_of_text = false;
  const auto bpe = load_tokenizer(fs::path(*data) / "gpt2");
  PrepareSummary summary = prepare_shards(*bpe, options);
  EXPECT_EQ(summary.train_tokens, 301'966);
  EXPECT_EQ(summary.val_tokens, 36'059);
  EXPECT_EQ(summary.bytes, 1'115'394u);
  const std::string text = read_file(options.inputs[0]);
  EXPECT_EQ(all_ids(options.output, "train"), bpe->encode(text.substr(0, 1'003'854)));
  EXPECT_EQ(all_ids(options.output, "val"), bpe->encode(text.substr(1'003'854)));
  EXPECT_NO_THROW(load_tokenizer(options.output));  // the folder is complete in itself

  options.output = folder / "char";
  summary = prepare_shards(*make_char_tokenizer(text), options);
  EXPECT_EQ(summary.train_tokens, 1'003'854);
  EXPECT_EQ(summary.val_tokens, 111'540);
}

TEST(Prepare, SplitsByTheLastPartAndEndsDocuments) {
  TempFolder folder;
  const auto a = put(folder / "a", "first document"), b = put(folder / "b", "second one");
  PrepareOptions options = small(folder / "out", {a, b});
  options.val_fraction = 0.25;  // of 24 bytes: the last 6
  const PrepareSummary summary = prepare_shards(FakeTokenizer(), options);
  auto train = ids_of("first document", true);
  for (const int32_t id : ids_of("seco")) train.push_back(id);
  EXPECT_EQ(all_ids(options.output, "train"), train);
  EXPECT_EQ(all_ids(options.output, "val"), ids_of("nd one", true));
  EXPECT_EQ(summary.documents, 2);
  EXPECT_EQ(summary.train_tokens, 19);
  EXPECT_EQ(summary.val_tokens, 7);
  EXPECT_FALSE(summary.resumed);
  EXPECT_DOUBLE_EQ(summary.bytes_per_token, 24.0 / 26);
  EXPECT_EQ(read_file(folder / "out/fake.json"), "257");
}

TEST(Prepare, ACharacterIsNotCutBySplitting) {
  TempFolder folder;
  PrepareOptions options = small(folder / "out", {put(folder / "a",
                                                      "abc\xf0\x9f\x98\x80"
                                                      "d")});
  options.val_fraction = 0.5;  // byte 4 is inside the emoji
  options.end_of_text = false;
  prepare_shards(FakeTokenizer(), options);
  EXPECT_EQ(all_ids(options.output, "train"), ids_of("abc\xf0\x9f\x98\x80"));
  EXPECT_EQ(all_ids(options.output, "val"), ids_of("d"));
}

TEST(Prepare, SeparatorsAndEveryNthDocument) {
  TempFolder folder;
  const auto a =
      put(folder / "a", "one<|>two<|><|>three<|>");  // the empty document counts for nothing
  const auto b = put(folder / "b", "four<|>five");
  PrepareOptions options = small(folder / "out", {a, b});
  options.separator = "<|>";
  options.val_every = 2;
  const PrepareSummary summary = prepare_shards(FakeTokenizer(), options);
  const auto join = [](std::vector<std::string> documents) {
    std::vector<int32_t> ids;
    for (const std::string& d : documents)
      for (const int32_t id : ids_of(d, true)) ids.push_back(id);
    return ids;
  };
  EXPECT_EQ(all_ids(options.output, "train"), join({"one", "three", "five"}));
  EXPECT_EQ(all_ids(options.output, "val"), join({"two", "four"}));
  EXPECT_EQ(summary.documents, 5);
}

// Pieces, threads, waves: nothing of that shows in the shards.
TEST(Prepare, TheResultDependsOnTheTextAlone) {
  TempFolder folder;
  std::vector<fs::path> inputs;
  for (uint32_t i = 0; i < 3; ++i)
    inputs.push_back(put(folder / std::to_string(i), words(2500 + 500 * i, i)));
  int run = 0;
  for (const char* separator : {"", "x"}) {
    std::map<std::string, std::string> expected;
    for (const uint64_t piece : {uint64_t{1}, uint64_t{17}, uint64_t{1000}, uint64_t{1} << 20}) {
      PrepareOptions options = small(folder / ("out" + std::to_string(run++)), inputs);
      options.piece_bytes = piece;
      options.checkpoint_bytes = piece == 17 ? 3000 : 1 << 20;
      options.shard_tokens = 2777;
      options.separator = separator;
      const PrepareSummary summary = prepare_shards(FakeTokenizer(), options);
      EXPECT_GE(summary.train_shards.size(), 3u);
      if (*separator == '\0') {
        EXPECT_EQ(summary.train_tokens + summary.val_tokens,
                  static_cast<int64_t>(summary.bytes) + 3);
      }
      if (expected.empty()) expected = shards_of(options.output);
      EXPECT_EQ(shards_of(options.output), expected) << piece;
    }
  }
  for (const auto& entry : fs::directory_iterator(folder / "out0"))
    EXPECT_NE(entry.path().extension(), ".partial");
}

TEST(Prepare, WideVocabulariesTakeFourBytes) {
  TempFolder folder;
  PrepareOptions options = small(folder / "out", {put(folder / "a", words(500, 1))});
  prepare_shards(FakeTokenizer(70'000), options);
  EXPECT_EQ(fs::file_size(folder / "out/train.bin"),
            1024 + 4 * all_ids(options.output, "train").size());
  options.output = folder / "nano";
  options.format = ShardFormat::kNanogpt;
  EXPECT_USER_ERROR(prepare_shards(FakeTokenizer(70'000), options), "use the format llmc");
}

TEST(Prepare, BadInputsNameTheFileAndThePlace) {
  TempFolder folder;
  const FakeTokenizer tokenizer;
  const auto with = [&](std::string_view content) {
    put(folder / "bad", content);
    fs::remove_all(folder / "out");
    return small(folder / "out", {put(folder / "good", "good text"), folder / "bad"});
  };
  EXPECT_USER_ERROR(prepare_shards(tokenizer, small(folder / "out", {folder / "none"})),
                    "cannot read");
  EXPECT_USER_ERROR(prepare_shards(tokenizer, small(folder / "out", {})), "no text files");
  EXPECT_USER_ERROR(prepare_shards(tokenizer, with("")), "bad is empty");
  const std::string filler = words(1000, 1);
  EXPECT_USER_ERROR(prepare_shards(tokenizer, with(filler + std::string(1, '\0'))),
                    "NUL at byte " + std::to_string(filler.size()));
  EXPECT_USER_ERROR(prepare_shards(tokenizer, with(filler + " \xff")),
                    "offset " + std::to_string(filler.size() + 1));
  EXPECT_USER_ERROR(prepare_shards(tokenizer, with(filler + "~")), "the character '~' is unknown");
  EXPECT_USER_ERROR(prepare_shards(tokenizer, with("\x01\x02\x03")), "control characters");
  PrepareOptions raw = with(std::string("\0\xff\x01", 3) + filler);
  raw.accept_bytes = true;
  EXPECT_EQ(prepare_shards(tokenizer, raw).bytes, 9 + 3 + filler.size());
  EXPECT_USER_ERROR(prepare_shards(FakeTokenizer(257, "bpe"), raw), "need the byte tokenizer");
  PrepareOptions all_val = with("x");
  all_val.val_fraction = 1.0;
  EXPECT_USER_ERROR(prepare_shards(tokenizer, all_val), "fraction is 1");
  all_val.val_fraction = 0.99;
  all_val.inputs = {put(folder / "tiny", "ab")};
  EXPECT_USER_ERROR(prepare_shards(tokenizer, all_val), "no text is left to train on");
}

/// The run in a child process that dies in the way that `die` arranges; returns its wait status.
template <typename Die>
int run_in_child(PrepareOptions options, Die&& die) {
  const pid_t child = ::fork();
  if (child == 0) {
    set_thread_count(1);  // the child of a fork has no workers
    die(options);
    try {
      prepare_shards(FakeTokenizer(), options);
    } catch (...) {
      ::_exit(9);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

TEST(Prepare, KilledAnywhereAndContinuedGivesTheSameShards) {
  TempFolder folder;
  std::vector<fs::path> inputs;
  for (uint32_t i = 0; i < 3; ++i)
    inputs.push_back(put(folder / std::to_string(i), words(4000, i)));
  RngStream rng({2, 0}, 0);
  int killed = 0, resumed = 0;
  for (const int64_t shard_tokens : {int64_t{0}, int64_t{1500}}) {
    const auto options_for = [&](const std::string& name) {
      PrepareOptions options = small(folder / name, inputs);
      options.shard_tokens = shard_tokens;
      options.checkpoint_bytes = 1500;
      options.separator = "x";
      return options;
    };
    const std::string reference = "whole" + std::to_string(shard_tokens);
    prepare_shards(FakeTokenizer(), options_for(reference));
    const auto expected = shards_of(folder / reference);
    for (int round = 0; round < 10; ++round) {
      fs::remove_all(folder / "out");
      for (int kill = 0; kill < 2; ++kill) {
        const int calls = 1 + static_cast<int>(rng.next_below(7));
        const uint64_t way = rng.next_below(4);
        const int status = run_in_child(options_for("out"), [&](PrepareOptions& options) {
          int seen = 0;
          if (way == 0) ::setenv("BRRR_FAULT", "prepare.record=kill", 1);
          if (way == 1)
            options.progress = [=](const PrepareProgress&) mutable {
              if (++seen == calls) ::setenv("BRRR_FAULT", "prepare.publish=kill", 1);
            };
          if (way == 2)
            options.progress = [=](const PrepareProgress&) mutable {
              if (++seen == calls) ::setenv("BRRR_FAULT", "shard.write=kill", 1);
            };
          if (way == 3)
            options.progress = [=](const PrepareProgress&) mutable {
              if (++seen == calls) ::raise(SIGKILL);
            };
        });
        ASSERT_TRUE(WIFSIGNALED(status) || status == 0) << status;
        killed += WIFSIGNALED(status) ? 1 : 0;
      }
      const PrepareSummary summary = prepare_shards(FakeTokenizer(), options_for("out"));
      resumed += summary.resumed ? 1 : 0;
      ASSERT_EQ(shards_of(folder / "out"), expected) << round;
    }
  }
  EXPECT_GT(killed, 27);
  EXPECT_GT(resumed, 8);
}

TEST(Prepare, AFullDiskStopsAndCanBeContinued) {
  TempFolder folder;
  const auto input = put(folder / "a", words(5000, 1));
  prepare_shards(FakeTokenizer(), small(folder / "whole", {input}));
  PrepareOptions options = small(folder / "out", {input});
  int seen = 0;
  options.progress = [&](const PrepareProgress& p) {
    EXPECT_EQ(p.bytes_total, fs::file_size(input));
    if (++seen == 5) ::setenv("BRRR_FAULT", "shard.write=enospc", 1);
  };
  EXPECT_USER_ERROR(prepare_shards(FakeTokenizer(), options), "free some space");
  ::unsetenv("BRRR_FAULT");
  EXPECT_FALSE(fs::exists(folder / "out/train.bin"));
  options.progress = {};
  EXPECT_TRUE(prepare_shards(FakeTokenizer(), options).resumed);
  EXPECT_EQ(shards_of(folder / "out"), shards_of(folder / "whole"));
}

/// A folder with a run stopped half-way, and what a second run there says.
class PrepareAgain : public ::testing::Test {
 protected:
  void SetUp() override {
    input_ = put(folder_ / "a", words(3000, 1));
    options_ = small(folder_ / "out", {input_});
    PrepareOptions stopped = options_;
    int seen = 0;
    stopped.progress = [&](const PrepareProgress&) {
      if (++seen == 4) throw std::runtime_error("stop");
    };
    EXPECT_THROW(prepare_shards(FakeTokenizer(), stopped), std::runtime_error);
  }
  TempFolder folder_;
  fs::path input_;
  PrepareOptions options_;
};

TEST_F(PrepareAgain, ATouchedInputContinues) {
  fs::last_write_time(input_, fs::last_write_time(input_) + std::chrono::hours(1));
  EXPECT_TRUE(prepare_shards(FakeTokenizer(), options_).resumed);
}

TEST_F(PrepareAgain, AChangedInputIsNoticed) {
  std::string text = read_file(input_);
  text[5] = text[5] == 'Q' ? 'R' : 'Q';
  put(input_, text);
  EXPECT_USER_ERROR(prepare_shards(FakeTokenizer(), options_), "same size, other content");
  put(input_, text + "more");
  EXPECT_USER_ERROR(prepare_shards(FakeTokenizer(), options_), "changed since");
  options_.restart = true;
  EXPECT_FALSE(prepare_shards(FakeTokenizer(), options_).resumed);
}

TEST_F(PrepareAgain, OtherSettingsAreRefused) {
  PrepareOptions other = options_;
  other.val_fraction = 0.2;
  EXPECT_USER_ERROR(prepare_shards(FakeTokenizer(), other),
                    "another validation fraction (0.1; you asked for 0.2)");
  other = options_;
  other.format = ShardFormat::kNanogpt;
  EXPECT_USER_ERROR(prepare_shards(FakeTokenizer(), other),
                    "another format (llmc; you asked for nanogpt)");
  other = options_;
  other.inputs.push_back(input_);
  EXPECT_USER_ERROR(prepare_shards(FakeTokenizer(), other),
                    "begun with 1 input files, now there are 2");
  EXPECT_USER_ERROR(prepare_shards(FakeTokenizer(258), options_), "you asked for the ");
  EXPECT_FALSE(fs::exists(folder_ / "out/.tokenizer"));
  EXPECT_EQ(read_file(folder_ / "out/fake.json"), "257");
}

TEST_F(PrepareAgain, AnotherInputIsNamed) {
  PrepareOptions other = options_;
  other.inputs = {put(folder_ / "b", words(2000, 2))};
  EXPECT_USER_ERROR(
      prepare_shards(FakeTokenizer(), other),
      "was begun with the input " + input_.string() + ", now it is " + other.inputs[0].string());
}

TEST(Prepare, ARefusedInputLeavesNothingBehind) {
  TempFolder folder;
  const auto good = put(folder / "good", words(3000, 1));
  for (const std::string& bad : {std::string("abc\0def", 7), std::string("caf\xe9 au lait")}) {
    put(folder / "bad", bad);
    EXPECT_USER_ERROR(prepare_shards(FakeTokenizer(), small(folder / "out", {folder / "bad"})),
                      (folder / "bad").string());
    EXPECT_FALSE(fs::exists(folder / "out/prepare.json"));
    EXPECT_FALSE(fs::exists(folder / "out/fake.json"));
  }
  EXPECT_FALSE(prepare_shards(FakeTokenizer(), small(folder / "out", {good})).resumed);
}

// Any bit of any shard: the reader names the file, what the record says and what it found.
TEST(Prepare, AFlippedBitIsNoticedByTheReader) {
  TempFolder folder;
  PrepareOptions options = small(folder / "out", {put(folder / "a", words(5000, 1))});
  options.shard_tokens = 1500;
  prepare_shards(FakeTokenizer(), options);
  const fs::path shard = folder / "out/train_000001.bin";
  const std::string sound = read_file(shard);
  for (const size_t at : {size_t{1024}, sound.size() / 2, sound.size() - 2}) {
    std::string text = sound;
    text[at] = static_cast<char>(text[at] ^ 1);
    put(shard, text);
    EXPECT_USER_ERROR(TokenSource::open_split(folder / "out", "train"),
                      shard.string() + " has the checksum");
    EXPECT_USER_ERROR(TokenSource::open({shard.string()}), "but prepare.json says");
    EXPECT_GT(TokenSource::open_split(folder / "out", "val").tokens(), 0);
  }
  put(shard, sound.substr(0, 1024) + sound.substr(1024) + sound.substr(1024));
  EXPECT_ANY_THROW(TokenSource::open({shard.string()}));
  put(shard, sound);
  EXPECT_EQ(TokenSource::open({shard.string()}).tokens(), 1500);
  const fs::path record = folder / "out/prepare.json";
  const std::string record_text = read_file(record);
  put(record, record_text.substr(0, record_text.size() / 2));
  EXPECT_USER_ERROR(TokenSource::open({shard.string()}), "prepare.json");
  put(record, "{\"somebody\": \"else\"}");
  put(shard, std::string(sound).replace(1030, 1, "x"));
  EXPECT_EQ(TokenSource::open({shard.string()}).tokens(), 1500);
}

TEST_F(PrepareAgain, ADoneRunIsDone) {
  const PrepareSummary first = prepare_shards(FakeTokenizer(), options_);
  const PrepareSummary second = prepare_shards(FakeTokenizer(), options_);
  EXPECT_TRUE(second.already_done);
  EXPECT_EQ(second.train_tokens, first.train_tokens);
  EXPECT_EQ(second.train_shards, first.train_shards);
  fs::resize_file(folder_ / "out/train.bin", 1100);
  EXPECT_USER_ERROR(prepare_shards(FakeTokenizer(), options_), "truncated shard");
  fs::remove(folder_ / "out/train.bin");
  EXPECT_USER_ERROR(prepare_shards(FakeTokenizer(), options_), "missing now");
  options_.restart = true;
  EXPECT_FALSE(prepare_shards(FakeTokenizer(), options_).already_done);
}

TEST_F(PrepareAgain, DamagedRecordsAndForeignShards) {
  const fs::path record = folder_ / "out/prepare.json";
  const std::string text = read_file(record);
  for (const std::string& bad :
       {std::string("{"), std::string("[]"), std::string("{\"version\": 1}"),
        std::string(text).replace(text.find("\"offset\": "), 10, "\"offset\": 9")}) {
    put(record, bad);
    EXPECT_USER_ERROR(prepare_shards(FakeTokenizer(), options_), "--overwrite");
  }
  fs::remove(record);
  put(folder_ / "out/train.bin", "somebody's");
  EXPECT_USER_ERROR(prepare_shards(FakeTokenizer(), options_),
                    "no prepare.json says where it comes from");
  options_.restart = true;
  EXPECT_GT(prepare_shards(FakeTokenizer(), options_).train_tokens, 0);
}

// Records with any byte changed never crash; they are refused or mean what they say.
TEST_F(PrepareAgain, FlippedBytesOfTheRecord) {
  const fs::path record = folder_ / "out/prepare.json";
  const std::string text = read_file(record);
  RngStream rng({4, 0}, 0);
  int refused = 0;
  for (int round = 0; round < 60; ++round) {
    std::string bad = text;
    bad[rng.next_below(bad.size())] ^= static_cast<char>(1 + rng.next_below(255));
    put(record, bad);
    try {
      prepare_shards(FakeTokenizer(), options_);
    } catch (const UserError&) {
      ++refused;
    }
    fs::remove(folder_ / "out/train.bin");
    fs::remove(folder_ / "out/val.bin");
  }
  EXPECT_GT(refused, 30);
}

TEST_F(PrepareAgain, TwoProcessesDoNotShareAFolder) {
  bool inside = false;
  options_.progress = [&](const PrepareProgress&) {
    if (std::exchange(inside, true)) return;
    PrepareOptions second = options_;
    second.progress = {};
    EXPECT_USER_ERROR(prepare_shards(FakeTokenizer(), second), "another process is preparing");
  };
  prepare_shards(FakeTokenizer(), options_);
  EXPECT_TRUE(inside);
}

}  // namespace
}  // namespace brrr::io
