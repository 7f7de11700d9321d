// matmul and linear without a library, and fused nodes with a product: the product, then the rest
// as a cluster.

#include <algorithm>
#include <optional>

#include "backend/cuda/clusters/access.h"
#include "backend/cuda/clusters/cluster.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/text.h"
#include "base/errors.h"
#include "ops/fused.h"
#include "ops/op.h"

namespace brrr::cuda {
namespace {

int64_t tiles(int64_t x) { return (x + 63) / 64; }

/// A batch index of the result as the offset of an operand's matrix.
std::string batch_offset(const Shape& operand, const Shape& result, int64_t matrix) {
  const Access access(operand, result);
  return access.is_uniform() ? "0" : fmt::format("({}) * {}ull", access.text("batch"), matrix);
}

struct Batches {
  int64_t count = 1;
  std::string a = "0", b = "0", y = "0";
};

Launch launch_of(const Product& p, const Batches& batches) {
  const bool wide = p.in == DType::f64;
  Launch launch;
  const std::string_view in = stored_type(p.in), out = stored_type(p.out),
                         bias = stored_type(p.bias_dtype), in_b = stored_type(p.dtype_b());
  launch.source = {
      "matmul",
      {"device.cuh", "matmul.cuh"},
      fmt::format("BRRR_KERNEL(256) matmul(const {0}* a, const {13}* b, {1}* y{2}{14}, i64 m, i64 "
                  "n, i64 k, i64 row_a, i64 row_b, i64 row_y) {{\n"
                  "  for (u64 batch = blockIdx.z; batch < {3}ull; batch += gridDim.z)\n"
                  "    matmul_block<{0}, {1}, {4}, {5}, {6}, {7}, {8}>(\n"
                  "        a + {9}, b + {10}, y + {11}, {12}, m, n, k, row_a, row_b, row_y{15});\n"
                  "}}\n",
                  in, out, p.bias ? fmt::format(", const {}* bias", bias) : "", batches.count, bias,
                  wide ? "double" : "float", p.transpose_a, p.transpose_b, p.accumulate, batches.a,
                  batches.b, batches.y,
                  p.bias ? "bias" : fmt::format("static_cast<const {}*>(nullptr)", bias), in_b,
                  p.scale_a ? ", const f32* scale_a, const f32* scale_b" : "",
                  p.scale_a ? ", scale_a[0] * scale_b[0]" : "")};
  launch.args = {p.a, p.b, p.y};
  if (p.bias) launch.args.push_back(*p.bias);
  if (p.scale_a) launch.args.insert(launch.args.end(), {*p.scale_a, *p.scale_b});
  for (int64_t size : {p.m, p.n, p.k, p.row_a, p.row_b, p.row_y})
    launch.args.push_back(LaunchArg::i64(size));
  launch.grid = {static_cast<uint32_t>(tiles(p.n)), static_cast<uint32_t>(tiles(p.m)),
                 static_cast<uint32_t>(std::min<int64_t>(batches.count, 65535))};
  launch.block = {256, 1, 1};
  return launch;
}

/// The product of a node (matmul, linear; alone or in a body) with its result at `y`.
void add_node_product(LaunchPlan& plan, const Node& node, const std::vector<Type>& in,
                      const std::vector<LaunchArg>& operands, const LaunchArg& y, DType out) {
  const Shape &sa = in[0].shape, &sb = in[1].shape, &sy = node.results[0].shape;
  if (sy.elements() == 0) return;
  const bool scaled = is(node, Op::scaled_matmul), matmul = is(node, Op::matmul);
  Product p;
  p.in = in[0].dtype;
  p.out = out;
  p.tf32 = node.attrs.get_or<bool>("tf32", false);
  p.transpose_a = matmul && node.attrs.get<bool>("transpose_a");
  p.transpose_b = scaled || (matmul && node.attrs.get<bool>("transpose_b"));
  p.m = sy.size(-2);
  p.n = sy.size(-1);
  p.k = sa.size(p.transpose_a ? -2 : -1);
  p.row_a = sa.size(-1);
  p.row_b = sb.size(-1);
  p.row_y = p.n;
  p.a = operands[0];
  p.b = operands[1];
  p.y = y;
  if (scaled) {
    p.in_b = in[1].dtype;
    p.scale_a = operands[2];
    p.scale_b = operands[3];
    p.fast_accumulation = node.attrs.get<bool>("fast_accumulation");
  }
  if (const size_t bias = scaled ? 4 : 2; !matmul && operands.size() > bias) {
    p.bias = operands[bias];
    p.bias_dtype = in[bias].dtype;
  }
  const Shape batch = sy.without_last(2);
  Batches batches;
  batches.count = batch.elements();
  if (sb.rank() == 2 && !p.transpose_a) {  // all rows are those of one product
    p.m *= batches.count;
    batches.count = 1;
  } else {
    batches.a = batch_offset(sa.without_last(2), batch, p.m * p.k);
    batches.b = batch_offset(sb.without_last(2), batch, p.k * p.n);
    batches.y = fmt::format("batch * {}ull", p.m * p.n);
  }
  Launch launch = launch_of(p, batches);
  if (batches.count == 1) launch.product = p;
  plan.launches.push_back(std::move(launch));
}

std::string refuse_size(const Node& node) {
  const Shape& y = node.results[0].shape;
  if (y.elements() / std::max<int64_t>(1, y.size(-1)) > int64_t{65535} * 64) return "too many rows";
  return "";
}

/// A body with its product taken out: the product's result is the last input.
struct Rest {
  Graph body;
  NodeId product = kNoNode;
  std::vector<size_t> inputs;            // of the whole body, that the rest still reads
  std::vector<uint32_t> product_inputs;  // of the whole body
  bool reads_product = false;
};

std::optional<Rest> without_product(const Graph& whole) {
  Rest rest;
  rest.product = product_of(whole);
  if (rest.product == kNoNode || !is_matrix_product(whole.node(rest.product))) return std::nullopt;
  std::vector<uint32_t> number(whole.size());
  uint32_t next = 0;
  for (NodeId id : whole.inputs()) number[id] = next++;
  for (const ValueId& v : whole.node(rest.product).operands) {
    if (!whole.is_input(v.node)) return std::nullopt;
    rest.product_inputs.push_back(number[v.node]);
  }
  std::vector<std::vector<ValueId>> map(whole.size());
  for (NodeId id = 0; id < whole.size(); ++id) {
    const Node& node = whole.node(id);
    if (whole.is_input(id) || id == rest.product) {
      const Type t = node.results[0];
      rest.inputs.push_back(id == rest.product ? SIZE_MAX : number[id]);
      map[id] = {rest.body.input(fmt::format("a{}", rest.inputs.size() - 1), t).id};
      continue;
    }
    std::vector<ValueId> operands;
    for (const ValueId& v : node.operands) operands.push_back(map[v.node][v.port]);
    const NodeId added = rest.body.add(*node.op, operands, node.attrs);
    for (uint32_t port = 0; port < node.results.size(); ++port) map[id].push_back({added, port});
  }
  for (const Output& o : whole.outputs())
    rest.body.output(o.name, rest.body.value(map[o.value.node][o.value.port]));
  return rest;
}

/// What of a body is computed on the product, and the sum beside it, which is not.
struct Parts {
  BodyPart after;
  std::optional<BiasGradient> gradient;
  Graph sum_body;       // of one operand
  uint32_t summed = 0;  // which of the whole

