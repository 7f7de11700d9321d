#include "backend/cuda/products/matmul_call.h"

#include <algorithm>

#include "ops/fused.h"
#include "ops/op.h"

namespace brrr::cuda {
namespace {

int64_t batch_elements(const Shape& s) {
  int64_t n = 1;
  for (int axis = 0; axis + 2 < s.rank(); ++axis) n *= s.size(axis);
  return n;
}

/// Returns why cuBLASLt cannot multiply the fp8 operands; "" if it can.
std::string fp8_refusal(const NodeView& view, const Product& p) {
  if (p.in == DType::f8e5m2 && p.in_b == DType::f8e5m2) return "e5m2 products of e5m2";
  if (p.out == DType::f64) return "results in f64";
  if (p.m % 16 != 0 || p.n % 16 != 0 || p.k % 16 != 0)
    return fmt::format("{}x{}x{}: sizes must be multiples of 16", p.m, p.n, p.k);
  for (size_t k : {size_t{2}, size_t{3}})
    if (view.in[k].dtype != DType::f32) return "scales are f32";
  return "";
}

/// Rows, columns and the batch with constant strides.
std::string set_sizes(const NodeView& view, Product& p) {
  const bool is_matmul = is(view.node(), Op::matmul);
  const Shape &a = view.in[0].shape, &b = view.in[1].shape;
  p.transpose_a = is_matmul && view.attrs().get<bool>("transpose_a");
  p.transpose_b =
      is(view.node(), Op::scaled_matmul) || (is_matmul && view.attrs().get<bool>("transpose_b"));
  p.m = a.size(p.transpose_a ? -1 : -2);
  p.k = a.size(p.transpose_a ? -2 : -1);
  p.n = b.size(p.transpose_b ? -2 : -1);
  p.row_a = p.transpose_a ? p.m : p.k;
  p.row_b = p.transpose_b ? p.k : p.n;
  p.row_y = p.n;
  const int64_t batch_a = batch_elements(a), batch_b = batch_elements(b);
  const int64_t batch = batch_elements(view.out()[0].shape);
  if (batch_b == 1 && !p.transpose_a && batch_a == batch) {
    p.m *= batch;  // the rows of all batches are rows of one product
  } else {
    if ((batch_a != batch && batch_a != 1) || (batch_b != batch && batch_b != 1))
      return "a batch is broadcast in part";
    p.batch = batch;
    p.batch_a = batch_a == 1 ? 0 : p.m * p.k;
    p.batch_b = batch_b == 1 ? 0 : p.k * p.n;
    p.batch_y = p.m * p.n;
  }
  if (p.m == 0 || p.n == 0 || p.k == 0 || p.batch == 0) return "a size of zero";
  return "";
}

/// The body of a fused node as an epilogue: walks from the product to the result.
class EpilogueReader {
 public:
  EpilogueReader(const NodeView& fused, MatmulCall& call)
      : body_(fused_body(fused.node())), call_(call) {}

  std::string read() {
    const Graph& g = body_;
    const NodeId product = product_of(g);
    if (product == kNoNode || !is_matrix_product(g.node(product))) return "no product";
    std::vector<LaunchArg> operands;
    for (const ValueId& v : g.node(product).operands) {
      if (!g.is_input(v.node)) return "a product of something that is computed";
      operands.push_back(input(v.node));
    }
    const std::string refusal =
        as_product(NodeView(g, product), operands, LaunchArg::out(0), call_.product);
    if (!refusal.empty()) return refusal;
    const auto gradient = bias_gradient_of(g);
    if (gradient)
      if (std::string why = read_bias_gradient(*gradient); !why.empty()) return why;
    const uint32_t first = gradient && gradient->result == 0 ? 1 : 0;
    if (first >= g.outputs().size()) return "no result but a sum";
    const NodeId last = root(g.outputs()[first].value.node);
    for (const Output& o : g.outputs()) {
      const NodeId id = root(o.value.node);
      if (id == product)
        kept_ = output(o);
      else if (id != last && !(gradient && id == gradient->sum))
        return "more than one result of the epilogue";
    }
    call_.product.y = LaunchArg::out(first);
    // Besides the product and one op, the body may only read operands.
    for (NodeId id = 0; id < g.size(); ++id)
      if (!g.is_input(id) && !is(g.node(id), Op::reshape) && id != product && id != last &&
          !(gradient && is_summed(id, gradient->sum)))
        return fmt::format("{} besides {}", g.node(id).op->name, g.node(last).op->name);
    if (last == product) return gradient ? "" : "no epilogue";
    if (gradient && !is(g.node(last), Op::add))
      return fmt::format("{} beside a bias gradient", g.node(last).op->name);
    return read_op(g.node(last), product);
  }

