#pragma once
// NumPy's .npy files, version 1.0: a header that is a Python literal, then the numbers.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace brrr::io {

/// The bytes of a file with the array [rows, columns] of f32, row by row.
std::string npy_bytes(std::span<const float> numbers, int64_t rows, int64_t columns);

/// Writes it; a file of that name is replaced at once when all is written. Throws UserError.
void write_npy(const std::filesystem::path& path, std::span<const float> numbers, int64_t rows,
               int64_t columns);

}  // namespace brrr::io
