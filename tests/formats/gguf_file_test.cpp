// GGUF files: what is read, and what is refused.

#include "formats/gguf/gguf_file.h"

#include <gtest/gtest.h>

#include "base/errors.h"
#include "base/rng.h"
#include "support/gguf_writer.h"
#include "support/long_proof.h"
#include "support/temp_folder.h"

namespace brrr::test {
namespace {

using io::GgufFile;
using io::GgufType;
using io::GgufValue;

constexpr uint32_t kF32 = 0, kQ4_0 = 2;

std::span<const std::byte> gguf_bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

/// A small file with every type of value.
GgufWriter every_value() {
  GgufWriter w;
  w.text("general.architecture", "llama")
      .key("u8", GgufType::u8, gguf_number<uint8_t>(200))
      .key("i8", GgufType::i8, gguf_number<int8_t>(-3))
      .u16("u16", 65535)
      .key("i16", GgufType::i16, gguf_number<int16_t>(-300))
      .u32("u32", 4'000'000'000u)
      .i32("i32", -70'000)
      .f32("f32", 0.5f)
      .flag("flag", true)
      .key("u64", GgufType::u64, gguf_number<uint64_t>(uint64_t{1} << 40))
      .key("i64", GgufType::i64, gguf_number<int64_t>(-5))
      .key("huge", GgufType::u64, gguf_number<uint64_t>(~uint64_t{0}))
      .key("f64", GgufType::f64, gguf_number<double>(0.1))
      .texts("texts", {"a", "", "gr\xc3\xbc\xc3\x9f"})
      .numbers<int32_t>("integers", GgufType::i32, {1, -2, 3})
      .numbers<float>("floats", GgufType::f32, {1.5f, -2.5f})
      .numbers<uint8_t>("none", GgufType::u8, {});
  const std::string inner = GgufWriter::array(GgufType::u8, 2, "\1\2");
  w.key("nested", GgufType::array, GgufWriter::array(GgufType::array, 2, inner + inner));
  w.floats("a.weight", {2, 3}, {1, 2, 3, 4, 5, 6});
  w.tensor("b.weight", {1, 64}, kQ4_0, std::string(36, '\x11'));
  w.floats("scalar", {}, {7});
  return w;
}

TEST(GgufFile, ReadsEveryValueAndTensor) {
  const std::string bytes = every_value().bytes();
  const GgufFile file(gguf_bytes(bytes), "x.gguf");
  EXPECT_EQ(file.version(), 3u);
  EXPECT_EQ(file.text("general.architecture"), "llama");
  EXPECT_EQ(file.integer("u8"), 200);
  EXPECT_EQ(file.integer("i8"), -3);
  EXPECT_EQ(file.integer("u16"), 65535);
  EXPECT_EQ(file.integer("i16"), -300);
  EXPECT_EQ(file.integer("u32"), 4'000'000'000);
  EXPECT_EQ(file.integer("i32"), -70'000);
  EXPECT_EQ(file.number("f32"), 0.5);
  EXPECT_EQ(file.number("i32"), -70'000);
  EXPECT_EQ(file.flag("flag"), true);
  EXPECT_EQ(file.integer("u64"), int64_t{1} << 40);
  EXPECT_EQ(file.integer("i64"), -5);
  EXPECT_EQ(file.number("f64"), 0.1);
  EXPECT_EQ(file.texts("texts"), (std::vector<std::string_view>{"a", "", "gr\xc3\xbc\xc3\x9f"}));
  EXPECT_EQ(file.integers("integers"), (std::vector<int64_t>{1, -2, 3}));
  EXPECT_EQ(file.numbers("floats"), (std::vector<float>{1.5f, -2.5f}));
  EXPECT_TRUE(file.integers("none").empty());
  std::vector<int64_t> nested;
  file.find("nested")->each([&](const GgufValue& inner) {
    inner.each([&](const GgufValue& value) { nested.push_back(*value.integer()); });
  });
  EXPECT_EQ(nested, (std::vector<int64_t>{1, 2, 1, 2}));

  EXPECT_EQ(file.integer("absent"), std::nullopt);
  EXPECT_TRUE(file.texts("absent").empty());
  EXPECT_USER_ERROR(
      file.integer("texts"),
      "x.gguf: texts must be an integer; found an array of 3 elements of type string");
  EXPECT_USER_ERROR(file.integer("huge"),
                    "huge must be an integer; found the u64 1844674407370955");
  EXPECT_USER_ERROR(file.number("flag"), "flag must be a number; found true");
  EXPECT_USER_ERROR(file.flag("u8"), "u8 must be true or false; found the u8 200");
  EXPECT_USER_ERROR(file.text("f32"), "f32 must be a string; found the f32 0.5");
  EXPECT_USER_ERROR(file.texts("integers"), "integers must be an array of strings; found an array");
  EXPECT_USER_ERROR(file.integers("floats"), "floats must be an array of integers; found an array");
  EXPECT_USER_ERROR(file.numbers("texts"), "texts must be an array of numbers; found an array");

  ASSERT_EQ(file.tensors().size(), 3u);
  EXPECT_EQ(file.find_tensor("a.weight")->shape, Shape({2, 3}));
  EXPECT_EQ(file.find_tensor("b.weight")->shape, Shape({1, 64}));
  EXPECT_STREQ(file.find_tensor("b.weight")->type->name, "Q4_0");
  EXPECT_EQ(file.find_tensor("b.weight")->bytes.size(), 36u);
  EXPECT_EQ(file.find_tensor("scalar")->shape, Shape());
  EXPECT_EQ(file.find_tensor("c"), nullptr);
  std::vector<float> values(6);
  dequantise(*file.find_tensor("a.weight")->type, file.find_tensor("a.weight")->bytes, values);
  EXPECT_EQ(values, (std::vector<float>{1, 2, 3, 4, 5, 6}));
}

TEST(GgufFile, ReadsVersionTwoAndAnotherAlignment) {
  GgufWriter w;
  w.version = 2;
  w.alignment = 8;
  w.u32("general.alignment", 8).floats("a", {1}, {1}).floats("b", {1}, {2});
  const std::string bytes = w.bytes();
  const GgufFile file(gguf_bytes(bytes), "x.gguf");
  EXPECT_EQ(file.version(), 2u);
  EXPECT_EQ(file.find_tensor("b")->bytes.data() - file.find_tensor("a")->bytes.data(), 8);
}

std::string refusal(const GgufWriter& w) {
  const std::string bytes = w.bytes();
  return user_error_of([&] { GgufFile(gguf_bytes(bytes), "x.gguf"); });
}

void expect_refusal(const GgufWriter& w, const std::string& part) {
  const std::string message = refusal(w);
  EXPECT_NE(message.find(part), std::string::npos) << "expected: " << part << "\ngot: " << message;
  EXPECT_TRUE(message.starts_with("x.gguf: ")) << message;
}

TEST(GgufFile, EveryFaultOfKeysIsNamed) {
  GgufWriter w;
  w.version = 1;
  expect_refusal(w, "a GGUF file of version 1; versions 2 and 3 are read");
  w.version = 4;
  expect_refusal(w, "a GGUF file of version 4");
  w.version = 0x03000000;
  expect_refusal(w, "a GGUF file for big-endian machines, which is not read");
  expect_refusal(GgufWriter().u32("k", 1).u32("k", 2), "the key 'k' is there twice");
  expect_refusal(GgufWriter().key("k", static_cast<GgufType>(13), ""),
                 "the key 'k' has the type 13; there are types 0 to 12");
  expect_refusal(
      GgufWriter().key("k", GgufType::array, GgufWriter::array(static_cast<GgufType>(99), 1, "")),
      "the elements of the key 'k' has the type 99");
  expect_refusal(GgufWriter().key("k", GgufType::text, gguf_number(~uint64_t{0})),
                 "truncated: the key 'k' needs 9,223,372,036,854,775,807 bytes");
  expect_refusal(GgufWriter().key("k", GgufType::array,
                                  GgufWriter::array(GgufType::u64, uint64_t{1} << 61, "")),
                 "truncated: the key 'k' says that it has 2305843009213693952 elements");
  std::string nested = GgufWriter::array(GgufType::u8, 0, "");
  for (int i = 0; i < 9; ++i) nested = GgufWriter::array(GgufType::array, 1, nested);
  expect_refusal(GgufWriter().key("k", GgufType::array, nested),
                 "the key 'k' has more than 8 arrays inside one another");
  for (const uint32_t alignment : {0u, 24u})
    expect_refusal(GgufWriter().u32("general.alignment", alignment),
                   "general.alignment must be a power of two; found the u32 ");
  expect_refusal(GgufWriter().text("general.alignment", "32"),
                 "general.alignment must be a power of two; found the string '32'");
  EXPECT_USER_ERROR(GgufFile(gguf_bytes("GGML"), "x.gguf"),
                    "x.gguf: not a GGUF file: it does not begin with \"GGUF\"");
  for (const char* const things : {"tensors", "keys"}) {
    std::string many = GgufWriter().bytes();
    many.replace(std::string_view(things) == "keys" ? 16 : 8, 8, gguf_number(uint64_t{1} << 60));
    EXPECT_USER_ERROR(
        GgufFile(gguf_bytes(many), "x.gguf"),
        fmt::format("it says that it has 1152921504606846976 {}; at most 65536", things));
  }
}

TEST(GgufFile, EveryFaultOfTensorsIsNamed) {
  const std::string four(4, '\0'), block(18, '\0');
  expect_refusal(GgufWriter().tensor("t", {1, 1, 1, 1, 1}, kF32, four),
                 "the tensor 't' has 5 dimensions; at most 4 are allowed");
  expect_refusal(GgufWriter().tensor("t", {uint64_t{1} << 63}, kF32, four),
                 "the tensor 't' has a dimension of 9223372036854775808");
  for (const std::vector<uint64_t>& shape :
       {std::vector<uint64_t>{uint64_t{1} << 40, uint64_t{1} << 40},
        {0, uint64_t{1} << 40, uint64_t{1} << 40},
        {uint64_t{1} << 62}})
    expect_refusal(GgufWriter().tensor("t", shape, kF32, four), "has too many elements");
  expect_refusal(GgufWriter().tensor("t", {32}, 4, block),
                 "the tensor 't' has the type 4, which is not known; types that are read: F32, ");
  expect_refusal(GgufWriter().tensor("t", {33}, kQ4_0, block),
                 "the tensor 't' has rows of 33 elements, which blocks of 32 of the type Q4_0 do "
                 "not divide");
  expect_refusal(GgufWriter().tensor("t", {}, kQ4_0, block), "has rows of 1 elements");
  expect_refusal(GgufWriter().tensor("t", {1}, kF32, four, 4),
                 "the tensor 't' begins at data byte 4, which is no multiple of the alignment 32");
  expect_refusal(
      GgufWriter().tensor("t", {2}, kF32, four),
      "truncated: the tensor 't' needs 8 bytes at data byte 0, and the file holds 4 data "
      "bytes; copy or download it again");
  expect_refusal(GgufWriter().tensor("t", {1}, kF32, four, int64_t{1} << 62),
                 "truncated: the tensor 't' needs 4 bytes at data byte 4611686018427387904");
  expect_refusal(GgufWriter().tensor("t", {1}, kF32, four).tensor("t", {1}, kF32, four),
                 "the tensor 't' is there twice");
  expect_refusal(
      GgufWriter().tensor("t", {9}, kF32, std::string(36, '\0')).tensor("u", {1}, kF32, four, 32),
      "the tensors 't' and 'u' overlap");
}

TEST(GgufFile, CutAndDamagedFilesAreRefusedOrRead) {
  const std::string whole = every_value().bytes();
  const auto open = [](const std::string& bytes) {
    try {
      const GgufFile file(gguf_bytes(bytes), "x.gguf");
      size_t sum = 0;
      for (const io::GgufTensor& t : file.tensors())
        for (const std::byte b : t.bytes) sum += static_cast<size_t>(b);
      for (const auto& [key, value] : file.metadata()) sum += value.describe().size();
      return sum > 0;
    } catch (const UserError&) {
      return false;
    }
  };
  for (size_t length = 0; length < whole.size(); ++length)
    EXPECT_FALSE(open(whole.substr(0, length))) << length;
  EXPECT_TRUE(open(whole));
  RngStream random({20, 1}, 0);
  for (int round = 0; round < rounds(1'000'000, 20'000); ++round) {
    std::string damaged = whole;
    for (uint64_t changes = 1 + random.next_below(4); changes > 0; --changes)
      damaged[random.next_below(damaged.size())] = static_cast<char>(
          random.next_below(2) == 0 ? random.next_below(256) : random.next_below(2) * 255);
    open(damaged);
  }
}

/// Part `number` (from 0) of a file that is split in two.
std::string split_part(uint16_t number, uint16_t count = 2, int32_t tensors = 2) {
  GgufWriter w;
  if (number == 0) w.text("general.architecture", "llama");
  w.u16("split.no", number).u16("split.count", count).i32("split.tensors.count", tensors);
  return w.floats(fmt::format("t{}", number), {1}, {static_cast<float>(number)}).bytes();
}

TEST(GgufFile, AnyPartOpensAllParts) {
  TempFolder folder;
  const fs::path first = folder / "m-00001-of-00002.gguf",
                 second = folder / "m-00002-of-00002.gguf";
  write_file_atomically(first, split_part(0));
  EXPECT_USER_ERROR(GgufFile(first),
                    "a part of a split file of 2, of which m-00002-of-00002.gguf is missing: all "
                    "parts belong into one folder");
  write_file_atomically(second, split_part(1));
  for (const fs::path& part : {first, second}) {
    const GgufFile file(part);
    EXPECT_EQ(file.paths(), (std::vector<fs::path>{first, second}));
    EXPECT_EQ(file.text("general.architecture"), "llama");
    EXPECT_EQ(file.what(), first.string());
    ASSERT_EQ(file.tensors().size(), 2u);
    EXPECT_NE(file.find_tensor("t1"), nullptr);
  }
  write_file_atomically(second, split_part(0));
  EXPECT_USER_ERROR(GgufFile(first),
                    "its name says part 2 of 2; split.no is 0 and split.count is 2");
  write_file_atomically(second, split_part(1));
  write_file_atomically(first, split_part(0, 2, 3));
  EXPECT_USER_ERROR(GgufFile(first), "split.tensors.count says 3, the parts hold 2");
  fs::rename(first, folder / "m.gguf");
  EXPECT_USER_ERROR(GgufFile(folder / "m.gguf"),
                    "a part of a split file of 2, whose name must end in -00001-of-00002.gguf");
  const std::string part = split_part(0);
  EXPECT_USER_ERROR(GgufFile(gguf_bytes(part), "x.gguf"), "it is one part of a split file");
  write_file_atomically(folder / "n-00001-of-65535.gguf", split_part(0, 65535));
  EXPECT_USER_ERROR(GgufFile(folder / "n-00001-of-65535.gguf"),
                    "n-00002-of-65535.gguf, n-00003-of-65535.gguf");
  EXPECT_EQ(io::gguf_part("a/m-00002-of-00009.gguf", 7, 9), fs::path("a/m-00007-of-00009.gguf"));
  EXPECT_EQ(io::gguf_part("a/m-0000x-of-00009.gguf", 7, 9), std::nullopt);
  EXPECT_EQ(io::gguf_part("-of-00009.gguf", 7, 9), std::nullopt);
}

TEST(GgufFile, ReadsFilesAndGivesPagesBack) {
  TempFolder folder;
  write_file_atomically(folder / "m.gguf", every_value().bytes());
  const GgufFile file(folder / "m.gguf");
  const io::GgufTensor& t = *file.find_tensor("a.weight");
  file.let_go(t.bytes);
  std::vector<float> values(6);
  dequantise(*t.type, t.bytes, values);
  EXPECT_EQ(values[5], 6);
  EXPECT_USER_ERROR(GgufFile(folder / "absent.gguf"), "absent.gguf");
}

}  // namespace
}  // namespace brrr::test
