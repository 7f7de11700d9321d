// max_pool and sum_pool, a plane at a time. If no node reads the indices of max_pool, the maximum
// is taken over the rows of a window first and then over its columns.

#include <algorithm>
#include <limits>

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/spatial/pool.h"
#include "backend/cpu/spatial/window_rows.h"
#include "base/threads/parallel.h"
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

/// max_pool over one or two spatial axes whose indices no node reads.
class MaxPoolValues final : public Kernel {
 public:
  explicit MaxPoolValues(const NodeView& v)
      : dtype_(v.in[0].dtype),
        grid_(ops::window_grid(v.attrs(), ops::spatial_sizes(v.in[0].shape),
                               v.attrs().get<std::vector<int64_t>>("kernel"))),
        planes_(v.in[0].shape.size(0) * v.in[0].shape.size(1)),
        workers_(thread_count()) {
    const size_t last = grid_.axes() - 1;
    const int64_t stride = grid_.windows.strides[last], dilation = grid_.windows.dilations[last];
    high_in_ = last == 0 ? 1 : grid_.in[0];
    high_out_ = last == 0 ? 1 : grid_.out[0];
    high_taps_ = last == 0 ? 1 : grid_.kernel[0];
    phase_ = grid_.out[last] + (grid_.kernel[last] - 1) * dilation / stride + 1;
    in_pairs_ = stride == 2 && dilation == 1 && grid_.kernel[last] == 2 &&
                grid_.before(last) == 0 && 2 * grid_.out[last] <= grid_.in[last];
    for (int64_t tap = 0; tap < grid_.kernel[last]; ++tap)
      offsets_.push_back(tap * dilation % stride * phase_ + tap * dilation / stride);
  }

  int64_t scratch_bytes() const override { return workers_ * worker_floats() * kFloat; }

  void run(const KernelArgs& args) override {
    each_part_of_planes(
        planes_, grid_.kernel_elements() * grid_.out_elements(), workers_,
        [&](int64_t worker, int64_t begin, int64_t end) {
          float* const own = reinterpret_cast<float*>(args.scratch) + worker * worker_floats();
          std::fill(own, own + phase_floats(), -std::numeric_limits<float>::infinity());
          for (int64_t p = begin; p < end; ++p) run_plane(args, p, own);
        });
  }

 private:
  static constexpr int64_t kFloat = sizeof(float);
  // Scratch of a worker: a row split by its index modulo the stride, a row of x, a row of y, and
  // for 16-bit dtypes the plane in f32.
  int64_t phase_floats() const { return floats_in_lines(grid_.windows.strides.back() * phase_); }
  int64_t row_floats() const {
    return floats_in_lines(std::max(grid_.in.back(), grid_.out.back()));
  }
  int64_t worker_floats() const {
    const int64_t plane = dtype_ == DType::f32 ? 0 : floats_in_lines(grid_.in_elements());
    return phase_floats() + 2 * row_floats() + floats_in_lines(high_taps_ * 2) + plane;
  }

  void run_plane(const KernelArgs& args, int64_t p, float* phases) const {
    const WindowRows& f = window_rows();
    const auto bytes = static_cast<int64_t>(bytes_of(dtype_));
    const int64_t width = grid_.in.back(), windows = grid_.out.back();
    float *const row = phases + phase_floats(), *const wide = row + row_floats();
    auto** const rows = reinterpret_cast<const float**>(wide + row_floats());
    float* const plane = wide + row_floats() + floats_in_lines(high_taps_ * 2);
    const auto* source =
        static_cast<const std::byte*>(args.in[0]) + p * grid_.in_elements() * bytes;
    const auto* x = reinterpret_cast<const float*>(source);
    if (dtype_ != DType::f32) {
      f.read(dtype_, source, grid_.in_elements(), plane);
      x = plane;
    }
    auto* y = static_cast<std::byte*>(args.out[0]) + p * grid_.out_elements() * bytes;
    for (int64_t r = 0; r < high_out_; ++r, y += windows * bytes) {
      int64_t count = 0;
      for (int64_t tap = 0; tap < high_taps_; ++tap) {
        const int64_t element = grid_.axes() == 1 ? 0 : grid_.at(0, r, tap);
        if (element >= 0 && element < high_in_) rows[count++] = x + element * width;
      }
      float* const to = dtype_ == DType::f32 ? reinterpret_cast<float*>(y) : wide;
      if (in_pairs_) {
        f.largest_of_pairs(rows, count, windows, to);
      } else {
        const float* largest = rows[0];
        if (count > 1) {
          f.largest_of_rows(rows, count, width, row);
          largest = row;
        }
        split(largest, phases);
        f.largest_of_taps(phases, offsets_.data(), std::ssize(offsets_), windows, to);
      }
      if (to == wide) f.write(dtype_, wide, windows, y);
    }
  }

