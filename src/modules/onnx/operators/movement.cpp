// Operators that make, move and reshape tensors.

#include <algorithm>
#include <numeric>

#include "modules/onnx/call.h"

namespace brrr::onnx {
namespace {

// -- leaves
// ---------------------------------------------------------------------------------------

void constant(Call& c) {
  const std::string name = c.names().qualified(c.node().outputs[0]);
  if (const TensorProto* t = c.tensor("value")) return c.out(0, c.lowering().constant(*t, name));
  if (c.has_attribute("value_int")) return c.out(c.scalar(c.integer("value_int"), DType::i64));
  if (c.has_attribute("value_float")) return c.out(c.scalar(c.number("value_float"), DType::f32));
  if (const auto list = c.integer_list("value_ints")) return c.out(c.vector(*list));
  if (const auto list = c.number_list("value_floats")) return c.out(c.vector(*list));
  c.refuse("a constant of texts or a sparse one");
}

void constant_of_shape(Call& c) {
  const std::vector<int64_t> shape = c.integers(0);
  RefTensor value(Type{DType::f32, {1}});
  ElementType element = ElementType::f32;
  if (const TensorProto* t = c.tensor("value")) {
    element = t->type;
    const auto dtype = dtype_of(t->type);
    if (!dtype) c.refuse("a value of {}", onnx::name_of(t->type));
    if (t->elements() != 1) c.fail("the value has {} elements; expected one", t->elements());
    value = read_tensor({*dtype, {1}}, t->bytes.data());
  }
  for (const int64_t size : shape)
    if (size < 0) c.fail("a size is {}", size);
  const Value one = reshape(c.lowering().constant(value), {});
  c.out(0, {broadcast_to(one, Shape(shape)), element});
}

void shape_of(Call& c) {
  const Shape& x = c.in(0).shape();
  const int64_t rank = x.rank();
  const auto clamped = [&](int64_t at) {
    return std::clamp<int64_t>(at < 0 ? at + rank : at, 0, rank);
  };
  const int64_t start = clamped(c.integer("start", 0)), end = clamped(c.integer("end", rank));
  std::vector<int64_t> sizes;
  for (int64_t axis = start; axis < end; ++axis) sizes.push_back(x.size(static_cast<int>(axis)));
  c.out(c.vector(sizes));
}

void size_of(Call& c) { c.out(c.scalar(c.in(0).shape().elements(), DType::i64)); }

void range(Call& c) {
  for (const size_t i : {0, 1, 2}) c.known_number(i);
  const RefTensor &start = c.known(0), &limit = c.known(1), &delta = c.known(2);
  const DType dtype = start.type.dtype;
  const double step = delta.number(0);
  if (step == 0) c.fail("the step is 0");
  const double steps = std::max(0.0, std::ceil((limit.number(0) - start.number(0)) / step));
  constexpr double kMost = 1u << 31;
  if (!(steps <= kMost)) c.fail("a range of {} elements", steps);
  const auto count = static_cast<int64_t>(steps);
  const Value i = iota(c.graph(), {count}, 0, dtype);
  // Constants stay in memory: none is made where nothing changes.
  Value y = i;
  if (step != 1) y = y * reshape(c.lowering().constant(delta), {});
  if (start.number(0) != 0) y = y + reshape(c.lowering().constant(start), {});
  c.out(y);
}

void eye_like(Call& c) {
  const Value x = c.in(0);
  if (x.shape().rank() != 2) c.fail("expected a matrix; got {}", x.type().str());
  const DType dtype = c.dtype("dtype", x.dtype());
  const Value row = iota(c.graph(), x.shape(), 0, DType::i64),
              column = iota(c.graph(), x.shape(), 1, DType::i64);
  c.out(cast(equal(row + c.scalar(c.integer("k", 0), DType::i64), column), dtype));
}

// -- shapes
// ---------------------------------------------------------------------------------------

void reshape_to(Call& c) {
  const Value x = c.in(0);
  const std::vector<int64_t> wanted = c.integers_of("shape", 1).value();
  const bool zero_is_zero = c.integer("allowzero", 0) != 0;
  std::vector<int64_t> sizes;
  int64_t known = 1;
  std::optional<size_t> open;
  for (size_t i = 0; i < wanted.size(); ++i) {
    int64_t size = wanted[i];
    if (size == 0 && !zero_is_zero) {
      if (static_cast<int>(i) >= x.shape().rank())
        c.fail("size 0 at axis {} of {} has nothing to copy", i, x.type().str());
      size = x.shape().size(static_cast<int>(i));
    }
    if (size < -1) c.fail("a size is {}", size);
    if (size == -1) {
      if (open) c.fail("two sizes are -1");
      open = i;
      size = 1;
    } else if (__builtin_mul_overflow(known, size, &known)) {
      c.fail("the shape has too many elements");
    }
    sizes.push_back(size);
  }
  const int64_t elements = x.shape().elements();
  if (open) {
    if (known == 0 || elements % known != 0)
      c.fail("{} has no shape with {} elements in the other axes", x.type().str(), known);
    sizes[*open] = elements / known;
  }
  c.out(reshape(x, Shape(sizes)));
}

void flatten(Call& c) {
  const Value x = c.in(0);
  const int rank = x.shape().rank();
  const int64_t given = c.integer("axis", 1), axis = given < 0 ? given + rank : given;
  if (axis < 0 || axis > rank) c.fail("axis {} of {}", given, x.type().str());
  int64_t before = 1, behind = 1;
  for (int a = 0; a < rank; ++a) (a < axis ? before : behind) *= x.shape().size(a);
  c.out(reshape(x, {before, behind}));
}

void squeeze(Call& c) {
  const Value x = c.in(0);
  const int rank = x.shape().rank();
  std::optional<std::vector<int64_t>> axes = c.integers_of("axes", 1);
  if (axes) axes = c.axes(*axes, rank);
  Shape shape;
  for (int a = 0; a < rank; ++a) {
    const bool named = axes && std::ranges::find(*axes, a) != axes->end();
    if (named && x.shape().size(a) != 1) c.fail("axis {} of {} is not 1", a, x.type().str());
    if (named || (!axes && x.shape().size(a) == 1)) continue;
    shape.push_back(x.shape()[a]);
  }
  c.out(reshape(x, shape));
}

void unsqueeze(Call& c) {
  const Value x = c.in(0);
  const std::vector<int64_t> given = c.integers_of("axes", 1).value();
  const int rank = x.shape().rank() + static_cast<int>(given.size());
  std::vector<int64_t> axes = c.axes(given, rank);
  std::ranges::sort(axes);
  if (std::ranges::adjacent_find(axes) != axes.end()) c.fail("an axis is named twice");
  Shape shape;
  int from = 0;
  for (int a = 0; a < rank; ++a)
    shape.push_back(std::ranges::binary_search(axes, a) ? Dim(1) : x.shape()[from++]);
  c.out(reshape(x, shape));
}

void transpose_axes(Call& c) {
  const Value x = c.in(0);
  std::vector<int64_t> permutation(static_cast<size_t>(x.shape().rank()));
  for (size_t i = 0; i < permutation.size(); ++i)
    permutation[i] = static_cast<int64_t>(permutation.size() - 1 - i);
  if (const auto given = c.integer_list("perm")) permutation = c.axes(*given, x.shape().rank());
  c.out(transpose(x, permutation));
}

void expand(Call& c) {
  const Value x = c.in(0);
  const std::vector<int64_t> wanted = c.integers(1);
  // Both shapes broadcast to one another.
  const int rank = std::max(x.shape().rank(), static_cast<int>(wanted.size()));
  std::vector<int64_t> sizes(static_cast<size_t>(rank), 1);
  for (int i = 1; i <= rank; ++i) {
    const int64_t own = i <= x.shape().rank() ? x.shape().size(-i) : 1;
    const int64_t other =
        i <= std::ssize(wanted) ? wanted[wanted.size() - static_cast<size_t>(i)] : 1;
    if (other < 0) c.fail("a size is {}", other);
    sizes[static_cast<size_t>(rank - i)] = own == 1 ? other : own;
  }
  c.out(broadcast_to(x, Shape(sizes)));
}

void tile(Call& c) {
  Value x = c.in(0);
  const int rank = x.shape().rank();
  std::vector<int64_t> repeats = c.integers(1);
  if (c.opset() < 6) {  // tiles along one axis
    const int64_t axis = c.axis(c.known_integer(2), rank);
    std::vector<int64_t> all(static_cast<size_t>(rank), 1);
    all[static_cast<size_t>(axis)] = repeats.at(0);
    repeats = all;
  }
  if (std::ssize(repeats) != rank) c.fail("{} repeats for {}", repeats.size(), x.type().str());
  Shape with_ones, repeated, flat;
  for (int a = 0; a < rank; ++a) {
    const int64_t times = repeats[static_cast<size_t>(a)], size = x.shape().size(a);
    if (times < 0) c.fail("a repeat is {}", times);
    with_ones.push_back(Dim(1));
    with_ones.push_back(size);
    repeated.push_back(times);
    repeated.push_back(size);
    int64_t product = 0;
    if (__builtin_mul_overflow(times, size, &product)) c.fail("the result is too large");
    flat.push_back(product);
  }
  c.out(reshape(broadcast_to(reshape(x, with_ones), repeated), flat));
}

// -- joining and cutting
// --------------------------------------------------------------------------

void concat_all(Call& c) {
  std::vector<Value> parts;
  for (size_t i = 0; i < c.inputs(); ++i) parts.push_back(c.in(i));
  const int rank = parts.at(0).shape().rank();
  c.out(concat(parts, static_cast<int>(c.axis(c.integer("axis", 1), rank))));
}

void split(Call& c) {
  const Value x = c.in(0);
  const auto axis = static_cast<int>(c.axis(c.integer("axis", 0), x.shape().rank()));
  const int64_t size = x.shape().size(axis);
  const auto outputs = static_cast<int64_t>(c.outputs());
  std::optional<std::vector<int64_t>> sizes = c.integers_of("split", 1);
  if (!sizes) {
    const int64_t parts = c.integer("num_outputs", outputs);
    if (parts < 1 || parts != outputs) c.fail("{} parts for {} outputs", parts, outputs);
    const int64_t each = (size + parts - 1) / parts;
    sizes.emplace(static_cast<size_t>(parts), each);
    sizes->back() = size - each * (parts - 1);
  }
  if (std::ssize(*sizes) != outputs) c.fail("{} sizes for {} outputs", sizes->size(), outputs);
  int64_t at = 0;
  for (size_t i = 0; i < sizes->size(); ++i) {
    if (c.wants(i)) c.out(i, slice(x, axis, at, (*sizes)[i]));
    at += (*sizes)[i];
  }
  if (at != size) c.fail("parts of {} do not make {}", at, x.type().str());
}

/// x[start : end : step] along an axis, as Python counts.
Value sliced(Call& c, Value x, int axis, int64_t start, int64_t end, int64_t step) {
  const int64_t size = x.shape().size(axis);
  if (step == 0) c.fail("a step of a slice is 0");
  const auto clamped = [&](int64_t at, int64_t low, int64_t high) {
    if (at < 0) at = at < -size ? low : at + size;
    return std::clamp(at, low, high);
  };
  if (step > 0) {
    start = clamped(start, 0, size);
    end = clamped(end, 0, size);
  } else {
    start = clamped(start, -1, size - 1);
    // Far below: down to the first element.
    end = end < -size ? -1 : clamped(end, -1, size - 1);
  }
  const int64_t span = step > 0 ? end - start : start - end;
  const int64_t by = step > 0 ? step : step == INT64_MIN ? INT64_MAX : -step;
  const int64_t count = span <= 0 ? 0 : (span - 1) / by + 1;
  if (step == 1) return count == size ? x : slice(x, axis, count == 0 ? 0 : start, count);
  if (count == 0) return slice(x, axis, 0, 0);
  const Value ids = iota(c.graph(), {count}, 0, DType::i64) * c.scalar(step, DType::i64) +
                    c.scalar(start, DType::i64);
  return gather(x, ids, axis);
}

void slice_parts(Call& c) {
  Value x = c.in(0);
  const int rank = x.shape().rank();
  const std::vector<int64_t> starts = c.integers_of("starts", 1).value(),
                             ends = c.integers_of("ends", 2).value();
  std::optional<std::vector<int64_t>> axes = c.integers_of("axes", 3);
  if (!axes) {
    axes.emplace(starts.size());
    std::iota(axes->begin(), axes->end(), 0);
  }
  const std::vector<int64_t> steps =
      c.has(4) ? c.integers(4) : std::vector<int64_t>(starts.size(), 1);
  if (ends.size() != starts.size() || axes->size() != starts.size() ||
      steps.size() != starts.size())
    c.fail("{} starts, {} ends, {} axes, {} steps", starts.size(), ends.size(), axes->size(),
           steps.size());
  for (size_t i = 0; i < starts.size(); ++i)
    x = sliced(c, x, static_cast<int>(c.axis((*axes)[i], rank)), starts[i], ends[i], steps[i]);
  c.out(x);
}

// -- padding
// --------------------------------------------------------------------------------------

constexpr int64_t kMostPadded = int64_t{1} << 24;  // elements of an axis, and of its pads

/// Indices of a padded axis into the axis itself; a negative amount cuts what the other one added.
std::vector<Number> padded_ids(Call& c, const std::string& mode, int64_t size, int64_t before,
                               int64_t after) {
  std::vector<Number> ids;
  if (size == 0) c.fail("an empty axis is padded");
  for (int64_t i = -before; i < size + after; ++i) {
    int64_t at = i;
    if (mode == "edge") {
      at = std::clamp<int64_t>(i, 0, size - 1);
    } else if (mode == "wrap") {
      at = ((i % size) + size) % size;
    } else {
      const int64_t period = std::max<int64_t>(2 * (size - 1), 1);
      at = size == 1 ? 0 : ((i % period) + period) % period;
      if (at >= size) at = period - at;
    }
    ids.emplace_back(at);
  }
  return ids;
}

/// x with an axis whose elements beyond its ends are elements of it.
Value padded_by_index(Call& c, Value x, int axis, const std::string& mode, int64_t before,
                      int64_t after) {
  if (mode != "edge" && mode != "reflect" && mode != "wrap") c.refuse("mode = {}", mode);
  const int64_t size = x.shape().size(axis);
  if (size > kMostPadded) c.fail("an axis of {} is padded", size);
  const std::vector<Number> ids = padded_ids(c, mode, size, before, after);
  return gather(x, literal(c.graph(), {std::ssize(ids)}, ids, DType::i64), axis);
}

void pad_axes(Call& c) {
  Value x = c.in(0);
  const int rank = x.shape().rank();
  const std::string mode = c.text("mode", "constant");
  const std::vector<int64_t> pads =
      c.opset() < 2 ? c.integer_list("paddings").value() : c.integers_of("pads", 1).value();
  std::vector<int64_t> axes(static_cast<size_t>(rank));
  std::iota(axes.begin(), axes.end(), 0);
  if (c.has(3)) axes = c.axes(c.integers(3), rank);
  if (pads.size() != 2 * axes.size()) c.fail("{} pads for {} axes", pads.size(), axes.size());
  std::optional<Value> fill = c.opset() >= 11 ? c.optional(2) : std::nullopt;
  if (c.opset() < 11) fill = c.scalar_like(c.number("value", 0.0), x);
  if (!fill) fill = c.scalar_like(0, x);
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto axis = static_cast<int>(axes[i]);
    int64_t before = pads[i], after = pads[i + axes.size()];
    if (std::max(before, after) > kMostPadded || std::min(before, after) < -kMostPadded)
      c.fail("pads of {} and {}", before, after);
    // Negative pads cut.
    const int64_t size = x.shape().size(axis);
    const int64_t cut_before = std::max<int64_t>(-before, 0),
                  cut_after = std::max<int64_t>(-after, 0);
    if (cut_before > size || cut_after > size - cut_before)
      c.fail("pads cut more than there is of axis {}", axis);
    const bool cuts = cut_before + cut_after > 0, adds = before > 0 || after > 0;
    if (cuts && adds && mode != "constant") {
      // Pads first, then cuts, as OpenVINO does. ONNX Runtime cuts first: with `reflect` and `edge`
      // that is the same wherever it answers, with `wrap` it is not.
      if (mode == "wrap") c.refuse("mode = wrap that pads one end of an axis and cuts the other");
      x = padded_by_index(c, x, axis, mode, before, after);
      continue;
    }
    if (cuts) x = slice(x, axis, cut_before, size - cut_before - cut_after);
    before = std::max<int64_t>(before, 0);
    after = std::max<int64_t>(after, 0);
    if (before + after == 0) continue;
    if (mode == "constant") {
      const auto edge = [&](int64_t count) {
        Shape shape = x.shape();
        shape[axis] = Dim(count);
        return broadcast_to(reshape(*fill, {}), shape);
      };
      std::vector<Value> parts;
      if (before > 0) parts.push_back(edge(before));
      parts.push_back(x);
      if (after > 0) parts.push_back(edge(after));
      x = concat(parts, axis);
      continue;
    }
    x = padded_by_index(c, x, axis, mode, before, after);
  }
  c.out(x);
}

void center_crop_pad(Call& c) {
  Value x = c.in(0);
  const std::vector<int64_t> wanted = c.integers(1);
  const int rank = x.shape().rank();
  std::vector<int64_t> axes(static_cast<size_t>(rank));
  std::iota(axes.begin(), axes.end(), 0);
  if (const auto given = c.integer_list("axes")) axes = c.axes(*given, rank);
  if (axes.size() != wanted.size()) c.fail("{} sizes for {} axes", wanted.size(), axes.size());
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto axis = static_cast<int>(axes[i]);
    const int64_t size = x.shape().size(axis), more = wanted[i] - size;
    if (wanted[i] < 0) c.fail("a size is {}", wanted[i]);
    if (more < 0) x = slice(x, axis, -more / 2, wanted[i]);
    if (more > 0) x = pad(x, axis, more / 2, more - more / 2);
  }
  c.out(x);
}

