#include "passes/match/head_places.h"

#include <algorithm>
#include <vector>

#include "ir/op_def.h"
#include "ops/op.h"

namespace brrr {
namespace {

/// So many elements, so far from each other in the source; 0: the same one again and again.
struct Run {
  int64_t size, stride;
};
/// An axis as nested runs, outermost first; none: one element.
using Axis = std::vector<Run>;

struct StridedView {
  int64_t offset = 0;
  std::vector<Axis> axes;
};

void push(Axis& axis, Run run) {
  if (run.size == 1) return;
  if (!axis.empty() && axis.back().stride == run.size * run.stride)
    axis.back() = {axis.back().size * run.size, run.stride};
  else
    axis.push_back(run);
}

Axis joined_runs(std::vector<Axis>::const_iterator from, std::vector<Axis>::const_iterator to) {
  Axis all;
  for (; from != to; ++from)
    for (const Run& run : *from) push(all, run);
  return all;
}

StridedView whole(const Shape& shape) {
  StridedView p;
  const auto sizes = shape.sizes(), strides = shape.strides();
  for (size_t i = 0; i < sizes.size(); ++i) {
    p.axes.emplace_back();
    push(p.axes.back(), {sizes[i], strides[i]});
  }
  return p;
}

std::optional<StridedView> reshaped(const StridedView& p, const Shape& to) {
  Axis left = joined_runs(p.axes.begin(), p.axes.end());
  StridedView out{p.offset, {}};
  size_t at = 0;
  for (int64_t need : to.sizes()) {
    Axis axis;
    while (need > 1) {
      if (at == left.size()) return std::nullopt;
      Run& run = left[at];
      if (need % run.size == 0) {
        push(axis, run);
        need /= run.size;
        ++at;
      } else if (run.size % need == 0) {  // its outer part
        const int64_t inner = run.size / need;
        push(axis, {need, run.stride * inner});
        run.size = inner;
        need = 1;
      } else {
        return std::nullopt;
      }
    }
    out.axes.push_back(std::move(axis));
  }
  return out;
}

std::optional<StridedView> sliced(StridedView p, size_t axis, int64_t start, int64_t size) {
  Axis& runs = p.axes[axis];
  if (runs.size() > 1) return std::nullopt;
  if (runs.empty()) return p;
  p.offset += start * runs[0].stride;
  const int64_t stride = runs[0].stride;
  runs.clear();
  push(runs, {size, stride});
  return p;
}

StridedView broadcast(const StridedView& p, const Shape& from, const Shape& to) {
  StridedView out{p.offset, {}};
  const int more = to.rank() - from.rank();
  for (int axis = 0; axis < to.rank(); ++axis) {
    const bool grows = axis < more || (from.size(axis - more) == 1 && to.size(axis) != 1);
    out.axes.push_back(grows ? Axis() : p.axes[static_cast<size_t>(axis - more)]);
    if (grows) push(out.axes.back(), {to.size(axis), 0});
  }
  return out;
}

bool is_move(const Node& node) {
  return is(node, Op::reshape, Op::transpose, Op::slice, Op::broadcast_to);
}

/// What the node does to the placement of its operand.
std::optional<StridedView> moved(const Graph& g, const Node& node, const StridedView& p) {
  const Op op = node.op->id;
  const Shape& shape = node.results[0].shape;
  if (op == Op::reshape) return reshaped(p, shape);
  if (op == Op::broadcast_to) return broadcast(p, g.type(node.operands[0]).shape, shape);
  if (op == Op::slice)
    return sliced(p, static_cast<size_t>(node.attrs.get<int64_t>("axis")),
                  node.attrs.get<int64_t>("start"), node.attrs.get<int64_t>("size"));
  StridedView out{p.offset, {}};
  for (int64_t axis : node.attrs.get<std::vector<int64_t>>("permutation"))
    out.axes.push_back(p.axes[static_cast<size_t>(axis)]);
  return out;
}

/// Where v lies in `source`; nothing unless only moves lead from there to v.
std::optional<StridedView> placement(const Graph& g, ValueId v, ValueId source) {
  if (v == source) return whole(g.type(v).shape);
  const Node& node = g.node(v.node);
  const auto before = placement(g, node.operands[0], source);
  return before ? moved(g, node, *before) : std::nullopt;
}

bool is_run(const Axis& axis, int64_t stride) {
  return axis.empty() || (axis.size() == 1 && axis[0].stride == stride);
}

/// An operand's axes [batch..., H, rows, width] in a source of so many elements.
struct Operand {
  Shape batch;
  int64_t rows, width;
  Axis batch_runs, head_runs, row_runs, width_runs;
  int64_t offset;
};

std::optional<HeadsFound> fits(const Operand& x, ValueId source, int64_t elements, bool in_rows) {
  if (!is_run(x.width_runs, 1)) return std::nullopt;
  // Heads that differ, then each of them several times.
  Axis heads = x.head_runs;
  if (!heads.empty() && heads.back().stride == 0) heads.pop_back();
  if (heads.size() > 1 || (!heads.empty() && heads[0].stride == 0)) return std::nullopt;
  HeadsFound found{source, x.batch, x.offset, in_rows, heads.empty() ? 1 : heads[0].size};
  const int64_t rows = x.batch.elements() * (in_rows ? 1 : found.heads) * x.rows;
  if (rows == 0 || elements % rows != 0) return std::nullopt;
  const int64_t columns = elements / rows, head = in_rows ? x.width : x.rows * columns;
  const int64_t batch = x.rows * columns * (in_rows ? 1 : found.heads);
  const int64_t taken = in_rows ? found.heads * x.width : x.width;
  if (x.offset + taken > columns || !is_run(heads, head) || !is_run(x.row_runs, columns) ||
      !is_run(x.batch_runs, batch))
    return std::nullopt;
  if (!in_rows) found.shape.push_back(Dim(found.heads));
  found.shape.push_back(Dim(x.rows));
  found.shape.push_back(Dim(columns));
  return found;
}

}  // namespace

std::optional<HeadsFound> find_heads(const Graph& g, ValueId operand, bool transposed) {
  const Shape& shape = g.type(operand).shape;
  std::optional<HeadsFound> best;
  if (shape.elements() == 0) return best;
  for (ValueId source = operand;; source = g.node(source.node).operands[0]) {
    if (auto p = placement(g, operand, source)) {
      if (transposed) std::swap(p->axes[p->axes.size() - 1], p->axes[p->axes.size() - 2]);
      const bool has_heads = shape.rank() > 2;
      const auto end = p->axes.end();
      const Operand x{shape.without_last(has_heads ? 3 : 2),
                      shape.size(transposed ? -1 : -2),
                      shape.size(transposed ? -2 : -1),
                      joined_runs(p->axes.begin(), end - (has_heads ? 3 : 2)),
                      has_heads ? *(end - 3) : Axis(),
                      *(end - 2),
                      *(end - 1),
                      p->offset};
      for (bool in_rows : {false, true})  // in rows, where both are the same
        if (auto found = fits(x, source, g.type(source).shape.elements(), in_rows)) best = found;
    }
    if (!is_move(g.node(source.node))) return best;
  }
}

}  // namespace brrr
