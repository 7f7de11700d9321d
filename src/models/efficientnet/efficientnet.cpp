// The graphs of EfficientNet (Tan and Le 2019): inverted bottlenecks with depthwise convolutions,
// each with squeeze-and-excitation (Hu et al. 2018) unless the net is a Lite one.

#include "models/efficientnet/efficientnet_config.h"
#include "models/layers.h"

namespace brrr::models {
namespace {

Value efficientnet_activated(Value x, EfficientNetActivation activation) {
  switch (activation) {
    case EfficientNetActivation::relu6:
      return minimum(relu(x), scalar(*x.graph, 6, x.dtype()));
    case EfficientNetActivation::relu:
      return relu(x);
    case EfficientNetActivation::silu:
      break;
  }
  return silu(x);
}

/// Convolution and batch norm, with the names that Hugging Face gives both.
class EfficientNetConv {
 public:
  struct Sizes {
    int64_t in, out, kernel = 1, stride = 1, groups = 1;
    bool has_activation = true;
  };
  EfficientNetConv(Parameters& p, const std::string& conv, const std::string& norm, const Sizes& s,
                   const EfficientNetConfig& c)
      : conv_(p, conv, s.in, s.out, s.kernel, s.stride, s.groups, c.padding),
        norm_(p, norm, s.out, {.eps = c.batch_norm_eps, .momentum = c.batch_norm_share}),
        activation_(c.hidden_act),
        has_activation_(s.has_activation) {}

  Value operator()(Value x) const {
    const Value y = norm_(conv_(x));
    return has_activation_ ? efficientnet_activated(y, activation_) : y;
  }

 private:
  Convolution conv_;
  BatchNorm norm_;
  EfficientNetActivation activation_;
  bool has_activation_;
};

/// Multiplies each channel by a number in (0, 1) that the means of all channels give.
class SqueezeExcitation {
 public:
  SqueezeExcitation(Parameters& p, const std::string& name, int64_t channels, int64_t inner,
                    const EfficientNetConfig& c)
      : channels_(channels), inner_(inner), activation_(c.hidden_act) {
    const auto weight = [&](const char* part, int64_t out, int64_t in) {
      return p.filled_weight(fmt::format("{}.{}.weight", name, part), {out, in, 1, 1},
                             fan_out_fill(out));
    };
    reduce_ = weight("reduce", inner, channels);
    reduce_bias_ = p.bias(name + ".reduce.bias", inner);
    expand_ = weight("expand", channels, inner);
    expand_bias_ = p.bias(name + ".expand.bias", channels);
  }

  /// x: [B, C, H, W]
  Value operator()(Value x) const {
    const Value means = global_average(x);  // [B, C]
    const Value inner = efficientnet_activated(
        matmul(means, reshape(reduce_, {inner_, channels_}), false, true) + reduce_bias_,
        activation_);
    const Value gate =
        sigmoid(matmul(inner, reshape(expand_, {channels_, inner_}), false, true) + expand_bias_);
    return x * reshape(gate, {x.shape()[0], Dim(channels_), Dim(1), Dim(1)});
  }

 private:
  int64_t channels_, inner_;
  EfficientNetActivation activation_;
  Value reduce_, reduce_bias_, expand_, expand_bias_;
};

class EfficientNetBlock {
 public:
  /// `is_first`: of its stage, with the stride and without a residual connection.
  EfficientNetBlock(Parameters& p, const std::string& name, const EfficientNetStage& s,
                    bool is_first, double drop, const EfficientNetConfig& c)
      : is_residual_(!is_first), drop_(drop) {
    const int64_t in = is_first ? s.in : s.out, inner = in * s.expansion;
    if (s.expansion != 1)
      expansion_.emplace(p, name + ".expansion.expand_conv", name + ".expansion.expand_bn",
                         EfficientNetConv::Sizes{in, inner}, c);
    depthwise_.emplace(
        p, name + ".depthwise_conv.depthwise_conv", name + ".depthwise_conv.depthwise_norm",
        EfficientNetConv::Sizes{inner, inner, s.kernel, is_first ? s.stride : 1, inner}, c);
    if (c.squeeze_expansion_ratio > 0) {
      const auto squeezed =
          static_cast<int64_t>(static_cast<double>(in) * c.squeeze_expansion_ratio);
      squeeze_.emplace(p, name + ".squeeze_excite", inner, std::max<int64_t>(1, squeezed), c);
    }
    projection_.emplace(p, name + ".projection.project_conv", name + ".projection.project_bn",
                        EfficientNetConv::Sizes{inner, s.out, 1, 1, 1, false}, c);
  }

