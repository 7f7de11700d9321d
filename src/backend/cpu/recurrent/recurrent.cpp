// lstm, gru and their derivatives in f32. Sequences are split among threads, each of which runs all
// steps of its own: they wait for each other at the end alone, and its share of a step stays in its
// caches. Of few sequences the product of each step is split instead, by gemm(). The recurrent
// weight is packed once for all steps.

#include <algorithm>
#include <cstring>

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/products/gemm.h"
#include "backend/cpu/recurrent/recurrent_rows.h"
#include "base/integers.h"
#include "base/panels.h"
#include "base/threads/parallel.h"
#include "ops/op.h"
#include "ops/recurrent.h"

namespace brrr::cpu {
namespace {

constexpr int64_t kFewestSequences = 8;  // that a thread takes
constexpr int64_t kFewSteps = 2;         // packing the weight would cost more than it gains

/// The product of the states of some sequences and the recurrent weight [G H, H], or its
/// transpose.
class StateProduct {
 public:
  /// `transposed`: x weight^T, from H to G H; otherwise x weight, from G H to H.
  StateProduct(int64_t gates_width, int64_t width, bool transposed, int64_t steps)
      : k_(transposed ? width : gates_width),
        n_(transposed ? gates_width : width),
        transposed_(transposed),
        is_packed_(steps > kFewSteps) {}

  int64_t scratch_bytes() const {
    return is_packed_ ? f32_panel_elements(k_, n_) * int64_t{sizeof(float)} : 0;
  }
  /// Packs the weight. The scratch memory stays in use.
  void prepare(const void* weight, std::byte* scratch) {
    weight_ = static_cast<const float*>(weight);
    if (!is_packed_) return;
    panels_ = reinterpret_cast<float*>(scratch);
    parallel_for(ceil_div(n_, kPanelColumns), 2, [&](int64_t begin, int64_t end) {
      for (int64_t panel = begin; panel < end; ++panel) pack(panel);
    });
  }
  /// y = x W, or y += x W with `adds`, for some rows.
  void run(const float* x, float* y, int64_t rows, bool adds) const {
    GemmArgs g;
    g.m = rows;
    g.n = n_;
    g.k = k_;
    g.a = x;
    g.lda = k_;
    g.b = is_packed_ ? panels_ : weight_;
    g.panels = is_packed_;
    g.trans_b = !is_packed_ && transposed_;
    g.ldb = g.trans_b ? k_ : n_;
    g.c = y;
    g.ldc = n_;
    g.beta = adds ? 1.0f : 0.0f;
    gemm(g, GemmPath::kVector);
  }

 private:
  void pack(int64_t panel) {
    float* to = panels_ + panel * kPanelColumns * k_;
    const int64_t column = panel * kPanelColumns, columns = std::min(kPanelColumns, n_ - column);
    if (columns < kPanelColumns) std::fill_n(to, kPanelColumns * k_, 0.0f);
    if (!transposed_) {
      for (int64_t k = 0; k < k_; ++k)
        std::copy_n(weight_ + k * n_ + column, columns, to + k * kPanelColumns);
      return;
    }
    constexpr int64_t kAtOnce = 16;  // terms of which the lines of the weight are read whole
    for (int64_t k0 = 0; k0 < k_; k0 += kAtOnce)
      for (int64_t j = 0; j < columns; ++j)
        for (int64_t k = k0; k < std::min(k0 + kAtOnce, k_); ++k)
          to[k * kPanelColumns + j] = weight_[(column + j) * k_ + k];
  }

