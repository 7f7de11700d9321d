// Ops that move elements: any dtype, by its size. reshape is a view and never comes here.

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/products/transpose_tiles.h"
#include "backend/cpu/rows/copy.h"
#include "backend/cpu/rows/row_space.h"
#include "ops/op.h"
#include "ops/quantized/int8_rows.h"

namespace brrr::cpu {
namespace {

int64_t element_bytes(const NodeView& node) {
  return static_cast<int64_t>(bytes_of(node.out()[0].dtype));
}
std::byte* bytes_at(void* p, int64_t offset = 0) { return static_cast<std::byte*>(p) + offset; }
const std::byte* bytes_at(const void* p, int64_t offset = 0) {
  return static_cast<const std::byte*>(p) + offset;
}

/// A shape around an axis, in bytes: `outer` blocks of size(axis) * inner.
struct Axis {
  int64_t outer, size, inner;
  Axis(const Shape& shape, int64_t axis, int64_t bytes) {
    const AxisSplit split = split_at(shape, axis);
    outer = split.outer;
    size = split.count;
    inner = split.inner * bytes;
  }
  int64_t block() const { return size * inner; }
};

/// transpose as a batch of copies or matrix transposes.
///
/// Axes are merged where the permutation keeps them together. If the last axis stays last, its runs
/// are copied. Otherwise the last axis of x, found at axis p of y, and the last axis of y span
/// matrices that are transposed, for each index of the axes left.
class TransposeKernel final : public Kernel {
 public:
  explicit TransposeKernel(const NodeView& node) : bytes_(element_bytes(node)) {
    const auto& p = node.attrs().get<std::vector<int64_t>>("permutation");
    const auto strides = node.in[0].shape.strides();
    elements_ = node.out()[0].shape.elements();
    for (size_t axis = 0; axis < p.size(); ++axis) {
      const int64_t size = node.out()[0].shape.size(static_cast<int>(axis));
      const int64_t from = strides[static_cast<size_t>(p[axis])];
      if (size == 1) continue;
      if (!axes_.empty() && axes_.back().from == from * size) {
        axes_.back().size *= size;
        axes_.back().from = from;
      } else {
        axes_.push_back({size, from, 0});
      }
    }
    int64_t to = 1;
    for (size_t i = axes_.size(); i-- > 0; to *= axes_[i].size) axes_[i].to = to;
    if (axes_.size() <= 1) return;
    last_ = axes_.back();
    axes_.pop_back();
    if (last_.from == 1) {
      run_ = last_.size;
      // The next axis out is walked by a simple loop.
      last_ = axes_.back();
      axes_.pop_back();
    } else {
      for (size_t i = 0; i < axes_.size(); ++i) {
        if (axes_[i].from != 1) continue;
        matrix_ = axes_[i];
        axes_.erase(axes_.begin() + static_cast<int64_t>(i));
        break;
      }
      transpose_ = transpose_function(bytes_);
    }
    for (const AxisOf& a : axes_) outer_ *= a.size;
  }

  void run(const KernelArgs& args) override {
    const std::byte* x = bytes_at(args.in[0]);
    std::byte* y = bytes_at(args.out[0]);
    if (elements_ == 0) return;
    if (last_.size == 0) {
      copy_runs(y, elements_ * bytes_, x, elements_ * bytes_, elements_ * bytes_, 1);
    } else if (transpose_ == nullptr) {
      const int64_t run_bytes = run_ * bytes_, from = last_.from * bytes_, to = last_.to * bytes_;
      each_outer(kByteGrain / run_bytes,
                 [&](int64_t x_at, int64_t y_at, int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; ++i)
                     copy_run(y + y_at * bytes_ + i * to, x + x_at * bytes_ + i * from, run_bytes);
                 });
    } else {
      // Rows of the matrix are the last axis of y, split in blocks of whole cache lines.
      each_outer(kByteGrain / (bytes_ * matrix_.size),
                 [&](int64_t x_at, int64_t y_at, int64_t begin, int64_t end) {
                   transpose_(x + (x_at + begin * last_.from) * bytes_, last_.from,
                              y + (y_at + begin) * bytes_, matrix_.to, end - begin, matrix_.size);
                 });
    }
  }

 private:
  struct AxisOf {
    int64_t size = 0, from = 0, to = 0;  // strides in x and y, in elements
  };

