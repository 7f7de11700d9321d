#include "backend/cuda/clusters/access.h"

#include <algorithm>

#include "base/errors.h"

namespace brrr::cuda {
namespace {

void add_term(std::string& sum, const std::string& term) {
  sum += (sum.empty() ? "" : " + ") + term;
}

/// (of / inner) % size * stride; `outermost`: the quotient is below size anyway.
std::string term(const std::string& of, int64_t inner, int64_t size, int64_t stride,
                 bool outermost) {
  std::string t = of;
  if (inner != 1) t = fmt::format("{} / {}u", t, inner);
  if (!outermost) t = fmt::format("{} % {}u", t, size);
  if (stride != 1) t = fmt::format("{} * {}u", t, stride);
  return t;
}

}  // namespace

void Access::add_inner_first(int64_t size, int64_t stride) {
  const int64_t inner = elements_;
  elements_ *= size;
  if (size == 1) return;
  if (!dims_.empty()) {
    Dim& last = dims_.back();
    const bool both_repeat = last.stride == 0 && stride == 0;
    if (both_repeat || (last.stride != 0 && stride == last.stride * last.size)) {
      last.size *= size;
      return;
    }
  }
  dims_.push_back({size, stride, inner});
}

Access::Access(const Shape& view, const Shape& out) {
  int64_t stride = 1;
  for (int axis = 1; axis <= out.rank(); ++axis) {
    const int64_t size = out.size(-axis);
    const int64_t own = axis <= view.rank() ? view.size(-axis) : 1;
    add_inner_first(size, own == 1 ? 0 : stride);
    stride *= own;
  }
  std::reverse(dims_.begin(), dims_.end());
  if (std::all_of(dims_.begin(), dims_.end(), [](const Dim& d) { return d.stride == 0; }))
    dims_.clear();
}

Access::Access(const Shape& out, const std::vector<int64_t>& strides, int64_t offset)
    : offset_(offset) {
  for (int axis = out.rank(); axis-- > 0;)
    add_inner_first(out.size(axis), strides[static_cast<size_t>(axis)]);
  std::reverse(dims_.begin(), dims_.end());
}

bool Access::is_contiguous(int64_t v) const {
  if (dims_.empty() || dims_.back().stride != 1 || offset_ % v != 0) return false;
  for (const Dim& d : dims_) {
    if (&d == &dims_.back()) break;
    if (d.stride % v != 0) return false;
  }
  return dims_.back().size % v == 0;
}

bool Access::is_repeated(int64_t v) const {
  return dims_.empty() || (dims_.back().stride == 0 && dims_.back().size % v == 0);
}

std::string Access::text(const std::string& i) const {
  std::string sum;
  if (offset_ != 0) add_term(sum, fmt::format("{}u", offset_));
  for (const Dim& d : dims_)
    if (d.stride != 0) add_term(sum, term(i, d.inner, d.size, d.stride, &d == &dims_.front()));
  return sum.empty() ? "0" : sum;
}

std::string Access::text(const std::string& row, const std::string& col, int64_t width) const {
  std::string sum;
  if (offset_ != 0) add_term(sum, fmt::format("{}u", offset_));
  for (const Dim& d : dims_) {
    if (d.stride == 0) continue;
    const bool first = &d == &dims_.front();
    if (d.inner >= width) {
      if (d.inner % width != 0) return "";
      add_term(sum, term(row, d.inner / width, d.size, d.stride, first));
    } else if (d.inner * d.size <= width) {
      add_term(sum, term(col, d.inner, d.size, d.stride, d.inner * d.size == width));
    } else {
      if (width % d.inner != 0 || d.size % (width / d.inner) != 0) return "";
      const int64_t in_row = width / d.inner;
      add_term(sum, term(row, 1, d.size / in_row, d.stride * in_row, first));
      add_term(sum, term(col, d.inner, in_row, d.stride, true));
    }
  }
  return sum.empty() ? "0" : sum;
}

bool Access::operator==(const Access& other) const {
  auto same = [](const Dim& a, const Dim& b) {
    return a.size == b.size && a.stride == b.stride && a.inner == b.inner;
  };
  return offset_ == other.offset_ && elements_ == other.elements_ &&
         std::equal(dims_.begin(), dims_.end(), other.dims_.begin(), other.dims_.end(), same);
}

}  // namespace brrr::cuda
