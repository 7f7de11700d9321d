// Rows go through in chunks: logits = x w into scratch memory, their losses, in place their
// gradients, and from those dx of the chunk and its part of dw. The chunks depend on the shapes
// alone, and so do the bits of the sum over rows. Weights that lie in the panels of x w alone are
// turned into those of dx in parts, which stay in the cache while a chunk is multiplied by them.

#include "backend/cpu/products/loss_head.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/products/gemm.h"
#include "backend/cpu/products/gemm_blocks.h"
#include "backend/cpu/products/gemm_kernels.h"
#include "backend/cpu/products/panel_rows.h"
#include "backend/cpu/rows/cross_entropy_rows.h"
#include "backend/cpu/simd/row_support.h"
#include "base/panels.h"
#include "base/threads/parallel.h"
#include "ops/op.h"

namespace brrr::cpu {
namespace {

// Logits of a chunk. Every chunk reads and packs w twice and adds to the f32 sums of dw: at GPT-2's
// size and 20 GB/s some 29 ms. The products of 320 rows take 22 ms on two cores with AMX, those of
// 1280 rows 90; with avx512_bf16 256 rows take 160. In f32 they take 500 and more, and a large
// chunk gains nothing.
constexpr int64_t kChunkBytes = int64_t{64} << 20, kPackedChunkBytes = int64_t{256} << 20;

// Panels that are turned at a time.
constexpr int64_t kTurnedBytes = int64_t{4} << 20;

enum class Head { forward, gradient, step };

Head head_of(const NodeView& node) {
  if (is(node.node(), Op::linear_cross_entropy)) return Head::forward;
  return is(node.node(), Op::linear_cross_entropy_grad) ? Head::gradient : Head::step;
}

struct HeadLoss {
  std::string op;
  Head head;
  DType dtype;                             // of x, w and the gradients of logits
  DType dx = DType::f32, dw = DType::f32;  // what they are written as
  int64_t rows, width, classes;            // x: [rows, width]
  int64_t chunk, ld;                       // logits: [chunk, classes], rows ld apart, f32
  bool transpose_w, panels, wide_targets, dlse = false, has_dw = false;
  bool turns_panels = false;  // dlogits are multiplied by the panels of x w
  int64_t ignore;

  HeadLoss(const NodeView& node, int64_t chunk_rows)
      : op(node.node().op->name),
        head(head_of(node)),
        dtype(node.in[0].dtype),
        rows(rows_of(node.in[0].shape).count),
        width(node.in[0].shape.size(-1)),
        chunk(std::min(chunk_rows, rows)),
        transpose_w(node.attrs().get<bool>("transpose_w")),
        panels(!node.in[1].storage.is_plain()),
        wide_targets(node.in[2].dtype == DType::i64),
        ignore(node.attrs().get<int64_t>("ignore_index")) {
    classes = node.in[1].shape.size(transpose_w ? 0 : 1);
    ld = round_up(classes, 16);
    if (head == Head::gradient) dlse = node.attrs().get<bool>("dlse");
    if (head == Head::forward) return;
    turns_panels = panels && node.in.back().storage == node.in[1].storage;
    const size_t first = head == Head::step ? 2 : 0;
    dx = node.out()[first].dtype;
    has_dw = node.attrs().get_or<bool>("dw", true);
    if (has_dw) dw = node.out()[first + 1].dtype;
  }
  /// The sum over chunks is f32; where dw is not, it is made in scratch memory.
  bool sums_apart() const { return has_dw && dw != DType::f32; }
  int64_t logits_bytes() const { return round_up(chunk * ld * int64_t{sizeof(float)}, 64); }
  int64_t dlogits_ld() const { return dtype == DType::f32 ? ld : 2 * ld; }