  /// body(offset in x, offset in y, begin, end): a part of the last axis at one index of the
  /// others.
  template <typename Body>
  void each_outer(int64_t grain, Body&& body) const {
    constexpr int64_t kBlock = 64;
    const int64_t blocks = (last_.size + kBlock - 1) / kBlock;
    const int64_t block_grain = std::max<int64_t>(1, grain / std::min(kBlock, last_.size));
    parallel_for(outer_ * blocks, block_grain, [&](int64_t first, int64_t last) {
      while (first < last) {
        int64_t i = first / blocks, x_at = 0, y_at = 0;
        for (size_t a = axes_.size(); a-- > 0; i /= axes_[a].size) {
          x_at += i % axes_[a].size * axes_[a].from;
          y_at += i % axes_[a].size * axes_[a].to;
        }
        const int64_t count = std::min(blocks - first % blocks, last - first);
        const int64_t begin = first % blocks * kBlock;
        body(x_at, y_at, begin, std::min(last_.size, begin + count * kBlock));
        first += count;
      }
    });
  }

  int64_t bytes_, elements_ = 0, run_ = 0, outer_ = 1;
  std::vector<AxisOf> axes_;
  AxisOf last_, matrix_;
  TransposeFunction transpose_ = nullptr;
};

std::unique_ptr<Kernel> prepare_slice(const NodeView& node) {
  const int64_t axis = node.attrs().get<int64_t>("axis"),
                start = node.attrs().get<int64_t>("start");
  const Axis x(node.in[0].shape, axis, element_bytes(node));
  const Axis y(node.out()[0].shape, axis, element_bytes(node));
  return make_kernel([=](const KernelArgs& args) {
    copy_runs(bytes_at(args.out[0]), y.block(), bytes_at(args.in[0], start * x.inner), x.block(),
              y.block(), x.outer);
  });
}

std::unique_ptr<Kernel> prepare_pad(const NodeView& node) {
  const int64_t axis = node.attrs().get<int64_t>("axis"),
                before = node.attrs().get<int64_t>("before");
  const Axis x(node.in[0].shape, axis, element_bytes(node));
  const Axis y(node.out()[0].shape, axis, element_bytes(node));
  return make_kernel([=](const KernelArgs& args) {
    const int64_t head = before * y.inner, tail = head + x.block();
    zero_runs(bytes_at(args.out[0]), y.block(), head, y.outer);
    copy_runs(bytes_at(args.out[0], head), y.block(), bytes_at(args.in[0]), x.block(), x.block(),
              y.outer);
    zero_runs(bytes_at(args.out[0], tail), y.block(), y.block() - tail, y.outer);
  });
}

std::unique_ptr<Kernel> prepare_concat(const NodeView& node) {
  const int64_t axis = node.attrs().get<int64_t>("axis");
  const Axis y(node.out()[0].shape, axis, element_bytes(node));
  std::vector<int64_t> blocks;
  for (const Type& t : node.in) blocks.push_back(Axis(t.shape, axis, element_bytes(node)).block());
  return make_kernel([y, blocks](const KernelArgs& args) {
    int64_t at = 0;
    for (size_t i = 0; i < blocks.size(); ++i) {
      copy_runs(bytes_at(args.out[0], at), y.block(), bytes_at(args.in[i]), blocks[i], blocks[i],
                y.outer);
      at += blocks[i];
    }
  });
}

std::unique_ptr<Kernel> prepare_broadcast(const NodeView& node) {
  const RowSpace space(node.out()[0].shape, node.in);
  const int64_t bytes = element_bytes(node);
  return make_kernel([space, bytes](const KernelArgs& args) {
    parallel_elements(space.elements, kByteGrain / bytes, [&](int64_t begin, int64_t end) {
      space.each_row(begin, end, [&](int64_t to, const RowSpace::Offsets& at, int64_t count) {
        const std::byte* x = bytes_at(args.in[0], at[0] * bytes);
        std::byte* y = bytes_at(args.out[0], to * bytes);
        if (space.repeated[0]) {
          fill_values(y, x, bytes, count);
        } else {
          copy_run(y, x, count * bytes);
        }
      });
    });
  });
}

/// A part of a tensor's memory in which each row along the last axis takes the same bytes: all of
/// it or, for int8 rows, the integers or the scales.
struct Plane {
  int64_t row;     // size of a row in bytes
  int64_t offset;  // offset of the first row in bytes
};
std::vector<Plane> planes_of(const Type& type) {
  const int64_t columns = type.shape.size(-1);
  if (type.storage.is_plain()) return {{columns * static_cast<int64_t>(bytes_of(type.dtype)), 0}};
  const ops::Int8RowsLayout layout(type);
  return {{columns, 0}, {layout.groups_in_row * int64_t{sizeof(float)}, layout.first_scale}};
}

std::unique_ptr<Kernel> prepare_update_slice(const NodeView& node) {
  struct Part {
    Axis x, part;
    int64_t x_offset, part_offset;
  };
  const int64_t axis = node.attrs().get<int64_t>("axis");
  const Type &x = node.in[0], &part = node.in[1];
  std::vector<Part> parts;
  if (x.storage.is_plain()) {
    const int64_t bytes = element_bytes(node);
    parts.push_back({Axis(x.shape, axis, bytes), Axis(part.shape, axis, bytes), 0, 0});
  } else {
    const std::vector<Plane> of_x = planes_of(x), of_part = planes_of(part);
    const Shape rows_of_x = x.shape.without_last(1), rows_of_part = part.shape.without_last(1);
    for (size_t i = 0; i < of_x.size(); ++i)
      parts.push_back({Axis(rows_of_x, axis, of_x[i].row), Axis(rows_of_part, axis, of_x[i].row),
                       of_x[i].offset, of_part[i].offset});
  }
  const int64_t bytes = x.bytes();
  return make_kernel([=](const KernelArgs& args) {
    if (args.out[0] != args.in[0])
      copy_runs(bytes_at(args.out[0]), bytes, bytes_at(args.in[0]), bytes, bytes, 1);
    const int64_t position = *static_cast<const int32_t*>(args.in[2]);
    for (const Part& p : parts) {
      const int64_t at = std::clamp<int64_t>(position, 0, p.x.size - p.part.size);
      copy_runs(bytes_at(args.out[0], p.x_offset + at * p.x.inner), p.x.block(),
                bytes_at(args.in[1], p.part_offset), p.part.block(), p.part.block(), p.x.outer);
    }
  });
}

std::unique_ptr<Kernel> prepare_update_rows(const NodeView& node) {
  const int64_t count = node.in[0].shape.size(0), updates = node.in[1].shape.size(0);
  const std::vector<Plane> to = planes_of(node.in[0]), from = planes_of(node.in[2]);
  const int64_t bytes = node.in[0].bytes();
  return make_kernel([=](const KernelArgs& args) {
    if (args.out[0] != args.in[0])
      copy_runs(bytes_at(args.out[0]), bytes, bytes_at(args.in[0]), bytes, bytes, 1);
    const auto* slots = static_cast<const int32_t*>(args.in[1]);
    for (int64_t i = 0; i < updates; ++i)
      if (slots[i] < -1 || slots[i] >= count)
        user_error("[update_rows] slot {} lies outside {} rows", slots[i], count);
    for (size_t plane = 0; plane < to.size(); ++plane) {
      const int64_t row = to[plane].row;
      parallel_elements(updates, std::max<int64_t>(1, kByteGrain / std::max<int64_t>(1, row)),
                        [&](int64_t begin, int64_t end) {
                          for (int64_t i = begin; i < end; ++i)
                            if (slots[i] >= 0)
                              copy_run(bytes_at(args.out[0], to[plane].offset + slots[i] * row),
                                       bytes_at(args.in[2], from[plane].offset + i * row), row);
                        });
    }
  });
}

std::unique_ptr<Kernel> prepare_bitcast(const NodeView& node) {
  const auto bytes = static_cast<int64_t>(node.in[0].bytes());
  return make_kernel([=](const KernelArgs& args) {
    copy_runs(bytes_at(args.out[0]), bytes, bytes_at(args.in[0]), bytes, bytes, 1);
  });
}

}  // namespace

std::vector<KernelEntry> movement_kernels() {
  auto any = [](const NodeView&) { return std::string(); };
  return {{Op::transpose, "copies", any,
           [](const NodeView& node) -> std::unique_ptr<Kernel> {
             return std::make_unique<TransposeKernel>(node);
           }},
          {Op::slice, "copies", any, prepare_slice, !kKnowsStorage, kAllOperands},
          {Op::pad, "copies", any, prepare_pad, !kKnowsStorage, kAllOperands},
          {Op::concat, "copies", any, prepare_concat, !kKnowsStorage, kAllOperands},
          {Op::broadcast_to, "copies", any, prepare_broadcast},
          {Op::update_slice, "copies", any, prepare_update_slice, kKnowsStorage},
          {Op::update_rows, "copies", any, prepare_update_rows, kKnowsStorage},
          {Op::bitcast, "copies", any, prepare_bitcast}};
}

}  // namespace brrr::cpu
