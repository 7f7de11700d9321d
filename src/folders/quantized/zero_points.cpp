#include "folders/quantized/zero_points.h"

#include <algorithm>
#include <array>

#include "base/errors.h"
#include "base/integers.h"
#include "base/threads/parallel.h"

namespace brrr::io {
namespace {

/// Calls write(place in the weight, place in scales and zeros, q) for every integer.
template <typename Write>
void each_integer(const ZeroPointMatrix& m, const Write& write) {
  parallel_for(ceil_div(m.outputs, kOutputsAtOnce), 1, [&](int64_t begin, int64_t end) {
    std::array<int32_t, kOutputsAtOnce> room{};
    for (int64_t part = begin; part < end; ++part) {
      const int64_t first = part * kOutputsAtOnce;
      const int64_t count = std::min(kOutputsAtOnce, m.outputs - first);
      const std::span<int32_t> q(room.data(), static_cast<size_t>(count));
      for (int64_t k = 0; k < m.inputs; ++k) {
        m.integers(k, first, q);
        const int64_t row = m.group_of[static_cast<size_t>(k)] * m.outputs + first;
        for (int64_t i = 0; i < count; ++i)
          write(static_cast<size_t>((first + i) * m.inputs + k), static_cast<size_t>(row + i),
                q[static_cast<size_t>(i)]);
      }
    }
  });
}

}  // namespace

void ZeroPointMatrix::dequantize(std::span<float> to) const {
  BRRR_CHECK(std::ssize(to) == outputs * inputs, "{} numbers for {} x {}", to.size(), outputs,
             inputs);
  each_integer(*this, [&](size_t at, size_t group, int32_t q) {
    to[at] = scales[group] * static_cast<float>(q - zeros[group]);
  });
}

std::vector<int8_t> ZeroPointMatrix::differences() const {
  std::vector<int8_t> result(static_cast<size_t>(outputs * inputs));
  each_integer(*this, [&](size_t at, size_t group, int32_t q) {
    result[at] = static_cast<int8_t>(q - zeros[group]);
  });
  return result;
}

std::vector<float> ZeroPointMatrix::scales_of_rows() const {
  std::vector<float> rows(scales.size());
  const size_t count = static_cast<size_t>(outputs), groups = scales.size() / count;
  for (size_t group = 0; group < groups; ++group)
    for (size_t row = 0; row < count; ++row)
      rows[row * groups + group] = scales[group * count + row];
  return rows;
}

std::vector<int32_t> neighbouring_groups(int64_t inputs, int64_t group) {
  std::vector<int32_t> groups(static_cast<size_t>(inputs), 0);
  if (group > 0)
    for (int64_t k = 0; k < inputs; ++k)
      groups[static_cast<size_t>(k)] = static_cast<int32_t>(k / group);
  return groups;
}

}  // namespace brrr::io
