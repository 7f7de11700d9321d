#pragma once
// IDX, the format of MNIST: two zero bytes, the type (8: bytes), the number of axes, their sizes as
// 32 bits each, high byte first, and the values.

#include <string>
#include <string_view>
#include <vector>

namespace brrr::io {

struct IdxArray {
  std::vector<int64_t> sizes;
  std::string_view values;  // bytes
};

/// Parses bytes with `axes` axes; `name` stands for the file in messages. Throws UserError: no IDX
/// file, another type or number of axes, sizes that do not fit the bytes.
IdxArray parse_idx(std::string_view bytes, const std::string& name, int axes);

}  // namespace brrr::io
