// AdamW with moments in 8 bits: one pass, a warp for each block of 256 elements.

#include <map>

#include "backend/cuda/clusters/cluster.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/text.h"
#include "backend/cuda/updates/multi_tensor.h"
#include "ops/op.h"
#include "ops/quantized/dynamic_code.h"
#include "ops/update.h"

namespace brrr::cuda {
namespace {

using ops::UpdateLayout;

constexpr size_t kStates = 4;  // codes of m and v, scales of m and v

std::string book(const char* name, bool is_signed) {
  std::string numbers;
  for (float x : ops::dynamic_codes(is_signed))
    numbers += literal(DType::f32, static_cast<double>(x)) + ",";
  return fmt::format("BRRR_CONSTANT float {}[256] = {{{}}};\n", name, numbers);
}

std::string body_of(const Attrs& a, bool random, bool has_copy) {
  auto number = [&](const char* name) { return literal(DType::f32, a.get<double>(name)); };
  auto rest = [&](const char* name) { return literal(DType::f32, 1 - a.get<double>(name)); };
  auto power = [&](const char* name) {
    return fmt::format("static_cast<float>(1.0 - pow({}, static_cast<double>(*t)))",
                       literal(DType::f64, a.get<double>(name)));
  };
  return fmt::format(
      R"(  __shared__ float m_codes[256], v_codes[256], prepared[2];
  m_codes[threadIdx.x] = kSigned[threadIdx.x];
  v_codes[threadIdx.x] = kUnsigned[threadIdx.x];
  if (threadIdx.x == 0) {{
    prepared[0] = {0};
    prepared[1] = {1};
  }}
  __syncthreads();
  const float rate = *lr, factor = *scale, decay = x.n0 != 0 ? {2} : 0.0f;
  const bool good = factor == factor;
  const int lane = threadIdx.x % 32;
  for (i64 at = begin + threadIdx.x / 32 * 256; at < begin + 4096 && at < x.n; at += 2048) {{
    const i64 i = at + lane * 8, block = at / 256;
    const int n = i >= x.n ? 0 : x.n - i < 8 ? static_cast<int>(x.n - i) : 8;
    float p[8], g[8], m[8], v[8];
    int mc[8], vc[8];
    load_some(p, x.a0 + i, n);
    load_some(g, x.a1 + i, n);
    load_some(mc, x.a2 + i, n);
    load_some(vc, x.a3 + i, n);
    float m_scale = x.a4[block], v_scale = x.a5[block];
    if (good) {{
{3}#pragma unroll
      for (int e = 0; e < 8; ++e) {{
        const float d = factor * g[e];
        m[e] = {4} * (m_codes[mc[e]] * m_scale) + {5} * d;
        v[e] = {6} * (v_codes[vc[e]] * v_scale) + {7} * d * d;
        p[e] = p[e] - rate * decay * p[e] - rate * (m[e] / prepared[0]) / (sqrtf(v[e] / prepared[1]) + {8});
{9}      }}
      m_scale = encode(m_codes, m, mc, n);
      v_scale = encode(v_codes, v, vc, n);
    }}
    store_some(x.y0 + i, p, n);
{10}    store_some(x.y1 + i, mc, n);
    store_some(x.y2 + i, vc, n);
    if (lane == 0) {{
      x.y3[block] = m_scale;
      x.y4[block] = v_scale;
    }}
  }}
)",
      power("beta1"), power("beta2"), literal(DType::f32, a.get<double>("weight_decay")),
      random
          ? fmt::format("      int r[8];\n      draw(r, key, {}u + static_cast<u32>(x.n1), i);\n",
                        a.get<int64_t>("stream"))
          : "",
      number("beta1"), rest("beta1"), number("beta2"), rest("beta2"), number("eps"),
      random ? "        p[e] = at_random(p[e], r[e]);\n" : "",
      has_copy ? "    store_some(x.y5 + i, p, n);\n" : "");
}

std::string update_8bit_refusal(const NodeView& node, const GpuDescription&) {
  for (size_t k = 0; k < node.in.size(); ++k) {
    if (node.in[k].dtype == DType::f64) return "f64";
    if (operand_alignment(node, k) % 16 != 0) return "an operand that is not aligned";
  }
  return "";
}

LaunchPlan update_8bit_plan(const NodeView& node, const GpuDescription&) {
  LaunchPlan plan;
  const UpdateLayout at(node.attrs(), node.in.size(), kStates);
  const auto& decays = node.attrs().get<std::vector<int64_t>>("decays");
  struct Types {
    DType param, grad;
    bool has_copy;
    auto operator<=>(const Types&) const = default;
  };
  std::map<Types, MultiTensor> groups;
  for (size_t i = 0; i < at.n; ++i) {
    MultiTensor& m =
        groups[{node.in[at.param(i)].dtype, node.in[at.grad(i)].dtype, at.has_copy(i)}];
    MultiTensor::Tensor t;
    t.elements = node.in[at.param(i)].shape.elements();
    t.in = {LaunchArg::in(at.param(i)), LaunchArg::in(at.grad(i))};
    t.out = {LaunchArg::out(at.new_param(i))};
    for (size_t k = 0; k < kStates; ++k) {
      t.in.push_back(LaunchArg::in(at.state(k, i)));
      t.out.push_back(LaunchArg::out(at.new_state(k, i)));
    }
    if (at.has_copy(i)) t.out.push_back(LaunchArg::out(at.new_copy(i)));
    t.numbers = {decays[i], static_cast<int64_t>(i)};
    m.tensors.push_back(std::move(t));
  }
  for (auto& [types, m] : groups) {
    const bool random = types.param == DType::bf16;
    m.name = "adamw_8bit";
    m.headers = {"device.cuh", "dynamic_code.cuh"};
    m.in = {types.param, types.grad, DType::u8, DType::u8, DType::f32, DType::f32};
    m.out = {types.param, DType::u8, DType::u8, DType::f32, DType::f32};
    if (types.has_copy) m.out.push_back(node.attrs().get<DType>("copy_dtype"));
    m.helpers = book("kSigned", true) + book("kUnsigned", false) + (random ? kBf16AtRandom : "");
    m.parameters = "const f32* lr, const i32* t, const f32* scale";
    for (size_t k = 0; k < at.scalars(); ++k) m.args.push_back(LaunchArg::in(k));
    if (at.has_key) m.parameters += ", const i32* key";
    m.body = body_of(node.attrs(), random, types.has_copy);
    m.add_to(plan);
  }
  return plan;
}

}  // namespace

std::vector<PlanEntry> update_8bit_entries() {
  return {{Op::adamw_8bit, "multi_tensor", update_8bit_refusal, update_8bit_plan}};
}

}  // namespace brrr::cuda
