#include "data/corpus.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <map>

#include "base/cache.h"
#include "base/encoding/utf8.h"
#include "base/errors.h"
#include "base/file.h"
#include "base/sha256.h"
#include "web/fetch.h"

namespace brrr::io {
namespace {

/// A scratch folder, and environment variables put back afterwards.
class CorpusTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) / ("brrr_corpus_" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    for (const char* name : {"BRRR_DATA", "HF_HOME", "HF_HUB_CACHE"}) set(name, "");
    for (const char* name : {"BRRR_CACHE", "XDG_CACHE_HOME", "HOME"})
      set(name, (folder_ / name).string());
    set("BRRR_OFFLINE", "1");
  }
  void TearDown() override {
    for (const auto& [name, value] : saved_) {
      if (value) {
        ::setenv(name.c_str(), value->c_str(), 1);
      } else {
        ::unsetenv(name.c_str());
      }
    }
    fs::remove_all(folder_);
  }
  void set(const std::string& name, const std::string& value) {
    const char* old = std::getenv(name.c_str());
    saved_.try_emplace(name, old ? std::optional<std::string>(old) : std::nullopt);
    ::setenv(name.c_str(), value.c_str(), 1);
  }
  fs::path put(const fs::path& name, std::string_view content) {
    const fs::path path = folder_ / name;
    fs::create_directories(path.parent_path());
    FileWriter out(path);
    out.write(content);
    out.finish();
    return path;
  }
  /// PATH holds only a program `name` with this shell script.
  void only_program(const std::string& name, const std::string& script) {
    const fs::path path = put(fs::path("bin_" + name) / name, "#!/bin/sh\n" + script);
    ::chmod(path.c_str(), 0755);
    set("PATH", path.parent_path().string());
  }
  static std::string error_of(const std::function<void()>& action) {
    try {
      action();
    } catch (const UserError& error) {
      return error.what();
    }
    return "no error";
  }
  std::string load_error(std::vector<fs::path> text) {
    return error_of([&] { load_corpus({.text = std::move(text)}); });
  }
  fs::path folder_;
  std::map<std::string, std::optional<std::string>> saved_;
};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_F(CorpusTest, FilesAreConcatenatedInTheGivenOrder) {
  const fs::path a = put("a.txt", "first\n"), b = put("b.txt", "second, f\xc3\xbcr");
  const Corpus corpus = load_corpus({.text = {b, a}});
  EXPECT_EQ(corpus.text,
            "second, f\xc3\xbcr"
            "first\n");
  EXPECT_EQ(corpus.document_ends, (std::vector<size_t>{12, 18}));
  EXPECT_EQ(corpus.sha256, sha256_hex(corpus.text));
  EXPECT_TRUE(has(corpus.description, "2 files")) << corpus.description;
  EXPECT_EQ(corpus.note, "");
}

TEST_F(CorpusTest, FoldersAreWalkedSortedWithoutHiddenAndEmptyFiles) {
  put("d/z.txt", "z");
  put("d/a/2.txt", "2");
  put("d/a/1.txt", "1");
  put("d/.git/config", "hidden");
  put("d/.hidden", "hidden");
  put("d/empty.txt", "");
  EXPECT_EQ(load_corpus({.text = {folder_ / "d"}}).text, "12z");
}

