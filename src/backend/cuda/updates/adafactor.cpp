// Adafactor: for each parameter its new second moments, then the size of its step, then the step.

#include <algorithm>

#include "backend/cuda/clusters/cluster.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/text.h"
#include "ops/op.h"
#include "ops/update.h"

namespace brrr::cuda {
namespace {

using ops::UpdateLayout;

constexpr int64_t kBlockElements = 4096;

std::string adafactor_refusal(const NodeView& node, const GpuDescription&) {
  for (const Type& t : node.in)
    if (t.dtype == DType::f64) return "f64";
  return "";
}

class Parameter {
 public:
  Parameter(LaunchPlan& plan, const NodeView& node, const UpdateLayout& at, size_t i, bool factored)
      : plan_(plan), node_(node), at_(at), i_(i), factored_(factored) {
    const Shape& s = node.in[at.param(i)].shape;
    n_ = s.elements();
    if (!factored) return;
    rows_ = s.size(-2);
    columns_ = s.size(-1);
    matrices_ = n_ / std::max<int64_t>(1, rows_ * columns_);
  }

  void add() {
    if (n_ == 0) return;
    const int64_t blocks = (n_ + kBlockElements - 1) / kBlockElements;
    const LaunchArg partials = LaunchArg::scratch(plan_.take_scratch(2 * blocks * 4));
    const LaunchArg sizes = LaunchArg::scratch(plan_.take_scratch(2 * 4));
    LaunchArg means;
    if (factored_) {
      means = LaunchArg::scratch(plan_.take_scratch(matrices_ * 4));
      add_moments(means);
    }
    // The moment of a vector stands where its new state will; it is written by the first of the two
    // passes and read by the second.
    const std::string u =
        factored_ ? fmt::format(
                        "const u64 matrix = i / {0}ull, row = i / {1}ull, column = matrix * {1}ull "
                        "+ i % {1}ull;\n"
                        "const float u = g / sqrtf(s0[row] / means[matrix] * s1[column]);\n",
                        rows_ * columns_, columns_)
                  : "const float u = g / sqrtf(s0[i]);\n";
    const std::string moment =
        factored_
            ? ""
            : fmt::format("s0[i] = good ? beta * o0[i] + (1.0f - beta) * (g * g + {}) : o0[i];\n",
                          number("eps1"));
    const std::string moments =
        factored_ ? "const f32* s0, const f32* s1, const f32* means" : "f32* s0, const f32* o0";
    std::vector<LaunchArg> state{LaunchArg::out(at_.new_state(0, i_))};
    if (factored_) {
      state.push_back(LaunchArg::out(at_.new_state(1, i_)));
      state.push_back(means);
    } else {
      state.push_back(LaunchArg::in(at_.state(0, i_)));
    }
    const std::string_view p = type(at_.param(i_)), g = type(at_.grad(i_));
    launch("sizes", fmt::format("const {}* p, const {}* grad, {}, f32* partials", p, g, moments),
           fmt::format("  float step = 0.0f, own = 0.0f;\n"
                       "  for (u64 i = blockIdx.x * 4096ull + threadIdx.x; i < blockIdx.x * "
                       "4096ull + 4096 && i < {0}ull; "
                       "i += 256) {{\n"
                       "    const float g = factor * widen(grad[i]), x = widen(p[i]);\n{1}{2}"
                       "    step += u * u;\n    own += x * x;\n  }}\n"
                       "  step = fold<Add, 256>(step);\n  own = fold<Add, 256>(own);\n"
                       "  if (threadIdx.x == 0) {{\n    partials[blockIdx.x] = step;\n"
                       "    partials[{3}u + blockIdx.x] = own;\n  }}\n",
                       n_, moment, u, blocks),
           with({LaunchArg::in(at_.param(i_)), LaunchArg::in(at_.grad(i_))}, state, {partials}),
           {static_cast<uint32_t>(blocks), 1, 1});
    launch(
        "size", "const f32* partials, f32* sizes",
        fmt::format(
            "  for (int k = 0; k < 2; ++k) {{\n"
            "    float total = 0.0f;\n"
            "    for (u32 b = threadIdx.x; b < {0}u; b += 256) total += partials[k * {0}u + b];\n"
            "    total = fold<Add, 256>(total);\n"
            "    if (threadIdx.x == 0) sizes[k] = sqrtf(total / {1}.0f);\n  }}\n",
            blocks, n_),
        {partials, sizes}, {});
    const Attrs& a = node_.attrs();
    const auto& decays = a.get<std::vector<int64_t>>("decays");
    std::vector<LaunchArg> results{sizes, LaunchArg::out(at_.new_param(i_))};
    std::string copy, copied;
    if (at_.has_copy(i_)) {
      const std::string_view low = stored_type(a.get<DType>("copy_dtype"));
      copy = fmt::format(", {}* copy", low);
      copied = fmt::format("  copy[i] = narrow<{}>(y[i]);\n", low);
      results.push_back(LaunchArg::out(at_.new_copy(i_)));
    }
    launch("step",
           fmt::format("const {0}* p, const {1}* grad, {2}, const f32* sizes, {0}* y{3}", p, g,
                       moments, copy),
           fmt::format("  const u64 i = blockIdx.x * 256ull + threadIdx.x;\n"
                       "  if (i >= {0}ull) return;\n"
                       "  const float g = factor * widen(grad[i]), x = widen(p[i]);\n{1}"
                       "  const float rate = *lr * {2}, most = op_maximum(1.0f, sizes[0] / {3});\n"
                       "  y[i] = good ? narrow<{4}>(x - rate * ({5} * x + u / most)) : p[i];\n",
                       n_, u,
                       a.get<bool>("scale_parameter")
                           ? fmt::format("op_maximum({}, sizes[1])", number("eps2"))
                           : "1.0f",
                       number("clip"), p, decays[i_] != 0 ? number("weight_decay") : "0.0f") +
               copied,
           with({LaunchArg::in(at_.param(i_)), LaunchArg::in(at_.grad(i_))}, state, results),
           {static_cast<uint32_t>((n_ + 255) / 256), 1, 1});
  }

