// Collectives: ops whose operands lie on several ranks, each of which runs the same graph. Their
// meaning for one rank stands here; for more, kernels of a communicator compute them
// (runtime/ranks/collectives.h). Sums over ranks are f32, in one binary tree over the ranks.

#include "ops/ranks/collectives.h"

#include "ops/support.h"

namespace brrr {

bool is_collective(const Node& node) {
  return is(node, Op::all_reduce, Op::reduce_scatter, Op::all_gather);
}

std::vector<Value> all_reduce(std::span<const Value> x, int64_t ranks) {
  return call(Op::all_reduce, x, {{"ranks", ranks}});
}

std::vector<Value> reduce_scatter(std::span<const Value> x, int64_t ranks) {
  return call(Op::reduce_scatter, x, {{"ranks", ranks}});
}

Value all_gather(Value shard, const Shape& shape, int64_t ranks, bool kept) {
  return call1(Op::all_gather, {shard},
               {{"block", kShardBlock}, {"kept", kept}, {"ranks", ranks}, {"shape", shape}});
}

Value own_shard(Value whole, int64_t ranks) {
  return call1(Op::own_shard, {whole}, {{"ranks", ranks}});
}

Value all_gather_rows(Value row, int64_t ranks) {
  return call1(Op::all_gather, {row},
               {{"block", int64_t{1}},
                {"kept", false},
                {"ranks", ranks},
                {"shape", Shape{ranks, row.shape().elements()}}});
}

std::vector<Value> block_squares(std::span<const Value> x) { return call(Op::block_squares, x); }

Value block_norm(std::span<const Value> squares) { return call(Op::block_norm, squares)[0]; }

namespace ops {
namespace {

int64_t ranks_of(const InferContext& c) {
  const int64_t ranks = c.attr<int64_t>("ranks");
  if (ranks < 1) c.fail("ranks must be at least 1; got {}", ranks);
  return ranks;
}

void expect_f32(const InferContext& c) {
  if (c.in.empty()) c.fail("needs an operand");
  for (size_t i = 0; i < c.in.size(); ++i)
    if (c.in[i].dtype != DType::f32) c.fail("operand {} is {}: expected f32", i, c.in[i].str());
}

/// Copies operands into results that are as long or longer; what is longer ends with zeros.
void evaluate_alone(const EvalContext& c) {
  BRRR_CHECK(c.node.attrs.get<int64_t>("ranks") == 1,
             "the interpreter knows one rank; {} runs on a communicator", c.node.op->name);
  for (size_t i = 0; i < c.in.size(); ++i) {
    auto& to = c.out[i].data;
    std::fill(to.begin(), to.end(), 0.0);
    std::copy_n(c.in[i]->data.begin(), std::min(to.size(), c.in[i]->data.size()), to.begin());
  }
}

std::vector<Sample> samples_alone() {
  return {{{tensor({3, 37})}, {{"ranks", int64_t{1}}}},
          {{tensor({5}), tensor({}), tensor({70, 101})}, {{"ranks", int64_t{1}}}}};
}

OpDef collective(std::string name, std::string doc) {
  OpDef d;
  d.name = std::move(name);
  d.doc = std::move(doc);
  d.op_class = OpClass::optimizer;
  d.no_gradient = "it moves gradients and parameters between ranks";
  d.evaluate = evaluate_alone;
  d.samples = samples_alone;
  d.cost = [](const Node& n, std::span<const Type> in) { return streaming_cost(n, in, 0); };
  return d;
}

OpDef all_reduce_op() {
  OpDef d = collective("all_reduce",
                       "y_i = the sum of x_i over {ranks} ranks, in one binary tree over the "
                       "ranks. x_i, y_i: any shapes, f32");
  d.infer = [](const InferContext& c) {
    ranks_of(c);
    expect_f32(c);
    return std::vector<Type>(c.in.begin(), c.in.end());
  };
  d.in_place_of = [](const Node& node) {
    std::vector<OpDef::InPlace> pairs;
    for (uint32_t i = 0; i < node.operands.size(); ++i) pairs.push_back({i, i});
    return pairs;
  };
  return d;
}

OpDef reduce_scatter_op() {
  OpDef d = collective(
      "reduce_scatter",
      "y_i = this rank's shard of the sum of x_i over {ranks} ranks: the elements of x_i in "
      "row-major order, in whole blocks of 1024, zeros behind the last. Sums as all_reduce. x_i: "
      "any shapes, f32; y_i: [ceil(elements / ranks) rounded up to 1024] f32");
  d.infer = [](const InferContext& c) {
    const int64_t ranks = ranks_of(c);
    expect_f32(c);
    std::vector<Type> out;
    for (const Type& t : c.in)
      out.push_back({DType::f32, {shard_elements(t.shape.elements(), ranks)}});
    return out;
  };
  return d;
}

OpDef all_gather_op() {
  OpDef d = collective("all_gather",
                       "y = the tensor of {shape} whose shards the ranks have, as reduce_scatter "
                       "divides it, in whole blocks of {block} elements. x: [elements of a shard], "
                       "any dtype; y: {shape}. {kept}: y may stay in memory until the parameters "
                       "below it change");
  d.derives_weights = true;
  d.infer = [](const InferContext& c) {
    expect_operands(c, 1);
    const int64_t ranks = ranks_of(c);
    const Shape& shape = c.attr<Shape>("shape");
    c.attr<bool>("kept");
    const int64_t block = c.attr<int64_t>("block");
    if (block < 1) c.fail("block must be at least 1; got {}", block);
    const Shape wanted{round_up(ceil_div(shape.elements(), ranks), block)};
    if (c.in[0].shape != wanted)
      c.fail("a shard of {} among {} ranks is {}; got {}", shape.str(), ranks, wanted.str(),
             c.in[0].shape.str());
    return std::vector<Type>{{c.in[0].dtype, shape}};
  };
  d.samples = [] {
    std::vector<Sample> out;
    for (const DType t : {DType::f32, DType::bf16})
      out.push_back({{tensor({3072}, -1, 1, t)},
                     {{"block", kShardBlock},
                      {"kept", true},
                      {"ranks", int64_t{1}},
                      {"shape", Shape{48, 64}}}});
    return out;
  };
  return d;
}

OpDef own_shard_op() {
  OpDef d = collective("own_shard",
                       "y = this rank's shard of x, divided as reduce_scatter does. All {ranks} "
                       "ranks hold x, so nothing is sent. x: any shape, f32; y: [elements of a "
                       "shard] f32");
  d.infer = [](const InferContext& c) {
    expect_operands(c, 1);
    const int64_t ranks = ranks_of(c);
    expect_f32(c);
    return std::vector<Type>{{DType::f32, {shard_elements(c.in[0].shape.elements(), ranks)}}};
  };
  d.samples = [] {
    return std::vector<Sample>{{{tensor({3, 37})}, {{"ranks", int64_t{1}}}},
                               {{tensor({70, 101})}, {{"ranks", int64_t{1}}}}};
  };
  d.cost = [](const Node& n, std::span<const Type> in) {
    const double bytes = static_cast<double>(n.results[0].bytes());
    return Cost{0, std::min(bytes, static_cast<double>(in[0].bytes())), bytes};
  };
  return d;
}

OpDef block_squares_op() {
  OpDef d;
  d.name = "block_squares";
  d.doc =
      "y_i = the sums of squares of each 1024 elements of x_i in row-major order, rounded to f32. "
      "x_i: any shapes, f32; y_i: [ceil(elements / 1024)] f32";
  d.op_class = OpClass::optimizer;
  d.no_gradient = "it measures gradients";
  d.infer = [](const InferContext& c) {
    expect_f32(c);
    std::vector<Type> out;
    for (const Type& t : c.in)
      out.push_back({DType::f32, {ceil_div(t.shape.elements(), kShardBlock)}});
    return out;
  };
  d.evaluate = [](const EvalContext& c) {
    for (size_t i = 0; i < c.in.size(); ++i) {
      std::fill(c.out[i].data.begin(), c.out[i].data.end(), 0.0);
      for (size_t j = 0; j < c.in[i]->data.size(); ++j)
        c.out[i].data[j / kShardBlock] += c.in[i]->data[j] * c.in[i]->data[j];
    }
  };
  d.cost = [](const Node& n, std::span<const Type> in) {
    return streaming_cost(n, in, 2 * elements(in));
  };
  d.samples = [] {
    return std::vector<Sample>{{{tensor({3, 37})}, {}},
                               {{tensor({5}), tensor({}), tensor({70, 101})}, {}}};
  };
  return d;
}

OpDef block_norm_op() {
  OpDef d;
  d.name = "block_norm";
  d.doc =
      "y = the square root of the sum of all elements of all operands, in order, in f64. x_i: any "
      "shapes, f32; y: [] f32";
  d.op_class = OpClass::optimizer;
  d.no_gradient = "it measures gradients";
  d.infer = [](const InferContext& c) {
    expect_f32(c);
    return std::vector<Type>{{DType::f32, {}}};
  };
  d.evaluate = [](const EvalContext& c) {
    double total = 0;
    for (const RefTensor* x : c.in)
      for (double v : x->data) total += v;
    c.out[0].data[0] = std::sqrt(total);
  };
  d.cost = [](const Node& n, std::span<const Type> in) {
    return streaming_cost(n, in, elements(in));
  };
  d.samples = [] {
    return std::vector<Sample>{{{tensor({37}, 0, 1)}, {}},
                               {{tensor({5}, 0, 1), tensor({700}, 0, 1)}, {}}};
  };
  return d;
}

}  // namespace

std::vector<OpDef> collective_ops() {
  std::vector<OpDef> list;
  list.push_back(all_reduce_op());
  list.push_back(reduce_scatter_op());
  list.push_back(all_gather_op());
  list.push_back(own_shard_op());
  list.push_back(block_squares_op());
  list.push_back(block_norm_op());
  return list;
}

}  // namespace ops
}  // namespace brrr
