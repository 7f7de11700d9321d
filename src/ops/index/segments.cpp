// Sums and maxima over the rows of sequences that lie one behind the other.

#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "ops/support.h"

namespace brrr {

Value segment_sum(Value x, Value starts) { return call1(Op::segment_sum, {x, starts}); }
Value segment_max(Value x, Value starts) { return call1(Op::segment_max, {x, starts}); }

namespace ops {
namespace {

/// bool [R, N]: whether row n lies in sequence r.
Value rows_of_sequences(Value starts, int64_t rows) {
  Graph& g = *starts.graph;
  const int64_t sequences = starts.shape().size(0) - 1;
  const Value row = iota(g, {1, rows}, 1);
  const auto edge = [&](int64_t first) {
    return reshape(slice(starts, 0, first, sequences), {sequences, 1});
  };
  return logical_and(less_equal(edge(0), row), less(row, edge(1)));
}

/// `shapes`: rows, columns and sequences of the samples.
OpDef segment_op(const char* name, const char* doc, std::vector<std::array<int64_t, 3>> shapes) {
  OpDef d;
  d.name = name;
  d.doc = doc;
  d.op_class = OpClass::normalisation;
  d.autocast = Autocast::fp32;
  d.infer = [](const InferContext& c) {
    expect_operands(c, 2);
    expect_float(c, 0, "x");
    const Shape &x = c.in[0].shape, &starts = c.in[1].shape;
    if (x.rank() != 2) c.fail("x must be [N, C]; got {}", c.in[0].str());
    if (c.in[1].dtype != DType::i32 || starts.rank() != 1 || starts.size(0) < 2)
      c.fail("starts must be i32 [R + 1]; got {}", c.in[1].str());
    return std::vector<Type>{{c.in[0].dtype, {Dim(starts.size(0) - 1), x[1]}}};
  };
  d.cost = [](const Node& n, std::span<const Type> in) {
    return streaming_cost(n, in, elements(in[0]));
  };
  d.samples = [shapes = std::move(shapes)] {
    std::vector<Sample> out;
    for (const auto& [rows, columns, sequences] : shapes) {
      Sample::Operand starts =
          tensor({sequences + 1}, 0, static_cast<double>(rows + 1), DType::i32);
      starts.is_partition = true;
      out.push_back({{tensor({rows, columns}), starts}, {}});
    }
    return out;
  };
  return d;
}

OpDef segment_sum_op() {
  OpDef d = segment_op(
      "segment_sum",
      "y[r] = the sum of the rows [starts[r], starts[r + 1]) of x, in their order; 0 without rows. "
      "x: [N, C], starts: [R + 1] i32, ascending, y: [R, C]; sums in f32 or wider, rounded once",
      {{9, 5, 3}, {40, 300, 2}, {7, 1, 7}, {1, 3, 1}});
  d.decompose = [](const DecomposeContext& c) {
    const Value x = c.in[0];
    const DType work = work_dtype(x.dtype());
    const Value inside = rows_of_sequences(c.in[1], x.shape().size(0));
    const Value ones = cast(inside, work);
    return std::vector<Value>{cast(matmul(ones, cast(x, work)), x.dtype())};
  };
  return d;
}

OpDef segment_max_op() {
  OpDef d = segment_op("segment_max",
                       "y[r] = the maximum of the rows [starts[r], starts[r + 1]) of x; -inf "
                       "without rows, NaN where "
                       "a row has it. x: [N, C], starts: [R + 1] i32, ascending, y: [R, C]",
                       {{90, 5, 2}, {40, 300, 1}, {1, 3, 1}});
  d.decompose = [](const DecomposeContext& c) {
    const Value x = c.in[0];
    const int64_t rows = x.shape().size(0), columns = x.shape().size(1);
    const Value inside = rows_of_sequences(c.in[1], rows);
    const int64_t sequences = inside.shape().size(0);
    const Value all = where(reshape(inside, {sequences, rows, 1}), reshape(x, {1, rows, columns}),
                            scalar(c.graph, -INFINITY, x.dtype()));
    return std::vector<Value>{max(all, {1})};
  };
  return d;
}

}  // namespace

std::vector<OpDef> segment_ops() { return {segment_sum_op(), segment_max_op()}; }

}  // namespace ops
}  // namespace brrr
