#include "backend/cuda/node_plan.h"

#include <algorithm>

#include "base/sha256.h"

namespace brrr::cuda {
namespace {

// Where the operands, results and scratch memory of a part are in the whole.
struct Places {
  const std::vector<LaunchArg>& in;
  const std::vector<LaunchArg>& out;
  int64_t scratch;

  LaunchArg operator()(const LaunchArg& a) const {
    using Kind = LaunchArg::Kind;
    LaunchArg moved = a;
    if (a.kind == Kind::in || a.kind == Kind::out) {
      moved = (a.kind == Kind::in ? in : out)[a.index];
      moved.value += a.value;
    } else if (a.kind == Kind::scratch) {
      moved.value += scratch;
    }
    for (LaunchArg& field : moved.fields) field = (*this)(field);
    return moved;
  }
};

/// A library call for the product that a launch computes; no value: the library does not do that.
std::optional<MatmulCall> call_of(const Launch& launch) {
  if (!launch.product) return std::nullopt;
  const Product& p = *launch.product;
  if (p.scale_a) return std::nullopt;  // those have an entry of their own
  const bool known = is_compute_float(p.in);
  if (!known || (p.out != p.in && p.out != DType::f32)) return std::nullopt;
  if (p.bias && p.bias_dtype != p.out) return std::nullopt;
  if (p.m == 0 || p.n == 0 || p.k == 0 || p.batch == 0) return std::nullopt;
  MatmulCall call;
  call.product = p;
  return call;
}

/// Kernels of one name differ in their text and in the numbers that they are given.
std::string describe(const Launch& launch) {
  std::string text = launch.source.body;
  for (const LaunchArg& a : launch.args)
    if (a.kind == LaunchArg::Kind::i32 || a.kind == LaunchArg::Kind::i64)
      text += fmt::format(" {}", a.value);
  return fmt::format("{} <{},{},{}> {}", launch.source.entry, launch.grid.x, launch.grid.y,
                     launch.grid.z, sha256_hex(text).substr(0, 8));
}

}  // namespace

void NodePlan::append(const LaunchPlan& plan, const std::vector<LaunchArg>& in,
                      const std::vector<LaunchArg>& out) {
  const Places places{in, out, take_scratch(plan.scratch_bytes)};
  for (Launch launch : plan.launches) {
    for (LaunchArg& a : launch.args) a = places(a);
    launch.product.reset();
    commands.emplace_back(std::move(launch));
  }
  in_place = in_place && plan.in_place;
}

NodePlan own_plan(const LaunchPlan& plan, std::string name) {
  NodePlan own;
  own.name = std::move(name);
  own.commands.assign(plan.launches.begin(), plan.launches.end());
  own.scratch_bytes = plan.scratch_bytes;
  own.in_place = plan.in_place;
  return own;
}

std::optional<NodePlan> library_plan(const LaunchPlan& plan, std::string name,
                                     const GpuDescription& gpu) {
  NodePlan with = own_plan(plan, std::move(name));
  bool any = false;
  const int64_t workspace = with.take_scratch(workspace_bytes(gpu));
  for (Command& command : with.commands) {
    std::optional<MatmulCall> call = call_of(std::get<Launch>(command));
    if (!call) continue;
    call->workspace = workspace;
    command = std::move(*call);
    any = true;
  }
  if (!any) return std::nullopt;
  return with;
}

CudaKernel::CudaKernel(const NodeView& node, std::vector<NodePlan> ways) : ways_(std::move(ways)) {
  for (const Type& t : node.in) {
    if (t.dtype == DType::i32 && t.shape.rank() == 0) positions_.push_back(in_bytes_.size());
    in_bytes_.push_back(t.bytes());
  }
  for (const Type& t : node.out()) out_bytes_.push_back(t.bytes());
}

void CudaKernel::run(const KernelArgs&) { BRRR_CHECK(false, "a GPU's kernel ran on the host"); }

std::string describe(const NodePlan& plan) {
  std::string text;
  for (const Command& command : plan.commands) {
    if (!text.empty()) text += "; ";
    if (const auto* launch = std::get_if<Launch>(&command))
      text += describe(*launch);
    else if (const auto* call = std::get_if<MatmulCall>(&command))
      text += describe(*call);
    else
      text += describe(std::get<SdpaCall>(command));
  }
  return text;
}

int64_t CudaKernel::scratch_bytes() const {
  int64_t most = 0;
  for (const NodePlan& way : ways_) most = std::max(most, way.scratch_bytes);
  return most;
}

bool CudaKernel::in_place() const {
  return std::all_of(ways_.begin(), ways_.end(), [](const NodePlan& way) { return way.in_place; });
}

}  // namespace brrr::cuda
