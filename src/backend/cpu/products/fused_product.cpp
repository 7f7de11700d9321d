#include "backend/cpu/products/fused_product.h"

#include <algorithm>
#include <type_traits>

#include "backend/cpu/fusion/tile_program.h"
#include "backend/cpu/products/gemm_node.h"
#include "backend/cpu/quantized/integer_matmul.h"
#include "backend/cpu/rows/reduction_rows.h"
#include "backend/cpu/simd/row_support.h"
#include "backend/cpu/spatial/channels_last_conv.h"
#include "backend/cpu/spatial/conv.h"
#include "backend/cpu/spatial/direct_conv.h"
#include "backend/cpu/spatial/packed_conv.h"
#include "backend/cpu/spatial/winograd_conv.h"
#include "base/integers.h"
#include "base/threads/parallel.h"
#include "ops/fused.h"
#include "ops/op.h"

namespace brrr::cpu {
namespace {

/// Which operand of the fused node each operand of the product is.
std::vector<size_t> product_operands(const Graph& body) {
  const std::vector<NodeId> inputs = body.inputs();
  std::vector<size_t> which;
  for (const ValueId& v : body.node(product_of(body)).operands)
    which.push_back(
        static_cast<size_t>(std::find(inputs.begin(), inputs.end(), v.node) - inputs.begin()));
  return which;
}

/// What is computed on the blocks of the product, and the sum beside it.
struct Parts {
  BodyPart after;
  std::optional<BiasGradient> gradient;

  explicit Parts(const Graph& body) : gradient(bias_gradient_of(body)) {
    if (gradient) {
      after = without(body, *gradient);
      return;
    }
    after.body = body;
    for (uint32_t i = 0; i < body.outputs().size(); ++i) after.results.push_back(i);
  }
};

/// Runs a program on every finished block of a product.
struct Blocks {
  const TileProgram& program;
  const KernelArgs& args;
  mutable std::vector<std::optional<TileFrame>> frames;  // one for each thread

  Blocks(const TileProgram& p, const KernelArgs& a)
      : program(p), args(a), frames(static_cast<size_t>(thread_count())) {}
  GemmEpilogue epilogue() const { return {&Blocks::finish, this}; }

  static void finish(const void* context, int64_t row, int64_t column, int64_t rows,
                     int64_t columns, float* block, int64_t ld) {
    const auto& self = *static_cast<const Blocks*>(context);
    auto& frame = self.frames[static_cast<size_t>(thread_team::slot())];
    if (!frame) frame.emplace(self.program, self.args);
    self.program.run_block(*frame, {row, column, rows, columns, block, ld});
  }
};

/// A product or a convolution of which the epilogue takes every block. `P` is constructed from its
/// node and has scratch_bytes() and run(in, out, scratch, epilogue).
template <typename P>
class FusedBlocks final : public Kernel {
 public:
  explicit FusedBlocks(const NodeView& node) : FusedBlocks(fused_body(node.node())) {}
  int64_t scratch_bytes() const override { return product_.scratch_bytes(); }
  void run(const KernelArgs& args) override {
    const void* in[3] = {};
    for (size_t i = 0; i < operands_.size(); ++i) in[i] = args.in[operands_[i]];
    const Blocks blocks(program_, args);
    product_.run(in, nullptr, args.scratch, blocks.epilogue());
  }

