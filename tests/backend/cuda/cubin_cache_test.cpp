// Compiled kernels on disk, with a compiler that the test plays.

#include "backend/cuda/cubin_cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>

#include "base/file.h"

namespace brrr::cuda {
namespace {

class Cubins : public testing::Test {
 protected:
  Cubins() {
    std::string pattern = (fs::temp_directory_path() / "brrr-cubins-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~Cubins() override { fs::remove_all(folder_); }

  std::vector<std::string> get(const std::vector<std::string>& texts,
                               const std::string& compiler = "nvrtc 13.0 sm_90a") {
    compiled_ = 0;
    return CubinCache(folder_ / "cuda", compiler).get(texts, [&](const std::string& text) {
      ++compiled_;
      return compiler + " made of " + text;
    });
  }

  fs::path folder_;
  std::atomic<int> compiled_ = 0;
};

TEST_F(Cubins, EachTextIsCompiledOnce) {
  std::vector<std::string> texts;
  for (int i = 0; i < 40; ++i) texts.push_back(std::string(static_cast<size_t>(i + 1), 'x'));
  const auto first = get(texts);
  EXPECT_EQ(compiled_, 40);
  for (size_t i = 0; i < texts.size(); ++i)
    EXPECT_EQ(first[i], "nvrtc 13.0 sm_90a made of " + texts[i]);
  EXPECT_EQ(get(texts), first);
  EXPECT_EQ(compiled_, 0);
  texts.push_back("another");
  get(texts);
  EXPECT_EQ(compiled_, 1);
}

TEST_F(Cubins, AnotherCompilerOrArchitectureIsAnotherEntry) {
  get({"text"});
  for (const char* other : {"nvrtc 12.9 sm_90a", "nvrtc 13.0 sm_80", "nvrtc 13.0 sm_90a -x"}) {
    EXPECT_EQ(get({"text"}, other), std::vector{std::string(other) + " made of text"});
    EXPECT_EQ(compiled_, 1);
  }
}

TEST_F(Cubins, ADamagedEntryIsCompiledAgain) {
  const CubinCache cache(folder_ / "cuda", "nvrtc 13.0 sm_90a");
  const auto good = get({"text"});
  const fs::path path = cache.path_of("text");
  const std::string whole = read_file(path);
  std::vector<std::string> damaged{"", "x", whole.substr(0, whole.size() - 1), whole + "x",
                                   whole.substr(1)};
  damaged.push_back(whole);
  damaged.back()[whole.size() - 3] ^= 1;
  for (const std::string& text : damaged) {
    write_file_atomically(path, text);
    EXPECT_EQ(get({"text"}), good);
    EXPECT_EQ(compiled_, 1) << text.size();
  }
}

TEST_F(Cubins, AFolderThatCannotBeWrittenIsNoError) {
  write_file_atomically(folder_ / "cuda", "a file");
  EXPECT_EQ(get({"text"}).size(), 1u);
  EXPECT_EQ(compiled_, 1);
}

TEST_F(Cubins, AnErrorOfTheCompilerComesThrough) {
  const CubinCache cache(folder_ / "cuda", "x");
  EXPECT_THROW(cache.get({"a", "b", "c"},
                         [](const std::string& text) -> std::string {
                           if (text == "b") throw std::runtime_error("no");
                           return text;
                         }),
               std::runtime_error);
}

}  // namespace
}  // namespace brrr::cuda
