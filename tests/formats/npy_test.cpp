// NumPy's .npy files, both ways.

#include "formats/npy.h"

#include <gtest/gtest.h>

#include "base/errors.h"
#include "base/file.h"
#include "support/temp_folder.h"

namespace brrr::test {
namespace {

HostTensor counted(DType dtype, Shape shape) {
  HostTensor t(dtype, std::move(shape));
  for (int64_t i = 0; i < t.shape.elements(); ++i)
    store_from_double(dtype, t.bytes.data(), i, static_cast<double>(i % 2));
  return t;
}

TEST(Npy, EveryDTypeComesBack) {
  for (const DType dtype : kAllDTypes)
    for (const Shape& shape : {Shape{2, 3}, Shape{4}, Shape{}, Shape{0, 2}}) {
      const HostTensor t = counted(dtype, shape);
      const std::string bytes = io::npy_bytes(dtype, shape.sizes(), t.bytes);
      const HostTensor back = io::parse_npy(bytes, "x.npy");
      EXPECT_EQ(back.shape, shape) << name_of(dtype);
      EXPECT_EQ(back.bytes, t.bytes) << name_of(dtype);
      const bool has_name = dtype != DType::bf16 && !is_fp8(dtype);
      EXPECT_TRUE(!has_name || back.dtype == dtype) << name_of(dtype);
    }
}

TEST(Npy, ColumnsFirstBecomesRowsFirst) {
  const HostTensor t = counted(DType::i32, {2, 2});
  std::string bytes = io::npy_bytes(DType::i32, t.shape.sizes(), t.bytes);
  const size_t at = bytes.find("False");
  bytes.replace(at, 5, "True ");
  const HostTensor back = io::parse_npy(bytes, "x.npy");
  const std::vector<int32_t> wanted{0, 0, 1, 1};
  EXPECT_TRUE(std::ranges::equal(back.as<int32_t>(), wanted));
}

TEST(Npy, DamagedFilesAreRefused) {
  const HostTensor t = counted(DType::f32, {2, 2});
  const std::string whole = io::npy_bytes(DType::f32, t.shape.sizes(), t.bytes);
  for (size_t length = 0; length < whole.size(); ++length)
    EXPECT_THROW(io::parse_npy(whole.substr(0, length), "x.npy"), UserError) << length;
  std::string strings = whole;
  strings.replace(strings.find("<f4"), 3, "<U4");
  EXPECT_THROW(io::parse_npy(strings, "x.npy"), UserError);
  std::string big = whole;
  big.replace(big.find("<f4"), 3, ">f4");
  EXPECT_THROW(io::parse_npy(big, "x.npy"), UserError);
}

}  // namespace
}  // namespace brrr::test
