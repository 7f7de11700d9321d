// cross_entropy and cross_entropy_grad: rows split among threads, each row streamed once.

#include <cmath>
#include <cstring>

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/rows/cross_entropy_rows.h"
#include "backend/cpu/simd/row_support.h"
#include "backend/cpu/simd/simd_types.h"
#include "base/threads/parallel.h"
#include "ops/op.h"

namespace brrr::cpu {
namespace {

/// A loss, an lse or a logit of either float type.
struct Floats {
  std::byte* data;
  bool bf16;
  Floats(const void* p, bool is_bf16)
      : data(static_cast<std::byte*>(const_cast<void*>(p))), bf16(is_bf16) {}
  float get(int64_t i) const {
    return bf16 ? float_from_bf16(reinterpret_cast<const Bf16*>(data)[i].bits)
                : reinterpret_cast<const float*>(data)[i];
  }
  void set(int64_t i, float x) const {
    if (bf16) {
      reinterpret_cast<Bf16*>(data)[i].bits = bf16_from_float(x);
    } else {
      reinterpret_cast<float*>(data)[i] = x;
    }
  }
  std::byte* at(int64_t i) const { return data + i * (bf16 ? 2 : 4); }
};

struct Loss {
  const char* op;
  Rows rows;
  bool bf16, wide;
  int64_t ignore;
  const CrossEntropyRows& run;

  explicit Loss(const NodeView& node)
      : op(node.node().op->name.c_str()),
        rows(rows_of(node.in[0].shape)),
        bf16(node.in[0].dtype == DType::bf16),
        wide(node.in[1].dtype == DType::i64),
        ignore(node.attrs().get<int64_t>("ignore_index")),
        run(cross_entropy_rows(bf16)) {}

  void check(const Targets& targets) const { targets.check(op, rows.count, rows.width, ignore); }
  template <typename Body>
  void each_row(Body&& body) const {
    parallel_for(rows.count, row_grain(rows.width, kExpGrain), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) body(r);
    });
  }
};

void forward(const Loss& p, const KernelArgs& args) {
  const Targets targets{args.in[1], p.wide};
  p.check(targets);
  const Floats logits(args.in[0], p.bf16), losses(args.out[0], p.bf16), lses(args.out[1], p.bf16);
  p.each_row([&](int64_t r) {
    const ExpSum s = p.run.exp_sum(logits.at(r * p.rows.width), p.rows.width);
    const int64_t t = targets[r];
    losses.set(r, t == p.ignore ? 0.0f : s.loss(logits.get(r * p.rows.width + t)));
    lses.set(r, s.lse());
  });
}

void backward(const Loss& p, const KernelArgs& args) {
  const Targets targets{args.in[1], p.wide};
  p.check(targets);
  const Floats logits(args.in[0], p.bf16), lses(args.in[2], p.bf16), dlosses(args.in[3], p.bf16),
      dlogits(args.out[0], p.bf16);
  const int64_t n = p.rows.width;
  p.each_row([&](int64_t r) {
    const int64_t t = targets[r];
    if (t == p.ignore) {
      std::memset(dlogits.at(r * n), 0, static_cast<size_t>(n) * (p.bf16 ? 2 : 4));
      return;
    }
    const float lse = lses.get(r), scale = dlosses.get(r);
    // Read before the row is overwritten in place; p - 1 by expm1 keeps its digits where p is
    // near 1.
    const float target_logit = logits.get(r * n + t);
    const Probabilities of = !p.bf16 && std::fabs(lse) >= kLargeLse
                                 ? Probabilities::of(p.run.exp_sum(logits.at(r * n), n))
                                 : Probabilities::of(lse);
    p.run.probabilities(logits.at(r * n), of.shift, scale * of.factor, dlogits.at(r * n), n);
    dlogits.set(r * n + t, static_cast<float>(static_cast<double>(scale) *
                                              std::expm1(of.log_of(target_logit))));
  });
}

std::string loss_refusal(const NodeView& node) {
  for (size_t k : {size_t{2}, size_t{3}})
    if (k < node.in.size() && node.in[k].dtype != node.in[0].dtype)
      return fmt::format("logits of {}, rows of {}", name_of(node.in[0].dtype),
                         name_of(node.in[k].dtype));
  return only_f32_or_bf16(node);
}

}  // namespace

std::vector<KernelEntry> cross_entropy_kernels() {
  return {{Op::cross_entropy, "rows", loss_refusal,
           [](const NodeView& node) {
             return make_kernel([p = Loss(node)](const KernelArgs& args) { forward(p, args); });
           }},
          {Op::cross_entropy_grad, "rows", loss_refusal, [](const NodeView& node) {
             return make_kernel([p = Loss(node)](const KernelArgs& args) { backward(p, args); });
           }}};
}

}  // namespace brrr::cpu
