// sum and max over any axes: a warp or a block for each result, in two steps where there are few
// results of many terms.

#include <algorithm>

#include "backend/cuda/clusters/access.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/text.h"
#include "ops/op.h"

namespace brrr::cuda {
namespace {

/// kept: [K], reduced: [R] of x, as strides of x.
struct Reduction {
  Shape kept, reduced;
  std::vector<int64_t> kept_strides, reduced_strides;
  explicit Reduction(const NodeView& node) {
    const auto& axes = node.attrs().get<std::vector<int64_t>>("axes");
    const Shape& x = node.in[0].shape;
    const auto strides = x.strides();
    for (int axis = 0; axis < x.rank(); ++axis) {
      const bool is_reduced = std::binary_search(axes.begin(), axes.end(), axis);
      (is_reduced ? reduced : kept).push_back(x[axis]);
      (is_reduced ? reduced_strides : kept_strides).push_back(strides[static_cast<size_t>(axis)]);
    }
  }
};

struct Fold {
  std::string_view type;  // that terms are folded in
  std::string name, start;
};

Fold fold_of(const NodeView& node) {
  const DType t = node.in[0].dtype;
  const bool is_sum = is(node.node(), Op::sum);
  const std::string_view type = is_float(t) ? work_type(t) : is_sum ? "i64" : work_type(t);
  if (is_sum) return {type, "Add", fmt::format("static_cast<{}>(0)", type)};
  if (is_float(t)) return {type, "Larger", fmt::format("static_cast<{}>(-BRRR_INFINITY)", type)};
  return {type, "Larger", integer_literal(t, lowest_integer(t))};
}

/// One launch: `parts` results for each of the kept, from `terms` terms.
Launch reduce(const std::string& name, std::string_view in, std::string_view out, const Fold& fold,
              int64_t kept, int64_t terms, int64_t parts, const std::string& base,
              const std::string& term) {
  const int64_t threads = terms / parts <= 1024 ? 32 : 256, groups = 256 / threads;
  const int64_t share = (terms + parts - 1) / parts;
  Launch launch;
  launch.source = {
      name,
      {"device.cuh"},
      fmt::format(
          "BRRR_KERNEL(256) {0}(const {1}* x, {2}* y) {{\n"
          "  const u32 lane = threadIdx.x % {3};\n"
          "  const u64 o = blockIdx.x * {4}ull + threadIdx.x / {3};\n"
          "  const u64 begin = blockIdx.y * {5}ull;\n"
          "  const u64 end = begin + {5}ull < {6}ull ? begin + {5}ull : {6}ull;\n"
          "  {7} total = {8};\n"
          "  if (o < {9}ull)\n"
          "    for (u64 r = begin + lane; r < end; r += {3})\n"
          "      total = {10}::of(total, static_cast<{7}>(widen(x[{11} + {12}])));\n"
          "  total = fold<{10}, {3}>(total);\n"
          "  if (lane == 0 && o < {9}ull) y[o * {13}ull + blockIdx.y] = narrow<{2}>(total);\n"
          "}}\n",
          name, in, out, threads, groups, share, terms, fold.type, fold.start, kept, fold.name,
          base, term, parts)};
  launch.grid = {static_cast<uint32_t>((kept + groups - 1) / groups), static_cast<uint32_t>(parts),
                 1};
  launch.block = {256, 1, 1};
  return launch;
}

LaunchPlan reduction_plan(const NodeView& node, const GpuDescription& gpu) {
  LaunchPlan p;
  const Reduction r(node);
  const int64_t kept = r.kept.elements(), terms = r.reduced.elements();
  if (kept == 0) return p;
  const Fold fold = fold_of(node);
  const std::string base = Access(r.kept, r.kept_strides, 0).text("o");
  const std::string term = Access(r.reduced, r.reduced_strides, 0).text("r");
  const std::string_view in = stored_type(node.in[0].dtype), out = stored_type(node.out()[0].dtype);
  const std::string name = node.node().op->name + "_kernel";
  const int64_t parts =
      std::clamp<int64_t>(std::min(terms / 4096, 2 * gpu.multiprocessors / kept), 1, 1024);
  if (parts == 1) {
    p.launches.push_back(reduce(name, in, out, fold, kept, terms, 1, base, term));
    p.launches[0].args = {LaunchArg::in(0), LaunchArg::out(0)};
    return p;
  }
  const LaunchArg partials = LaunchArg::scratch(p.take_scratch(kept * parts * 8));
  p.launches.push_back(reduce(name, in, fold.type, fold, kept, terms, parts, base, term));
  p.launches[0].args = {LaunchArg::in(0), partials};
  p.launches.push_back(reduce(name + "_parts", fold.type, out, fold, kept, parts, 1,
                              fmt::format("o * {}ull", parts), "r"));
  p.launches[1].args = {partials, LaunchArg::out(0)};
  return p;
}

}  // namespace

std::vector<PlanEntry> reduction_entries() {
  const auto accepts = [](const NodeView& node, const GpuDescription&) -> std::string {
    return node.in[0].dtype == DType::boolean ? "bool" : "";
  };
  return {{Op::sum, "reduce", accepts, reduction_plan},
          {Op::max, "reduce", accepts, reduction_plan}};
}

}  // namespace brrr::cuda
