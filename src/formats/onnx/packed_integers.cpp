#include "formats/onnx/packed_integers.h"

#include <array>

#include "base/errors.h"

namespace brrr::onnx {

std::optional<NarrowInteger> narrow_integer(ElementType type) {
  switch (type) {
    case ElementType::u4:
      return NarrowInteger{4, false};
    case ElementType::i4:
      return NarrowInteger{4, true};
    case ElementType::u2:
      return NarrowInteger{2, false};
    case ElementType::i2:
      return NarrowInteger{2, true};
    default:
      return std::nullopt;
  }
}

std::optional<uint64_t> bytes_in_file(const TensorProto& tensor) {
  const std::optional<DType> dtype = dtype_of(tensor.type);
  if (!dtype) return std::nullopt;
  const auto elements = static_cast<uint64_t>(tensor.elements());
  if (const auto narrow = narrow_integer(tensor.type)) {
    const auto each = static_cast<uint64_t>(8 / narrow->bits);
    return elements / each + (elements % each != 0 ? 1 : 0);
  }
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(elements, bytes_of(*dtype), &bytes)) return std::nullopt;
  return bytes;
}

void unpack(TensorProto& tensor) {
  const auto narrow = narrow_integer(tensor.type);
  if (!narrow) return;
  const auto elements = static_cast<size_t>(tensor.elements());
  const auto each = static_cast<size_t>(8 / narrow->bits);
  BRRR_CHECK(tensor.bytes.size() == (elements + each - 1) / each, "{} bytes for {} elements",
             tensor.bytes.size(), elements);
  // What a byte holds is looked up: files of language models have thousands of millions of numbers.
  std::array<std::array<std::byte, 4>, 256> table{};
  for (size_t byte = 0; byte < table.size(); ++byte)
    for (size_t i = 0; i < each; ++i) {
      int64_t value = static_cast<int64_t>(byte >> (i * static_cast<size_t>(narrow->bits))) &
                      ((int64_t{1} << narrow->bits) - 1);
      if (value > narrow->most()) value -= int64_t{1} << narrow->bits;
      table[byte][i] = static_cast<std::byte>(value);
    }
  auto room = std::make_shared<std::vector<std::byte>>(elements);
  for (size_t i = 0; i < elements; ++i)
    (*room)[i] = table[static_cast<size_t>(tensor.bytes[i / each])][i % each];
  tensor.bytes = *room;
  tensor.keeps_bytes = std::move(room);
}

}  // namespace brrr::onnx
