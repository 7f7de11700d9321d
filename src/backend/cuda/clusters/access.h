#pragma once
// How one tensor is read in place of another: which element of a broadcast, transposed or sliced
// operand belongs to element i of the result, as dimensions with strides and as the text of an
// index.

#include <cstdint>
#include <string>
#include <vector>

#include "base/shape.h"

namespace brrr::cuda {

class Access {
 public:
  struct Dim {
    int64_t size;
    int64_t stride;  // in the operand; 0: repeated
    int64_t inner;   // elements of the result between two steps
  };

  /// A dense tensor of shape `view` that is broadcast to `out`.
  Access(const Shape& view, const Shape& out);
  /// Any strides, one for each axis of `out`, and the first element.
  Access(const Shape& out, const std::vector<int64_t>& strides, int64_t offset);

  /// Of the result.
  int64_t elements() const { return elements_; }
  const std::vector<Dim>& dims() const { return dims_; }
  /// The same element for all.
  bool is_uniform() const { return dims_.empty(); }
  /// Element i for element i.
  bool is_dense() const {
    return offset_ == 0 &&
           (elements_ <= 1 || (dims_.size() == 1 && dims_[0].stride == 1 && dims_[0].inner == 1));
  }
  /// Whether any v elements from a multiple of v on lie side by side, the first at a multiple of v;
  /// or are one element.
  bool is_contiguous(int64_t v) const;
  bool is_repeated(int64_t v) const;

  /// The index of element `i`; `i` is the text of an unsigned number.
  std::string text(const std::string& i) const;
  /// The same for element `col` of row `row`, rows of `width` elements; empty where rows and
  /// dimensions do not fit.
  std::string text(const std::string& row, const std::string& col, int64_t width) const;

  bool operator==(const Access& other) const;

 private:
  void add_inner_first(int64_t size, int64_t stride);
  std::vector<Dim> dims_;  // outermost first; neighbours that are one are merged
  int64_t elements_ = 1;
  int64_t offset_ = 0;
};

}  // namespace brrr::cuda