void reverse_sequence(Call& c) {
  const Value x = c.in(0);
  const auto time = static_cast<int>(c.integer("time_axis", 0)),
             batch = static_cast<int>(c.integer("batch_axis", 1));
  if (time + batch != 1 || time < 0 || batch < 0)
    c.fail("time_axis and batch_axis must be 0 and 1");
  if (c.in(1).shape() != Shape{x.shape()[batch]})
    c.fail("expected a length for each of {} sequences; got {}", x.shape()[batch].str(),
           c.in(1).type().str());
  // The index of each step: l - 1 - t below the length l, t behind it.
  const Shape two{x.shape()[0], x.shape()[1]};
  const Value t = iota(c.graph(), two, time, DType::i64);
  Shape column{1, 1};
  column[batch] = two[batch];
  const Value lengths = reshape(cast(c.in(1), DType::i64), column);
  const Value from = where(less(t, lengths), lengths - t - c.scalar(1, DType::i64), t);
  const Value own = iota(c.graph(), two, batch, DType::i64),
              width = c.scalar(two.size(1), DType::i64);
  const Value flat = time == 0 ? from * width + own : own * width + from;
  Shape rows{two.elements()}, shape = x.shape();
  for (int a = 2; a < x.shape().rank(); ++a) rows.push_back(x.shape()[a]);
  c.out(reshape(gather(reshape(x, rows), flat, 0), shape));
}

const OperatorRow kMovementRows[] = {
    {"", "Constant", constant},
    {"", "ConstantOfShape", constant_of_shape},
    {"", "Shape", shape_of},
    {"", "Size", size_of},
    {"", "Range", range},
    {"", "EyeLike", eye_like},
    {"", "Reshape", reshape_to},
    {"", "Flatten", flatten},
    {"", "Squeeze", squeeze},
    {"", "Unsqueeze", unsqueeze},
    {"", "Transpose", transpose_axes},
    {"", "Expand", expand},
    {"", "Tile", tile},
    {"", "Concat", concat_all},
    {"", "Split", split},
    {"", "Slice", slice_parts},
    {"", "Pad", pad_axes},
    {"", "CenterCropPad", center_crop_pad},
    {"", "ReverseSequence", reverse_sequence},
};

}  // namespace

std::span<const OperatorRow> movement_operators() { return kMovementRows; }

}  // namespace brrr::onnx
