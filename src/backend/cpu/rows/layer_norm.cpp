// layer_norm and layer_norm_grad: rows split among threads; dweight and dbias are sums of fixed
// chunks of rows, added in order.

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/rows/layer_norm_rows.h"
#include "backend/cpu/simd/row_support.h"
#include "base/parallel.h"

namespace brrr::cpu {
namespace {

class LayerNormKernel final : public Kernel {
 public:
  explicit LayerNormKernel(const NodeView& node)
      : rows_(rows_of(node.in[0].shape)),
        bytes_(static_cast<int64_t>(bytes_of(node.in[0].dtype))),
        eps_(static_cast<float>(node.attrs().get<double>("eps"))),
        run_(layer_norm_rows(node.in[0].dtype == DType::bf16).forward) {}

  void run(const KernelArgs& args) override {
    parallel_for(rows_.count, row_grain(rows_.width, kRowGrain), [&](int64_t begin, int64_t end) {
      const int64_t at = begin * rows_.width * bytes_;
      run_(static_cast<const std::byte*>(args.in[0]) + at, args.in[1], args.in[2], eps_,
           static_cast<std::byte*>(args.out[0]) + at,
           static_cast<std::byte*>(args.out[1]) + begin * bytes_,
           static_cast<std::byte*>(args.out[2]) + begin * bytes_, end - begin, rows_.width);
    });
  }

 private:
  Rows rows_;
  int64_t bytes_;
  float eps_;
  decltype(LayerNormRows::forward) run_;
};

class LayerNormGradKernel final : public Kernel {
 public:
  explicit LayerNormGradKernel(const NodeView& node)
      : rows_(rows_of(node.in[0].shape)),
        chunks_(rows_.count, rows_.width),
        bytes_(static_cast<int64_t>(bytes_of(node.in[0].dtype))),
        rows_functions_(layer_norm_rows(node.in[0].dtype == DType::bf16)) {
    stride_ = (2 * rows_.width + 15) / 16 * 16;
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
        rows_functions_.backward(in(0, begin * n), in(1, begin * n), args.in[2], in(3, begin),
                                 in(4, begin),
                                 static_cast<std::byte*>(args.out[0]) + begin * n * bytes_, dweight,
                                 dweight + n, false, rows, n);
      }
    });
    rows_functions_.combine(partial, chunks_.count, stride_, args.out[1], n);
    rows_functions_.combine(partial + n, chunks_.count, stride_, args.out[2], n);
  }

 private:
  Rows rows_;
  RowChunks chunks_;
  int64_t bytes_, stride_;
  const LayerNormRows& rows_functions_;
};

std::string one_dtype(const NodeView& node) {
  for (const Type& t : node.in)
    if (t.dtype != node.in[0].dtype)
      return fmt::format("operands of {} and {}", name_of(node.in[0].dtype), name_of(t.dtype));
  return only_f32_or_bf16(node);
}

}  // namespace

std::vector<KernelEntry> layer_norm_kernels() {
  return {
      {"layer_norm", "rows", one_dtype,
       [](const NodeView& node) -> std::unique_ptr<Kernel> {
         return std::make_unique<LayerNormKernel>(node);
       }},
      {"layer_norm_grad", "rows", one_dtype, [](const NodeView& node) -> std::unique_ptr<Kernel> {
         return std::make_unique<LayerNormGradKernel>(node);
       }}};
}

}  // namespace brrr::cpu
