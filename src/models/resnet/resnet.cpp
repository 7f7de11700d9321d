// The graphs of ResNet (He et al. 2015): convolutions with batch norm, and sums with shortcuts that
// are projected where channels or sizes change.

#include "models/layers.h"
#include "models/resnet/resnet_config.h"
#include "models/vision/picture_layers.h"

namespace brrr::models {
namespace {

// Inside of a block transformers has this one, whatever hidden_act says.
constexpr Activation kInner = Activation::relu;
constexpr int64_t kBottleneck = 4;  // channels of a block over those of its 3 x 3 convolution

/// Convolution and batch norm; `activation` behind them, if any.
class ResNetConv {
 public:
  struct Sizes {
    int64_t in, out, kernel = 3, stride = 1;
    std::optional<Activation> activation = std::nullopt;
    Fill::Kind norm_weight = Fill::Kind::ones;
  };
  ResNetConv(Parameters& p, const std::string& name, const Sizes& s, const ResNetConfig& c)
      : conv_(p, name + ".convolution", s.in, s.out, s.kernel, s.stride),
        norm_(p, name + ".normalization", s.out, {.momentum = c.batch_norm_momentum},
              s.norm_weight),
        activation_(s.activation) {}

  Value operator()(Value x) const {
    const Value y = norm_(conv_(x));
    return activation_ ? activated(y, *activation_) : y;
  }

 private:
  Convolution conv_;
  BatchNorm norm_;
  std::optional<Activation> activation_;
};

class ResNetBlock {
 public:
  ResNetBlock(Parameters& p, const std::string& name, int64_t in, int64_t out, int64_t stride,
              const ResNetConfig& c)
      : activation_(c.hidden_act) {
    if (in != out || stride != 1)
      shortcut_.emplace(p, name + ".shortcut", ResNetConv::Sizes{in, out, 1, stride}, c);
    const auto add = [&](ResNetConv::Sizes sizes) {
      layers_.emplace_back(p, fmt::format("{}.layer.{}", name, layers_.size()), sizes, c);
    };
    const Fill::Kind last = c.zero_init_residual ? Fill::Kind::zeros : Fill::Kind::ones;
    if (c.layer_type == ResNetLayer::basic) {
      add({in, out, 3, stride, kInner});
      add({out, out, 3, 1, std::nullopt, last});
    } else {
      const int64_t inner = out / kBottleneck;
      const bool first = c.downsample_in_bottleneck;
      add({in, inner, 1, first ? stride : 1, kInner});
      add({inner, inner, 3, first ? 1 : stride, kInner});
      add({inner, out, 1, 1, std::nullopt, last});
    }
  }

  Value operator()(Value x) const {
    Value y = x;
    for (const ResNetConv& layer : layers_) y = layer(y);
    return activated(y + (shortcut_ ? (*shortcut_)(x) : x), activation_);
  }

 private:
  std::optional<ResNetConv> shortcut_;
  std::vector<ResNetConv> layers_;
  Activation activation_;
};

class ResNetNet final : public VisionNet {
 public:
  ResNetNet(Parameters& p, const ResNetConfig& c, std::optional<Value> rng_key)
      : c_(c), dropout_(rng_key, c.classifier_dropout) {
    const std::string prefix = c.file_names().prefix;
    const bool is_small = c.stem == ResNetStem::cifar;
    p.set_place("embed");
    stem_.emplace(p, prefix + "embedder.embedder",
                  ResNetConv::Sizes{c.num_channels, c.embedding_size, is_small ? 3 : 7,
                                    is_small ? 1 : 2, c.hidden_act},
                  c);
    int64_t channels = c.embedding_size;
    for (size_t stage = 0; stage < c.depths.size(); ++stage)
      for (int64_t i = 0; i < c.depths[stage]; ++i) {
        p.set_place(fmt::format("h.{}", blocks_.size()));
        blocks_.emplace_back(p, fmt::format("{}encoder.stages.{}.layers.{}", prefix, stage, i),
                             channels, c.hidden_sizes[stage], i == 0 ? c.stride_of(stage) : 1, c);
        channels = c.hidden_sizes[stage];
      }
    if (c.task.head != Head::classes) return;
    p.set_place("head");
    p.set_part(Part::head);
    head_.emplace(p, "classifier.1", channels, std::ssize(c.task.labels));
  }

  Value trunk(Value pixels) const override {
    Graph& g = *pixels.graph;
    Value x;
    {
      Scope scope(g, "embed");
      x = (*stem_)(pixels);
      if (c_.stem == ResNetStem::imagenet)
        x = max_pool(x, {3, 3}, {{2, 2}, {1, 1}, {1, 1, 1, 1}}).values;
    }
    for (size_t i = 0; i < blocks_.size(); ++i) {
      Scope scope(g, fmt::format("h.{}", i));
      x = blocks_[i](x);
    }
    return x;
  }

  Value class_logits(Value features) const override { return (*head_)(dropout_(features, 0)); }

 private:
  const ResNetConfig& c_;
  std::optional<ResNetConv> stem_;
  std::vector<ResNetBlock> blocks_;
  Dropout dropout_;
  std::optional<Classifier> head_;
};

}  // namespace

std::unique_ptr<VisionNet> resnet(Parameters& p, const ResNetConfig& config,
                                  std::optional<Value> rng_key) {
  return std::make_unique<ResNetNet>(p, config, rng_key);
}

}  // namespace brrr::models
