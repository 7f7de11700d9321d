#include "folders/quantized/integer_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/errors.h"
#include "base/threads/parallel.h"

namespace brrr::io {
namespace {

/// Rows that a thread takes at once, at least.
constexpr int64_t kRowsOfThread = 16;

void check_sizes(const IntegerForm& form, size_t elements) {
  BRRR_CHECK(static_cast<int64_t>(elements) == form.rows * form.columns &&
                 (form.group == 0 || form.columns % form.group == 0),
             "{} elements for a matrix of {} x {} in groups of {}", elements, form.rows,
             form.columns, form.group);
}

}  // namespace

IntegerMatrix quantize(std::span<const float> matrix, const IntegerForm& form) {
  check_sizes(form, matrix.size());
  IntegerMatrix result;
  result.form = form;
  result.integers.resize(matrix.size());
  result.scales.resize(static_cast<size_t>(form.rows * form.groups()));
  const int64_t width = form.columns_of_group();
  const double most = form.most();
  parallel_for(form.rows * form.groups(), kRowsOfThread, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) {
      const std::span<const float> from =
          matrix.subspan(static_cast<size_t>(g * width), static_cast<size_t>(width));
      float top = 0;
      for (const float x : from) top = std::max(top, std::fabs(x));
      auto scale = static_cast<float>(static_cast<double>(top) / most);
      if (!(scale > 0)) scale = 1;
      result.scales[static_cast<size_t>(g)] = scale;
      for (size_t i = 0; i < from.size(); ++i) {
        const double whole =
            std::nearbyint(static_cast<double>(from[i]) / static_cast<double>(scale));
        result.integers[static_cast<size_t>(g * width) + i] =
            static_cast<int8_t>(std::clamp(whole, -most, most));
      }
    }
  });
  return result;
}

void dequantize(const IntegerForm& form, std::span<const int8_t> integers,
                std::span<const float> scales, std::span<float> to) {
  check_sizes(form, to.size());
  BRRR_CHECK(integers.size() == to.size() &&
                 static_cast<int64_t>(scales.size()) == form.rows * form.groups(),
             "{} integers and {} scales for {} numbers", integers.size(), scales.size(), to.size());
  const auto width = static_cast<size_t>(form.columns_of_group());
  parallel_for(form.rows * form.groups(), kRowsOfThread, [&](int64_t begin, int64_t end) {
    for (auto g = static_cast<size_t>(begin); g < static_cast<size_t>(end); ++g)
      for (size_t i = g * width; i < (g + 1) * width; ++i)
        to[i] = scales[g] * static_cast<float>(integers[i]);
  });
}

std::vector<int32_t> packed(const IntegerMatrix& matrix) {
  const IntegerForm& form = matrix.form;
  std::vector<int32_t> words(static_cast<size_t>(form.rows * form.words_of_row()));
  const uint32_t mask = (uint32_t{1} << form.bits) - 1;
  for (int64_t row = 0; row < form.rows; ++row)
    for (int64_t column = 0; column < form.columns; ++column) {
      const int stored =
          matrix.integers[static_cast<size_t>(row * form.columns + column)] + form.offset();
      const auto place =
          static_cast<size_t>(row * form.words_of_row() + column / form.integers_of_word());
      const uint32_t shifted = (static_cast<uint32_t>(stored) & mask)
                               << (form.bits * (column % form.integers_of_word()));
      words[place] = static_cast<int32_t>(static_cast<uint32_t>(words[place]) | shifted);
    }
  return words;
}

void unpack(const IntegerForm& form, std::span<const std::byte> words, std::span<int8_t> to) {
  BRRR_CHECK(static_cast<int64_t>(words.size()) == form.rows * form.words_of_row() * 4 &&
                 static_cast<int64_t>(to.size()) == form.rows * form.columns,
             "{} bytes of words for {} x {} integers", words.size(), form.rows, form.columns);
  const uint32_t mask = (uint32_t{1} << form.bits) - 1;
  parallel_for(form.rows, kRowsOfThread, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t first = 0; first < form.columns; first += form.integers_of_word()) {
        uint32_t word = 0;
        std::memcpy(
            &word, words.data() + 4 * (row * form.words_of_row() + first / form.integers_of_word()),
            sizeof(word));
        const int64_t count = std::min(form.integers_of_word(), form.columns - first);
        for (int64_t i = 0; i < count; ++i)
          to[static_cast<size_t>(row * form.columns + first + i)] = static_cast<int8_t>(
              static_cast<int>((word >> (form.bits * i)) & mask) - form.offset());
      }
  });
}

double relative_error(std::span<const float> a, std::span<const float> b) {
  BRRR_CHECK(a.size() == b.size(), "{} and {} numbers", a.size(), b.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = a[i], d = x - static_cast<double>(b[i]);
    difference += d * d;
    norm += x * x;
  }
  return norm > 0 ? std::sqrt(difference / norm) : 0;
}

}  // namespace brrr::io
