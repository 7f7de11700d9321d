// adamw and global_norm: one pass over all tensors, cut into fixed chunks.

#include <algorithm>
#include <cmath>

#include "backend/cpu/kernel_list.h"
#include "backend/cpu/optimizer_rows.h"
#include "base/parallel.h"

namespace brrr::cpu {
namespace {

constexpr int64_t kChunk = 65536;         // elements
constexpr int64_t kSingleThread = 32768;  // elements in all, below which the team is not woken

struct Chunk {
  size_t tensor;
  int64_t begin, count;
};

/// The tensors in[first, last) as chunks.
std::vector<Chunk> chunks_of(const NodeView& node, size_t first, size_t last) {
  std::vector<Chunk> chunks;
  for (size_t t = first; t < last; ++t) {
    const int64_t n = node.in[t].shape.elements();
    for (int64_t begin = 0; begin < n; begin += kChunk)
      chunks.push_back({t - first, begin, std::min(kChunk, n - begin)});
  }
  return chunks;
}

template <typename Body>
void each_chunk(const std::vector<Chunk>& chunks, Body&& body) {
  int64_t total = 0;
  for (const Chunk& c : chunks) total += c.count;
  if (total <= kSingleThread) {
    for (size_t c = 0; c < chunks.size(); ++c) body(c);
  } else {
    parallel_chunks(static_cast<int64_t>(chunks.size()),
                    [&](int64_t c) { body(static_cast<size_t>(c)); });
  }
}

class AdamwKernel final : public Kernel {
 public:
  explicit AdamwKernel(const NodeView& node)
      : tensors_((node.in.size() - 3) / 4),
        chunks_(chunks_of(node, 3, 3 + tensors_)),
        decays_(node.attrs().get<std::vector<int64_t>>("decays")),
        beta1_(node.attrs().get<double>("beta1")),
        beta2_(node.attrs().get<double>("beta2")),
        eps_(node.attrs().get<double>("eps")),
        weight_decay_(node.attrs().get<double>("weight_decay")),
        run_(optimizer_rows().adamw) {}

  void run(const KernelArgs& args) override {
    const double lr = static_cast<double>(*static_cast<const float*>(args.in[0]));
    const double t = *static_cast<const int32_t*>(args.in[1]);
    const float scale = *static_cast<const float*>(args.in[2]);
    if (std::isnan(scale)) return keep_everything(args);
    AdamwStep step{};
    step.beta1 = static_cast<float>(beta1_);
    step.one_minus_beta1 = static_cast<float>(1 - beta1_);
    step.beta2 = static_cast<float>(beta2_);
    step.one_minus_beta2 = static_cast<float>(1 - beta2_);
    step.scale = scale;
    step.keep = 1.0f;
    step.step_size = static_cast<float>(lr / (1 - std::pow(beta1_, t)));
    step.correction = static_cast<float>(1 / std::sqrt(1 - std::pow(beta2_, t)));
    step.eps = static_cast<float>(eps_);
    AdamwStep decaying = step;
    decaying.keep = static_cast<float>(1 - lr * weight_decay_);
    each_chunk(chunks_, [&](size_t c) {
      const Chunk& chunk = chunks_[c];
      auto in = [&](size_t part) {
        return static_cast<const float*>(args.in[3 + part * tensors_ + chunk.tensor]) + chunk.begin;
      };
      auto out = [&](size_t part) {
        return static_cast<float*>(args.out[part * tensors_ + chunk.tensor]) + chunk.begin;
      };
      run_(decays_[chunk.tensor] ? decaying : step, in(0), in(1), in(2), in(3), out(0), out(1),
           out(2), chunk.count);
    });
  }

 private:
  // The gradients were not finite: the results are the operands, where they are not in place.
  void keep_everything(const KernelArgs& args) const {
    each_chunk(chunks_, [&](size_t c) {
      const Chunk& chunk = chunks_[c];
      for (auto [from, to] : {std::pair{0u, 0u}, std::pair{2u, 1u}, std::pair{3u, 2u}}) {
        const auto* x = static_cast<const float*>(args.in[3 + from * tensors_ + chunk.tensor]);
        auto* y = static_cast<float*>(args.out[to * tensors_ + chunk.tensor]);
        if (x != y) std::copy_n(x + chunk.begin, chunk.count, y + chunk.begin);
      }
    });
  }

  size_t tensors_;
  std::vector<Chunk> chunks_;
  std::vector<int64_t> decays_;
  double beta1_, beta2_, eps_, weight_decay_;
  decltype(OptimizerRows::adamw) run_;
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
  return {{"adamw", "fused",
           [](const NodeView& node) -> std::string {
             for (size_t i = 3; i < node.in.size(); ++i)
               if (node.in[i].dtype != DType::f32)
                 return fmt::format("dtype {}: only f32", name_of(node.in[i].dtype));
             return "";
           },
           [](const NodeView& node) -> std::unique_ptr<Kernel> {
             return std::make_unique<AdamwKernel>(node);
           }},
          {"global_norm", "chunks",
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
