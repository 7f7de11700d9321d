#pragma once
// Which block type each tensor of a GGUF file gets when a model is written as F16, Q4_K_M and the
// like: the mixtures of llama.cpp's quantizer.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/blocks/block_types.h"
#include "base/shape.h"

namespace brrr::io {

enum class GgufFileKind { f32, f16, bf16, q8_0, q6_k, q5_k_m, q4_k_m, q4_0 };

/// The names in the order of the enumeration: "F32", ..., "Q4_K_M", "Q4_0".
const std::vector<std::string_view>& gguf_file_kinds();
std::string_view name_of(GgufFileKind kind);
/// Whatever the case of the letters; nothing for other names.
std::optional<GgufFileKind> gguf_file_kind(std::string_view name);
/// The number of general.file_type.
int64_t file_type_of(GgufFileKind kind);
bool is_quantised(GgufFileKind kind);

/// What the choice for a tensor depends on besides its name and shape.
struct GgufMixture {
  GgufFileKind kind = GgufFileKind::f32;
  int64_t layers = 0;
  bool has_output = false;  // a head of its own; else it is the table of tokens
};

struct GgufTypeChoice {
  const BlockType* type = nullptr;
  /// The type that the mixture has for the tensor where rows are not whole blocks of it; else null.
  const BlockType* instead_of = nullptr;
};
/// `name` is that of the file, with ".weight" or ".bias".
GgufTypeChoice gguf_type_of(const GgufMixture& mixture, std::string_view name, const Shape& shape);

}  // namespace brrr::io
