// Einsum and determinants.

#include <algorithm>
#include <map>
#include <numeric>

#include "modules/onnx/call.h"

namespace brrr::onnx {
namespace {

// An axis of Einsum is a letter; those that an ellipsis stands for are numbers beyond the letters,
// counted from the last one, so that they broadcast.
using Label = int;
using Labels = std::vector<Label>;
constexpr Label kEllipsis = 256;

bool contains(const Labels& labels, Label label) {
  return std::ranges::find(labels, label) != labels.end();
}

/// A tensor whose axes have labels.
struct Term {
  Value x;
  Labels labels;

  int64_t size(Label label) const {
    return x.shape().size(static_cast<int>(std::ranges::find(labels, label) - labels.begin()));
  }
};

/// The labels of one part of the equation, "ij" or "...ij"; `rank` decides how many axes an
/// ellipsis is, where it is known.
Labels labels_of(Call& c, std::string_view text, int ellipsis_axes) {
  Labels labels;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == ' ') continue;
    if (text.substr(i, 3) == "...") {
      for (int a = ellipsis_axes; a > 0; --a) labels.push_back(kEllipsis + a);
      i += 2;
    } else if (std::isalpha(static_cast<unsigned char>(text[i])) != 0) {
      labels.push_back(text[i]);
    } else {
      c.fail("the equation has a '{}'", text[i]);
    }
  }
  return labels;
}

/// x with the axes in the order of `labels`, all of which it has.
Term ordered(Term t, const Labels& labels) {
  if (t.labels == labels) return t;
  std::vector<int64_t> axes;
  for (const Label label : labels)
    axes.push_back(std::ranges::find(t.labels, label) - t.labels.begin());
  return {transpose(t.x, axes), labels};
}

/// The diagonal where a label is named twice.
Term without_repeats(Call& c, Term t) {
  for (size_t first = 0; first < t.labels.size(); ++first) {
    const auto again = std::find(t.labels.begin() + static_cast<int64_t>(first) + 1, t.labels.end(),
                                 t.labels[first]);
    if (again == t.labels.end()) continue;
    const auto a = static_cast<int>(first), b = static_cast<int>(again - t.labels.begin());
    const int64_t n = t.x.shape().size(a);
    if (t.x.shape().size(b) != n) c.fail("a label has two sizes in {}", t.x.type().str());
    Labels order = t.labels;
    std::vector<int64_t> axes;
    for (int axis = 0; axis < t.x.shape().rank(); ++axis)
      if (axis != a && axis != b) axes.push_back(axis);
    axes.push_back(a);
    axes.push_back(b);
    const Value last = transpose(t.x, axes);
    Shape flat = last.shape().without_last(2);
    flat.push_back(Dim(n * n));
    std::vector<Number> ids;
    for (int64_t i = 0; i < n; ++i) ids.emplace_back(i * (n + 1));
    const int axis = flat.rank() - 1;
    t.x = gather(reshape(last, flat), literal(c.graph(), {n}, ids, DType::i64), axis);
    const Label label = t.labels[first];
    order.erase(order.begin() + b);
    order.erase(order.begin() + a);
    order.push_back(label);
    t.labels = order;
    first = static_cast<size_t>(-1);
  }
  return t;
}

/// Sums over the labels that are not among `keep`.
Term summed(Term t, const Labels& keep) {
  std::vector<int64_t> axes;
  Labels rest;
  for (size_t i = 0; i < t.labels.size(); ++i) {
    if (contains(keep, t.labels[i]))
      rest.push_back(t.labels[i]);
    else
      axes.push_back(static_cast<int64_t>(i));
  }
  return axes.empty() ? t : Term{sum(t.x, axes), rest};
}

/// Takes off the axes of one element that another term has with more.
Term without_ones(Term t, const Term& other) {
  Shape shape;
  Labels rest;
  for (size_t i = 0; i < t.labels.size(); ++i) {
    const bool is_one = t.x.shape().size(static_cast<int>(i)) == 1;
    if (is_one && contains(other.labels, t.labels[i])) continue;
    rest.push_back(t.labels[i]);
    shape.push_back(t.x.shape()[static_cast<int>(i)]);
  }
  return rest.size() == t.labels.size() ? t : Term{reshape(t.x, shape), rest};
}

Shape sizes_of(const Term& t, const Labels& labels) {
  Shape shape;
  for (const Label label : labels) shape.push_back(t.size(label));
  return shape;
}

/// The product of two terms, summed over the labels that are not among `keep`: a product of
/// matrices for each index that both keep.
Term contracted(Call& c, Term a, Term b, const Labels& keep) {
  a = without_ones(a, b);
  b = without_ones(b, a);
  Labels batch, inner, rows, columns;
  for (const Label label : a.labels) {
    const bool both = contains(b.labels, label);
    if (both && a.size(label) != b.size(label))
      c.fail("a label is {} in one operand and {} in another", a.size(label), b.size(label));
    (!both ? rows : contains(keep, label) ? batch : inner).push_back(label);
  }
  for (const Label label : b.labels)
    if (!contains(a.labels, label)) columns.push_back(label);
  const auto joined = [](std::initializer_list<const Labels*> parts) {
    Labels all;
    for (const Labels* part : parts) all.insert(all.end(), part->begin(), part->end());
    return all;
  };
  const Shape batches = sizes_of(a, batch);
  const Shape of_rows = sizes_of(a, rows), of_columns = sizes_of(b, columns);
  Shape y = batches;
  for (const Shape* part : {&of_rows, &of_columns})
    for (const Dim& dim : part->dims()) y.push_back(dim);
  const int64_t n = batches.elements(), k = sizes_of(a, inner).elements(), m = of_rows.elements(),
                w = of_columns.elements();
  const Value left = reshape(ordered(a, joined({&batch, &rows, &inner})).x, {n, m, k});
  const Value right = reshape(ordered(b, joined({&batch, &inner, &columns})).x, {n, k, w});
  // Without inner labels, the product is element by element.
  const Value product = inner.empty() ? left * right : matmul(left, right);
  return {reshape(product, y), joined({&batch, &rows, &columns})};
}

