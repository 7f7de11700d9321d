#include "backend/cpu/spatial/winograd_conv.h"
#include "base/threads/parallel.h"
#include "ops/op.h"
#include "ops/spatial/winograd.h"

namespace brrr::cpu {
namespace {

class WinogradWeight final : public Kernel {
 public:
  explicit WinogradWeight(const NodeView& v)
      : m_(v.in[0].shape.size(0)),
        c_(v.in[0].shape.size(1)),
        places_(v.out()[0].shape.size(1) / c_),
        g_(ops::winograd_matrices(v.attrs().get<int64_t>("tile")).weight) {}

  void run(const KernelArgs& args) override {
    const auto* w = static_cast<const float*>(args.in[0]);
    auto* y = static_cast<float*>(args.out[0]);
    constexpr int64_t kKernelsOfPart = 256;
    parallel_for(m_, std::max<int64_t>(1, kKernelsOfPart / c_), [&](int64_t begin, int64_t end) {
      std::vector<double> kernel(static_cast<size_t>(places_));
      for (int64_t m = begin; m < end; ++m)
        for (int64_t c = 0; c < c_; ++c) {
          ops::transform_winograd_kernel(g_, w + (m * c_ + c) * 9, kernel.data());
          for (int64_t p = 0; p < places_; ++p)
            y[(m * places_ + p) * c_ + c] = static_cast<float>(kernel[static_cast<size_t>(p)]);
        }
    });
  }

 private:
  int64_t m_, c_, places_;
  std::vector<double> g_;
};

std::string winograd_weight_refusal(const NodeView& v) {
  if (v.in[0].dtype != DType::f32) return fmt::format("dtype {}: only f32", name_of(v.in[0].dtype));
  return v.in[0].shape.elements() == 0 ? "an operand has no elements" : "";
}

}  // namespace

KernelEntry winograd_weight_kernel() {
  return {Op::winograd_weight, "winograd", winograd_weight_refusal,
          [](const NodeView& v) -> std::unique_ptr<Kernel> {
            return std::make_unique<WinogradWeight>(v);
          }};
}

}  // namespace brrr::cpu