  Value operator()(Value x, const std::optional<Value>& rng_key, int64_t stream) const {
    Value y = expansion_ ? (*expansion_)(x) : x;
    y = (*depthwise_)(y);
    if (squeeze_) y = (*squeeze_)(y);
    y = (*projection_)(y);
    return is_residual_ ? drop_pictures(y, rng_key, drop_, stream) + x : y;
  }

 private:
  bool is_residual_;
  double drop_;
  std::optional<EfficientNetConv> expansion_, depthwise_, projection_;
  std::optional<SqueezeExcitation> squeeze_;
};

class EfficientNet final : public VisionNet {
 public:
  EfficientNet(Parameters& p, const EfficientNetConfig& c, std::optional<Value> rng_key)
      : rng_key_(rng_key), dropout_(rng_key, c.dropout_rate) {
    const std::string prefix = c.file_names().prefix;
    p.set_place("embed");
    stem_.emplace(p, prefix + "embeddings.convolution", prefix + "embeddings.batchnorm",
                  EfficientNetConv::Sizes{c.num_channels, c.stem_width(), 3, 2}, c);
    const auto count = static_cast<double>(c.blocks());
    const std::vector<EfficientNetStage> stages = c.stages();
    for (const EfficientNetStage& stage : stages)
      for (int64_t i = 0; i < stage.blocks; ++i) {
        const size_t at = blocks_.size();
        p.set_place(fmt::format("h.{}", at));
        blocks_.emplace_back(p, fmt::format("{}encoder.blocks.{}", prefix, at), stage, i == 0,
                             c.drop_connect_rate * static_cast<double>(at) / count, c);
      }
    p.set_place("norm");
    top_.emplace(p, prefix + "encoder.top_conv", prefix + "encoder.top_bn",
                 EfficientNetConv::Sizes{stages.back().out, c.head_width()}, c);
    if (c.task.head != Head::classes) return;
    p.set_place("head");
    p.set_part(Part::head);
    head_.emplace(p, "classifier", c.head_width(), std::ssize(c.task.labels));
  }

  Value trunk(Value pixels) const override {
    Graph& g = *pixels.graph;
    Value x;
    {
      Scope scope(g, "embed");
      x = (*stem_)(pixels);
    }
    for (size_t i = 0; i < blocks_.size(); ++i) {
      Scope scope(g, fmt::format("h.{}", i));
      x = blocks_[i](x, rng_key_, static_cast<int64_t>(i) + 1);
    }
    Scope scope(g, "norm");
    return (*top_)(x);
  }

  Value class_logits(Value features) const override { return (*head_)(dropout_(features, 0)); }

 private:
  std::optional<Value> rng_key_;
  std::optional<EfficientNetConv> stem_, top_;
  std::vector<EfficientNetBlock> blocks_;
  Dropout dropout_;
  std::optional<Classifier> head_;
};

}  // namespace

std::unique_ptr<VisionNet> efficientnet(Parameters& p, const EfficientNetConfig& config,
                                        std::optional<Value> rng_key) {
  return std::make_unique<EfficientNet>(p, config, rng_key);
}

}  // namespace brrr::models
