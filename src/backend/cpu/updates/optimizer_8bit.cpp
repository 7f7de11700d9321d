// adamw_8bit: blocks of 256 elements, decoded, updated and encoded in the cache.

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/updates/optimizer_8bit_rows.h"
#include "backend/cpu/updates/update_kernel.h"
#include "ops/op.h"
#include "ops/quantized/dynamic_code.h"

namespace brrr::cpu {
namespace {

constexpr size_t kStates = 4;
constexpr int64_t kBlock = ops::kCodeBlock;

class Adamw8bit final : public Kernel {
 public:
  explicit Adamw8bit(const NodeView& node) : frame_(node, kStates), rule_(node.attrs()) {}

  void run(const KernelArgs& args) override {
    const StepScalars s = UpdateFrame::scalars(args);
    if (std::isnan(s.scale)) return frame_.keep_everything(args);
    const AdamwStep plain = rule_.step(s, 0), decaying = rule_.step(s, frame_.weight_decay());
    frame_.each_block(args, [&](size_t tensor, int64_t begin, const UpdateRun& run) {
      const AdamwStep& step = frame_.decays(tensor) ? decaying : plain;
      for (int64_t i = 0; i < run.n; i += kRun) update(args, step, tensor, begin + i, run, i);
    });
    frame_.put_panels(args);
  }

 private:
  static constexpr int64_t kRun = 16 * kBlock;  // new parameters are in the cache for their copy

  // The elements from `begin` on of the tensor, `offset` of the run.
  void update(const KernelArgs& args, const AdamwStep& step, size_t tensor, int64_t begin,
              const UpdateRun& run, int64_t offset) const {
    const ops::UpdateLayout& at = frame_.at();
    auto in = [&](size_t k) { return args.in[at.state(k, tensor)]; };
    auto out = [&](size_t k) { return args.out[at.new_state(k, tensor)]; };
    const int64_t block = begin / kBlock, n = std::min(kRun, run.n - offset);
    CodeBlocks b{};
    b.param = run.param + offset;
    b.grad = run.grad + offset;
    b.m = static_cast<const uint8_t*>(in(0)) + begin;
    b.v = static_cast<const uint8_t*>(in(1)) + begin;
    b.m_scale = static_cast<const float*>(in(2)) + block;
    b.v_scale = static_cast<const float*>(in(3)) + block;
    b.new_param = run.new_param + offset;
    b.new_m = static_cast<uint8_t*>(out(0)) + begin;
    b.new_v = static_cast<uint8_t*>(out(1)) + begin;
    b.new_m_scale = static_cast<float*>(out(2)) + block;
    b.new_v_scale = static_cast<float*>(out(3)) + block;
    b.count = n / kBlock;
    optimizer_8bit_rows().adamw(step, b);
    if (n % kBlock > 0) update_part(step, after(b), n % kBlock);
    frame_.copy(args, tensor, begin, n);  // bf16 parameters are still in the staging, without copy
  }

  /// The one block behind these.
  static CodeBlocks after(const CodeBlocks& b) {
    const int64_t n = b.count * kBlock;
    return {b.param + n,
            b.grad + n,
            b.m + n,
            b.v + n,
            b.m_scale + b.count,
            b.v_scale + b.count,
            b.new_param + n,
            b.new_m + n,
            b.new_v + n,
            b.new_m_scale + b.count,
            b.new_v_scale + b.count,
            1};
  }

  // The last block of a tensor, filled up with elements that are zero and stay so.
  static void update_part(const AdamwStep& step, const CodeBlocks& b, int64_t n) {
    constexpr uint8_t kSignedZero = 127;
    float param[kBlock] = {}, grad[kBlock] = {};
    uint8_t m[kBlock], v[kBlock] = {};
    std::fill_n(m, kBlock, kSignedZero);
    std::copy_n(b.param, n, param);
    std::copy_n(b.grad, n, grad);
    std::copy_n(b.m, n, m);
    std::copy_n(b.v, n, v);
    const CodeBlocks whole{param,         grad,          m, v, b.m_scale, b.v_scale, param, m, v,
                           b.new_m_scale, b.new_v_scale, 1};
    optimizer_8bit_rows().adamw(step, whole);
    std::copy_n(param, n, b.new_param);
    std::copy_n(m, n, b.new_m);
    std::copy_n(v, n, b.new_v);
  }

  UpdateFrame frame_;
  AdamwRule rule_;
};

}  // namespace

std::vector<KernelEntry> optimizer_8bit_kernels() {
  return {{Op::adamw_8bit, "blocks",
           [](const NodeView& node) { return refuse_update(node, kStates); },
           [](const NodeView& node) -> std::unique_ptr<Kernel> {
             return std::make_unique<Adamw8bit>(node);
           },
           kKnowsStorage}};
}

}  // namespace brrr::cpu
