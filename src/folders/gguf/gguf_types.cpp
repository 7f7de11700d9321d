#include "folders/gguf/gguf_types.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "base/errors.h"

namespace brrr::io {
namespace {

struct FileKindRow {
  std::string_view name;
  int64_t file_type = 0;
  std::string_view usual, output;  // block types of matrices, and of the head
  std::string_view more;           // of the matrices that lose most: half of attn_v and ffn_down
  std::string_view joint;          // of attn_qkv
};

// In the order of the enumeration.
constexpr FileKindRow kFileKinds[] = {
    {"F32", 0, "F32", "F32", "F32", "F32"},         {"F16", 1, "F16", "F16", "F16", "F16"},
    {"BF16", 32, "BF16", "BF16", "BF16", "BF16"},   {"Q8_0", 7, "Q8_0", "Q8_0", "Q8_0", "Q8_0"},
    {"Q6_K", 18, "Q6_K", "Q6_K", "Q6_K", "Q6_K"},   {"Q5_K_M", 17, "Q5_K", "Q6_K", "Q6_K", "Q6_K"},
    {"Q4_K_M", 15, "Q4_K", "Q6_K", "Q6_K", "Q5_K"}, {"Q4_0", 2, "Q4_0", "Q6_K", "Q4_0", "Q4_0"},
};
const FileKindRow& row_of(GgufFileKind kind) { return kFileKinds[static_cast<size_t>(kind)]; }

/// What takes the place of a type where rows are not whole blocks.
constexpr std::pair<std::string_view, std::string_view> kFallbacks[] = {
    {"Q4_K", "Q5_0"}, {"Q5_K", "Q5_1"}, {"Q6_K", "Q8_0"}};

const BlockType* block_type(std::string_view name) {
  const BlockType* const type = find_block_type(name);
  BRRR_CHECK(type != nullptr && type->quantise != nullptr, "nothing writes {}", name);
  return type;
}

/// The number behind "blk."; -1 where there is none.
int64_t layer_of(std::string_view name) {
  constexpr std::string_view kStart = "blk.";
  int64_t layer = -1;
  if (name.starts_with(kStart))
    std::from_chars(name.data() + kStart.size(), name.data() + name.size(), layer);
  return layer;
}

/// llama.cpp's choice of layers that get more bits: the first and the last eighth, and every third
/// between them.
bool gets_more_bits(int64_t layer, int64_t layers) {
  const int64_t eighth = layers / 8;
  return layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2;
}

std::string_view wanted_type(const GgufMixture& mixture, std::string_view name) {
  const FileKindRow& row = row_of(mixture.kind);
  if (name == "output.weight" || (name == "token_embd.weight" && !mixture.has_output))
    return row.output;
  if (name.ends_with(".attn_qkv.weight")) return row.joint;
  const bool loses_most = name.ends_with(".attn_v.weight") || name.ends_with(".ffn_down.weight");
  return loses_most && gets_more_bits(layer_of(name), mixture.layers) ? row.more : row.usual;
}

}  // namespace

const std::vector<std::string_view>& gguf_file_kinds() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> all;
    for (const FileKindRow& row : kFileKinds) all.push_back(row.name);
    return all;
  }();
  return names;
}

std::string_view name_of(GgufFileKind kind) { return row_of(kind).name; }

std::optional<GgufFileKind> gguf_file_kind(std::string_view name) {
  const auto is_name = [&](const FileKindRow& row) {
    return std::ranges::equal(row.name, name, [](char a, char b) {
      return a == static_cast<char>(std::toupper(static_cast<unsigned char>(b)));
    });
  };
  const auto at = std::ranges::find_if(kFileKinds, is_name);
  if (at == std::end(kFileKinds)) return std::nullopt;
  return static_cast<GgufFileKind>(at - std::begin(kFileKinds));
}

int64_t file_type_of(GgufFileKind kind) { return row_of(kind).file_type; }

bool is_quantised(GgufFileKind kind) {
  return kind != GgufFileKind::f32 && kind != GgufFileKind::f16 && kind != GgufFileKind::bf16;
}

GgufTypeChoice gguf_type_of(const GgufMixture& mixture, std::string_view name, const Shape& shape) {
  // llama.cpp reads vectors and these tables as F32 alone.
  const bool is_matrix = shape.rank() >= 2 && name.ends_with(".weight") &&
                         !name.ends_with("_norm.weight") && name != "position_embd.weight" &&
                         name != "token_types.weight";
  if (!is_matrix) return {block_type("F32"), nullptr};
  const BlockType* const wanted = block_type(wanted_type(mixture, name));
  const int64_t row = shape.size(-1);
  if (row % wanted->elements == 0) return {wanted, nullptr};
  for (const auto& [from, to] : kFallbacks)
    if (from == wanted->name)
      if (const BlockType* const type = block_type(to); row % type->elements == 0)
        return {type, wanted};
  return {block_type("F16"), wanted};
}

}  // namespace brrr::io
