// The derivative of max_pool for pictures with channels first: a plane at a time, which is the work
// of one thread.

#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/spatial/conv_sizes.h"
#include "backend/cpu/spatial/window_rows.h"
#include "base/threads/parallel.h"
#include "ops/op.h"

namespace brrr::cpu {
namespace {

class MaxPoolGrad final : public Kernel {
 public:
  explicit MaxPoolGrad(const NodeView& v)
      : dtype_(v.in[0].dtype),
        planes_(v.in[0].shape.size(0) * v.in[0].shape.size(1)),
        grid_(ops::window_grid(v.attrs(), ops::spatial_sizes(v.in[0].shape),
                               v.attrs().get<std::vector<int64_t>>("kernel"))) {
    ops::for_each_tap(grid_, [&](int64_t i, int64_t, int64_t o) {
      taps_.push_back({static_cast<int32_t>(i), static_cast<int32_t>(o)});
    });
    std::ranges::stable_sort(taps_, {}, &Tap::window);
  }

  void run(const KernelArgs& args) override {
    const int64_t in = grid_.in_elements(), out = grid_.out_elements();
    const auto e = static_cast<int64_t>(bytes_of(dtype_));
    parallel_for(planes_, std::max<int64_t>(1, (1 << 15) / (std::ssize(taps_) + 1)),
                 [&](int64_t begin, int64_t end) {
                   std::vector<float> x(static_cast<size_t>(in)), dx(static_cast<size_t>(in)),
                       dy(static_cast<size_t>(out));
                   for (int64_t p = begin; p < end; ++p) {
                     window_rows().read(dtype_, address_at(args.in[0], p * in * e), in, x.data());
                     window_rows().read(dtype_, address_at(args.in[1], p * out * e), out,
                                        dy.data());
                     std::ranges::fill(dx, 0.0f);
                     add(x, dy, dx);
                     window_rows().write(dtype_, dx.data(), in,
                                         static_cast<std::byte*>(args.out[0]) + p * in * e);
                   }
                 });
  }

 private:
  struct Tap {
    int32_t element = 0, window = 0;
  };

  void add(const std::vector<float>& x, const std::vector<float>& dy,
           std::vector<float>& dx) const {
    for (size_t t = 0; t < taps_.size();) {
      const int32_t window = taps_[t].window;
      auto best = static_cast<size_t>(taps_[t].element);
      for (++t; t < taps_.size() && taps_[t].window == window; ++t) {
        const auto next = static_cast<size_t>(taps_[t].element);
        if (x[next] > x[best] || (std::isnan(x[next]) && !std::isnan(x[best]))) best = next;
      }
      dx[best] += dy[static_cast<size_t>(window)];
    }
  }

  DType dtype_;
  int64_t planes_;
  ops::WindowGrid grid_;
  std::vector<Tap> taps_;  // of one window after the other, in row-major order
};

std::string max_pool_grad_refusal(const NodeView& v) {
  if (ops::has_channels_last(v.attrs())) return "channels last";
  if (std::string refusal = picture_float_refusal(v); !refusal.empty()) return refusal;
  const Shape& x = v.in[0].shape;
  constexpr int64_t kMost = int64_t{1} << 31;
  return x.elements() / (x.size(0) * x.size(1)) >= kMost ? "planes of 2^31 elements" : "";
}

}  // namespace

std::vector<KernelEntry> max_pool_grad_kernels() {
  return {{Op::max_pool_grad, "planes", max_pool_grad_refusal,
           [](const NodeView& v) { return std::make_unique<MaxPoolGrad>(v); }}};
}

}  // namespace brrr::cpu