 private:
  /// Refuses bias gradients except beside 16-bit weight gradients with an f32 sum.
  std::string read_bias_gradient(const BiasGradient& gradient) {
    const Product& p = call_.product;
    const Type& sum = body_.type({gradient.sum, 0});
    if (p.in != DType::bf16 && p.in != DType::f16)
      return fmt::format("a bias gradient of {}", name_of(p.in));
    if (p.out != DType::f32 || sum.dtype != DType::f32 ||
        body_.type(body_.node(gradient.sum).operands[0]).dtype != DType::f32)
      return "a bias gradient that is not summed in f32, or beside a product that is not";
    if (p.batch != 1 || !p.transpose_a || p.transpose_b)
      return "a bias gradient beside another product than that of a weight's gradient";
    call_.bias_gradient = LaunchArg::out(gradient.result);
    call_.sums_a = gradient.of_left;
    return "";
  }
  /// Whether the node is on the way from an operand to the sum.
  bool is_summed(NodeId id, NodeId sum) const {
    while (!body_.is_input(sum)) {
      if (id == sum) return true;
      sum = body_.node(sum).operands[0].node;
    }
    return false;
  }
  std::string read_op(const Node& node, NodeId product) {
    const Graph& g = body_;
    const Op op = node.op->id;
    const Type& y = g.type({product, 0});
    if (node.results[0].dtype != y.dtype) return "a result of another dtype than the product";
    const auto is_product = [&](size_t i) { return root(node.operands[i].node) == product; };
    const auto other = [&](size_t i) -> std::string {
      const ValueId v = node.operands[i];
      if (!g.is_input(root(v.node))) return "an operand that is computed";
      const Type& type = g.type({root(v.node), 0});
      if (type.dtype != y.dtype || type.shape.elements() != y.shape.elements())
        return fmt::format("an operand {} beside a product {}", type.str(), y.str());
      return "";
    };
    if (op == Op::add) {
      const size_t i = is_product(0) ? 1 : 0;
      if (is_product(i)) return "the product twice";
      if (kept_) return "the product is kept beside its sum";
      if (std::string refusal = other(i); !refusal.empty()) return refusal;
      call_.addend = input(root(node.operands[i].node));
      return "";
    }
    if (op != Op::gelu && op != Op::gelu_grad)
      return fmt::format("no epilogue does {}", node.op->name);
    if (node.attrs.get<std::string>("approximate") != "tanh") return "gelu without tanh";
    if (call_.product.in == DType::f32) return "gelu of f32 is more exact in a kernel of its own";
    if (call_.product.batch != 1) return "a batch";
    if (call_.product.n % 8 != 0) return "columns must be a multiple of 8";
    if (op == Op::gelu) {
      call_.epilogue = Epilogue::gelu;
      call_.aux = kept_;
      return "";
    }
    if (kept_) return "the product is kept beside its derivative";
    if (!is_product(0)) return "the product is what was squashed";
    if (std::string refusal = other(1); !refusal.empty()) return refusal;
    call_.epilogue = Epilogue::gelu_grad;
    call_.aux = input(root(node.operands[1].node));
    return "";
  }

  NodeId root(NodeId id) const {
    while (is(body_.node(id), Op::reshape)) id = body_.node(id).operands[0].node;
    return id;
  }
  LaunchArg input(NodeId id) const {
    const std::vector<NodeId> inputs = body_.inputs();
    return LaunchArg::in(
        static_cast<size_t>(std::find(inputs.begin(), inputs.end(), id) - inputs.begin()));
  }
  LaunchArg output(const Output& o) const {
    return LaunchArg::out(static_cast<size_t>(&o - body_.outputs().data()));
  }

  const Graph& body_;
  MatmulCall& call_;
  std::optional<LaunchArg> kept_;
};

}  // namespace

int64_t workspace_bytes(const GpuDescription& gpu) {
  // What NVIDIA recommends for cuBLAS: 32 MiB from Hopper on, 4 MiB before.
  return gpu.sm >= 90 ? int64_t{32} << 20 : int64_t{4} << 20;
}

std::string as_product(const NodeView& view, const std::vector<LaunchArg>& operands, LaunchArg y,
                       Product& p) {
  p = Product();
  p.in = view.in[0].dtype;
  p.out = view.out()[0].dtype;
  const bool is_scaled = is(view.node(), Op::scaled_matmul);
  if (!is_scaled && (!is_compute_float(p.in) || (p.out != p.in && p.out != DType::f32)))
    return fmt::format("{} products with {} results", name_of(p.in), name_of(p.out));
  if (std::string refusal = set_sizes(view, p); !refusal.empty()) return refusal;
  p.a = operands[0];
  p.b = operands[1];
  p.y = std::move(y);
  p.tf32 = view.attrs().get_or<bool>("tf32", false);
  if (is_scaled) {
    p.in_b = view.in[1].dtype;
    p.scale_a = operands[2];
    p.scale_b = operands[3];
    p.fast_accumulation = view.attrs().get<bool>("fast_accumulation");
    if (std::string refusal = fp8_refusal(view, p); !refusal.empty()) return refusal;
  }
  if (const size_t bias = is_scaled ? 4 : 2; operands.size() > bias) {
    p.bias = operands[bias];
    p.bias_dtype = view.in[bias].dtype;
    if (!is_compute_float(p.bias_dtype)) return fmt::format("a bias of {}", name_of(p.bias_dtype));
  }
  return "";
}

std::string as_matmul_call(const NodeView& fused, MatmulCall& call) {
  call = MatmulCall();
  return EpilogueReader(fused, call).read();
}

std::string describe(const MatmulCall& call) {
  const Product& p = call.product;
  std::string text = fmt::format("{}", p.tf32 ? "tf32" : name_of(p.in));
  if (p.in_b) text += fmt::format("*{}", name_of(*p.in_b));
  if (p.out != p.in) text += fmt::format("->{}", name_of(p.out));
  if (p.batch != 1) text += fmt::format(" {} x", p.batch);
  text += fmt::format(" {}x{}x{} {}{}", p.m, p.n, p.k, p.transpose_a ? 't' : 'n',
                      p.transpose_b ? 't' : 'n');
  if (p.fast_accumulation) text += " fast";
  if (p.bias) text += " +bias";
  if (call.addend || p.accumulate) text += " +addend";
  if (call.epilogue == Epilogue::gelu) text += call.aux ? " +gelu(aux)" : " +gelu";
  if (call.epilogue == Epilogue::gelu_grad) text += " *gelu_grad";
  if (call.bias_gradient) text += call.sums_a ? " +bgrad(a)" : " +bgrad";
  return text;
}

}  // namespace brrr::cuda
