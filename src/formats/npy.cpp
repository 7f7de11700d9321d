#include "formats/npy.h"

#include <bit>

#include "base/errors.h"
#include "base/file.h"

namespace brrr::io {

static_assert(std::endian::native == std::endian::little, "'<f4' is how numbers lie in memory");

std::string npy_bytes(std::span<const float> numbers, int64_t rows, int64_t columns) {
  BRRR_CHECK(std::ssize(numbers) == rows * columns, "{} numbers for [{}, {}]", numbers.size(), rows,
             columns);
  constexpr size_t kAlignment = 64;  // of the numbers in the file
  const std::string preamble("\x93NUMPY\x01\x00", 8);
  std::string header =
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, columns);
  const size_t unpadded = preamble.size() + sizeof(uint16_t) + header.size() + 1;
  header.append((kAlignment - unpadded % kAlignment) % kAlignment, ' ');
  header += '\n';
  const auto size = static_cast<uint16_t>(header.size());
  std::string out = preamble;
  out += static_cast<char>(size & 0xff);
  out += static_cast<char>(size >> 8);
  out += header;
  out.append(reinterpret_cast<const char*>(numbers.data()), numbers.size_bytes());
  return out;
}

void write_npy(const std::filesystem::path& path, std::span<const float> numbers, int64_t rows,
               int64_t columns) {
  write_named_file(path, npy_bytes(numbers, rows, columns));
}

}  // namespace brrr::io
