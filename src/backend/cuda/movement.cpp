// Ops that move elements: one copy with strides on both sides. And literals, whose elements stand
// in the text of their kernel.

#include <algorithm>
#include <numeric>

#include "backend/cuda/clusters/access.h"
#include "backend/cuda/clusters/cluster.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/text.h"
#include "ops/ops.h"

namespace brrr::cuda {
namespace {

constexpr int64_t kThreads = 256;

Dim3 blocks_of(int64_t n) { return {static_cast<uint32_t>((n + kThreads - 1) / kThreads), 1, 1}; }

struct Side {
  LaunchArg address;
  Access access;
  int64_t alignment = LaunchPlan::kAlignment;
};

/// to[i] = from[i] for all elements of a region; nothing where both are the same memory.
void add_copy(LaunchPlan& plan, const std::string& name, DType t, const Side& from, const Side& to,
              const std::string& shift = "") {
  const int64_t n = from.access.elements(), bytes = static_cast<int64_t>(bytes_of(t));
  if (n == 0) return;
  int64_t v = 16 / bytes;
  const bool shifted = !shift.empty();
  while (v > 1 && (!from.access.is_contiguous(v) || !to.access.is_contiguous(v) ||
                   from.alignment % (v * bytes) != 0 || to.alignment % (v * bytes) != 0 || shifted))
    v /= 2;
  Launch launch;
  const std::string_view type = stored_type(t);
  const std::string index = n < (int64_t{1} << 31) ? "u32" : "u64";
  launch.source = {
      name,
      {"device.cuh"},
      fmt::format(
          "BRRR_KERNEL({0}) {1}(const {2}* x, {2}* y{9}) {{\n"
          "  const {3} i = (blockIdx.x * static_cast<{3}>({0}) + threadIdx.x) * {4};\n"
          "  if (i >= {5}u{10}) return;\n"
          "  const Pack<{2}, {4}> pack = *reinterpret_cast<const Pack<{2}, {4}>*>(x + {6});\n"
          "  *reinterpret_cast<Pack<{2}, {4}>*>(y + {7}{8}) = pack;\n"
          "}}\n",
          kThreads, name, type, index, v, n, from.access.text("i"), to.access.text("i"),
          shifted ? " + " + shift : "", shifted ? ", const i32* position" : "",
          shifted ? "" : " || (const void*)x == (const void*)y")};
  launch.args = {from.address, to.address};
  launch.grid = blocks_of(n / v);
  launch.block = {kThreads, 1, 1};
  plan.launches.push_back(std::move(launch));
}

Side dense(LaunchArg address, const Shape& shape, int64_t alignment = LaunchPlan::kAlignment) {
  return {std::move(address), Access(shape, shape.strides(), 0), alignment};
}

Side operand(const NodeView& node, size_t k) {
  return dense(LaunchArg::in(k), node.in[k].shape, operand_alignment(node, k));
}

LaunchPlan transpose_plan(const NodeView& node, const GpuDescription&) {
  LaunchPlan p;
  const auto& permutation = node.attrs().get<std::vector<int64_t>>("permutation");
  const auto strides = node.in[0].shape.strides();
  std::vector<int64_t> permuted;
  for (int64_t axis : permutation) permuted.push_back(strides[static_cast<size_t>(axis)]);
  const Shape& y = node.out()[0].shape;
  add_copy(p, "transpose", node.in[0].dtype,
           {LaunchArg::in(0), Access(y, permuted, 0), operand_alignment(node, 0)},
           dense(LaunchArg::out(0), y));
  return p;
}

LaunchPlan slice_plan(const NodeView& node, const GpuDescription&) {
  LaunchPlan p;
  const Shape& y = node.out()[0].shape;
  const auto strides = node.in[0].shape.strides();
  const auto axis = static_cast<size_t>(node.attrs().get<int64_t>("axis"));
  const int64_t offset = node.attrs().get<int64_t>("start") * strides[axis];
  add_copy(p, "slice", node.in[0].dtype,
           {LaunchArg::in(0), Access(y, strides, offset), operand_alignment(node, 0)},
           dense(LaunchArg::out(0), y));
  return p;
}

LaunchPlan concat_plan(const NodeView& node, const GpuDescription&) {
  LaunchPlan p;
  const auto strides = node.out()[0].shape.strides();
  const auto axis = static_cast<size_t>(node.attrs().get<int64_t>("axis"));
  int64_t at = 0;
  for (size_t k = 0; k < node.in.size(); ++k) {
    const Shape& x = node.in[k].shape;
    add_copy(p, "concat", node.in[k].dtype, operand(node, k),
             {LaunchArg::out(0), Access(x, strides, at * strides[axis])});
    at += x.size(static_cast<int>(axis));
  }
  return p;
}

LaunchPlan pad_plan(const NodeView& node, const GpuDescription&) {
  LaunchPlan p;
  const Shape &x = node.in[0].shape, &y = node.out()[0].shape;
  const auto axis = static_cast<int>(node.attrs().get<int64_t>("axis"));
  const int64_t before = node.attrs().get<int64_t>("before"), n = y.elements();
  if (n == 0) return p;
  const int64_t inner = y.strides()[static_cast<size_t>(axis)];
  const auto bytes = static_cast<int64_t>(bytes_of(node.in[0].dtype));
  int64_t v = 16 / bytes;
  while (v > 1 && (inner % v != 0 || operand_alignment(node, 0) % (v * bytes) != 0)) v /= 2;
  const std::string_view type = stored_type(node.in[0].dtype);
  Launch launch;
  launch.source = {
      "pad",
      {"device.cuh"},
      fmt::format("BRRR_KERNEL({0}) pad(const {1}* x, {1}* y) {{\n"
                  "  const u64 i = (blockIdx.x * {0}ull + threadIdx.x) * {2};\n"
                  "  if (i >= {3}ull) return;\n"
                  // What lies before the operand wraps around to far behind it.
                  "  const u64 outer = i / {4}ull, at = i % {4}ull - {5}ull;\n"
                  "  Pack<{1}, {2}> pack = {{}};\n"
                  "  if (at < {6}ull)\n"
                  "    pack = *reinterpret_cast<const Pack<{1}, {2}>*>(x + outer * {6}ull + at);\n"
                  "  *reinterpret_cast<Pack<{1}, {2}>*>(y + i) = pack;\n"
                  "}}\n",
                  kThreads, type, v, n, inner * y.size(axis), inner * before,
                  inner * x.size(axis))};
  launch.args = {LaunchArg::in(0), LaunchArg::out(0)};
  launch.grid = blocks_of(n / v);
  launch.block = {kThreads, 1, 1};
  p.launches.push_back(std::move(launch));
  return p;
}

LaunchPlan update_slice_plan(const NodeView& node, const GpuDescription&) {
  LaunchPlan p;
  const Shape &x = node.in[0].shape, &part = node.in[1].shape;
  const auto axis = static_cast<int>(node.attrs().get<int64_t>("axis"));
  const auto strides = x.strides();
  add_copy(p, "update_slice", node.in[0].dtype, operand(node, 0), dense(LaunchArg::out(0), x));
  const int64_t room = x.size(axis) - part.size(axis);
  add_copy(p, "update_slice_part", node.in[0].dtype, operand(node, 1),
           {LaunchArg::out(0), Access(part, strides, 0)},
           fmt::format(
               "static_cast<u64>(*position < 0 ? 0 : *position > {0} ? {0} : *position) * {1}ull",
               room, strides[static_cast<size_t>(axis)]));
  if (part.elements() > 0) p.launches.back().args.push_back(LaunchArg::in(2));
  return p;
}

/// What is a view elsewhere, where a kernel is asked for all the same.
LaunchPlan copy_plan(const NodeView& node, const GpuDescription&) {
  LaunchPlan p;
  add_copy(p, "copy", node.in[0].dtype, operand(node, 0),
           dense(LaunchArg::out(0), node.in[0].shape));
  return p;
}

constexpr int64_t kMostLiterals = 1 << 14;  // elements that a kernel's text may hold

std::string refuse_literal(const NodeView& node, const GpuDescription&) {
  const int64_t n = node.out()[0].shape.elements();
  return n <= kMostLiterals ? "" : fmt::format("{} elements: at most {}", n, kMostLiterals);
}

LaunchPlan literal_plan(const NodeView& node, const GpuDescription&) {
  LaunchPlan p;
  const Type& type = node.out()[0];
  const int64_t count = type.shape.elements();
  const auto bytes = static_cast<size_t>(bytes_of(type.dtype));
  std::string words;
  for (int64_t i = 0; i < count; ++i) {
    uint64_t bits = 0;
    store_constant(node.node(), static_cast<size_t>(i), &bits);
    words += fmt::format("{}{:#x}", words.empty() ? "" : ", ", bits);
  }
  constexpr std::string_view kWords[] = {"u8", "u16", "", "u32", "", "", "", "u64"};
  Launch launch;
  launch.source = {"literal",
                   {"device.cuh"},
                   fmt::format("BRRR_KERNEL({0}) literal({1}* y) {{\n"
                               "  static const {1} values[{2}] = {{{3}}};\n"
                               "  const u32 i = blockIdx.x * {0}u + threadIdx.x;\n"
                               "  if (i < {2}u) y[i] = values[i];\n"
                               "}}\n",
                               kThreads, kWords[bytes - 1], count, words)};
  launch.args = {LaunchArg::out(0)};
  launch.grid = blocks_of(count);
  launch.block = {kThreads, 1, 1};
  p.launches.push_back(std::move(launch));
  return p;
}

}  // namespace

std::vector<PlanEntry> movement_entries() {
  const auto always = [](const NodeView&, const GpuDescription&) { return std::string(); };
  return {{Op::transpose, "copy", always, transpose_plan},
          {Op::slice, "copy", always, slice_plan},
          {Op::pad, "copy", always, pad_plan},
          {Op::concat, "copy", always, concat_plan},
          {Op::update_slice, "copy", always, update_slice_plan},
          {Op::reshape, "copy", always, copy_plan},
          {Op::after, "copy", always, copy_plan},
          {Op::literal, "literal", refuse_literal, literal_plan}};
}

}  // namespace brrr::cuda
