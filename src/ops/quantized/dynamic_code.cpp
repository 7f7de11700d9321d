#include "ops/quantized/dynamic_code.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace brrr::ops {
namespace {

// The i-th of `count` edges from 0.1 to 1, with the roundings of torch.linspace.
float edge(int i, int count) {
  const float step = (1.0f - 0.1f) / static_cast<float>(count - 1);
  return i < count / 2 ? std::fma(step, static_cast<float>(i), 0.1f)
                       : std::fma(-step, static_cast<float>(count - 1 - i), 1.0f);
}

CodeBook make(bool is_signed) {
  std::vector<float> numbers{0.0f, 1.0f};
  constexpr float kPowers[] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f};
  for (int decade = 0; decade < 7; ++decade) {
    const int cells = 1 << (decade + (is_signed ? 0 : 1));
    for (int i = 0; i < cells; ++i) {
      const float centre = (edge(i, cells + 1) + edge(i + 1, cells + 1)) / 2.0f;
      const float number = kPowers[decade] * centre;
      numbers.push_back(number);
      if (is_signed) numbers.push_back(-number);
    }
  }
  std::sort(numbers.begin(), numbers.end());
  CodeBook codes{};
  std::copy(numbers.begin(), numbers.end(), codes.begin());
  return codes;
}

}  // namespace

const CodeBook& dynamic_codes(bool is_signed) {
  static const CodeBook with_sign = make(true), without = make(false);
  return is_signed ? with_sign : without;
}

uint8_t nearest_code(const CodeBook& codes, double x) {
  size_t low = 0, high = codes.size() - 1;  // how many of the bounds between codes are below x
  while (low < high) {
    const size_t middle = (low + high) / 2;
    const float bound = (codes[middle] + codes[middle + 1]) / 2.0f;
    if (static_cast<double>(bound) < x)
      low = middle + 1;
    else
      high = middle;
  }
  return static_cast<uint8_t>(low);
}

}  // namespace brrr::ops
