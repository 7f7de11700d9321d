// matmul and linear on the CPU: who computes them.

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/products/gemm_node.h"
#include "backend/cpu/products/onednn_matmul.h"
#include "ops/op.h"

namespace brrr::cpu {
namespace {

bool is_narrow(DType t) { return t == DType::bf16 || t == DType::f16; }

auto accepts_path(GemmPath path) {
  return [path](const NodeView& view) { return gemm_node_refusal(view, path); };
}

std::string accepts_f32(const NodeView& view) {
  const DType t = view.in[0].dtype;
  if (t != DType::f32) return fmt::format("operands of {}: only f32", name_of(t));
  return gemm_node_refusal(view, GemmPath::kVector);
}

std::string accepts_int8(const NodeView& view) {
  const DType t = view.in[0].dtype;
  if (t != DType::i8) return fmt::format("operands of {}: only i8", name_of(t));
  return gemm_node_refusal(view, GemmPath::kVector);
}

std::string accepts_narrow(const NodeView& view) {
  const DType t = view.in[0].dtype;
  if (!is_narrow(t)) return fmt::format("operands of {}: only bf16 and f16", name_of(t));
  return gemm_node_refusal(view, GemmPath::kVector);
}

class GemmKernel final : public Kernel {
 public:
  GemmKernel(const NodeView& view, GemmPath path) : gemm_(view, path) {}
  int64_t scratch_bytes() const override { return gemm_.scratch_bytes(); }
  void run(const KernelArgs& args) override { gemm_.run(args.in, args.out[0], args.scratch); }

 private:
  GemmNode gemm_;
};

}  // namespace

std::vector<KernelEntry> matmul_kernels() {
  const auto prepare = [](GemmPath path) {
    return [path](const NodeView& view) -> std::unique_ptr<Kernel> {
      return std::make_unique<GemmKernel>(view, path);
    };
  };
  std::vector<KernelEntry> list;
  for (const Op op : {Op::matmul, Op::linear}) {
    // gemm_node_path() knows this order, too.
    list.push_back(
        {op, "gemm_amx", accepts_path(GemmPath::kAmx), prepare(GemmPath::kAmx), kKnowsStorage});
    list.push_back({op, "gemm_avx512_bf16", accepts_path(GemmPath::kPairs),
                    prepare(GemmPath::kPairs), kKnowsStorage});
    list.push_back(
        {op, "gemm_avx512_vnni", accepts_path(GemmPath::kVnni), prepare(GemmPath::kVnni)});
    list.push_back({op, "gemm_f32", accepts_f32, prepare(GemmPath::kVector), kKnowsStorage});
    list.push_back(
        {op, "gemm_widening", accepts_narrow, prepare(GemmPath::kVector), kKnowsStorage});
    list.push_back({op, "gemm_int8", accepts_int8, prepare(GemmPath::kVector)});
    list.push_back({op, "onednn", onednn_matmul_refusal, onednn_matmul});
  }
  return list;
}

}  // namespace brrr::cpu
