#include "base/blocks/block_types.h"

#include <algorithm>

#include "base/blocks/dequantise.h"
#include "base/blocks/four_bit.h"
#include "base/blocks/quantise.h"
#include "base/errors.h"
#include "base/storage.h"
#include "base/threads/parallel.h"

namespace brrr {
namespace {

using namespace blocks;

// Sorted by id. Types that ggml has removed (4, 5, 31 to 33, 36 to 38) have no row.
constexpr BlockType kBlockTypes[] = {
    {"F32", 0, 1, 4, dequantise_f32, quantise_f32},
    {"F16", 1, 1, 2, dequantise_f16, quantise_f16},
    {"Q4_0", 2, 32, 18, dequantise_q4_0, quantise_q4_0},
    {"Q4_1", 3, 32, 20, dequantise_q4_1},
    {"Q5_0", 6, 32, 22, dequantise_q5_0, quantise_q5_0},
    {"Q5_1", 7, 32, 24, dequantise_q5_1, quantise_q5_1},
    {"Q8_0", 8, 32, 34, dequantise_q8_0, quantise_q8_0},
    {"Q8_1", 9, 32, 40},
    {"Q2_K", 10, 256, 84, dequantise_q2_k},
    {"Q3_K", 11, 256, 110, dequantise_q3_k},
    {"Q4_K", 12, 256, 144, dequantise_q4_k, quantise_q4_k},
    {"Q5_K", 13, 256, 176, dequantise_q5_k, quantise_q5_k},
    {"Q6_K", 14, 256, 210, dequantise_q6_k, quantise_q6_k},
    {"Q8_K", 15, 256, 292},
    {"IQ2_XXS", 16, 256, 66},
    {"IQ2_XS", 17, 256, 74},
    {"IQ3_XXS", 18, 256, 98},
    {"IQ1_S", 19, 256, 50},
    {"IQ4_NL", 20, 32, 18, dequantise_iq4_nl},
    {"IQ3_S", 21, 256, 110},
    {"IQ2_S", 22, 256, 82},
    {"IQ4_XS", 23, 256, 136, dequantise_iq4_xs},
    {"I8", 24, 1, 1},
    {"I16", 25, 1, 2},
    {"I32", 26, 1, 4},
    {"I64", 27, 1, 8},
    {"F64", 28, 1, 8},
    {"IQ1_M", 29, 256, 56},
    {"BF16", 30, 1, 2, dequantise_bf16, quantise_bf16},
    {"TQ1_0", 34, 256, 54},
    {"TQ2_0", 35, 256, 66},
    {"MXFP4", 39, 32, 17, dequantise_mxfp4},
    {"NVFP4", 40, 64, 36},
    {"Q1_0", 41, 128, 18},
};

// Types that no GGUF file has; their ids serve Storage::block_type only.
constexpr BlockType kOwnTypes[] = {
    {"NF4", 254, kFourBitValues, kFourBitBytes, dequantise_nf4, quantise_nf4},
    {"FP4", 255, kFourBitValues, kFourBitBytes, dequantise_fp4, quantise_fp4},
};

constexpr int64_t kGrain = int64_t{1} << 14;  // values of a thread, at least

}  // namespace

std::span<const BlockType> block_types() { return kBlockTypes; }

const BlockType* find_block_type(uint32_t id) {
  const auto at = std::ranges::find(kBlockTypes, id, &BlockType::id);
  return at == std::end(kBlockTypes) ? nullptr : at;
}

const BlockType* find_block_type(std::string_view name) {
  for (const std::span<const BlockType> types :
       {block_types(), std::span<const BlockType>(kOwnTypes)})
    if (const auto at = std::ranges::find(types, name, &BlockType::name); at != types.end())
      return &*at;
  return nullptr;
}

const BlockType& block_type_of(const Storage& storage) {
  const BlockType* type = nullptr;
  if (storage.is_blocks()) type = find_block_type(uint32_t{storage.block_type});
  for (const BlockType& own : kOwnTypes)
    if (storage.is_blocks() && own.id == storage.block_type) type = &own;
  BRRR_CHECK(type != nullptr && type->is_read(), "no block type of the storage {}",
             storage.block_type);
  return *type;
}

std::string names_of_read_types() {
  std::string names;
  for (const BlockType& type : kBlockTypes)
    if (type.is_read()) names.append(names.empty() ? "" : ", ").append(type.name);
  return names;
}

void dequantise(const BlockType& type, std::span<const std::byte> blocks, std::span<float> out) {
  BRRR_CHECK(type.is_read(), "nothing reads {}", type.name);
  const auto count = std::ssize(blocks) / type.bytes;
  BRRR_CHECK(count * type.bytes == std::ssize(blocks) && count * type.elements == std::ssize(out),
             "{} bytes of {} for {} values", blocks.size(), type.name, out.size());
  parallel_for(count, kGrain / type.elements, [&](int64_t begin, int64_t end) {
    type.dequantise(blocks.data() + begin * type.bytes, end - begin,
                    out.data() + begin * type.elements);
  });
}

void quantise(const BlockType& type, std::span<const float> values, std::span<std::byte> out) {
  BRRR_CHECK(type.quantise != nullptr, "nothing writes {}", type.name);
  const auto count = std::ssize(out) / type.bytes;
  BRRR_CHECK(count * type.bytes == std::ssize(out) && count * type.elements == std::ssize(values),
             "{} values for {} bytes of {}", values.size(), out.size(), type.name);
  parallel_for(count, kGrain / type.elements, [&](int64_t begin, int64_t end) {
    type.quantise(values.data() + begin * type.elements, end - begin,
                  out.data() + begin * type.bytes);
  });
}

}  // namespace brrr
