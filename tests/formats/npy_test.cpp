// .npy files: the header as NumPy's format description (NEP 1) gives it.

#include "formats/npy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/file.h"
#include "support/temp_folder.h"

namespace brrr::io {
namespace {

TEST(Npy, HoldsTheNumbersBehindAnAlignedHeader) {
  const std::vector<float> numbers = {1.5f, -2, 0.25f, 3, 4, 5};
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{2, 3}, {6, 1}, {1, 6}}) {
    const std::string bytes = npy_bytes(numbers, rows, columns);
    EXPECT_EQ(bytes.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
    const size_t header = static_cast<uint8_t>(bytes[8]) + 256u * static_cast<uint8_t>(bytes[9]);
    EXPECT_EQ((10 + header) % 64, 0u);
    const std::string text = bytes.substr(10, header);
    EXPECT_TRUE(text.starts_with(fmt::format(
        "{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, columns)))
        << text;
    EXPECT_EQ(text.back(), '\n');
    ASSERT_EQ(bytes.size(), 10 + header + 24);
    EXPECT_EQ(std::memcmp(bytes.data() + 10 + header, numbers.data(), 24), 0);
  }
}

TEST(Npy, AFileMayBeEmpty) {
  const test::TempFolder folder;
  write_npy(folder.path() / "none.npy", {}, 0, 384);
  EXPECT_NE(read_file(folder.path() / "none.npy").find("(0, 384)"), std::string::npos);
}

}  // namespace
}  // namespace brrr::io
