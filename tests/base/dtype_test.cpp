#include "base/dtype.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace brrr {
namespace {

// Many elements, so that threads share them, at an address that no dtype is aligned to.
TEST(DTypes, ConvertedElementsAreThoseWrittenOneByOne) {
  constexpr int64_t kCount = 200'003;
  const std::vector<DType> dtypes{DType::f32, DType::f64, DType::bf16, DType::f16,
                                  DType::i32, DType::i64, DType::u8};
  for (const DType from : dtypes) {
    std::vector<std::byte> given(kCount * bytes_of(from) + 1);
    for (int64_t i = 0; i < kCount; ++i) {
      uint64_t room = 0;
      store_from_double(from, &room, 0, static_cast<double>(i * i % 70'001) / 7);
      std::memcpy(given.data() + 1 + static_cast<size_t>(i) * bytes_of(from), &room,
                  bytes_of(from));
    }
    for (const DType to : dtypes) {
      std::vector<std::byte> got(kCount * bytes_of(to)), expected = got;
      convert(from, given.data() + 1, to, got.data(), kCount);
      for (int64_t i = 0; i < kCount; ++i)
        store_from_double(to, expected.data(), i, load_as_double(from, given.data() + 1, i));
      EXPECT_EQ(got, expected) << name_of(from) << " as " << name_of(to);
    }
  }
}

}  // namespace
}  // namespace brrr
