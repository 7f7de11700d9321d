#pragma once
// Translates the names of tensors in GGUF files to those of Hugging Face's files, with a table for
// each architecture, and lists the tensors whose elements GGUF files store in another order.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace brrr::io {

/// What the writers of GGUF files do to a tensor.
enum class GgufChange {
  none,
  /// The two halves of each query head, which rotate together, are interleaved: 2 i and 2 i + 1
  /// were i and i + D / 2.
  query_pairs,
  key_pairs,  // the same of key heads
  one_added,
  transposed,
  /// [3, H, D] instead of [H, 3, D] rows.
  kinds_first,
};

struct GgufName {
  std::string_view gguf;  // "blk.#.attn_q"; # is the number of a layer
  std::string_view name;  // "model.layers.#.self_attn.q_proj"
  GgufChange weight = GgufChange::none, bias = GgufChange::none;
};

/// An architecture as general.architecture names it.
struct GgufArchitecture {
  std::string_view name;
  std::span<const GgufName> names;
};

/// nullptr: it is not known.
const GgufArchitecture* find_gguf_architecture(std::string_view name);
/// "llama, qwen2, ...".
std::string known_gguf_architectures();

struct TranslatedName {
  std::string name;  // "": the architecture has no such tensor
  GgufChange change = GgufChange::none;
};
/// The name of a tensor, with its ".weight" or ".bias".
TranslatedName translated(const GgufArchitecture& architecture, std::string_view gguf_name);
/// The reverse: the name in a GGUF file of one of Hugging Face's.
TranslatedName gguf_name_of(const GgufArchitecture& architecture, std::string_view name);

/// The row of the file's tensor that holds row `row` of the model's weight of `rows` rows.
int64_t gguf_row(GgufChange change, int64_t heads, int64_t row, int64_t rows);

}  // namespace brrr::io