TEST_F(CorpusTest, BadInputsAreNamed) {
  EXPECT_TRUE(has(load_error({folder_ / "none.txt"}), "no such text file"));
  EXPECT_TRUE(has(load_error({put("empty.txt", "")}), "empty.txt is empty"));
  fs::create_directories(folder_ / "bare");
  EXPECT_TRUE(has(load_error({folder_ / "bare"}), "holds no text files"));
  EXPECT_TRUE(has(load_error({"/dev/null"}), "neither a file nor a folder"));
  const std::string nul("good text\0more", 14);
  EXPECT_TRUE(has(load_error({put("nul.bin", nul)}), "NUL at byte 9"));
  EXPECT_TRUE(has(load_error({put("u16.txt", std::string("\xff\xfe"
                                                         "a\0b\0",
                                                         6))}),
                  "UTF-16"));
  EXPECT_TRUE(has(load_error({put("ctl.bin", std::string(500, 'a') + std::string(9, '\1'))}),
                  "9 of 509 bytes are control characters"));
  EXPECT_TRUE(
      has(load_error({put("ctl.bin", "abcdefg\x01")}), "1 of 8 bytes are control characters"));
  EXPECT_TRUE(
      has(load_error({put("latin.txt", "caf\xe9 au lait")}), "not UTF-8 (byte 0xe9 at offset 3)"));
  // A good file first does not hide the bad one, and the offset is the file's own.
  EXPECT_TRUE(has(load_error({put("ok.txt", "fine"), folder_ / "latin.txt"}), "at offset 3"));
}

// A share alone would refuse short texts for a single character.
TEST_F(CorpusTest, AFewControlCharactersAreText) {
  for (const char* control : {"\x01", "\x1b[0m", "\x7f", "\x08\x08\x08"}) {
    const std::string text = std::string(46, 'a') + control + std::string(46, 'b');
    EXPECT_EQ(load_corpus({.text = {put("some.txt", text)}}).text, text);
  }
}

// Form feed, the separators of files, groups, records and units, and the line ends of Unicode.
TEST_F(CorpusTest, SeparatorsAreTextHoweverManyThereAre) {
  for (const char* separator :
       {"\f", "\v", "\x1b", "\x1c", "\x1d", "\x1e", "\x1f", "\xc2\x85", "\xe2\x80\xa8"}) {
    std::string text;
    for (int i = 0; i < 100; ++i) text += std::string("ab") + separator;
    EXPECT_EQ(load_corpus({.text = {put("some.txt", text)}}).text, text);
  }
}

TEST_F(CorpusTest, RawBytesPassWhenAsked) {
  const std::string bytes("\0\xff\x01", 3);
  EXPECT_EQ(load_corpus({.text = {put("raw.bin", bytes)}, .accept_bytes = true}).text, bytes);
}

TEST_F(CorpusTest, Utf8IsJudgedLikeTheStandard) {
  const auto at = [](std::string_view text) { return find_invalid_utf8(text); };
  EXPECT_EQ(at("plain ascii, longer than eight bytes"), std::nullopt);
  EXPECT_EQ(at("\xc2\x80\xdf\xbf\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xef\xbf\xbf"), std::nullopt);
  EXPECT_EQ(at("\xf0\x90\x80\x80\xf4\x8f\xbf\xbf"), std::nullopt);
  EXPECT_EQ(at("12345678\x80"), 8u);      // a lone continuation byte
  EXPECT_EQ(at("\xc0\xaf"), 0u);          // overlong '/'
  EXPECT_EQ(at("a\xc1\xbf"), 1u);         // overlong
  EXPECT_EQ(at("\xe0\x9f\xbf"), 0u);      // overlong
  EXPECT_EQ(at("\xed\xa0\x80"), 0u);      // a surrogate
  EXPECT_EQ(at("\xf0\x8f\xbf\xbf"), 0u);  // overlong
  EXPECT_EQ(at("\xf4\x90\x80\x80"), 0u);  // above U+10FFFF
  EXPECT_EQ(at("\xf5\x80\x80\x80"), 0u);
  EXPECT_EQ(at("abc\xe2\x82"), 3u);  // cut off
  EXPECT_EQ(at("abc\xf0\x9f\x98"), 3u);
}

