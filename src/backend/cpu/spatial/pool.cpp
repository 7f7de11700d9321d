// max_pool and sum_pool: a plane at a time.

#include <algorithm>
#include <limits>

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/spatial/window_rows.h"
#include "base/parallel.h"
#include "ops/op.h"

namespace brrr::cpu {
namespace {

int64_t floats_in_lines(int64_t floats) { return (floats + 15) / 16 * 16; }

class PoolKernel final : public Kernel {
 public:
  explicit PoolKernel(const NodeView& v)
      : dtype_(v.in[0].dtype),
        grid_(ops::window_grid(v.attrs(), ops::spatial_sizes(v.in[0].shape),
                               v.attrs().get<std::vector<int64_t>>("kernel"))),
        plane_(grid_),
        takes_max_(v.out().size() == 2),
        planes_(v.in[0].shape.size(0) * v.in[0].shape.size(1)),
        ones_(plane_.offsets().size(), 1.0f),
        workers_(thread_count()),
        worker_floats_(floats_in_lines(plane_.floats()) +
                       2 * floats_in_lines(plane_.row_windows())) {}

  int64_t scratch_bytes() const override {
    return workers_ * worker_floats_ * int64_t{sizeof(float)};
  }

  void run(const KernelArgs& args) override {
    const float padding = takes_max_ ? -std::numeric_limits<float>::infinity() : 0.0f;
    each_part_of_planes(planes_, std::ssize(ones_) * grid_.out_elements(), workers_,
                        [&](int64_t worker, int64_t begin, int64_t end) {
                          auto* const plane =
                              reinterpret_cast<float*>(args.scratch) + worker * worker_floats_;
                          plane_.pad(padding, plane);
                          for (int64_t p = begin; p < end; ++p) run_plane(args, p, plane);
                        });
  }

 private:
  void run_plane(const KernelArgs& args, int64_t p, float* plane) const {
    const WindowRows& f = window_rows();
    const auto bytes = static_cast<int64_t>(bytes_of(dtype_));
    const int64_t width = plane_.row_windows();
    float* const row = plane + floats_in_lines(plane_.floats());
    float* const taps = row + floats_in_lines(width);
    const auto* x = static_cast<const std::byte*>(args.in[0]) + p * grid_.in_elements() * bytes;
    auto* y = static_cast<std::byte*>(args.out[0]) + p * grid_.out_elements() * bytes;
    const auto count = static_cast<int64_t>(ones_.size());
    plane_.fill(dtype_, x, plane);
    for (int64_t r = 0; r < plane_.rows(); ++r, y += width * bytes) {
      float* const to = dtype_ == DType::f32 ? reinterpret_cast<float*>(y) : row;
      const float* const from = plane + plane_.row_start(r);
      const int64_t* const offsets = plane_.offsets().data();
      if (takes_max_) {
        f.largest(from, offsets, count, width, to, taps);
        write_indices(static_cast<int64_t*>(args.out[1]) + p * grid_.out_elements() + r * width, to,
                      taps, r, p);
      } else {
        f.add(from, offsets, ones_.data(), count, 0, width, to);
      }
      if (to == row) f.write(dtype_, row, width, y);
    }
  }

  void write_indices(int64_t* to, const float* largest, const float* taps, int64_t row,
                     int64_t p) const {
    const int64_t plane = p * grid_.in_elements(), first = plane + plane_.row_element(row),
                  stride = grid_.windows.strides.back();
    const int64_t* const elements = plane_.tap_elements().data();
    for (int64_t o = 0; o < plane_.row_windows(); ++o) {
      to[o] = first + o * stride + elements[static_cast<int64_t>(taps[o])];
      if (largest[o] != -std::numeric_limits<float>::infinity()) continue;
      // Padding is as large: the first element counts.
      int64_t element = -1;
      for (int64_t t = 0; element < 0; ++t) element = plane_.element(row, o, t);
      to[o] = plane + element;
    }
  }

  DType dtype_;
  ops::WindowGrid grid_;
  WindowPlane plane_;
  bool takes_max_;
  int64_t planes_;
  std::vector<float> ones_;
  int64_t workers_, worker_floats_;
};

std::string pool_refusal(const NodeView& v) {
  const DType t = v.in[0].dtype;
  if (t != DType::f32 && t != DType::bf16 && t != DType::f16)
    return fmt::format("dtype {}: only f32, bf16 and f16", name_of(t));
  if (v.in[0].shape.elements() == 0) return "x has no elements";
  return window_plane_refusal(ops::window_grid(v.attrs(), ops::spatial_sizes(v.in[0].shape),
                                               v.attrs().get<std::vector<int64_t>>("kernel")));
}

}  // namespace

std::vector<KernelEntry> pool_kernels() {
  std::vector<KernelEntry> list;
  for (const Op op : {Op::max_pool, Op::sum_pool})
    list.push_back({op, "windows", pool_refusal,
                    [](const NodeView& v) { return std::make_unique<PoolKernel>(v); }});
  return list;
}

}  // namespace brrr::cpu
