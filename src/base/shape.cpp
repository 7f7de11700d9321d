#include "base/shape.h"

#include "base/errors.h"

namespace brrr {
namespace {

// 0 is "no character", so names shorter than ten characters decode unambiguously.
constexpr char kTable[] = "\0abcdefghijklmnopqrstuvwxyz0123456789_";

}  // namespace

Dim::Dim(int64_t size) : word_(size) { BRRR_CHECK(size >= 0, "dimension {}", size); }

Dim Dim::symbol(std::string_view name) {
  if (name.empty() || name.size() > 10 || name[0] < 'a' || name[0] > 'z')
    user_error(
        "a symbolic dimension has 1 to 10 characters of [a-z0-9_], the first a letter; got '{}'",
        name);
  uint64_t word = 0;
  for (size_t i = 0; i < name.size(); ++i) {
    size_t code = 0;
    for (size_t c = 1; c < sizeof(kTable) - 1; ++c)
      if (kTable[c] == name[i]) code = c;
    if (code == 0)
      user_error("a symbolic dimension has only characters of [a-z0-9_]; got '{}'", name);
    word |= static_cast<uint64_t>(code) << (6 * i);
  }
  Dim d;
  d.word_ = static_cast<int64_t>(word | (uint64_t{1} << 63));
  return d;
}

int64_t Dim::size() const {
  BRRR_CHECK(!is_symbol(), "the symbolic dimension '{}' has no size yet", name());
  return word_;
}

std::string Dim::name() const {
  std::string out;
  if (!is_symbol()) return out;
  uint64_t word = static_cast<uint64_t>(word_) & ~(uint64_t{1} << 63);
  for (; word != 0; word >>= 6) out += kTable[word & 63];
  return out;
}

std::string Dim::str() const { return is_symbol() ? name() : std::to_string(word_); }

size_t Shape::normalise(int axis) const {
  const int r = rank();
  BRRR_CHECK(axis >= -r && axis < r, "axis {} of a shape of rank {}", axis, r);
  return static_cast<size_t>(axis < 0 ? axis + r : axis);
}

Shape Shape::without_last(int count) const {
  BRRR_CHECK(count >= 0 && count <= rank(), "{} axes less of a shape of rank {}", count, rank());
  return Shape(dims().first(static_cast<size_t>(rank() - count)));
}

bool Shape::is_static() const {
  for (const Dim& d : dims_)
    if (d.is_symbol()) return false;
  return true;
}

int64_t Shape::elements() const {
  int64_t n = 1;
  for (const Dim& d : dims_)
    if (__builtin_mul_overflow(n, d.size(), &n))
      user_error("shape {} has too many elements", str());
  return n;
}

std::vector<int64_t> Shape::sizes() const {
  std::vector<int64_t> out;
  out.reserve(dims_.size());
  for (const Dim& d : dims_) out.push_back(d.size());
  return out;
}

std::vector<int64_t> Shape::strides() const {
  std::vector<int64_t> out(dims_.size(), 1);
  for (int i = rank() - 2; i >= 0; --i)
    out[static_cast<size_t>(i)] = out[static_cast<size_t>(i) + 1] * size(i + 1);
  return out;
}

std::string Shape::str() const {
  std::string out = "[";
  for (size_t i = 0; i < dims_.size(); ++i) {
    if (i) out += ',';
    out += dims_[i].str();
  }
  return out + "]";
}

AxisSplit split_at(const Shape& shape, int64_t axis) {
  AxisSplit out;
  for (int i = 0; i < shape.rank(); ++i)
    (i < axis ? out.outer : i == axis ? out.count : out.inner) *= shape.size(i);
  return out;
}

}  // namespace brrr