// Every code point is accepted, and breaking any byte of its encoding is noticed.
TEST_F(CorpusTest, EveryCodePointIsValidUtf8) {
  for (uint32_t c = 0x80; c <= 0x10ffff; ++c) {
    std::string s;
    if (c < 0x800) {
      s = {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
    } else if (c < 0x10000) {
      s = {static_cast<char>(0xe0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63)),
           static_cast<char>(0x80 | (c & 63))};
    } else {
      s = {static_cast<char>(0xf0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 63)),
           static_cast<char>(0x80 | (c >> 6 & 63)), static_cast<char>(0x80 | (c & 63))};
    }
    const bool surrogate = c >= 0xd800 && c <= 0xdfff;
    ASSERT_EQ(find_invalid_utf8(s).has_value(), surrogate) << c;
    s.back() = 'x';
    ASSERT_TRUE(find_invalid_utf8(s).has_value()) << c;
  }
}

TEST_F(CorpusTest, TinyShakespeareComesFromTheDataFolderFirst) {
  put("data/shakespeare/input.txt", "To be");
  set("BRRR_DATA", (folder_ / "data").string());
  const Corpus corpus = load_corpus({});
  EXPECT_EQ(corpus.text, "To be");
  EXPECT_TRUE(has(corpus.description, "tiny Shakespeare"));
  EXPECT_TRUE(has(corpus.description, "not the published version"));
}

TEST_F(CorpusTest, TheRealTinyShakespeare) {
  const auto saved = saved_.at("BRRR_DATA");
  if (!saved || !fs::exists(fs::path(*saved) / "shakespeare" / "input.txt"))
    GTEST_SKIP() << "BRRR_DATA has no shakespeare/input.txt";
  set("BRRR_DATA", *saved);
  const Corpus corpus = load_corpus({});
  EXPECT_EQ(corpus.sha256, kTinyShakespeare.sha256);
  EXPECT_FALSE(has(corpus.description, "not the published"));
  // From the cache, verified; then damaged and refused.
  set("BRRR_DATA", "");
  put("BRRR_CACHE/shakespeare/input.txt", corpus.text);
  EXPECT_EQ(load_corpus({}).text, corpus.text);
  put("BRRR_CACHE/shakespeare/input.txt", corpus.text + "x");
  put("cpp/9/vector", "// vector\n");
  const Corpus headers = load_corpus({.header_root = folder_ / "cpp"});
  EXPECT_EQ(headers.text, "// vector\n");
}