  /// Stores element i of a row by the index i + padding: all with the same index modulo the stride
  /// lie together.
  void split(const float* row, float* phases) const {
    const size_t last = grid_.axes() - 1;
    const int64_t stride = grid_.windows.strides[last], before = grid_.before(last),
                  n = std::min(grid_.in[last], stride * phase_ - before);
    const auto place = [&](int64_t i) {
      return phases + (i + before) % stride * phase_ + (i + before) / stride;
    };
    if (stride == 1 && n > 0) {
      std::copy(row, row + n, place(0));
    } else if (stride == 2 && n > 1) {
      window_rows().split_pairs(row, n / 2, place(0), place(1));
      if (n % 2 != 0) *place(n - 1) = row[n - 1];
    } else {
      for (int64_t first = 0; first < std::min(stride, n); ++first) {
        float* to = place(first);
        for (int64_t i = first; i < n; i += stride) *to++ = row[i];
      }
    }
  }

  DType dtype_;
  ops::WindowGrid grid_;
  int64_t planes_, workers_;
  int64_t high_in_ = 1, high_out_ = 1, high_taps_ = 1;  // sizes of the second last axis
  int64_t phase_ = 0;      // floats kept for each index modulo the stride
  bool in_pairs_ = false;  // whether windows are adjacent pairs of columns
  std::vector<int64_t> offsets_;
};

std::string pool_refusal(const NodeView& v) {
  if (ops::has_channels_last(v.attrs())) return "channels last";
  const DType t = v.in[0].dtype;
  if (t != DType::f32 && t != DType::bf16 && t != DType::f16)
    return fmt::format("dtype {}: only f32, bf16 and f16", name_of(t));
  if (v.in[0].shape.elements() == 0) return "x has no elements";
  return window_plane_refusal(ops::window_grid(v.attrs(), ops::spatial_sizes(v.in[0].shape),
                                               v.attrs().get<std::vector<int64_t>>("kernel")));
}

std::string values_refusal(const NodeView& v) {
  if (std::string refusal = pool_refusal(v); !refusal.empty()) return refusal;
  if (v.in[0].shape.rank() > 4) return "more than two axes";
  return reads_indices(v) ? "its indices are read" : "";
}

}  // namespace

bool reads_indices(const NodeView& max_pool) {
  const ValueId indices{max_pool.id, 1};
  for (const Output& o : max_pool.graph.outputs())
    if (o.value == indices) return true;
  return std::ranges::any_of(max_pool.graph.nodes(), [&](const Node& node) {
    return std::ranges::find(node.operands, indices) != node.operands.end();
  });
}

std::vector<KernelEntry> pool_kernels() {
  std::vector<KernelEntry> list;
  list.push_back({Op::max_pool, "values", values_refusal,
                  [](const NodeView& v) { return std::make_unique<MaxPoolValues>(v); }});
  for (const Op op : {Op::max_pool, Op::sum_pool})
    list.push_back({op, "windows", pool_refusal,
                    [](const NodeView& v) { return std::make_unique<PoolKernel>(v); }});
  return list;
}

}  // namespace brrr::cpu