  int64_t k_, n_;
  bool transposed_, is_packed_;
  const float* weight_ = nullptr;
  float* panels_ = nullptr;
};

RecurrentForm form_of(const NodeView& node, int64_t width) {
  const Shape& x = node.in[0].shape;
  return {x.size(0), x.size(1), width, node.attrs().get<bool>("reverse")};
}

/// body(first, count) for parts of the sequences, each on a thread of its own.
template <typename Body>
void each_part(const RecurrentForm& f, Body&& body) {
  parallel_parts(
      f.batch, std::min<int64_t>(thread_count(), std::max<int64_t>(1, f.batch / kFewestSequences)),
      [&](int64_t, int64_t begin, int64_t end) { body(begin, end - begin); });
}

const float* floats(const void* p) { return static_cast<const float*>(p); }
float* floats(void* p) { return static_cast<float*>(p); }

void copy_floats(float* to, const float* from, int64_t count) {
  if (to != from) std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
}

class LstmKernel final : public Kernel {
 public:
  explicit LstmKernel(const NodeView& node)
      : f_(form_of(node, node.in[2].shape.size(1))),
        product_(4 * f_.width, f_.width, true, f_.steps) {}

  int64_t scratch_bytes() const override { return product_.scratch_bytes(); }
  void run(const KernelArgs& args) override {
    product_.prepare(args.in[1], args.scratch);
    each_part(f_, [&](int64_t first, int64_t count) { run_part(args, first, count); });
  }

 private:
  void run_part(const KernelArgs& args, int64_t first, int64_t count) const {
    const int64_t h = f_.width, size = count * h;
    const float *hidden = floats(args.in[2]) + first * h, *cell = floats(args.in[3]) + first * h;
    for (int64_t i = 0; i < f_.steps; ++i) {
      const int64_t row = f_.step(i) * f_.batch + first;
      float *sums = floats(args.out[3]) + row * 4 * h, *next = floats(args.out[4]) + row * h,
            *y = floats(args.out[0]) + row * h;
      copy_floats(sums, floats(args.in[0]) + row * 4 * h, 4 * size);
      product_.run(hidden, sums, count, true);
      recurrent_rows().lstm(sums, cell, next, y, count, h);
      hidden = y;
      cell = next;
    }
    copy_floats(floats(args.out[1]) + first * h, hidden, size);
    copy_floats(floats(args.out[2]) + first * h, cell, size);
  }

  RecurrentForm f_;
  StateProduct product_;
};

class LstmGradKernel final : public Kernel {
 public:
  explicit LstmGradKernel(const NodeView& node)
      : f_(form_of(node, node.in[5].shape.size(1))),
        product_(4 * f_.width, f_.width, false, f_.steps) {}

  int64_t scratch_bytes() const override { return product_.scratch_bytes(); }
  void run(const KernelArgs& args) override {
    product_.prepare(args.in[3], args.scratch);
    each_part(f_, [&](int64_t first, int64_t count) { run_part(args, first, count); });
  }

 private:
  void run_part(const KernelArgs& args, int64_t first, int64_t count) const {
    const int64_t h = f_.width, size = count * h;
    float *d_hidden = floats(args.out[1]) + first * h, *d_cell = floats(args.out[2]) + first * h;
    copy_floats(d_hidden, floats(args.in[5]) + first * h, size);
    copy_floats(d_cell, floats(args.in[6]) + first * h, size);
    const auto row_of = [&](int64_t i) { return f_.step(i) * f_.batch + first; };
    for (int64_t i = f_.steps; i-- > 0;) {
      const int64_t row = row_of(i);
      RecurrentRows::LstmGrad s{};
      s.activations = floats(args.in[0]) + row * 4 * h;
      s.cells = floats(args.in[1]) + row * h;
      s.before = i > 0 ? floats(args.in[1]) + row_of(i - 1) * h : floats(args.in[2]) + first * h;
      s.d_outputs = floats(args.in[4]) + row * h;
      s.d_hidden = d_hidden;
      s.d_cell = d_cell;
      s.d_gates = floats(args.out[0]) + row * 4 * h;
      recurrent_rows().lstm_grad(s, count, h);
      product_.run(s.d_gates, d_hidden, count, false);
    }
  }