  // What scratch memory holds, in this order.
  int64_t dw_sums_bytes() const {
    return sums_apart() ? round_up(classes * width * int64_t{sizeof(float)}, 64) : 0;
  }
  int64_t turned_classes() const {
    const int64_t columns = kTurnedBytes / (width * int64_t{sizeof(uint16_t)});
    return std::clamp(columns / kPanelColumns * kPanelColumns, kPanelColumns,
                      round_up(classes, kPanelColumns));
  }
  int64_t turned_bytes() const {
    return turns_panels ? turned_classes() * width * int64_t{sizeof(uint16_t)} : 0;
  }
  int64_t dx_sums_bytes() const {
    return turns_panels && dx != DType::f32 ? chunk * width * int64_t{sizeof(float)} : 0;
  }
  int64_t scratch_bytes() const {
    return logits_bytes() + dw_sums_bytes() + turned_bytes() + dx_sums_bytes();
  }
};

/// The operands and results of a run; absent ones are null.
struct Tensors {
  const void *x, *w, *w_of_dx = nullptr;  // w_of_dx: another where there are panels
  Targets targets;
  const float *lse_in = nullptr, *dlosses = nullptr, *dlse = nullptr;
  float *losses = nullptr, *lse = nullptr;
  void *dx = nullptr, *dw = nullptr;
  float *logits, *sums;  // dw in f32
  uint16_t* turned;      // panels
  float* dx_sums;        // of a chunk, where dx is not f32

  Tensors(const HeadLoss& p, const KernelArgs& args)
      : x(args.in[0]), w(args.in[1]), targets{args.in[2], p.wide_targets} {
    auto floats = [&](size_t i) { return static_cast<const float*>(args.in[i]); };
    if (p.head == Head::gradient) {
      lse_in = floats(3);
      dlosses = floats(4);
      if (p.dlse) dlse = floats(5);
    } else {
      losses = static_cast<float*>(args.out[0]);
      lse = static_cast<float*>(args.out[1]);
      if (p.head == Head::step) dlosses = floats(3);
    }
    if (p.head != Head::forward) {
      const size_t first = p.head == Head::step ? 2 : 0;
      w_of_dx = p.panels ? args.in.back() : w;
      dx = args.out[first];
      if (p.has_dw) dw = args.out[first + 1];
    }
    logits = reinterpret_cast<float*>(args.scratch);
    sums = p.sums_apart() ? reinterpret_cast<float*>(args.scratch + p.logits_bytes())
                          : static_cast<float*>(dw);
    std::byte* const behind = args.scratch + p.logits_bytes() + p.dw_sums_bytes();
    turned = reinterpret_cast<uint16_t*>(behind);
    dx_sums = reinterpret_cast<float*>(behind + p.turned_bytes());
  }
};

class LossHead final : public Kernel {
 public:
  explicit LossHead(const HeadLoss& p)
      : p_(p), rows_(cross_entropy_rows(false)), probabilities_(probabilities_as(p.dtype)) {}

  void run(const KernelArgs& args) override {
    const Tensors t(p_, args);
    t.targets.check(p_.op.c_str(), p_.rows, p_.classes, p_.ignore);
    int64_t begin = 0;
    do {  // no rows: one chunk of none, which makes dw zeros
      const int64_t count = std::min(p_.chunk, p_.rows - begin);
      multiply_logits(t, begin, count);
      parallel_for(count, row_grain(p_.classes, kExpGrain), [&](int64_t first, int64_t end) {
        for (int64_t i = first; i < end; ++i) {
          finish_row(t, begin + i, t.logits + i * p_.ld);
          if (p_.head != Head::forward) end_in_zeros(t.logits + i * p_.ld);
        }
      });
      if (p_.head != Head::forward) {
        if (p_.turns_panels)
          multiply_turned(t, begin, count);
        else
          multiply_dx(t, begin, count);
        if (p_.has_dw) add_dw(t, begin, count);
      }
      begin += count;
    } while (begin < p_.rows);
    if (p_.sums_apart()) round_sums(t.sums, p_.classes * p_.width, p_.dw, t.dw);
  }

  int64_t scratch_bytes() const override { return p_.scratch_bytes(); }

 private:
  GemmArgs product(int64_t m, int64_t n, int64_t k) const {
    GemmArgs g;
    g.m = m;
    g.n = n;
    g.k = k;
    g.dtype = p_.dtype;
    return g;
  }
  const void* rows_of_x(const Tensors& t, int64_t begin) const {
    return offset(t.x, p_.dtype, begin * p_.width);
  }
  /// w, as it lies or in panels, as the right operand.
  void set_weights(GemmArgs& g, const void* w, bool transpose) const {
    g.b = w;
    g.panels = p_.panels;
    g.trans_b = transpose && !p_.panels;
    g.ldb = g.trans_b ? g.k : g.n;
  }

