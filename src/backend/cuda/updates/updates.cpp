// The optimizers' updates, one pass over all parameters, and the norm of all gradients.

#include <bit>
#include <map>

#include "backend/cuda/clusters/cluster.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/text.h"
#include "backend/cuda/updates/multi_tensor.h"
#include "ops/op.h"
#include "ops/update.h"

namespace brrr::cuda {
namespace {

using ops::UpdateLayout;

struct Rule {
  size_t states = 0;
  std::string prepare;  // by one thread, into prepared[0], prepared[1]; lr and t are there
  std::string element;  // p, g, the states s0, s1; lr, decay and the prepared are there
};

Rule rule_of(const Node& node) {
  const Attrs& a = node.attrs;
  auto number = [&](const char* name) { return literal(DType::f32, a.get<double>(name)); };
  auto rest = [&](const char* name) { return literal(DType::f32, 1 - a.get<double>(name)); };
  auto power = [&](const char* name) {
    return fmt::format("static_cast<float>(1.0 - pow({}, static_cast<double>(*t)))",
                       literal(DType::f64, a.get<double>(name)));
  };
  if (is(node, Op::adamw))
    return {
        2,
        fmt::format("    prepared[0] = {};\n    prepared[1] = {};\n", power("beta1"),
                    power("beta2")),
        fmt::format("s0 = {} * s0 + {} * g;\n"
                    "s1 = {} * s1 + {} * g * g;\n"
                    "p = p - rate * decay * p - "
                    "rate * (s0 / prepared[0]) / (sqrtf(s1 / prepared[1]) + {});\n",
                    number("beta1"), rest("beta1"), number("beta2"), rest("beta2"), number("eps"))};
  if (is(node, Op::sgd))
    return {1, "",
            fmt::format("s0 = {} * s0 + g + decay * p;\np -= rate * s0;\n", number("momentum"))};
  if (is(node, Op::lion))
    return {1, "",
            fmt::format(
                "const float c = {0} * s0 + {1} * g;\n"
                "s0 = {2} * s0 + {3} * g;\n"
                "p = p - rate * decay * p - rate * (c > 0.0f ? 1.0f : c < 0.0f ? -1.0f : 0.0f);\n",
                number("beta1"), rest("beta1"), number("beta2"), rest("beta2"))};
  return {0, "",
          fmt::format("p = p - rate * {0} * decay * p - rate * {0} * shape_rate * g;\n",
                      number("rate"))};
}

std::string update_refusal(const NodeView& node, const GpuDescription&) {
  for (const Type& t : node.in)
    if (t.dtype == DType::f64) return "f64";
  return "";
}

LaunchPlan update_plan(const NodeView& node, const GpuDescription&) {
  LaunchPlan plan;
  const Rule rule = rule_of(node.node());
  const UpdateLayout at(node.attrs(), node.in.size(), rule.states);
  const auto& decays = node.attrs().get<std::vector<int64_t>>("decays");
  const DType copy_type = node.attrs().get_or<DType>("copy_dtype", DType::bf16);
  struct Types {
    DType param, grad;
    bool has_copy;
    auto operator<=>(const Types&) const = default;
  };
  std::map<Types, MultiTensor> groups;
  for (size_t i = 0; i < at.n; ++i) {
    const Type &param = node.in[at.param(i)], &grad = node.in[at.grad(i)];
    MultiTensor& m = groups[{param.dtype, grad.dtype, at.has_copy(i)}];
    MultiTensor::Tensor t;
    t.elements = param.shape.elements();
    t.in = {LaunchArg::in(at.param(i)), LaunchArg::in(at.grad(i))};
    t.out = {LaunchArg::out(at.new_param(i))};
    for (size_t k = 0; k < rule.states; ++k) {
      t.in.push_back(LaunchArg::in(at.state(k, i)));
      t.out.push_back(LaunchArg::out(at.new_state(k, i)));
    }
    if (at.has_copy(i)) t.out.push_back(LaunchArg::out(at.new_copy(i)));
    t.numbers = {decays[i], static_cast<int64_t>(i),
                 std::bit_cast<int64_t>(ops::muon_scale(param.shape))};
    m.tensors.push_back(std::move(t));
    for (size_t k : {at.param(i), at.grad(i)})
      if (operand_alignment(node, k) % 16 != 0) m.vector = 1;
  }
  for (auto& [types, m] : groups) {
    const bool random = types.param == DType::bf16;
    m.name = node.node().op->name;
    m.in = {types.param, types.grad};
    m.out = {types.param};
    m.in.insert(m.in.end(), rule.states, DType::f32);
    m.out.insert(m.out.end(), rule.states, DType::f32);
    if (types.has_copy) m.out.push_back(copy_type);
    m.parameters = "const f32* lr, const i32* t, const f32* scale";
    for (size_t k = 0; k < 3; ++k) m.args.push_back(LaunchArg::in(k));
    if (random) {
      m.parameters += ", const i32* key";
      m.args.push_back(LaunchArg::in(UpdateLayout::kKey));
      m.draw = fmt::format("    int r[{0}];\n    draw(r, key, {1}u + static_cast<u32>(x.n1), i);\n",
                           m.vector, node.attrs().get<int64_t>("stream"));
    }
    const double decay = node.attrs().get<double>("weight_decay");
    m.prepare = "  __shared__ float prepared[2];\n";
    if (!rule.prepare.empty())
      m.prepare += "  if (threadIdx.x == 0) {\n" + rule.prepare + "  }\n  __syncthreads();\n";
    m.prepare += "  const float rate = *lr, factor = *scale;\n  (void)prepared;\n";
    std::string states, back;
    for (size_t k = 0; k < rule.states; ++k) {
      states += fmt::format("float s{} = v{}[e];\n", k, k + 2);
      back += fmt::format("w{}[e] = s{};\n", k + 1, k);
    }
    if (types.has_copy) back += fmt::format("w{}[e] = p;\n", rule.states + 1);
    m.element = fmt::format(
        "float p = v0[e];\n{}"
        "if (factor == factor) {{\n"
        "const float g = factor * v1[e], decay = x.n0 != 0 ? {} : 0.0f;\n"
        "const float shape_rate = static_cast<float>(__longlong_as_double(x.n2));\n"
        "(void)shape_rate;\n(void)decay;\n{}{}}}\n"
        "w0[e] = p;\n{}",
        states, literal(DType::f32, decay), rule.element, random ? "p = at_random(p, r[e]);\n" : "",
        back);
    m.helpers = random ? kBf16AtRandom : "";
    m.add_to(plan);
  }
  return plan;
}

LaunchPlan momentum_plan(const NodeView& node, const GpuDescription&) {
  LaunchPlan plan;
  const size_t n = node.in.size() / 2;
  const double momentum = node.attrs().get<double>("momentum");
  std::map<std::pair<DType, DType>, MultiTensor> groups;
  for (size_t i = 0; i < n; ++i) {
    MultiTensor& m = groups[{node.in[1 + i].dtype, node.in[1 + n + i].dtype}];
    MultiTensor::Tensor t;
    t.elements = node.in[1 + i].shape.elements();
    t.in = {LaunchArg::in(1 + i), LaunchArg::in(1 + n + i)};
    t.out = {LaunchArg::out(i), LaunchArg::out(n + i)};
    m.tensors.push_back(std::move(t));
    for (size_t k : {1 + i, 1 + n + i})
      if (operand_alignment(node, k) % 16 != 0) m.vector = 1;
  }
  for (auto& [types, m] : groups) {
    m.name = "muon_momentum";
    m.in = {types.first, types.second};
    m.out = {DType::f32, DType::f32};
    m.parameters = "const f32* scale";
    m.args = {LaunchArg::in(0)};
    m.prepare = "  const float factor = *scale;\n";
    m.element = fmt::format(
        "const bool good = factor == factor;\n"
        "const float g = good ? factor * v0[e] : 0.0f;\n"
        "const float next = good ? {0} * v1[e] + {1} * g : v1[e];\n"
        "w0[e] = good ? {0} * next + {1} * g : 0.0f;\nw1[e] = next;\n",
        literal(DType::f32, momentum), literal(DType::f32, 1 - momentum));
    m.add_to(plan);
  }
  return plan;
}

/// Squares by blocks, then one block over the blocks' sums, in double.
LaunchPlan norm_plan(const NodeView& node, const GpuDescription&) {
  LaunchPlan plan;
  std::map<DType, MultiTensor> groups;
  int64_t blocks = 0;
  for (size_t k = 0; k < node.in.size(); ++k) {
    MultiTensor& m = groups[node.in[k].dtype];
    const int64_t n = node.in[k].shape.elements();
    m.tensors.push_back({{LaunchArg::in(k)}, {}, n, {}});
    if (operand_alignment(node, k) % 32 != 0) m.vector = 1;
    blocks += (n + MultiTensor::kBlockElements - 1) / MultiTensor::kBlockElements;
  }
  const LaunchArg partials = LaunchArg::scratch(plan.take_scratch(blocks * 8));
  int64_t first = 0;
  for (auto& [dtype, m] : groups) {
    const std::string_view work = work_type(dtype);
    m.name = "global_norm";
    m.in = {dtype};
    m.parameters = "double* partials";
    m.args = {partials};
    m.prepare = fmt::format("  {} total = 0;\n", work);
    m.element = "total += v0[e] * v0[e];\n";
    m.finish =
        "  total = fold<Add, 256>(total);\n"
        "  if (threadIdx.x == 0) partials[block] = total;\n";
    first = m.add_to(plan, first);
  }
  Launch last;
  last.source = {
      "global_norm_blocks",
      {"device.cuh"},
      fmt::format("BRRR_KERNEL(256) global_norm_blocks(const double* partials, f32* y) {{\n"
                  "  double total = 0;\n"
                  "  for (u32 k = threadIdx.x; k < {}u; k += 256) total += partials[k];\n"
                  "  total = fold<Add, 256>(total);\n"
                  "  if (threadIdx.x == 0) *y = static_cast<float>(sqrt(total));\n"
                  "}}\n",
                  blocks)};
  last.args = {partials, LaunchArg::out(0)};
  last.block = {256, 1, 1};
  plan.launches.push_back(std::move(last));
  return plan;
}

}  // namespace

std::vector<PlanEntry> update_entries() {
  std::vector<PlanEntry> list;
  for (const Op op : {Op::adamw, Op::sgd, Op::lion, Op::muon})
    list.push_back({op, "multi_tensor", update_refusal, update_plan});
  list.push_back({Op::muon_momentum, "multi_tensor", update_refusal, momentum_plan});
  return list;
}

std::vector<PlanEntry> global_norm_entries() {
  const auto any = [](const NodeView&, const GpuDescription&) { return std::string(); };
  return {{Op::global_norm, "multi_tensor", any, norm_plan}};
}

}  // namespace brrr::cuda
