// NF4 and FP4: codes, scales and values are exactly those of tests/golden/make_four_bit_goldens.py,
// which agrees with bitsandbytes.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/blocks/block_types.h"
#include "base/blocks/four_bit.h"
#include "base/storage.h"
#include "formats/safetensors.h"

namespace brrr::io {
namespace {

using blocks::kFourBitBytes;
using blocks::kFourBitValues;

std::vector<float> golden_floats(const SafetensorsFile& file, const std::string& name) {
  const TensorView* const tensor = file.find(name);
  std::vector<float> values(static_cast<size_t>(tensor->shape.elements()));
  copy_as_f32(*tensor, values);
  return values;
}

TEST(FourBitTypes, AreThoseOfTheGolden) {
  const SafetensorsFile file(fs::path(BRRR_SOURCE_DIR) / "tests/golden/four_bit.safetensors");
  const Shape shape = file.find("x")->shape;
  const std::vector<float> x = golden_floats(file, "x");
  for (const auto& [name, storage_name] :
       {std::pair<std::string, const char*>("nf4", "blocks_of_NF4"), {"fp4", "blocks_of_FP4"}}) {
    SCOPED_TRACE(name);
    const Storage storage = *storage_from_name(storage_name);
    EXPECT_EQ(storage.str(), storage_name);
    const std::vector<float> scales = golden_floats(file, name + ".scales"),
                             values = golden_floats(file, name + ".values");
    const TensorView* const codes = file.find(name + ".codes");
    const std::span<const float> table =
        name == "nf4" ? blocks::nf4_values() : blocks::fp4_values();
    std::vector<std::byte> bytes(static_cast<size_t>(stored_bytes(storage, DType::f32, shape)));
    ASSERT_EQ(std::ssize(bytes), std::ssize(scales) * kFourBitBytes);
    quantise(block_type_of(storage), x, bytes);
    for (size_t block = 0; block < scales.size(); ++block) {
      const std::byte* const at = bytes.data() + block * kFourBitBytes;
      float scale;
      std::memcpy(&scale, at, sizeof(scale));
      EXPECT_EQ(scale, scales[block]) << block;
      for (size_t i = 0; i < kFourBitValues; ++i) {
        const auto pair = static_cast<unsigned>(at[sizeof(scale) + i / 2]);
        const unsigned code = i % 2 == 0 ? pair >> 4 : pair & 15U;
        const auto wanted = static_cast<unsigned>(codes->bytes[block * kFourBitValues + i]);
        // Zero has two codes in FP4.
        EXPECT_EQ(table[code], table[wanted]) << block << ", " << i;
      }
    }
    std::vector<float> back(x.size());
    dequantise(block_type_of(storage), bytes, back);
    EXPECT_EQ(back, values);
    // The reference interpreter writes and reads the same.
    const std::vector<double> wide(x.begin(), x.end());
    std::vector<std::byte> again(bytes.size());
    write_floats(storage, DType::f32, shape, wide, again.data());
    EXPECT_EQ(again, bytes);
  }
}

// Halfway is the lower value of NF4; FP4 has a bit for the sign; what is not finite makes its block
// NaN.
TEST(FourBitTypes, HalvesAndNumbersThatAreNone) {
  std::vector<float> x(128, 1.0F);
  x[0] = 0.03979014977812767F;
  x[1] = 1.0F / 7;
  x[2] = -x[1];
  x[70] = INFINITY;
  std::vector<std::byte> bytes(2 * kFourBitBytes);
  blocks::quantise_nf4(x.data(), 2, bytes.data());
  EXPECT_EQ(static_cast<unsigned>(bytes[4]) >> 4, 7U);
  std::vector<float> back(128);
  blocks::dequantise_nf4(bytes.data(), 2, back.data());
  EXPECT_EQ(back[5], 1.0F);
  for (size_t i = 64; i < 128; ++i) EXPECT_TRUE(std::isnan(back[i])) << i;
  blocks::quantise_fp4(x.data(), 1, bytes.data());
  EXPECT_EQ(static_cast<unsigned>(bytes[4]) & 15U, 6U);
  EXPECT_EQ(static_cast<unsigned>(bytes[5]) >> 4, 14U);
}

// No file has them as types of its tensors.
TEST(FourBitTypes, AreNoTypesOfGgufFiles) {
  EXPECT_NE(find_block_type("NF4"), nullptr);
  EXPECT_EQ(find_block_type(find_block_type("NF4")->id), nullptr);
  EXPECT_EQ(names_of_read_types().find("NF4"), std::string::npos);
}

}  // namespace
}  // namespace brrr::io
