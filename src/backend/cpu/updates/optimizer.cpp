// The element-wise optimizers and global_norm: one pass over all tensors.

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/updates/update_kernel.h"
#include "ops/op.h"

namespace brrr::cpu {
namespace {

// What the optimizers differ in: the numbers of a step and the row function.
struct Adamw : AdamwRule {
  static constexpr size_t kStates = 2;
  using AdamwRule::AdamwRule;
  static auto row() { return optimizer_rows().adamw; }
};

struct Sgd {
  static constexpr size_t kStates = 1;
  double momentum;
  explicit Sgd(const Attrs& a) : momentum(a.get<double>("momentum")) {}
  SgdStep step(const StepScalars& s, double decay) const {
    return {static_cast<float>(momentum), s.scale, static_cast<float>(decay),
            static_cast<float>(s.lr)};
  }
  static auto row() { return optimizer_rows().sgd; }
};

struct Lion {
  static constexpr size_t kStates = 1;
  double beta1, beta2;
  explicit Lion(const Attrs& a) : beta1(a.get<double>("beta1")), beta2(a.get<double>("beta2")) {}
  LionStep step(const StepScalars& s, double decay) const {
    return {static_cast<float>(beta1),
            static_cast<float>(1 - beta1),
            static_cast<float>(beta2),
            static_cast<float>(1 - beta2),
            s.scale,
            static_cast<float>(1 - s.lr * decay),
            static_cast<float>(s.lr)};
  }
  static auto row() { return optimizer_rows().lion; }
};

struct Muon {
  static constexpr size_t kStates = 0;
  double rate;
  explicit Muon(const Attrs& a) : rate(a.get<double>("rate")) {}
  MuonStep step(const StepScalars& s, double decay) const {
    return {static_cast<float>(1 - s.lr * rate * decay), static_cast<float>(s.lr * rate) * s.scale};
  }
  static auto row() { return optimizer_rows().muon; }
};

template <typename Rule>
class ElementwiseUpdate final : public Kernel {
 public:
  explicit ElementwiseUpdate(const NodeView& node)
      : frame_(node, Rule::kStates, true), rule_(node.attrs()), row_(Rule::row()) {
    for (size_t i = 0; i < frame_.tensors(); ++i)
      muon_scale_.push_back(static_cast<float>(
          ops::muon_scale(ops::whole_shape(node.attrs(), i, node.in[frame_.at().param(i)].shape))));
  }

  void run(const KernelArgs& args) override {
    const StepScalars s = UpdateFrame::scalars(args);
    if (std::isnan(s.scale)) return frame_.keep_everything(args);
    const auto plain = rule_.step(s, 0), decaying = rule_.step(s, frame_.weight_decay());
    frame_.each_block(args, [&](size_t tensor, int64_t begin, UpdateRun& run) {
      for (size_t k = 0; k < Rule::kStates; ++k) {
        const auto& at = frame_.at();
        run.state[k] = static_cast<const float*>(args.in[at.state(k, tensor)]) + begin;
        run.new_state[k] = static_cast<float*>(args.out[at.new_state(k, tensor)]) + begin;
      }
      auto step = frame_.decays(tensor) ? decaying : plain;
      if constexpr (std::is_same_v<Rule, Muon>) step.step_size *= muon_scale_[tensor];
      row_(step, run);
    });
    frame_.put_panels(args);
  }

 private:
  UpdateFrame frame_;
  Rule rule_;
  decltype(Rule::row()) row_;
  std::vector<float> muon_scale_;  // of each tensor
};

template <typename Rule>
KernelEntry update_kernel(Op op) {
  return {op, "fused", [](const NodeView& node) { return refuse_update(node, Rule::kStates); },
          [](const NodeView& node) -> std::unique_ptr<Kernel> {
            return std::make_unique<ElementwiseUpdate<Rule>>(node);
          },
          kKnowsStorage};
}

class MuonMomentum final : public Kernel {
 public:
  explicit MuonMomentum(const NodeView& node)
      : tensors_(node.in.size() / 2),
        chunks_(chunks_of(node, 1, tensors_)),
        momentum_(node.attrs().get<double>("momentum")) {}