  // logits = x op(w)
  void multiply_logits(const Tensors& t, int64_t begin, int64_t count) const {
    GemmArgs g = product(count, p_.classes, p_.width);
    g.a = rows_of_x(t, begin);
    g.lda = p_.width;
    set_weights(g, t.w, p_.transpose_w);
    g.c = t.logits;
    g.ldc = p_.ld;
    gemm(g);
  }

  // dx = dlogits op(w)ᵀ
  void multiply_dx(const Tensors& t, int64_t begin, int64_t count) const {
    // Behind the classes there are zeros, in dlogits and in panels.
    GemmArgs g =
        product(count, p_.width, p_.panels ? round_up(p_.classes, kPanelTerms) : p_.classes);
    g.a = t.logits;
    g.lda = p_.dlogits_ld();
    g.a_ends_in_zeros = p_.dtype != DType::f32;
    set_weights(g, t.w_of_dx, !p_.transpose_w);
    g.c_dtype = p_.dx;
    g.c = offset(t.dx, p_.dx, begin * p_.width);
    g.ldc = p_.width;
    gemm(g);
  }

  // The same from the panels of x w: dx is the f32 sum over parts of the classes.
  void multiply_turned(const Tensors& t, int64_t begin, int64_t count) const {
    void* const dx = offset(t.dx, p_.dx, begin * p_.width);
    float* const sums = p_.dx == DType::f32 ? static_cast<float*>(dx) : t.dx_sums;
    const int64_t classes = round_up(p_.classes, kPanelColumns);
    for (int64_t first = 0; first < classes; first += p_.turned_classes()) {
      const int64_t terms = std::min(p_.turned_classes(), classes - first);
      turn_panels(static_cast<const uint16_t*>(t.w_of_dx), p_.width, first, terms, t.turned);
      GemmArgs g = product(count, p_.width, terms);
      g.a = offset(t.logits, p_.dtype, first);
      g.lda = p_.dlogits_ld();
      g.a_ends_in_zeros = true;
      g.b = t.turned;
      g.panels = true;
      g.ldb = g.n;
      g.c = sums;
      g.ldc = p_.width;
      g.beta = first == 0 ? 0.0f : 1.0f;
      gemm(g);
    }
    if (p_.dx != DType::f32) round_sums(sums, count * p_.width, p_.dx, dx);
  }

  // dw = dlogitsᵀ x, or its transpose; plus that of the chunks before
  void add_dw(const Tensors& t, int64_t begin, int64_t count) const {
    const void *x = rows_of_x(t, begin), *dlogits = t.logits;
    GemmArgs g = p_.transpose_w ? product(p_.classes, p_.width, count)
                                : product(p_.width, p_.classes, count);
    g.a = p_.transpose_w ? dlogits : x;
    g.lda = p_.transpose_w ? p_.dlogits_ld() : p_.width;
    g.trans_a = true;
    g.b = p_.transpose_w ? x : dlogits;
    g.ldb = p_.transpose_w ? p_.width : p_.dlogits_ld();
    g.c = t.sums;
    g.ldc = g.n;
    g.beta = begin == 0 ? 0.0f : 1.0f;
    gemm(g);
  }

  // The loss of a row of logits, and over it its gradient in the dtype of the operands.
  void finish_row(const Tensors& t, int64_t row, float* logits) const {
    const int64_t target = t.targets[row];
    const bool counts = target != p_.ignore;
    const float logit = counts ? logits[target] : 0.0f;
    float lse;
    std::optional<ExpSum> known;
    if (t.lse_in != nullptr) {
      lse = t.lse_in[row];
    } else {
      const ExpSum sum = rows_.exp_sum(logits, p_.classes);
      known = sum;
      lse = sum.lse();
      t.losses[row] = counts ? sum.loss(logit) : 0.0f;
      t.lse[row] = lse;
    }
    if (p_.head == Head::forward) return;
    const float dloss = counts ? t.dlosses[row] : 0.0f;
    const float dlse = t.dlse != nullptr ? t.dlse[row] : 0.0f;
    if (!counts && t.dlse == nullptr) {
      std::memset(logits, 0, static_cast<size_t>(p_.classes) * bytes_of(p_.dtype));
      return;
    }
    const bool is_large = std::fabs(lse) >= kLargeLse;
    if (is_large && !known) known = rows_.exp_sum(logits, p_.classes);
    const Probabilities of = is_large ? Probabilities::of(*known) : Probabilities::of(lse);
    probabilities_(logits, of.shift, (dloss + dlse) * of.factor, logits, p_.classes);
    if (!counts) return;
    // p - 1 by expm1 keeps its digits where p is near 1.
    const double x = of.log_of(logit);
    const double d =
        static_cast<double>(dloss) * std::expm1(x) + static_cast<double>(dlse) * std::exp(x);
    store_from_double(p_.dtype, logits, target, static_cast<double>(static_cast<float>(d)));
  }