  RecurrentForm f_;
  StateProduct product_;
};

class GruKernel final : public Kernel {
 public:
  explicit GruKernel(const NodeView& node)
      : f_(form_of(node, node.in[3].shape.size(1))),
        product_(3 * f_.width, f_.width, true, f_.steps) {}

  int64_t scratch_bytes() const override {
    return sums_at() + f_.batch * 3 * f_.width * int64_t{sizeof(float)};
  }
  void run(const KernelArgs& args) override {
    product_.prepare(args.in[1], args.scratch);
    each_part(f_, [&](int64_t first, int64_t count) { run_part(args, first, count); });
  }

 private:
  int64_t sums_at() const { return round_up(product_.scratch_bytes(), 64); }
  void run_part(const KernelArgs& args, int64_t first, int64_t count) const {
    const int64_t h = f_.width;
    float* product = reinterpret_cast<float*>(args.scratch + sums_at()) + first * 3 * h;
    const float* hidden = floats(args.in[3]) + first * h;
    for (int64_t i = 0; i < f_.steps; ++i) {
      const int64_t row = f_.step(i) * f_.batch + first;
      float* y = floats(args.out[0]) + row * h;
      product_.run(hidden, product, count, false);
      recurrent_rows().gru(floats(args.in[0]) + row * 3 * h, product, floats(args.in[2]), hidden,
                           floats(args.out[2]) + row * 4 * h, y, count, h);
      hidden = y;
    }
    copy_floats(floats(args.out[1]) + first * h, hidden, count * h);
  }

  RecurrentForm f_;
  StateProduct product_;
};

class GruGradKernel final : public Kernel {
 public:
  explicit GruGradKernel(const NodeView& node)
      : f_(form_of(node, node.in[2].shape.size(1))),
        product_(3 * f_.width, f_.width, false, f_.steps) {}

  int64_t scratch_bytes() const override { return product_.scratch_bytes(); }
  void run(const KernelArgs& args) override {
    product_.prepare(args.in[3], args.scratch);
    each_part(f_, [&](int64_t first, int64_t count) { run_part(args, first, count); });
  }

 private:
  void run_part(const KernelArgs& args, int64_t first, int64_t count) const {
    const int64_t h = f_.width;
    float* d_hidden = floats(args.out[2]) + first * h;
    copy_floats(d_hidden, floats(args.in[5]) + first * h, count * h);
    const auto row_of = [&](int64_t i) { return f_.step(i) * f_.batch + first; };
    for (int64_t i = f_.steps; i-- > 0;) {
      const int64_t row = row_of(i);
      RecurrentRows::GruGrad s{};
      s.activations = floats(args.in[0]) + row * 4 * h;
      s.before = i > 0 ? floats(args.in[1]) + row_of(i - 1) * h : floats(args.in[2]) + first * h;
      s.d_outputs = floats(args.in[4]) + row * h;
      s.d_hidden = d_hidden;
      s.d_gates = floats(args.out[0]) + row * 3 * h;
      s.d_product = floats(args.out[1]) + row * 3 * h;
      recurrent_rows().gru_grad(s, count, h);
      product_.run(s.d_product, d_hidden, count, true);
    }
  }

  RecurrentForm f_;
  StateProduct product_;
};

template <typename K>
KernelEntry recurrent_entry(Op op) {
  return {op, "steps",
          [](const NodeView& node) {
            return std::string(node.in[0].dtype == DType::f32 ? "" : "only f32");
          },
          [](const NodeView& node) { return std::make_unique<K>(node); }};
}

}  // namespace

std::vector<KernelEntry> recurrent_kernels() {
  return {recurrent_entry<LstmKernel>(Op::lstm), recurrent_entry<LstmGradKernel>(Op::lstm_grad),
          recurrent_entry<GruKernel>(Op::gru), recurrent_entry<GruGradKernel>(Op::gru_grad)};
}

}  // namespace brrr::cpu
