#include "backend/cuda/kernel_list.h"

#include "backend/cuda/clusters/cluster.h"
#include "ops/fused.h"
#include "ops/ops.h"

namespace brrr::cuda {
namespace {

/// The plan of the first kernel of our own that runs node `id`; no value: there is none.
std::optional<LaunchPlan> plan_alone(const Graph& g, NodeId id, const GpuDescription& gpu) {
  const NodeView view(g, id);
  for (const PlanEntry& entry : device_kernels())
    if (is(view.node(), entry.op) && entry.accepts(view, gpu).empty()) return entry.plan(view, gpu);
  return std::nullopt;
}

std::optional<LaunchPlan> cast_plan(DType from, DType to, int64_t elements,
                                    const GpuDescription& gpu) {
  Graph g;
  const Value y = cast(g.input("x", {elements}, from), to);
  return plan_alone(g, y.id.node, gpu);
}

/// What the epilogue of a call does, as a kernel of its own: reads the product and one more
/// operand.
std::optional<LaunchPlan> epilogue_plan(const MatmulCall& call, const GpuDescription& gpu) {
  const Product& p = call.product;
  const Shape shape{p.batch * p.m * p.n};
  Graph g;
  const Value x = g.input("x", shape, p.out);
  Value y;
  if (call.epilogue == Epilogue::gelu)
    y = gelu(x, Gelu::tanh);
  else if (call.epilogue == Epilogue::gelu_grad)
    y = call1(Op::gelu_grad, {x, g.input("z", shape, p.out)},
              {{"approximate", std::string("tanh")}});
  else
    y = x + g.input("z", shape, p.out);
  return plan_alone(g, y.id.node, gpu);
}

/// Whether kernels that were planned for whole buffers may read it: a view may begin anywhere.
bool is_aligned(const NodeView& view, const std::optional<LaunchArg>& arg) {
  return !arg || arg->kind != LaunchArg::Kind::in || operand_alignment(view, arg->index) % 16 == 0;
}

/// cuBLASLt takes a bias of the result's dtype, and none in f32 beside operands of 8 bits: another
/// is rounded, as autocast would.
DType bias_type(const Product& p) {
  return is_fp8(p.in) && p.out == DType::f32 ? DType::bf16 : p.out;
}

bool needs_cast(const Product& p) { return p.bias && p.bias_dtype != bias_type(p); }

std::string cast_refusal(const NodeView& view, const Product& p, const GpuDescription& gpu) {
  if (needs_cast(p) && !is_aligned(view, p.bias)) return "a bias that is not aligned";
  if (!needs_cast(p) || cast_plan(p.bias_dtype, bias_type(p), p.n, gpu)) return "";
  return fmt::format("no kernel makes the bias {}", name_of(bias_type(p)));
}

void cast_bias(NodePlan& plan, Product& p, const GpuDescription& gpu) {
  if (!needs_cast(p)) return;
  const DType type = bias_type(p);
  const LaunchArg to =
      LaunchArg::scratch(plan.take_scratch(p.n * static_cast<int64_t>(bytes_of(type))));
  plan.append(*cast_plan(p.bias_dtype, type, p.n, gpu), {*p.bias}, {to});
  p.bias = to;
  p.bias_dtype = type;
}

void add_call(NodePlan& plan, MatmulCall call, const GpuDescription& gpu) {
  cast_bias(plan, call.product, gpu);
  call.workspace = plan.take_scratch(workspace_bytes(gpu));
  plan.commands.emplace_back(std::move(call));
}

std::vector<LaunchArg> operands_of(const NodeView& view) {
  std::vector<LaunchArg> args;
  for (size_t i = 0; i < view.in.size(); ++i) args.push_back(LaunchArg::in(i));
  return args;
}

/// A product of 8 bits into f32 without its bias, which a kernel of our own adds: the library may
/// take no bias at all there. No value: it is no such product.
std::optional<NodePlan> bias_apart(const NodeView& view, const GpuDescription& gpu) {
  MatmulCall call;
  as_product(view, operands_of(view), LaunchArg::out(0), call.product);
  Product& p = call.product;
  if (!p.bias || bias_type(p) == p.out || p.bias_dtype != p.out || !is_aligned(view, p.bias))
    return std::nullopt;
  Graph g;
  const Value y = g.input("y", {p.batch * p.m, p.n}, p.out);
  const Value sum = y + g.input("bias", {p.n}, p.out);
  const std::optional<LaunchPlan> add = plan_alone(g, sum.id.node, gpu);
  if (!add) return std::nullopt;
  NodePlan plan;
  plan.name = "cublaslt, then the bias";
  const LaunchArg bias = *p.bias;
  p.bias.reset();
  add_call(plan, std::move(call), gpu);
  plan.append(*add, {LaunchArg::out(0), bias}, {LaunchArg::out(0)});
  return plan;
}

KernelEntry product_entry(Op op, const GpuDescription& gpu) {
  return {op, "cublaslt",
          [gpu](const NodeView& view) {
            Product p;
            if (is(view.node(), Op::scaled_matmul) && gpu.sm < kLeastSmOfFp8)
              return std::string("products of fp8 are multiplied from sm_89 on");
            std::string refusal = as_product(view, operands_of(view), LaunchArg::out(0), p);
            return refusal.empty() ? cast_refusal(view, p, gpu) : refusal;
          },
          [gpu](const NodeView& view) -> std::unique_ptr<Kernel> {
            MatmulCall call;
            as_product(view, operands_of(view), LaunchArg::out(0), call.product);
            NodePlan plan;
            plan.name = "cublaslt";
            add_call(plan, std::move(call), gpu);
            std::vector<NodePlan> ways{std::move(plan)};
            if (auto apart = bias_apart(view, gpu)) ways.push_back(std::move(*apart));
            if (auto own = plan_alone(view.graph, view.id, gpu)) {
              ways.push_back(own_plan(*own, "a kernel of our own"));
              ways.back().is_last_resort = true;
            }
            return std::make_unique<CudaKernel>(view, std::move(ways));
          }};
}

/// The product by the library, what follows by a kernel of our own.
std::optional<NodePlan> split_plan(const NodeView& view, const MatmulCall& whole,
                                   const GpuDescription& gpu) {
  const auto rest = epilogue_plan(whole, gpu);
  if (!rest || !is_aligned(view, whole.aux) || !is_aligned(view, whole.addend)) return std::nullopt;
  NodePlan plan;
  plan.name = "cublaslt, then a kernel";
  MatmulCall call;
  call.product = whole.product;
  const Product& p = whole.product;
  const bool is_kept = whole.epilogue == Epilogue::gelu && whole.aux;
  call.product.y = is_kept ? *whole.aux
                           : LaunchArg::scratch(plan.take_scratch(
                                 p.batch * p.m * p.n * static_cast<int64_t>(bytes_of(p.out))));
  std::vector<LaunchArg> in{call.product.y};
  if (whole.epilogue == Epilogue::gelu_grad) in.push_back(*whole.aux);
  if (whole.addend) in.push_back(*whole.addend);
  add_call(plan, std::move(call), gpu);
  plan.append(*rest, in, {p.y});
  return plan;
}

/// The product with what is added to it by the library, the bias gradient by a kernel of our own.
NodePlan split_gradient_plan(const NodeView& view, const MatmulCall& whole,
                             const GpuDescription& gpu) {
  NodePlan plan;
  plan.name = "cublaslt, then a sum";
  MatmulCall call = whole;
  call.bias_gradient.reset();
  const Product& p = whole.product;
  const LaunchArg& from = whole.sums_a ? p.a : p.b;
  Graph body;
  const Value x = body.input("a0", {p.k, whole.sums_a ? p.m : p.n}, p.in);
  body.output("0", sum(cast(x, DType::f32), {0}));
  LaunchPlan rows;
  add_cluster(rows,
              {body,
               {{LaunchArg::in(0), operand_alignment(view, from.index)}},
               {LaunchArg::out(0)},
               "bias_gradient"},
              gpu);
  add_call(plan, std::move(call), gpu);
  plan.append(rows, {from}, {*whole.bias_gradient});
  return plan;
}

KernelEntry epilogue_entry(const GpuDescription& gpu) {
  return {Op::fused, "cublaslt_epilogue",
          [gpu](const NodeView& view) {
            MatmulCall call;
            std::string refusal = as_matmul_call(view, call);
            return refusal.empty() ? cast_refusal(view, call.product, gpu) : refusal;
          },
          [gpu](const NodeView& view) -> std::unique_ptr<Kernel> {
            MatmulCall call;
            as_matmul_call(view, call);
            NodePlan joined;
            joined.name = "cublaslt with its epilogue";
            // An addend may be overwritten, what an epilogue squashes may not.
            joined.in_place = call.epilogue == Epilogue::none;
            add_call(joined, call, gpu);
            std::vector<NodePlan> ways{std::move(joined)};
            if (call.bias_gradient)
              ways.push_back(split_gradient_plan(view, call, gpu));
            else if (auto split = split_plan(view, call, gpu))
              ways.push_back(std::move(*split));
            return std::make_unique<CudaKernel>(view, std::move(ways));
          }};
}

/// The ways of a plan whose products a library may compute. Products of ours are for what it does
/// not do, and far too slow to be measured; with a library they are the way of the last resort.
struct PlanWays {
  std::optional<NodePlan> library;
  NodePlan own;