struct Equation {
  std::vector<Labels> in;
  Labels out;
};

Equation parsed(Call& c) {
  const std::string text = c.text("equation");
  const size_t arrow = text.find("->");
  std::vector<std::string> parts;
  std::string_view left = std::string_view(text).substr(0, arrow);
  for (size_t at = 0; at <= left.size();) {
    const size_t comma = std::min(left.find(',', at), left.size());
    parts.emplace_back(left.substr(at, comma - at));
    at = comma + 1;
  }
  if (parts.size() != c.inputs())
    c.fail("the equation '{}' has {} terms for {} operands", text, parts.size(), c.inputs());
  Equation e;
  int most = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const int rank = c.in(i).shape().rank();
    const int own = static_cast<int>(labels_of(c, parts[i], 0).size());
    const bool open = parts[i].find("...") != std::string::npos;
    if (own > rank || (!open && own != rank))
      c.fail("'{}' does not fit {}", parts[i], c.in(i).type().str());
    most = std::max(most, rank - own);
    e.in.push_back(labels_of(c, parts[i], rank - own));
  }
  if (arrow != std::string::npos) {
    e.out = labels_of(c, std::string_view(text).substr(arrow + 2), most);
    return e;
  }
  // Without an arrow: the axes of an ellipsis, then what is named once, in alphabetical order.
  for (int a = most; a > 0; --a) e.out.push_back(kEllipsis + a);
  std::map<Label, int> counts;
  for (const Labels& labels : e.in)
    for (const Label label : labels) ++counts[label];
  for (const auto& [label, count] : counts)
    if (count == 1 && label < kEllipsis) e.out.push_back(label);
  return e;
}

// Sums of small numbers are in f32 or i32.
DType dtype_for_sums(DType dtype) {
  if (dtype == DType::f16 || dtype == DType::bf16) return DType::f32;
  return is_integer(dtype) && bytes_of(dtype) < 4 ? DType::i32 : dtype;
}

void einsum(Call& c) {
  const Equation e = parsed(c);
  const DType dtype = c.in(0).dtype();
  Term y;
  for (size_t i = 0; i < e.in.size(); ++i) {
    Term t = without_repeats(c, {cast(c.in(i), dtype_for_sums(dtype)), e.in[i]});
    Labels keep = e.out;
    for (size_t later = i + 1; later < e.in.size(); ++later)
      keep.insert(keep.end(), e.in[later].begin(), e.in[later].end());
    Labels keep_alone = keep;
    if (i > 0) keep_alone.insert(keep_alone.end(), y.labels.begin(), y.labels.end());
    t = summed(t, keep_alone);
    if (i == 0) {
      y = t;
      continue;
    }
    Labels needed = keep;
    needed.insert(needed.end(), t.labels.begin(), t.labels.end());
    y = summed(contracted(c, summed(y, needed), t, keep), keep);
  }
  for (const Label label : e.out)
    if (!contains(y.labels, label)) c.fail("the result names an axis that no operand has");
  c.out(cast(ordered(y, e.out).x, dtype));
}

// -- determinants
// ---------------------------------------------------------------------------------

constexpr int64_t kLargestDeterminant = 128;

/// Gaussian elimination with the largest element of a column as pivot, a column at a time.
void determinant(Call& c) {
  const DType dtype = c.in(0).dtype();
  const Shape shape = c.in(0).shape();
  const int64_t n = shape.rank() < 2 ? 0 : shape.size(-1);
  if (shape.rank() < 2 || shape.size(-2) != n)
    c.fail("expected square matrices; got {}", c.in(0).type().str());
  if (n > kLargestDeterminant)
    c.refuse("a determinant of {} rows; at most {}", n, kLargestDeterminant);
  const Shape batches = shape.without_last(2);
  const int64_t count = batches.elements();
  Value x = reshape(cast(c.in(0), DType::f64), {count, n, n});
  Value y = full(c.graph(), {count, 1, 1}, 1, DType::f64);
  const Value one = c.scalar(1, DType::f64), zero = c.scalar(0, DType::f64);
  for (int64_t left = n; left > 0; --left) {
    // The pivot's row and the first row change places; then the first row and column go.
    const Value column = slice(x, 2, 0, 1);
    const Value at = reshape(argmax(abs(column), 1), {count, 1, 1});
    const Value row = iota(c.graph(), {count, left, 1}, 1, DType::i64);
    const Value is_pivot = equal(row, at), first = slice(x, 1, 0, 1);
    const Value pivot_row = sum(where(is_pivot, x, zero), {1}, true);
    const Value pivot = slice(pivot_row, 2, 0, 1);
    y = y * where(equal(at, c.scalar(0, DType::i64)), pivot, zero - pivot);
    if (left == 1) break;
    const Value rest = slice(where(is_pivot, first, x), 1, 1, left - 1);
    const Value safe = where(equal(pivot, zero), one, pivot);
    x = slice(rest - slice(rest, 2, 0, 1) / safe * pivot_row, 2, 1, left - 1);
  }
  c.out(cast(reshape(y, batches), dtype));
}

const OperatorRow kContractionRows[] = {
    {"", "Einsum", einsum},
    {"", "Det", determinant},
};

}  // namespace

std::span<const OperatorRow> contraction_operators() { return kContractionRows; }

}  // namespace brrr::onnx
