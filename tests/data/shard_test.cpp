#include "data/shard.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <functional>

#include "base/errors.h"
#include "base/file.h"
#include "base/rng.h"
#include "data/token_source.h"
#include "support/temp_folder.h"

namespace brrr::io {
namespace {

class ShardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) / ("brrr_shard_" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  fs::path put(const std::string& name, std::string_view bytes) {
    FileWriter out(folder_ / name);
    out.write(bytes);
    out.finish();
    return folder_ / name;
  }
  fs::path folder_;
};

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

std::string parse_error(std::string_view bytes) {
  return error_of(
      [&] { parse_shard(std::as_bytes(std::span(bytes.data(), bytes.size())), "x.bin"); });
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::vector<int32_t> some_ids(int64_t count, int64_t vocab, uint32_t seed = 1) {
  RngStream rng({seed, 0}, 0);
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = static_cast<int32_t>(rng.next_below(static_cast<uint64_t>(vocab)));
  return ids;
}

/// An llm.c-like file spelt out by hand, independent of the writer.
std::string with_header(std::vector<int32_t> words, std::string_view body) {
  words.resize(256);
  std::string out(1024, '\0');
  std::memcpy(out.data(), words.data(), 1024);
  return out.append(body);
}

std::string llmq(std::vector<int32_t> words, std::string_view body) {
  std::string out = with_header({}, body);
  std::memcpy(out.data(), "BIN.TOK\n", 8);
  std::memcpy(out.data() + 8, words.data(), 4 * words.size());
  return out;
}

std::vector<int32_t> shard_ids(std::string_view bytes) {
  const ShardView view = parse_shard(std::as_bytes(std::span(bytes.data(), bytes.size())), "x.bin");
  std::vector<int32_t> ids(static_cast<size_t>(view.tokens));
  view.read(0, ids);
  return ids;
}

constexpr std::string_view kU16("\x01\x00\x02\x01\xff\xff", 6);
constexpr std::string_view kU32("\x01\x00\x00\x00\x02\x01\x01\x00", 8);

TEST_F(ShardTest, ReadsEveryFormatByItsBytes) {
  EXPECT_EQ(shard_ids(with_header({20240520, 1, 3}, kU16)), (std::vector<int32_t>{1, 258, 65535}));
  EXPECT_EQ(shard_ids(with_header({20240801, 7, 2}, kU32)), (std::vector<int32_t>{1, 65794}));
  EXPECT_EQ(shard_ids(kU16), (std::vector<int32_t>{1, 258, 65535}));
  EXPECT_EQ(shard_ids(llmq({1, 2, 3, 65536, 0}, kU16)), (std::vector<int32_t>{1, 258, 65535}));
  EXPECT_EQ(shard_ids(llmq({2, 4, 2, 70000, 0}, kU32)), (std::vector<int32_t>{1, 65794}));
  // Old writers fill the unused header with stars: no mask.
  EXPECT_EQ(shard_ids(llmq({2, 4, 2, 70000, 0x2a2a2a2a}, kU32)), (std::vector<int32_t>{1, 65794}));
}

TEST_F(ShardTest, WritesTheBytesThatOthersRead) {
  const std::vector<int32_t> ids = {1, 258, 65535};
  write_shard(folder_ / "a.bin", ShardFormat::kLlmc, 65536, ids);
  EXPECT_EQ(read_file(folder_ / "a.bin"), with_header({20240520, 1, 3}, kU16));
  write_shard(folder_ / "b.bin", ShardFormat::kNanogpt, 65536, ids);
  EXPECT_EQ(read_file(folder_ / "b.bin"), kU16);
  write_shard(folder_ / "c.bin", ShardFormat::kLlmc, 65795, std::vector<int32_t>{1, 65794});
  EXPECT_EQ(read_file(folder_ / "c.bin"), with_header({20240801, 7, 2}, kU32));
  EXPECT_FALSE(fs::exists(folder_ / "a.bin.partial"));
}

TEST_F(ShardTest, RoundTripsLargeStreamsInUnevenPieces) {
  for (const int64_t vocab : {int64_t{300}, int64_t{65536}, int64_t{65537}}) {
    const auto ids = some_ids(1'500'000, vocab);
    ShardWriter out(folder_ / "r.bin", ShardFormat::kLlmc, vocab);
    RngStream rng({3, 0}, 0);
    for (size_t at = 0; at < ids.size();) {
      const size_t n = std::min<size_t>(ids.size() - at, rng.next_below(200'000));
      out.append(std::span(ids).subspan(at, n));
      at += n;
    }
    out.close();
    ShardWriter::publish(folder_ / "r.bin");
    const TokenSource source = TokenSource::open({(folder_ / "r.bin").string()});
    std::vector<int32_t> back(ids.size());
    source.read(0, back);
    EXPECT_EQ(back, ids);
    source.verify(vocab);
  }
}

TEST_F(ShardTest, AContinuedShardEqualsOneWrittenAtOnce) {
  const auto ids = some_ids(5000, 1000);
  write_shard(folder_ / "whole.bin", ShardFormat::kLlmc, 1000, ids);
  {
    ShardWriter first(folder_ / "two.bin", ShardFormat::kLlmc, 1000);
    first.append(std::span(ids).first(3000));
    first.sync();
    first.append(std::span(ids).subspan(3000, 1500));  // written but not recorded, then interrupted
    first.sync();
  }
  ShardWriter second(folder_ / "two.bin", ShardFormat::kLlmc, 1000, 3000);
  second.append(std::span(ids).subspan(3000));
  second.close();
  ShardWriter::publish(folder_ / "two.bin");
  ShardWriter::publish(folder_ / "two.bin");  // twice is once
  EXPECT_EQ(read_file(folder_ / "two.bin"), read_file(folder_ / "whole.bin"));
  EXPECT_TRUE(contains(error_of([&] {
                         put("three.bin.partial", "short");
                         ShardWriter(folder_ / "three.bin", ShardFormat::kLlmc, 1000, 3000);
                       }),
                       "were written before the interruption"));
}

TEST_F(ShardTest, WriterRefusals) {
  EXPECT_TRUE(
      contains(error_of([&] { ShardWriter(folder_ / "n.bin", ShardFormat::kNanogpt, 65537); }),
               "use the format llmc"));
  for (const int32_t id : {-1, 10}) {
    EXPECT_TRUE(contains(
        error_of([&] {
          write_shard(folder_ / "n.bin", ShardFormat::kNanogpt, 10, std::vector<int32_t>{3, id});
        }),
        "outside the vocabulary of 10"));
  }
  EXPECT_TRUE(fs::is_empty(folder_));  // nothing half-written stays
  EXPECT_TRUE(
      contains(error_of([&] { ShardWriter(folder_ / "no" / "n.bin", ShardFormat::kLlmc, 10); }),
               "cannot write"));
  EXPECT_THROW(shard_format_from_name("lllmc"), UserError);
  EXPECT_EQ(shard_format_from_name("nanogpt"), ShardFormat::kNanogpt);
}

TEST_F(ShardTest, BrokenFilesAreExplained) {
  EXPECT_TRUE(contains(parse_error(""), "is empty"));
  EXPECT_TRUE(contains(parse_error("abc"), "odd size"));
  const std::string good = with_header({20240520, 1, 3}, kU16);
  EXPECT_TRUE(contains(parse_error(good.substr(0, 1029)), "truncated shard"));
  EXPECT_TRUE(contains(parse_error(good.substr(0, 100)), "truncated llm.c shard: 100 bytes"));
  EXPECT_TRUE(contains(parse_error(good.substr(0, 1024)), "truncated shard"));
  EXPECT_TRUE(contains(parse_error(good + "xx"), "surplus bytes"));
  EXPECT_TRUE(contains(parse_error(with_header({20240520, 1, 0}, "")), "no tokens"));
  EXPECT_TRUE(contains(parse_error(with_header({20240520, 1, -3}, kU16)), "counts -3 tokens"));
  EXPECT_TRUE(contains(parse_error(with_header({20240520, 2, 3}, kU16)), "version 2"));
  EXPECT_TRUE(
      contains(parse_error(with_header({20240801, 1, 2}, kU32)), "only version 7 is supported"));
  EXPECT_TRUE(
      contains(parse_error(with_header({20240520, 1, 0x7fffffff}, kU16)), "4294968318 bytes"));
  EXPECT_TRUE(contains(parse_error(with_header({20240522, 1, 3}, kU16)), "evaluation set"));
  EXPECT_TRUE(contains(parse_error(with_header({20240326, 1, 3}, kU16)), "an llm.c checkpoint"));
  EXPECT_TRUE(contains(parse_error(std::string(200, 'a') + "\n\n"), "is text"));
  EXPECT_TRUE(contains(parse_error(llmq({3, 4, 2, 70000, 0}, kU32)), "version 3"));
  EXPECT_TRUE(contains(parse_error(llmq({2, 3, 2, 70000, 0}, kU32)), "3 bytes per token"));
  EXPECT_TRUE(contains(parse_error(llmq({2, 4, 2, 70000, 1}, kU32)), "loss mask"));
  EXPECT_TRUE(contains(parse_error(llmq({2, 4, 3, 70000, 0}, kU32)), "truncated"));
  EXPECT_TRUE(contains(parse_error("BIN.TOK\n"), "truncated llmq shard"));
}

// Every single flipped bit in the fields of the header is refused or harmless: never other ids.
TEST_F(ShardTest, EveryFlippedHeaderBit) {
  const std::string llama = with_header({20240801, 7, 2}, kU32),
                    gpt2 = with_header({20240520, 1, 3}, kU16);
  const std::string q = llmq({2, 4, 2, 70000, 0}, kU32);
  for (const auto& [good, fields] : {std::pair(gpt2, 12), std::pair(llama, 12), std::pair(q, 20)}) {
    for (int bit = 0; bit < 8 * fields; ++bit) {
      std::string bad = good;
      bad[static_cast<size_t>(bit / 8)] ^= static_cast<char>(1 << (bit % 8));
      EXPECT_NE(parse_error(bad), "no error") << bit;
    }
  }
}

TEST_F(ShardTest, ManyShardsAreOneStream) {
  const auto ids = some_ids(3000, 50000);
  const std::span<const int32_t> all(ids);
  write_shard(folder_ / "s_0.bin", ShardFormat::kLlmc, 50257, all.first(1000));
  write_shard(folder_ / "s_1.bin", ShardFormat::kNanogpt, 50257, all.subspan(1000, 1));
  write_shard(folder_ / "s_2.bin", ShardFormat::kLlmc, 100000, all.subspan(1001));
  put("readme.txt", "not a shard");
  const TokenSource by_folder = TokenSource::open({folder_.string()});
  const TokenSource by_glob = TokenSource::open({(folder_ / "s_*.bin").string()});
  const TokenSource memory = TokenSource::from_ids(ids);
  EXPECT_EQ(by_folder.shards(), 3u);
  RngStream rng({5, 0}, 0);
  for (int i = 0; i < 500; ++i) {
    const auto offset = static_cast<int64_t>(rng.next_below(3001));
    const auto n = static_cast<size_t>(rng.next_below(static_cast<uint64_t>(3001 - offset)));
    std::vector<int32_t> a(n), b(n);
    by_folder.read(offset, a);
    memory.read(offset, b);
    ASSERT_EQ(a, b) << offset << " " << n;
  }
  EXPECT_EQ(by_folder.fingerprint(), memory.fingerprint());
  EXPECT_EQ(by_folder.fingerprint(), by_glob.fingerprint());
  EXPECT_TRUE(contains(by_folder.locate(1000), "s_1.bin, token 0"));
  EXPECT_TRUE(contains(by_folder.locate(999), "s_0.bin, token 999"));
  EXPECT_TRUE(contains(by_folder.locate(2999), "s_2.bin, token 1998"));
  std::vector<int32_t> out(2);
  EXPECT_THROW(by_folder.read(2999, out), InternalError);
}

TEST_F(ShardTest, FingerprintsSeeEveryTokenOfSmallStreams) {
  auto ids = some_ids(5000, 100);
  const std::string before = TokenSource::from_ids(ids).fingerprint();
  for (const size_t at : {size_t{0}, size_t{1023}, size_t{1024}, size_t{4999}}) {
    ids[at] ^= 1;
    EXPECT_NE(TokenSource::from_ids(ids).fingerprint(), before) << at;
    ids[at] ^= 1;
  }
  EXPECT_EQ(TokenSource::from_ids(ids).fingerprint(), before);
  std::vector<int32_t> large((1 << 22) + 77, 5);
  const std::string sampled = TokenSource::from_ids(large).fingerprint();
  large.back() = 6;
  EXPECT_NE(TokenSource::from_ids(large).fingerprint(), sampled);
}

TEST_F(ShardTest, IdsBeyondTheVocabularyAreLocated) {
  auto ids = some_ids(200'000, 1000);
  ids[150'000] = 1000;
  ids[190'000] = 2000;
  write_shard(folder_ / "v.bin", ShardFormat::kLlmc, 65536, ids);
  const TokenSource source = TokenSource::open({(folder_ / "v.bin").string()});
  source.verify(2001);
  const std::string error = error_of([&] { source.verify(1000); });
  EXPECT_TRUE(contains(error, "v.bin, token 150000: id 1000 is outside the vocabulary of 1000"))
      << error;
  // A u32 id that does not fit an int32 is beyond every vocabulary.
  put("w.bin", with_header({20240801, 7, 1}, std::string_view("\x05\x00\x00\x80", 4)));
  EXPECT_TRUE(contains(
      error_of([&] { TokenSource::open({(folder_ / "w.bin").string()}).verify(0x7fffffff); }),
      "id 2147483653 is outside"));
}

TEST_F(ShardTest, NamesThatMatchNothing) {
  const auto open_error = [](const std::string& path) {
    return error_of([&] { TokenSource::open({path}); });
  };
  EXPECT_TRUE(contains(open_error((folder_ / "none.bin").string()), "no such token shard"));
  EXPECT_TRUE(contains(open_error((folder_ / "none*.bin").string()), "no token shard matches"));
  EXPECT_TRUE(contains(open_error(folder_.string()), "holds no *.bin shards"));
  write_shard(folder_ / "train.bin", ShardFormat::kLlmc, 10, some_ids(10, 10));
  write_shard(folder_ / "val.bin", ShardFormat::kLlmc, 10, some_ids(4, 10));
  EXPECT_TRUE(contains(open_error(folder_.string()), "name one kind"));
  EXPECT_EQ(TokenSource::open_split(folder_, "val").tokens(), 4);
  EXPECT_EQ(TokenSource::open_split(folder_, "train").tokens(), 10);
  EXPECT_TRUE(
      contains(error_of([&] { TokenSource::open_split(folder_, "test"); }), "no *test*.bin"));
  EXPECT_TRUE(
      contains(error_of([&] { TokenSource::open_split(folder_ / "x", "val"); }), "no such folder"));
}

TEST(ShardChanges, AreNoticedAtTheNextRead) {
  const test::TempFolder folder;
  const fs::path path = folder / "s.bin";
  write_shard(path, ShardFormat::kLlmc, 100, std::vector<int32_t>(50, 1));
  std::vector<int32_t> ids(10);
  const TokenSource source = TokenSource::open({path.string()});
  source.read(5, ids);
  EXPECT_EQ(ids[9], 1);
  fs::rename(path, folder / "aside");
  source.read(5, ids);  // gone, but still mapped
  write_shard(path, ShardFormat::kLlmc, 100, std::vector<int32_t>(50, 2));
  EXPECT_USER_ERROR(source.read(5, ids), "s.bin changed while it was read");
  fs::remove(path);
  fs::rename(folder / "aside", path);
  source.read(5, ids);
}

}  // namespace
}  // namespace brrr::io
