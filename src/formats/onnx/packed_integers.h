#pragma once
// Integers of 2 and 4 bits. ONNX packs them, the low bits of a byte first; here each becomes an
// integer of 8 bits as soon as it is read, so that nothing else knows of packed tensors.

#include <cstdint>
#include <optional>

#include "formats/onnx/onnx_file.h"

namespace brrr::onnx {

/// An integer type that is narrower than its dtype.
struct NarrowInteger {
  int bits;
  bool is_signed;
  int64_t least() const { return is_signed ? -(int64_t{1} << (bits - 1)) : 0; }
  int64_t most() const { return (int64_t{1} << (is_signed ? bits - 1 : bits)) - 1; }
};
/// Nothing for a type whose elements are whole bytes, and for floats of 4 bits.
std::optional<NarrowInteger> narrow_integer(ElementType type);

/// How many bytes a file has for a tensor; nothing where Brrr has no such dtype, or the number does
/// not fit 64 bits.
std::optional<uint64_t> bytes_in_file(const TensorProto& tensor);

/// Gives each packed integer a byte of its own; other tensors stay as they are. `bytes` must be as
/// many as `bytes_in_file` says.
void unpack(TensorProto& tensor);

}  // namespace brrr::onnx
