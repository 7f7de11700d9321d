// The block types of GGUF against gguf-py's NumPy code, bit for bit.

#include "base/blocks/block_types.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <map>

#include "base/rng.h"
#include "base/sha256.h"
#include "formats/safetensors.h"
#include "support/long_proof.h"
#include "support/temp_folder.h"

namespace brrr::test {
namespace {

// Bytes of a block at which an f16 lies, as in make_gguf_goldens.py.
const std::map<std::string, std::vector<int64_t>>& halves() {
  static const std::map<std::string, std::vector<int64_t>> halves = {
      {"F16", {0}},    {"Q4_0", {0}},      {"Q4_1", {0, 2}}, {"Q5_0", {0}},    {"Q5_1", {0, 2}},
      {"Q8_0", {0}},   {"Q2_K", {80, 82}}, {"Q3_K", {108}},  {"Q4_K", {0, 2}}, {"Q5_K", {0, 2}},
      {"Q6_K", {208}}, {"IQ4_NL", {0}},    {"IQ4_XS", {0}}};
  return halves;
}

/// Word `at` of the stream of a seed: SplitMix64.
uint64_t random_word(uint64_t at, uint64_t seed) {
  uint64_t z = (at + (seed << 40)) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

/// Blocks [begin, begin + count) of a type, with finite scales. Eight blocks are whole words.
std::vector<std::byte> random_blocks(const BlockType& type, int64_t begin, int64_t count) {
  std::vector<std::byte> blocks(static_cast<size_t>(count * type.bytes));
  const uint64_t first = static_cast<uint64_t>(begin * type.bytes) / 8;
  for (size_t i = 0; i < blocks.size() / 8; ++i) {
    const uint64_t word = random_word(first + i, type.id);
    std::memcpy(blocks.data() + 8 * i, &word, 8);
  }
  const std::string name = type.name;
  const auto at = halves().find(name);
  for (int64_t b = 0; b < count; ++b) {
    auto* const block = reinterpret_cast<uint8_t*>(blocks.data() + b * type.bytes);
    if (at != halves().end())
      for (const int64_t half : at->second)
        if ((block[half + 1] & 0x7C) == 0x7C) block[half + 1] &= 0xBF;
    const int64_t last = type.bytes - 1;
    if ((name == "F32" || name == "BF16") && (block[last] & 0x7F) == 0x7F &&
        block[last - 1] >= 0x80)
      block[last] &= 0xBF;
    if (name == "MXFP4" && block[0] == 255) block[0] = 127;
  }
  return blocks;
}

std::vector<float> values_of(const BlockType& type, std::span<const std::byte> blocks) {
  std::vector<float> values(blocks.size() / static_cast<size_t>(type.bytes) *
                            static_cast<size_t>(type.elements));
  dequantise(type, blocks, values);
  return values;
}

class BlockTypes : public ::testing::TestWithParam<BlockType> {};

TEST_P(BlockTypes, GiveTheBitsOfGgufPy) {
  const BlockType& type = GetParam();
  const io::SafetensorsFile golden(fs::path(BRRR_SOURCE_DIR) /
                                   "tests/golden/gguf_blocks.safetensors");
  const std::string name = type.name;
  std::vector<float> expected(static_cast<size_t>(golden.get(name).shape.elements()));
  io::copy_as_f32(golden.get(name), expected);
  constexpr int64_t kFew = 20'000, kMany = 1'000'000;
  const int64_t blocks = is_long() ? kMany : kFew;
  Sha256 few, many;
  for (int64_t begin = 0; begin < blocks; begin += kFew) {
    const std::vector<float> values = values_of(type, random_blocks(type, begin, kFew));
    if (begin == 0) {
      for (size_t i = 0; i < expected.size(); ++i)
        ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), std::bit_cast<uint32_t>(expected[i]))
            << name << ", element " << i << ": " << values[i] << " for " << expected[i];
      few.update(values.data(), values.size() * sizeof(float));
    }
    many.update(values.data(), values.size() * sizeof(float));
  }
  EXPECT_EQ(few.finish_hex(), golden.metadata().at(name + ".few"));
  if (is_long()) {
    EXPECT_EQ(many.finish_hex(), golden.metadata().at(name + ".many"));
  }
}

std::vector<BlockType> read_types() {
  std::vector<BlockType> types;
  for (const BlockType& type : block_types())
    if (type.is_read()) types.push_back(type);
  return types;
}

INSTANTIATE_TEST_SUITE_P(Read, BlockTypes, ::testing::ValuesIn(read_types()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(BlockTypeTable, KnowsNamesAndIds) {
  EXPECT_EQ(read_types().size(), 16u);
  EXPECT_STREQ(find_block_type(uint32_t{39})->name, "MXFP4");
  EXPECT_EQ(find_block_type("Q4_K")->id, 12u);
  EXPECT_EQ(find_block_type(uint32_t{4}), nullptr);
  EXPECT_EQ(find_block_type("Q4_2"), nullptr);
  EXPECT_FALSE(find_block_type("IQ2_XXS")->is_read());
  EXPECT_EQ(names_of_read_types(),
            "F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, "
            "BF16, MXFP4");
}

/// The floats of random_values() in make_gguf_goldens.py; block 7 is all zeros.
std::vector<float> random_values(const BlockType& type, int64_t blocks) {
  std::vector<float> values(static_cast<size_t>(blocks * type.elements));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint64_t word = random_word(i, 100 + type.id);
    const auto mantissa = static_cast<int64_t>(word >> 40) - (int64_t{1} << 23);
    values[i] = std::ldexp(static_cast<float>(mantissa), -20 - static_cast<int>(word & 15));
    if ((word >> 4) % 16 == 0 || static_cast<int64_t>(i) / type.elements == 7) values[i] = 0;
  }
  return values;
}

TEST(BlockTypeTable, WritesTheBytesOfGgufPy) {
  const io::SafetensorsFile golden(fs::path(BRRR_SOURCE_DIR) /
                                   "tests/golden/gguf_blocks.safetensors");
  constexpr int64_t kBlocks = 20'000;
  int written = 0;
  for (const BlockType& type : block_types()) {
    if (type.quantise == nullptr || type.elements > 32) continue;
    ++written;
    std::vector<std::byte> blocks(static_cast<size_t>(kBlocks * type.bytes));
    quantise(type, random_values(type, kBlocks), blocks);
    Sha256 hash;
    hash.update(blocks.data(), blocks.size());
    EXPECT_EQ(hash.finish_hex(), golden.metadata().at(type.name + std::string(".written")))
        << type.name;
  }
  EXPECT_EQ(written, 7);
}

/// About normally distributed: the sum of twelve uniform numbers.
std::vector<float> bell_values(size_t count) {
  RngStream random({7, 0}, 0);
  std::vector<float> values(count);
  for (float& value : values) {
    for (int i = 0; i < 12; ++i) value += random.next_uniform() - 0.5f;
    value *= 0.05f;
  }
  return values;
}

/// The root mean square of what a type loses, over that of the values.
double relative_loss(const BlockType& type, std::span<const float> values) {
  std::vector<std::byte> blocks(values.size() / static_cast<size_t>(type.elements) *
                                static_cast<size_t>(type.bytes));
  quantise(type, values, blocks);
  std::vector<float> back(values.size());
  dequantise(type, blocks, back);
  double loss = 0, norm = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_TRUE(std::isfinite(back[i])) << type.name;
    loss += std::pow(static_cast<double>(back[i]) - values[i], 2);
    norm += std::pow(static_cast<double>(values[i]), 2);
  }
  return norm == 0 ? std::sqrt(loss) : std::sqrt(loss / norm);
}

// ggml's own quantizer loses 0.0713, 0.0361 and 0.0177 of normal values
// (bench/peers/gguf_quantisers.py).
TEST(BlockTypeTable, WritesBlocksOf256ValuesWithLittleLoss) {
  const std::vector<float> values = bell_values(256 * 400);
  EXPECT_LT(relative_loss(*find_block_type("Q4_K"), values), 0.0713);
  EXPECT_LT(relative_loss(*find_block_type("Q5_K"), values), 0.0361);
  EXPECT_LT(relative_loss(*find_block_type("Q6_K"), values), 0.0177);
}

TEST(BlockTypeTable, WritesUnusualBlocks) {
  for (const char* name : {"Q4_K", "Q5_K", "Q6_K", "Q5_0", "Q5_1", "Q4_0", "Q8_0"}) {
    const BlockType& type = *find_block_type(name);
    std::vector<float> values(256);
    EXPECT_EQ(relative_loss(type, values), 0) << name;  // zeros
    std::ranges::fill(values, -0.75f);
    EXPECT_LT(relative_loss(type, values), 0.02) << name;
    std::ranges::fill(values, 0.75f);
    EXPECT_LT(relative_loss(type, values), 0.02) << name;
    for (size_t i = 0; i < 256; ++i) values[i] = i % 2 == 0 ? 3.0f : 2.0f;
    EXPECT_LT(relative_loss(type, values), 0.05) << name;
    std::ranges::fill(values, 0.0f);
    values[77] = -1000;  // one value alone
    EXPECT_LT(relative_loss(type, values), 1e-2) << name;
    std::ranges::fill(values, 1e-30f);  // too small for a scale in f16
    EXPECT_LT(relative_loss(type, values), 1.01) << name;
    for (size_t i = 0; i < 256; ++i) values[i] = (i % 3 == 0 ? -1.0f : 1.0f) * 60000;
    EXPECT_LT(relative_loss(type, values), 0.2) << name;
  }
}

// Blocks lie in a file at any address.
TEST(BlockTypeTable, ReadsMisalignedBlocks) {
  for (const BlockType& type : read_types()) {
    const std::vector<std::byte> blocks = random_blocks(type, 0, 8);
    std::vector<std::byte> shifted(blocks.size() + 1);
    std::ranges::copy(blocks, shifted.begin() + 1);
    EXPECT_EQ(values_of(type, blocks), values_of(type, std::span(shifted).subspan(1))) << type.name;
  }
}

}  // namespace
}  // namespace brrr::test