  /// What follows 16-bit gradients of logits, up to whole tiles of terms: their row has twice the
  /// room.
  void end_in_zeros(float* logits) const {
    if (p_.dtype == DType::f32) return;
    auto* gradients = reinterpret_cast<uint16_t*>(logits);
    std::fill(gradients + p_.classes, gradients + round_up(p_.classes, 32), uint16_t{0});
  }

  static void round_sums(const float* sums, int64_t n, DType dtype, void* to) {
    parallel_for(n, kExpGrain, [&](int64_t begin, int64_t end) {
      gemm_packing().store(sums + begin, end - begin, 1, end - begin, dtype,
                           offset(to, dtype, begin), end - begin, false);
    });
  }

  const HeadLoss p_;
  const CrossEntropyRows& rows_;
  const ProbabilitiesFunction probabilities_;
};

// The products read panels as they are, each in its own order, or both in that of x w.
std::string head_panels_refusal(const NodeView& node) {
  const bool transposed = node.attrs().get<bool>("transpose_w");
  const auto lies_in = [](const Type& t, Layout layout) { return t.storage == Storage{layout}; };
  if (node.in[0].dtype != DType::bf16) return "weights in panels: only bf16";
  if (node.in[0].shape.size(-1) % kPanelTerms != 0) return "terms that are not whole panels";
  if (!lies_in(node.in[1], right_layout(transposed)) ||
      (node.node().op->is_gradient && !lies_in(node.in.back(), right_layout(!transposed)) &&
       !lies_in(node.in.back(), right_layout(transposed))))
    return "weights in a storage that its products do not read";
  return "";
}

std::string head_refusal(const NodeView& node) {
  for (const std::span<const Type> types : {std::span<const Type>(node.in), node.out()})
    for (const Type& t : types)
      if (is_float(t.dtype) && !is_compute_float(t.dtype))
        return fmt::format("dtype {}: only f32, bf16 and f16", name_of(t.dtype));
  if (!node.lies_in_rows())
    if (std::string why = head_panels_refusal(node); !why.empty()) return why;
  if (node.attrs().get_or<bool>("round_logits", false) && node.in[0].dtype != DType::f32)
    return "logits rounded to 16 bits";
  return node.in[1].shape.elements() == 0 ? "no classes, or rows without elements" : "";
}

}  // namespace

int64_t loss_head_chunk(int64_t rows, int64_t classes, bool packs_tiles) {
  const int64_t row_bytes = std::max<int64_t>(1, classes) * int64_t{sizeof(float)};
  const int64_t bytes = packs_tiles ? kPackedChunkBytes : kChunkBytes;
  int64_t most = std::max<int64_t>(128, bytes / row_bytes);
  if (rows > 256) most = std::min(most, ceil_div(rows, 2));
  const int64_t chunks = std::max<int64_t>(1, ceil_div(rows, most));
  return round_up(std::max<int64_t>(1, ceil_div(rows, chunks)), 16);
}

std::unique_ptr<Kernel> loss_head(const NodeView& node, int64_t chunk) {
  return std::make_unique<LossHead>(HeadLoss(node, chunk));
}

std::vector<KernelEntry> loss_head_kernels() {
  std::vector<KernelEntry> list;
  for (const Op op :
       {Op::linear_cross_entropy, Op::linear_cross_entropy_grad, Op::linear_cross_entropy_step})
    list.push_back({op, "chunked", head_refusal,
                    [](const NodeView& node) {
                      const HeadLoss p(node, 1);
                      const bool tiles = gemm_packs_tiles(p.dtype);
                      return loss_head(node, loss_head_chunk(p.rows, p.classes, tiles));
                    },
                    kKnowsStorage});
  return list;
}

}  // namespace brrr::cpu