  void run(const KernelArgs& args) override {
    const float scale = *static_cast<const float*>(args.in[0]);
    const SgdStep step{static_cast<float>(momentum_), scale, static_cast<float>(1 - momentum_), 0};
    each_chunk(chunks_, [&](size_t c) {
      const Chunk& chunk = chunks_[c];
      auto in = [&](size_t part) {
        return static_cast<const float*>(args.in[1 + part * tensors_ + chunk.tensor]) + chunk.begin;
      };
      auto out = [&](size_t part) {
        return static_cast<float*>(args.out[part * tensors_ + chunk.tensor]) + chunk.begin;
      };
      if (std::isnan(scale)) {
        std::fill_n(out(0), chunk.count, 0.0f);
        if (in(1) != out(1)) std::copy_n(in(1), chunk.count, out(1));
        return;
      }
      UpdateRun run;
      run.grad = in(0);
      run.state[0] = in(1);
      run.new_param = out(0);
      run.new_state[0] = out(1);
      run.n = chunk.count;
      optimizer_rows().muon_momentum(step, run);
    });
  }

 private:
  size_t tensors_;
  std::vector<Chunk> chunks_;
  double momentum_;
};

class GlobalNormKernel final : public Kernel {
 public:
  explicit GlobalNormKernel(const NodeView& node) : chunks_(chunks_of(node, 0, node.in.size())) {
    for (const Type& t : node.in) bf16_.push_back(t.dtype == DType::bf16);
  }
  int64_t scratch_bytes() const override {
    return static_cast<int64_t>(chunks_.size() * sizeof(double));
  }
  void run(const KernelArgs& args) override {
    auto* partial = reinterpret_cast<double*>(args.scratch);
    each_chunk(chunks_, [&](size_t c) {
      const Chunk& chunk = chunks_[c];
      const auto* x = static_cast<const std::byte*>(args.in[chunk.tensor]);
      partial[c] = bf16_[chunk.tensor] ? run_.sum_of_squares_bf16(x + chunk.begin * 2, chunk.count)
                                       : run_.sum_of_squares(x + chunk.begin * 4, chunk.count);
    });
    double total = 0;
    for (size_t c = 0; c < chunks_.size(); ++c) total += partial[c];
    *static_cast<float*>(args.out[0]) = static_cast<float>(std::sqrt(total));
  }

 private:
  std::vector<Chunk> chunks_;
  std::vector<bool> bf16_;
  const OptimizerRows& run_ = optimizer_rows();
};

}  // namespace

std::vector<KernelEntry> optimizer_kernels() {
  return {update_kernel<Adamw>(Op::adamw),
          update_kernel<Sgd>(Op::sgd),
          update_kernel<Lion>(Op::lion),
          update_kernel<Muon>(Op::muon),
          {Op::muon_momentum, "fused",
           [](const NodeView& node) -> std::string {
             for (const Type& t : node.in)
               if (t.dtype != DType::f32)
                 return fmt::format("dtype {}: only f32", name_of(t.dtype));
             return "";
           },
           [](const NodeView& node) -> std::unique_ptr<Kernel> {
             return std::make_unique<MuonMomentum>(node);
           }},
          {Op::global_norm, "chunks",
           [](const NodeView& node) -> std::string {
             for (const Type& t : node.in)
               if (t.dtype != DType::f32 && t.dtype != DType::bf16)
                 return fmt::format("dtype {}: only f32 and bf16", name_of(t.dtype));
             return "";
           },
           [](const NodeView& node) -> std::unique_ptr<Kernel> {
             return std::make_unique<GlobalNormKernel>(node);
           }}};
}

}  // namespace brrr::cpu