  PlanWays(const PlanEntry& entry, const NodeView& view, const GpuDescription& gpu) {
    const LaunchPlan plan = entry.plan(view, gpu);
    library = library_plan(plan, fmt::format("{}, products by cublaslt", entry.name), gpu);
    own = own_plan(plan, std::string(entry.name));
    own.is_last_resort = library.has_value();
  }
};

/// What may be faster than another kernel of ours, and what may not.
void add_rivals(std::vector<NodePlan>& ways, const NodeView& view, const GpuDescription& gpu) {
  std::optional<NodePlan> last_resort;
  for (const PlanEntry& entry : device_kernels()) {
    if (!entry.is_rival || !is(view.node(), entry.op) || is_disabled(entry.name) ||
        !entry.accepts(view, gpu).empty())
      continue;
    PlanWays of_entry(entry, view, gpu);
    if (of_entry.library) ways.push_back(std::move(*of_entry.library));
    if (!of_entry.own.is_last_resort)
      ways.push_back(std::move(of_entry.own));
    else if (!last_resort)
      last_resort = std::move(of_entry.own);
  }
  if (last_resort) ways.push_back(std::move(*last_resort));
}

/// Attention by cuDNN; kernels of our own are the other ways.
KernelEntry sdpa_entry(Op op, const GpuDescription& gpu) {
  return {
      op, "cudnn",
      [gpu](const NodeView& view) {
        SdpaCall call;
        return as_sdpa_call(view, gpu, call);
      },
      [gpu](const NodeView& view) -> std::unique_ptr<Kernel> {
        SdpaCall call;
        as_sdpa_call(view, gpu, call);
        NodePlan plan;
        plan.name = "cudnn";
        if (call.backward)
          call.sums = plan.take_scratch(call.batch * call.heads * call.queries * 4);
        call.workspace = plan.take_scratch(sdpa_workspace_bytes(call));
        plan.commands.emplace_back(std::move(call));
        plan.in_place = false;
        std::vector<NodePlan> ways{std::move(plan)};
        add_rivals(ways, view, gpu);
        for (const PlanEntry& entry : device_kernels())  // cuDNN may refuse what it is asked for
          if (ways.size() == 1 && !entry.is_rival && is(view.node(), entry.op)) {
            ways.push_back(own_plan(entry.plan(view, gpu), std::string(entry.name)));
            ways.back().is_last_resort = true;
          }
        return std::make_unique<CudaKernel>(view, std::move(ways));
      }};
}

KernelEntry own_entry(const PlanEntry& entry, const GpuDescription& gpu) {
  return {entry.op, entry.name,
          [accepts = entry.accepts, gpu](const NodeView& view) { return accepts(view, gpu); },
          [entry, gpu](const NodeView& view) -> std::unique_ptr<Kernel> {
            std::vector<NodePlan> ways;
            if (entry.is_rival) {
              add_rivals(ways, view, gpu);
              return std::make_unique<CudaKernel>(view, std::move(ways));
            }
            PlanWays of_entry(entry, view, gpu);
            if (of_entry.library) ways.push_back(std::move(*of_entry.library));
            ways.push_back(std::move(of_entry.own));
            return std::make_unique<CudaKernel>(view, std::move(ways));
          }};
}

}  // namespace

std::vector<KernelEntry> cuda_kernels(const GpuDescription& gpu) {
  std::vector<KernelEntry> all{epilogue_entry(gpu),
                               product_entry(Op::matmul, gpu),
                               product_entry(Op::linear, gpu),
                               product_entry(Op::scaled_matmul, gpu),
                               sdpa_entry(Op::attention, gpu),
                               sdpa_entry(Op::attention_grad, gpu)};
  for (const PlanEntry& entry : device_kernels()) all.push_back(own_entry(entry, gpu));
  return all;
}

bool gains_by_bias_gradient(const NodeView& product, const NodeView& sum) {
  const DType t = product.in[0].dtype;
  return (t == DType::bf16 || t == DType::f16) && product.out()[0].dtype == DType::f32 &&
         sum.in[0].dtype == DType::f32;
}

bool gains_by_epilogue(const NodeView& product, const NodeView& reader) {
  if (is(product.node(), Op::conv)) return false;
  if (is(reader.node(), Op::add)) return true;
  // What no epilogue does is better off with the ops behind it.
  return is(reader.node(), Op::gelu, Op::gelu_grad) && product.in[0].dtype != DType::f32 &&
         reader.attrs().get<std::string>("approximate") == "tanh";
}

}  // namespace brrr::cuda