 private:
  /// Row and column means of the squares, and the mean of the row means.
  void add_moments(const LaunchArg& means) {
    const std::string_view g = type(at_.grad(i_));
    launch("rows", fmt::format("const {}* grad, const f32* old, f32* rows", g),
           fmt::format("  float total = 0.0f;\n"
                       "  for (u32 c = threadIdx.x; c < {0}u; c += 256) {{\n"
                       "    const float g = factor * widen(grad[blockIdx.x * {0}ull + c]);\n"
                       "    total += g * g + {1};\n  }}\n"
                       "  total = fold<Add, 256>(total) / {0}.0f;\n"
                       "  if (threadIdx.x == 0)\n"
                       "    rows[blockIdx.x] = good ? beta * old[blockIdx.x] + (1.0f - beta) * "
                       "total : old[blockIdx.x];\n",
                       columns_, number("eps1")),
           {LaunchArg::in(at_.grad(i_)), LaunchArg::in(at_.state(0, i_)),
            LaunchArg::out(at_.new_state(0, i_))},
           {static_cast<uint32_t>(matrices_ * rows_), 1, 1});
    launch(
        "columns", fmt::format("const {}* grad, const f32* old, f32* columns", g),
        fmt::format(
            "  __shared__ float slices[8][32];\n"
            "  const u32 lane = threadIdx.x % 32, slice = threadIdx.x / 32, c = blockIdx.x * 32 + "
            "lane;\n"
            "  float total = 0.0f;\n"
            "  if (c < {0}u)\n"
            "    for (u32 r = slice; r < {1}u; r += 8) {{\n"
            "      const float g = factor * widen(grad[(blockIdx.y * {1}ull + r) * {0}ull + c]);\n"
            "      total += g * g + {2};\n    }}\n"
            "  slices[slice][lane] = total;\n  __syncthreads();\n"
            "  if (slice != 0 || c >= {0}u) return;\n"
            "  for (int s = 1; s < 8; ++s) total += slices[s][lane];\n"
            "  const u64 to = blockIdx.y * {0}ull + c;\n"
            "  columns[to] = good ? beta * old[to] + (1.0f - beta) * (total / {1}.0f) : old[to];\n",
            columns_, rows_, number("eps1")),
        {LaunchArg::in(at_.grad(i_)), LaunchArg::in(at_.state(1, i_)),
         LaunchArg::out(at_.new_state(1, i_))},
        {static_cast<uint32_t>((columns_ + 31) / 32), static_cast<uint32_t>(matrices_), 1});
    launch("mean", "const f32* rows, f32* means",
           fmt::format("  float total = 0.0f;\n"
                       "  for (u32 r = threadIdx.x; r < {0}u; r += 256) total += rows[blockIdx.x * "
                       "{0}ull + r];\n"
                       "  total = fold<Add, 256>(total);\n"
                       "  if (threadIdx.x == 0) means[blockIdx.x] = total / {0}.0f;\n",
                       rows_),
           {LaunchArg::out(at_.new_state(0, i_)), means}, {static_cast<uint32_t>(matrices_), 1, 1});
  }