 private:
  explicit FusedBlocks(const Graph& body)
      : operands_(product_operands(body)),
        product_(NodeView(body, product_of(body))),
        program_(body) {}
  std::vector<size_t> operands_;
  P product_;
  TileProgram program_;
};

/// The epilogue of a convolution with channels last, if it is an addition of a residual, a relu, or
/// both.
struct SimpleFinish {
  std::optional<size_t> residual;  // which input of the body
  bool relu = false;
};
std::optional<SimpleFinish> simple_finish(const Graph& body) {
  const NodeId conv = product_of(body);
  const Type& type = body.node(conv).results[0];
  if (body.outputs().size() != 1) return std::nullopt;
  SimpleFinish finish;
  ValueId value = body.outputs()[0].value;
  if (is(body.node(value.node), Op::relu)) {
    finish.relu = true;
    value = body.node(value.node).operands[0];
  }
  if (is(body.node(value.node), Op::add)) {
    const auto& terms = body.node(value.node).operands;
    const ValueId other = terms[0].node == conv ? terms[1] : terms[0];
    value = terms[0].node == conv ? terms[0] : terms[1];
    if (!body.is_input(other.node) || body.type(other) != type) return std::nullopt;
    const std::vector<NodeId> inputs = body.inputs();
    finish.residual = static_cast<size_t>(std::ranges::find(inputs, other.node) - inputs.begin());
  }
  return value.node == conv ? std::optional(finish) : std::nullopt;
}

/// `C` is ChannelsLastConv, for results of f32, WinogradConv or PackedConv.
template <typename C>
class FinishedConv final : public Kernel {
 public:
  FinishedConv(const Graph& body, const SimpleFinish& finish)
      : operands_(product_operands(body)),
        conv_(NodeView(body, product_of(body))),
        finish_(finish) {}
  int64_t scratch_bytes() const override { return conv_.scratch_bytes(); }
  void run(const KernelArgs& args) override {
    const void* in[3] = {};
    for (size_t i = 0; i < operands_.size(); ++i) in[i] = args.in[operands_[i]];
    const void* residual = finish_.residual ? args.in[*finish_.residual] : nullptr;
    if constexpr (std::is_same_v<C, PackedConv>)
      conv_.run(in, args.out[0], args.scratch, residual, finish_.relu);
    else
      conv_.run(in, args.out[0], args.scratch,
                ConvFinish{static_cast<const float*>(residual), finish_.relu});
  }

 private:
  std::vector<size_t> operands_;
  C conv_;
  SimpleFinish finish_;
};

std::unique_ptr<Kernel> fused_channels_last_conv(const NodeView& node, const NodeView& conv) {
  const Graph& body = fused_body(node.node());
  const std::optional<SimpleFinish> finish = simple_finish(body);
  if (PackedConv::refusal(conv).empty()) {
    if (finish) return std::make_unique<FinishedConv<PackedConv>>(body, *finish);
    return std::make_unique<FusedBlocks<PackedConv>>(node);
  }
  if (WinogradConv::refusal(conv).empty()) {
    if (finish) return std::make_unique<FinishedConv<WinogradConv>>(body, *finish);
    return std::make_unique<FusedBlocks<WinogradConv>>(node);
  }
  if (finish && conv.out()[0].dtype == DType::f32)
    return std::make_unique<FinishedConv<ChannelsLastConv>>(body, *finish);
  return std::make_unique<FusedBlocks<ChannelsLastConv>>(node);
}

class FusedProduct final : public Kernel {
 public:
  explicit FusedProduct(const NodeView& node) : FusedProduct(fused_body(node.node())) {}

  int64_t scratch_bytes() const override { return gemm_.scratch_bytes() + sums_.bytes(); }

  void run(const KernelArgs& args) override {
    const void* in[3] = {};
    for (size_t i = 0; i < operands_.size(); ++i) in[i] = args.in[operands_[i]];
    std::vector<void*> out;  // of the rest
    for (uint32_t result : results_) out.push_back(args.out[result]);
    auto* partials = reinterpret_cast<float*>(args.scratch + gemm_.scratch_bytes());
    const GemmTermSums sums = sums_.of(partials);
    if (program_) {
      const KernelArgs rest{args.in, out, args.scratch};
      const Blocks blocks(*program_, rest);
      gemm_.run({in, operands_.size()}, nullptr, args.scratch, blocks.epilogue(), sums);
    } else {
      gemm_.run({in, operands_.size()}, out[0], args.scratch, {}, sums);
    }
    if (sums_.width > 0) sums_.combine(partials, static_cast<float*>(args.out[sums_.result]));
  }

 private:
  explicit FusedProduct(const Graph& body)
      : operands_(product_operands(body)),
        gemm_(NodeView(body, product_of(body)), *gemm_node_path(NodeView(body, product_of(body)))) {
    const Parts parts(body);
    if (!parts.after.is_product_alone()) program_.emplace(parts.after.body);
    results_ = parts.after.results;
    if (!parts.gradient) return;
    sums_.of_a = parts.gradient->of_left;
    sums_.result = parts.gradient->result;
    const Shape& x = body.type(body.node(product_of(body)).operands[sums_.of_a ? 0 : 1]).shape;
    sums_.rows = x.size(-2);
    sums_.width = x.size(-1);
  }