TEST_F(CorpusTest, OfflineTheNewestHeadersSortedAndCapped) {
  put("cpp/9/old", "old");
  put("cpp/12/b", std::string(900'000, 'b'));
  put("cpp/12/a/x", "x");
  put("cpp/12/c", std::string(700'000, 'c'));  // would pass the cap: the corpus ends before it
  put("cpp/12/d", "d");
  put("cpp/v1/no", "not a version");
  const Corpus corpus = load_corpus({.header_root = folder_ / "cpp"});
  EXPECT_EQ(corpus.text, "x" + std::string(900'000, 'b'));
  EXPECT_TRUE(has(corpus.description, "C++ headers")) << corpus.description;
  EXPECT_TRUE(has(corpus.note, "BRRR_OFFLINE is set")) << corpus.note;
}

TEST_F(CorpusTest, NothingAtAllSaysWhatToDo) {
  const std::string error = error_of([&] { load_corpus({.header_root = folder_ / "nowhere"}); });
  EXPECT_TRUE(has(error, "no text to train on") && has(error, "--text FILE")) << error;
}

TEST_F(CorpusTest, CacheFolderOrder) {
  EXPECT_EQ(cache_folder(), folder_ / "BRRR_CACHE");
  set("BRRR_CACHE", "");
  EXPECT_EQ(cache_folder(), folder_ / "XDG_CACHE_HOME" / "brrr");
  set("XDG_CACHE_HOME", "");
  EXPECT_EQ(cache_folder(), folder_ / "HOME" / ".cache" / "brrr");
  set("HOME", "");
  EXPECT_TRUE(has(error_of([] { cache_folder(); }), "set BRRR_CACHE"));
}

TEST_F(CorpusTest, DownloadVerifiesAndLeavesNothingBehindOnFailure) {
  const fs::path to = folder_ / "got" / "file";
  const auto get = [&] { download("https://example.invalid/f", sha256_hex("hello"), to); };
  EXPECT_TRUE(has(error_of(get), "BRRR_OFFLINE is set"));
  set("BRRR_OFFLINE", "");

  set("PATH", (folder_ / "nothing").string());
  EXPECT_TRUE(has(error_of(get), "neither curl nor wget is installed"));

  const std::string write = R"(while [ "$1" != "$FLAG" ]; do shift; done; printf '%s' )";
  only_program("curl", "FLAG=--output\n" + write + "hello > \"$2\"\n");
  get();
  EXPECT_EQ(read_file(to), "hello");

  only_program("wget", "FLAG=-O\n" + write + "hello > \"$2\"\n");
  fs::remove(to);
  get();
  EXPECT_EQ(read_file(to), "hello");
  fs::remove(to);

  only_program("curl", "FLAG=--output\n" + write + "other > \"$2\"\n");
  EXPECT_TRUE(has(error_of(get), "the file at its source changed"));
  only_program("curl", "echo 'noise' >&2\necho 'curl: (6) Could not resolve host' >&2\nexit 6\n");
  const std::string error = error_of(get);
  EXPECT_TRUE(has(error, ": curl: (6) Could not resolve host;")) << error;
  EXPECT_TRUE(has(error, to.string()));
  only_program("curl", "kill -9 $$\n");
  EXPECT_TRUE(has(error_of(get), "curl was killed"));
  EXPECT_TRUE(fs::is_empty(folder_ / "got"));
}

TEST_F(CorpusTest, Gpt2TokenizerIsLookedUpInOrder) {
  const std::string missing = error_of([] { find_gpt2_tokenizer(); });
  EXPECT_TRUE(has(missing, "--tokenizer FOLDER") && has(missing, "BRRR_OFFLINE")) << missing;
  const auto put_pair = [&](const fs::path& at) {
    put(at / "vocab.json", "{}");
    put(at / "merges.txt", "");
  };
  put_pair("BRRR_CACHE/gpt2");  // wrong content: never used
  EXPECT_TRUE(has(error_of([] { find_gpt2_tokenizer(); }), "fetching it failed"));
  const fs::path in_cache = "XDG_CACHE_HOME/huggingface/hub/models--gpt2/snapshots/abc";
  put_pair(in_cache);
  EXPECT_EQ(find_gpt2_tokenizer(), folder_ / in_cache);
  const fs::path named = "hf/hub/models--openai-community--gpt2/snapshots/def";
  put_pair(named);
  put("hf/hub/models--openai-community--gpt2/snapshots/aaa/vocab.json", "{}");  // half of the pair
  set("HF_HOME", (folder_ / "hf").string());
  EXPECT_EQ(find_gpt2_tokenizer(), folder_ / named);
  put_pair("data/gpt2");
  set("BRRR_DATA", (folder_ / "data").string());
  EXPECT_EQ(find_gpt2_tokenizer(), folder_ / "data" / "gpt2");
}

TEST_F(CorpusTest, Gpt2TokenizerFromTheVerifiedCache) {
  const auto saved = saved_.at("BRRR_DATA");
  if (!saved || !fs::exists(fs::path(*saved) / "gpt2" / "merges.txt"))
    GTEST_SKIP() << "BRRR_DATA has no gpt2/";
  for (const char* name : {"vocab.json", "merges.txt"})
    put(fs::path("BRRR_CACHE/gpt2") / name, read_file(fs::path(*saved) / "gpt2" / name));
  EXPECT_EQ(find_gpt2_tokenizer(), folder_ / "BRRR_CACHE" / "gpt2");
}

}  // namespace
}  // namespace brrr::io
