// matmul and linear on the CPU: which product each node is, and who computes it.

#include <optional>

#include "backend/cpu/gemm.h"
#include "backend/cpu/kernel_list.h"
#include "backend/cpu/onednn_matmul.h"
#include "backend/cpu/product.h"

namespace brrr::cpu {
namespace {

bool is_narrow(DType t) { return t == DType::bf16 || t == DType::f16; }

/// What every gemm() entry needs: a single batched product of dtypes that it can read and write.
std::string accepts_product(const NodeView& view) {
  for (const std::span<const Type> types : {std::span<const Type>(view.in), view.out()}) {
    for (const Type& t : types) {
      if (t.dtype != DType::f32 && !is_narrow(t.dtype))
        return fmt::format("dtype {}: only f32, bf16 and f16", name_of(t.dtype));
    }
  }
  Product p;
  return as_product(view, p);
}

std::string accepts_f32(const NodeView& view) {
  const DType t = view.in[0].dtype;
  if (t != DType::f32) return fmt::format("operands of {}: only f32", name_of(t));
  return accepts_product(view);
}

auto accepts_path(GemmPath path) {
  return [path](const NodeView& view) {
    std::string refusal = gemm_refusal(path, view.in[0].dtype);
    return refusal.empty() ? accepts_product(view) : refusal;
  };
}

std::string accepts_narrow(const NodeView& view) {
  const DType t = view.in[0].dtype;
  if (!is_narrow(t)) return fmt::format("operands of {}: only bf16 and f16", name_of(t));
  return accepts_product(view);
}

class GemmKernel final : public Kernel {
 public:
  GemmKernel(const NodeView& view, GemmPath path) : path_(path) {
    as_product(view, p_);
    args_ = {.m = p_.m,
             .n = p_.n,
             .k = p_.k,
             .dtype = view.in[0].dtype,
             .lda = p_.lda(),
             .trans_a = p_.ta,
             .ldb = p_.ldb(),
             .trans_b = p_.tb,
             .c_dtype = view.out()[0].dtype,
             .ldc = p_.n};
    if (view.in.size() > 2) bias_ = view.in[2].dtype;
  }
  void run(const KernelArgs& args) override {
    GemmArgs g = args_;
    g.a = args.in[0];
    g.b = args.in[1];
    g.c = args.out[0];
    if (bias_ == DType::f32) {
      g.bias = static_cast<const float*>(args.in[2]);
    } else if (bias_) {
      auto* wide = reinterpret_cast<float*>(args.scratch);
      for (int64_t j = 0; j < g.n; ++j)
        wide[j] = static_cast<float>(load_as_double(*bias_, args.in[2], j));
      g.bias = wide;
    }
    gemm_batched(g, p_.batch, p_.stride_a, p_.stride_b, p_.stride_c, path_);
  }
  int64_t scratch_bytes() const override {
    return bias_ && *bias_ != DType::f32 ? p_.n * int64_t{sizeof(float)} : 0;
  }

 private:
  GemmPath path_;
  Product p_;
  GemmArgs args_;
  std::optional<DType> bias_;
};

}  // namespace

std::vector<KernelEntry> matmul_kernels() {
  const auto prepare = [](GemmPath path) {
    return [path](const NodeView& view) -> std::unique_ptr<Kernel> {
      return std::make_unique<GemmKernel>(view, path);
    };
  };
  std::vector<KernelEntry> list;
  for (const char* op : {"matmul", "linear"}) {
    list.push_back({op, "gemm_amx", accepts_path(GemmPath::kAmx), prepare(GemmPath::kAmx)});
    list.push_back(
        {op, "gemm_avx512_bf16", accepts_path(GemmPath::kPairs), prepare(GemmPath::kPairs)});
    list.push_back({op, "gemm_f32", accepts_f32, prepare(GemmPath::kVector)});
    list.push_back({op, "gemm_widening", accepts_narrow, prepare(GemmPath::kVector)});
    list.push_back({op, "onednn", onednn_matmul_refusal, onednn_matmul});
  }
  return list;
}

}  // namespace brrr::cpu