  explicit Parts(const Graph& whole) : gradient(bias_gradient_of(whole)) {
    if (!gradient) {
      after.body = whole;
      for (uint32_t i = 0; i < whole.outputs().size(); ++i) after.results.push_back(i);
      return;
    }
    after = without(whole, *gradient);
    const NodeId operand = whole.node(product_of(whole)).operands[gradient->of_left ? 0 : 1].node;
    const std::vector<NodeId> inputs = whole.inputs();
    summed =
        static_cast<uint32_t>(std::find(inputs.begin(), inputs.end(), operand) - inputs.begin());
    std::vector<ValueId> map(whole.size());
    const Type& t = whole.type({operand, 0});
    map[operand] = sum_body.input("a0", t).id;
    const ValueId result = whole.outputs()[gradient->result].value;
    std::vector<NodeId> chain;  // from the result to the operand
    for (NodeId id = result.node; id != operand; id = whole.node(id).operands[0].node)
      chain.push_back(id);
    for (auto id = chain.rbegin(); id != chain.rend(); ++id) {
      const Node& node = whole.node(*id);
      map[*id] = {sum_body.add(*node.op, std::vector{map[node.operands[0].node]}, node.attrs), 0};
    }
    sum_body.output("0", sum_body.value(map[result.node]));
  }
};

std::string fused_refusal(const NodeView& node, const GpuDescription&) {
  const Parts parts(fused_body(node.node()));
  const auto rest = without_product(parts.after.body);
  if (!rest) return "no product of operands";
  if (std::string why = refuse_size(parts.after.body.node(rest->product)); !why.empty()) return why;
  if (parts.gradient)
    if (std::string why = cluster_refusal(parts.sum_body); !why.empty()) return why;
  return parts.after.is_product_alone() ? "" : cluster_refusal(rest->body);
}

LaunchPlan fused_plan(const NodeView& node, const GpuDescription& gpu) {
  LaunchPlan plan;
  const Parts parts(fused_body(node.node()));
  const auto rest = without_product(parts.after.body);
  const Node& product = parts.after.body.node(rest->product);
  std::vector<Type> in;
  std::vector<LaunchArg> operands;
  for (uint32_t k : rest->product_inputs) {
    in.push_back(node.in[k]);
    operands.push_back(LaunchArg::in(k));
  }
  const Type& y = product.results[0];
  if (parts.gradient)
    add_cluster(plan,
                {parts.sum_body,
                 {{LaunchArg::in(parts.summed), operand_alignment(node, parts.summed)}},
                 {LaunchArg::out(parts.gradient->result)},
                 "bias_gradient"},
                gpu);
  if (parts.after.is_product_alone()) {
    add_node_product(plan, product, in, operands, LaunchArg::out(parts.after.results[0]), y.dtype);
    return plan;
  }
  const LaunchArg at = LaunchArg::scratch(plan.take_scratch(y.bytes()));
  add_node_product(plan, product, in, operands, at, y.dtype);
  Cluster cluster{rest->body, {}, {}, "fused"};
  for (size_t k : rest->inputs) {
    if (k == SIZE_MAX)
      cluster.operands.push_back({at, LaunchPlan::kAlignment});
    else
      cluster.operands.push_back({LaunchArg::in(k), operand_alignment(node, k)});
  }
  for (uint32_t r : parts.after.results) cluster.results.push_back(LaunchArg::out(r));
  add_cluster(plan, cluster, gpu);
  return plan;
}

LaunchPlan product_plan(const NodeView& node, const GpuDescription&) {
  LaunchPlan p;
  std::vector<LaunchArg> operands;
  for (size_t k = 0; k < node.in.size(); ++k) operands.push_back(LaunchArg::in(k));
  add_node_product(p, node.node(), node.in, operands, LaunchArg::out(0), node.out()[0].dtype);
  return p;
}

}  // namespace

void add_product(LaunchPlan& plan, const Product& product) {
  if (product.m == 0 || product.n == 0) return;
  Launch launch = launch_of(product, {});
  launch.product = product;
  plan.launches.push_back(std::move(launch));
}

std::vector<PlanEntry> matmul_entries() {
  const auto accepts = [](const NodeView& node, const GpuDescription&) -> std::string {
    return refuse_size(node.node());
  };
  const auto accepts_fp8 = [](const NodeView& node, const GpuDescription& gpu) -> std::string {
    if (gpu.sm < kLeastSmOfFp8) return "products of fp8 are multiplied from sm_89 on";
    return refuse_size(node.node());
  };
  return {{Op::matmul, "tiles", accepts, product_plan},
          {Op::linear, "tiles", accepts, product_plan},
          {Op::scaled_matmul, "tiles", accepts_fp8, product_plan},
          {Op::fused, "product_and_cluster", fused_refusal, fused_plan}};
}

}  // namespace brrr::cuda
