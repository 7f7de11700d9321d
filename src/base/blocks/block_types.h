#pragma once
// The types of tensors in GGUF files: every type that ggml has, with its sizes, and a function that
// computes the f32 values of those that Brrr reads. A type stores a row in blocks of `elements`
// values, which take `bytes` bytes each; plain floats are blocks of one value.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace brrr {

struct Storage;

struct BlockType {
  const char* name = "";
  uint32_t id = 0;       // the number of the type in GGUF files
  int64_t elements = 1;  // values of a block
  int64_t bytes = 0;     // size of a block
  /// Writes the values of `count` blocks, bit for bit those of gguf-py's NumPy code. `blocks` may
  /// lie at any address. Null: Brrr does not read the type.
  void (*dequantise)(const std::byte* blocks, int64_t count, float* out) = nullptr;

  /// Writes `count` blocks of finite values. Null: Brrr does not write the type.
  void (*quantise)(const float* values, int64_t count, std::byte* out) = nullptr;

  bool is_read() const { return dequantise != nullptr; }
};

/// All block types, in the order of their ids.
std::span<const BlockType> block_types();
/// Returns nullptr if there is no such type.
const BlockType* find_block_type(uint32_t id);
const BlockType* find_block_type(std::string_view name);
/// The block type of a tensor whose storage is blocks.
const BlockType& block_type_of(const Storage& storage);
/// "F32, F16, Q4_0, ...": the names of the types that Brrr reads.
std::string names_of_read_types();

/// Writes the values of whole blocks with all threads. `out` has `elements` values for each block;
/// the type must be one that Brrr reads.
void dequantise(const BlockType& type, std::span<const std::byte> blocks, std::span<float> out);

/// Writes whole blocks with all threads; the type must be one that Brrr writes.
void quantise(const BlockType& type, std::span<const float> values, std::span<std::byte> out);

}  // namespace brrr
