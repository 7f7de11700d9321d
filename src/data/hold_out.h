#pragma once
// Chooses the rows of a file that are held out for validation where there is no second file.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace brrr::io {

/// Every k-th row validates, k = 1 / fraction rounded: rows k, 2 k, ... counted from 1. With a
/// fraction of 0, no row does.
class HeldOutRows {
 public:
  /// `fraction`: share of the rows that validate, 0 to 1.
  explicit HeldOutRows(double fraction)
      : every_(std::llround(std::min(1 / fraction, static_cast<double>(int64_t{1} << 60)))) {}

  int64_t every() const { return every_; }
  /// Whether row `number`, counted from 1, validates.
  bool contains(int64_t number) const { return number % every_ == 0; }

  template <typename Row>
  struct Split {
    std::vector<Row> train, validation;
  };
  /// Fewer rows than every() leave none for validation.
  template <typename Row>
  Split<Row> split(std::vector<Row> rows) const {
    Split<Row> parts;
    int64_t number = 0;
    for (Row& row : rows)
      (contains(++number) ? parts.validation : parts.train).push_back(std::move(row));
    return parts;
  }

 private:
  int64_t every_;
};

}  // namespace brrr::io