  std::string number(const char* name) const {
    return literal(DType::f32, node_.attrs().get<double>(name));
  }
  std::string_view type(size_t operand) const { return stored_type(node_.in[operand].dtype); }
  static std::vector<LaunchArg> with(std::vector<LaunchArg> a, const std::vector<LaunchArg>& b,
                                     const std::vector<LaunchArg>& c) {
    a.insert(a.end(), b.begin(), b.end());
    a.insert(a.end(), c.begin(), c.end());
    return a;
  }
  void launch(const std::string& name, const std::string& parameters, const std::string& body,
              std::vector<LaunchArg> args, Dim3 grid) {
    Launch l;
    const std::string entry = "adafactor_" + name;
    l.source = {
        entry,
        {"device.cuh"},
        fmt::format(
            "BRRR_KERNEL(256) {}({}, const f32* lr, const i32* t, const f32* scale) {{\n"
            "  const float factor = *scale;\n"
            "  const bool good = factor == factor;\n"
            "  const float beta = static_cast<float>(1.0 - pow(static_cast<double>(*t), {}));\n"
            "  (void)lr;\n  (void)good;\n  (void)beta;\n{}}}\n",
            entry, parameters, literal(DType::f64, node_.attrs().get<double>("decay_rate")), body)};
    l.args = std::move(args);
    for (size_t k = 0; k < 3; ++k) l.args.push_back(LaunchArg::in(k));
    l.grid = grid;
    l.block = {256, 1, 1};
    plan_.launches.push_back(std::move(l));
  }

  LaunchPlan& plan_;
  const NodeView& node_;
  const UpdateLayout& at_;
  size_t i_;
  bool factored_;
  int64_t n_ = 0, rows_ = 1, columns_ = 1, matrices_ = 1;
};

LaunchPlan adafactor_plan(const NodeView& node, const GpuDescription&) {
  LaunchPlan plan;
  const bool factored = is(node.node(), Op::adafactor);
  const UpdateLayout at(node.attrs(), node.in.size(), factored ? 2 : 1);
  for (size_t i = 0; i < at.n; ++i) Parameter(plan, node, at, i, factored).add();
  return plan;
}

}  // namespace

std::vector<PlanEntry> adafactor_entries() {
  return {{Op::adafactor, "parameters", adafactor_refusal, adafactor_plan},
          {Op::adafactor_vector, "parameters", adafactor_refusal, adafactor_plan}};
}

}  // namespace brrr::cuda