  /// A bias' gradient.
  struct Sums {
    bool of_a = false;
    size_t result = 0;
    int64_t rows = 0, width = 0;  // of the operand; 0: there is none

    RowChunks chunks() const { return RowChunks(rows, width); }
    int64_t stride() const { return round_up(width, 16); }
    int64_t bytes() const {
      return width == 0 ? 0 : chunks().count * stride() * static_cast<int64_t>(sizeof(float));
    }
    GemmTermSums of(float* partials) const {
      if (width == 0) return {};
      return {partials, stride(), chunks().size, of_a};
    }
    void combine(const float* partials, float* y) const {
      constexpr int64_t kColumns = 256;
      const int64_t count = chunks().count;
      parallel_for((width + kColumns - 1) / kColumns, row_grain(count * kColumns, kRowGrain),
                   [&](int64_t first, int64_t last) {
                     const int64_t begin = first * kColumns, end = std::min(width, last * kColumns);
                     reduction_rows(Fold::kSum, DType::f32)
                         .columns(partials + begin, count, stride(), y + begin, end - begin, false);
                   });
    }
  };

  std::optional<TileProgram> program_;
  std::vector<size_t> operands_;
  GemmNode gemm_;
  std::vector<uint32_t> results_;  // of the fused node, but for the sum
  Sums sums_;
};

bool multiplies_tiles(const NodeView& product) {
  const std::optional<GemmPath> path = gemm_node_path(product);
  return path && *path != GemmPath::kVector;
}

std::string gradient_refusal(const Graph& body, const BiasGradient& gradient,
                             const NodeView& product) {
  const Node& sum = body.node(gradient.sum);
  if (product.in[0].dtype != DType::bf16 || !multiplies_tiles(product))
    return "operands that are not packed into tiles are not summed on the way";
  if (body.type(sum.operands[0]).dtype != DType::f32) return "a sum in 16 bits";
  if (product.in[0].shape.elements() == 0 || product.in[1].shape.elements() == 0)
    return "a sum of nothing";
  if (product.in[0].shape.rank() != 2 || product.in[1].shape.rank() != 2) return "a batch";
  return "";
}

}  // namespace

std::string fused_product_refusal(const NodeView& node) {
  const Graph& body = fused_body(node.node());
  const NodeId product = product_of(body);
  if (product == kNoNode) return "no product";
  for (const ValueId& v : body.node(product).operands)
    if (!body.is_input(v.node)) return "a product of something that is computed";
  const NodeView view(body, product);
  if (is(view.node(), Op::conv)) {
    if (std::string why = blockwise_conv_refusal(view); !why.empty()) return why;
    return TileProgram(body).refusal();
  }
  if (integer_matmul_refusal(view).empty()) return TileProgram(body).refusal();
  if (!gemm_node_path(view))
    return fmt::format("its product: {}", gemm_node_refusal(view, GemmPath::kVector));
  const Parts parts(body);
  if (parts.gradient)
    if (std::string why = gradient_refusal(body, *parts.gradient, view); !why.empty()) return why;
  return parts.after.is_product_alone() ? "" : TileProgram(parts.after.body).refusal();
}

bool gains_by_epilogue(const NodeView& product, const NodeView&) {
  if (is(product.node(), Op::conv)) return blockwise_conv_refusal(product).empty();
  if (integer_matmul_refusal(product).empty()) return quantizes_left(product);
  if (!is(product.node(), Op::fused)) return multiplies_tiles(product);
  const Graph& body = fused_body(product.node());
  return multiplies_tiles(NodeView(body, product_of(body)));
}
bool gains_by_bias_gradient(const NodeView& product, const NodeView&) {
  return multiplies_tiles(product);
}

std::unique_ptr<Kernel> fused_product(const NodeView& node) {
  const Graph& body = fused_body(node.node());
  const NodeView product(body, product_of(body));
  if (is(product.node(), Op::conv) && ops::has_channels_last(product.attrs()))
    return fused_channels_last_conv(node, product);
  if (is(product.node(), Op::conv)) return std::make_unique<FusedBlocks<DirectConv>>(node);
  if (integer_matmul_refusal(product).empty())
    return std::make_unique<FusedBlocks<IntegerProduct>>(node);
  return std::make_unique<FusedProduct>(node);
}

}  // namespace brrr::cpu
