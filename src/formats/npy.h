#pragma once
// NumPy's .npy files: a header that is a Python literal, then the elements, row by row. Every dtype
// is written and read that NumPy has; bf16 and the floats of 8 bits are written as the unsigned
// integers of their bits.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "base/host_tensor.h"

namespace brrr::io {

/// The bytes of a file with the elements in their order.
std::string npy_bytes(DType dtype, std::span<const int64_t> sizes, std::span<const std::byte> data);

/// Writes it; a file of that name is replaced at once when all is written. Throws UserError.
void write_npy(const std::filesystem::path& path, const HostTensor& tensor);
/// The array [rows, columns] of f32.
void write_npy(const std::filesystem::path& path, std::span<const float> numbers, int64_t rows,
               int64_t columns);

/// Reads a file of versions 1 to 3, little endian, in either order of axes. Throws UserError for
/// another kind of file, a type that Brrr has not, and one that is cut short.
HostTensor read_npy(const std::filesystem::path& path);
HostTensor parse_npy(std::string_view bytes, const std::string& what);

}  // namespace brrr::io
