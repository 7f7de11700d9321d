// The list of all ops, and what the op files share.

#include <unordered_map>

#include "ops/recurrent/recurrent_support.h"
#include "ops/support.h"

namespace brrr {
namespace {

constexpr std::string_view kOpNames[] = {
    "",
#define BRRR_NAME(name) #name,
    BRRR_UNARY_OPS(BRRR_NAME) BRRR_BINARY_OPS(BRRR_NAME) BRRR_OTHER_OPS(BRRR_NAME)
#undef BRRR_NAME
};

struct Table {
  std::vector<OpDef> storage;
  std::vector<const OpDef*> list;
  const OpDef* by_id[std::size(kOpNames)] = {};
  std::unordered_map<std::string_view, const OpDef*> by_name;
};

const Table& table() {
  static const Table t = [] {
    Table out;
    for (auto* group : {ops::leaf_ops,
                        ops::elementwise_ops,
                        ops::gelu_ops,
                        ops::silu_ops,
                        ops::dropout_ops,
                        ops::matmul_ops,
                        ops::reduction_ops,
                        ops::softmax_ops,
                        ops::attention_ops,
                        ops::layer_norm_ops,
                        ops::rotary_ops,
                        ops::cross_entropy_ops,
                        ops::linear_cross_entropy_ops,
                        ops::movement_ops,
                        ops::gather_ops,
                        ops::segment_ops,
                        ops::sorting_ops,
                        ops::conv_ops,
                        ops::pool_ops,
                        ops::batch_norm_ops,
                        ops::lstm_ops,
                        ops::gru_ops,
                        ops::store_ops,
                        ops::embedding_ops,
                        ops::optimizer_ops,
                        ops::optimizer_8bit_ops,
                        ops::adafactor_ops,
                        ops::muon_ops,
                        ops::fp8_ops,
                        ops::fake_quantize_ops,
                        ops::fused_ops,
                        ops::order_ops,
                        ops::collective_ops,
                        ops::control_ops})
      for (OpDef& d : group()) out.storage.push_back(std::move(d));
    for (const OpDef& d : out.storage) {
      out.list.push_back(&d);
      BRRR_CHECK(out.by_name.emplace(d.name, &d).second, "two ops are named {}", d.name);
    }
    for (size_t i = 1; i < std::size(kOpNames); ++i) {
      const auto id = static_cast<Op>(i);
      const auto at = out.by_name.find(name_of(id));
      BRRR_CHECK(at != out.by_name.end(), "ops/op.h names {}, which no OpDef defines", name_of(id));
      out.by_id[i] = at->second;
      out.storage[static_cast<size_t>(at->second - out.storage.data())].id = id;
    }
    for (const OpDef& d : out.storage)
      BRRR_CHECK(d.id != Op::none, "ops/op.h does not name {}", d.name);
    return out;
  }();
  return t;
}

}  // namespace

std::string_view name_of(Op op) {
  const std::string_view name = kOpNames[static_cast<size_t>(op)];
  return name.substr(0, name.size() - static_cast<size_t>(name.ends_with('_')));
}

std::span<const OpDef* const> all_ops() { return table().list; }

const OpDef* find_op(std::string_view name) {
  auto at = table().by_name.find(name);
  return at == table().by_name.end() ? nullptr : at->second;
}

const OpDef& op(Op id) {
  BRRR_CHECK(id != Op::none, "Op::none is no op");
  return *table().by_id[static_cast<size_t>(id)];
}

const OpDef& op(std::string_view name) {
  const OpDef* found = find_op(name);
  BRRR_CHECK(found != nullptr, "there is no op '{}'", name);
  return *found;
}

std::vector<Value> call(const OpDef& op, std::span<const Value> operands, Attrs attrs) {
  BRRR_CHECK(!operands.empty(), "call of {} without operands", op.name);
  Graph& g = *operands[0].graph;
  std::vector<ValueId> ids;
  for (const Value& v : operands) {
    BRRR_CHECK(v.graph == &g, "{}: operands of two graphs", op.name);
    ids.push_back(v.id);
  }
  const NodeId id = g.add(op, ids, std::move(attrs));
  std::vector<Value> results;
  for (uint32_t port = 0; port < g.node(id).results.size(); ++port)
    results.push_back(g.value(id, port));
  return results;
}

std::vector<Value> call(Op op, std::span<const Value> operands, Attrs attrs) {
  return call(brrr::op(op), operands, std::move(attrs));
}

Value call1(Op op, std::initializer_list<Value> operands, Attrs attrs) {
  return call(op, std::span<const Value>(operands.begin(), operands.size()), std::move(attrs))[0];
}

Value sum_to(Value grad, const Shape& shape) {
  if (grad.shape() == shape) return grad;
  const int extra = grad.shape().rank() - shape.rank();
  std::vector<int64_t> axes;
  for (int axis = 0; axis < grad.shape().rank(); ++axis)
    if (axis < extra || !(shape[axis - extra] == grad.shape()[axis])) axes.push_back(axis);
  Value reduced = axes.empty() ? grad : sum(grad, axes);
  return reduced.shape() == shape ? reduced : reshape(reduced, shape);
}

namespace ops {

void expect_operands(const InferContext& c, size_t count) {
  if (c.in.size() != count)
    c.fail("takes {} operand{}; got {}", count, count == 1 ? "" : "s", c.in.size());
}

void expect_float(const InferContext& c, size_t i, const char* what) {
  if (!is_float(c.in[i].dtype)) c.fail("{} must be floating point; got {}", what, c.in[i].str());
}

void expect_integer(const InferContext& c, size_t i, const char* what) {
  if (c.in[i].dtype != DType::i32 && c.in[i].dtype != DType::i64)
    c.fail("{} must be i32 or i64; got {}", what, c.in[i].str());
}

void expect_stream(const InferContext& c) {
  const int64_t stream = c.attr<int64_t>("stream");
  if (stream < 0 || stream > 0xffffffff) c.fail("stream must be in [0, 2^32); got {}", stream);
}

const Graph& region_of(const InferContext& c, std::string_view name) {
  const Region& region = c.attr<Region>(name);
  if (!region.problem().empty()) c.fail("{}: {}", name, region.problem());
  return region.graph();
}

void expect_same_dtype(const InferContext& c, size_t i, size_t j) {
  if (c.in[i].dtype != c.in[j].dtype)
    c.fail("operands must have one dtype; got {} and {} (cast one of them)", c.in[i].str(),
           c.in[j].str());
}

Shape broadcast(const InferContext& c, const Shape& a, const Shape& b) {
  const int rank = std::max(a.rank(), b.rank());
  std::vector<Dim> dims(static_cast<size_t>(rank));
  for (int i = 0; i < rank; ++i) {
    const Dim da = i < a.rank() ? a[-1 - i] : Dim(1);
    const Dim db = i < b.rank() ? b[-1 - i] : Dim(1);
    Dim& d = dims[static_cast<size_t>(rank - 1 - i)];
    if (da == db || db == Dim(1))
      d = da;
    else if (da == Dim(1))
      d = db;
    else
      c.fail("shapes {} and {} do not broadcast: {} against {} at axis {} from the end", a.str(),
             b.str(), da.str(), db.str(), i + 1);
  }
  return Shape(std::move(dims));
}

int64_t normal_axis(int64_t axis, int rank) { return axis < 0 ? axis + rank : axis; }

void for_each_index(const Shape& shape,
                    const std::function<void(int64_t, const std::vector<int64_t>&)>& body) {
  const int64_t n = shape.elements();
  std::vector<int64_t> index(static_cast<size_t>(shape.rank()), 0);
  for (int64_t i = 0; i < n; ++i) {
    body(i, index);
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
      if (++index[static_cast<size_t>(axis)] < shape.size(axis)) break;
      index[static_cast<size_t>(axis)] = 0;
    }
  }
}

int64_t broadcast_index(const Shape& from, const std::vector<int64_t>& index) {
  int64_t flat = 0;
  const size_t extra = index.size() - static_cast<size_t>(from.rank());
  for (int axis = 0; axis < from.rank(); ++axis) {
    const int64_t size = from.size(axis);
    flat = flat * size + (size == 1 ? 0 : index[extra + static_cast<size_t>(axis)]);
  }
  return flat;
}

Shape leading(const Shape& x) { return x.without_last(1); }

Value column(Value v) {
  Shape shape = v.shape();
  shape.push_back(Dim(1));
  return reshape(v, shape);
}

Value rows_of(Value x) {
  if (x.shape().rank() == 2) return x;
  return reshape(x, {leading(x.shape()).elements(), x.shape()[-1]});
}

Sample::Operand tensor(Shape shape, double low, double high, DType dtype) {
  return {{dtype, std::move(shape)}, low, high};
}

Cost streaming_cost(const Node& node, std::span<const Type> in, double flops) {
  Cost cost;
  cost.flops = flops;
  for (const Type& t : in) cost.bytes_read += static_cast<double>(t.bytes());
  for (const Type& t : node.results) cost.bytes_written += static_cast<double>(t.bytes());
  return cost;
}

}  // namespace ops
}  // namespace brrr
