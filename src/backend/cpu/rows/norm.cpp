// layer_norm, rms_norm and their derivatives: rows split among threads; dweight and dbias are sums
// of fixed chunks of rows, added in order.

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/rows/norm_rows.h"
#include "backend/cpu/simd/row_support.h"
#include "base/threads/parallel.h"
#include "ops/ops.h"

namespace brrr::cpu {
namespace {

class NormKernel final : public Kernel {
 public:
  explicit NormKernel(const NodeView& node)
      : rows_(rows_of(node.in[0].shape)),
        bytes_(static_cast<int64_t>(bytes_of(node.in[0].dtype))),
        eps_(static_cast<float>(node.attrs().get<double>("eps"))),
        centred_(is_centred(node.node())),
        run_(norm_rows(node.in[0].dtype, centred_).forward) {}

  void run(const KernelArgs& args) override {
    const void* bias = centred_ ? args.in[2] : nullptr;
    parallel_for(rows_.count, row_grain(rows_.width, kRowGrain), [&](int64_t begin, int64_t end) {
      const int64_t at = begin * rows_.width * bytes_;
      const auto statistic = [&](size_t port) {
        return static_cast<std::byte*>(args.out[port]) + begin * bytes_;
      };
      run_(static_cast<const std::byte*>(args.in[0]) + at, args.in[1], bias, eps_,
           static_cast<std::byte*>(args.out[0]) + at, centred_ ? statistic(1) : nullptr,
           statistic(centred_ ? 2 : 1), end - begin, rows_.width);
    });
  }

 private:
  Rows rows_;
  int64_t bytes_;
  float eps_;
  bool centred_;
  decltype(NormRows::forward) run_;
};

class NormGradKernel final : public Kernel {
 public:
  explicit NormGradKernel(const NodeView& node)
      : rows_(rows_of(node.in[0].shape)),
        chunks_(rows_.count, rows_.width),
        bytes_(static_cast<int64_t>(bytes_of(node.in[0].dtype))),
        centred_(is_centred(node.node())),
        rows_functions_(norm_rows(node.in[0].dtype, centred_)) {
    stride_ = ((centred_ ? 2 : 1) * rows_.width + 15) / 16 * 16;
  }

  int64_t scratch_bytes() const override {
    return chunks_.count * stride_ * static_cast<int64_t>(sizeof(float));
  }

  void run(const KernelArgs& args) override {
    auto* partial = reinterpret_cast<float*>(args.scratch);
    const int64_t n = rows_.width;
    auto in = [&](size_t k, int64_t element) {
      return static_cast<const std::byte*>(args.in[k]) + element * bytes_;
    };
    const int64_t grain = row_grain(chunks_.size * n, kRowGrain);
    parallel_for(chunks_.count, grain, [&](int64_t first, int64_t last) {
      for (int64_t c = first; c < last; ++c) {
        const int64_t begin = chunks_.begin(c), rows = chunks_.end(c) - begin;
        float* dweight = partial + c * stride_;
        rows_functions_.backward(in(0, begin * n), in(1, begin * n), args.in[2],
                                 centred_ ? in(3, begin) : nullptr, in(centred_ ? 4 : 3, begin),
                                 static_cast<std::byte*>(args.out[0]) + begin * n * bytes_, dweight,
                                 dweight + n, false, rows, n);
      }
    });
    for (size_t port = 1; port < args.out.size(); ++port)
      rows_functions_.combine(partial + static_cast<int64_t>(port - 1) * n, chunks_.count, stride_,
                              args.out[port], n);
  }

 private:
  Rows rows_;
  RowChunks chunks_;
  int64_t bytes_, stride_;
  bool centred_;
  const NormRows& rows_functions_;
};

std::string norm_refusal(const NodeView& node) {
  const DType t = node.in[0].dtype;
  for (const Type& in : node.in)
    if (in.dtype != t) return fmt::format("operands of {} and {}", name_of(t), name_of(in.dtype));
  if (is_compute_float(t)) return "";
  return fmt::format("dtype {}: only f32, bf16 and f16", name_of(t));
}

template <typename K>
KernelEntry norm_entry(Op op) {
  return {op, "rows", norm_refusal, [](const NodeView& node) -> std::unique_ptr<Kernel> {
            return std::make_unique<K>(node);
          }};
}

}  // namespace

std::vector<KernelEntry> norm_kernels() {
  return {norm_entry<NormKernel>(Op::layer_norm), norm_entry<NormGradKernel>(Op::layer_norm_grad),
          norm_entry<NormKernel>(Op::rms_norm), norm_entry<NormGradKernel>(Op::rms_norm_grad)};
}

}  // namespace brrr::cpu
