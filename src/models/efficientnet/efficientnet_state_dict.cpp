// State dicts of EfficientNets: the names of tensors by three conventions, and the net that names
// and shapes describe.

#include <filesystem>

#include "models/efficientnet/efficientnet_config.h"

namespace brrr::models {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

/// The names of a block's layers without ".weight"; norms and convolutions alternate.
struct BlockNames {
  std::string expand, expand_norm, depthwise, depthwise_norm, reduce, excite, project, project_norm;
};

/// `stage`, `in_stage`, `block`: indices of the stage, of the block in it and among all blocks.
BlockNames block_names(EfficientNetNames convention, bool expands, bool squeezes, size_t stage,
                       int64_t in_stage, int64_t block) {
  if (convention == EfficientNetNames::timm) {
    const std::string at = fmt::format("blocks.{}.{}.", stage, in_stage);
    if (!expands)
      return {"",
              "",
              at + "conv_dw",
              at + "bn1",
              at + "se.conv_reduce",
              at + "se.conv_expand",
              at + "conv_pw",
              at + "bn2"};
    return {
        at + "conv_pw",        at + "bn1",      at + "conv_dw", at + "bn2", at + "se.conv_reduce",
        at + "se.conv_expand", at + "conv_pwl", at + "bn3"};
  }
  if (convention == EfficientNetNames::efficientnet_pytorch) {
    const std::string at = fmt::format("_blocks.{}._", block);
    return {at + "expand_conv", at + "bn0",       at + "depthwise_conv", at + "bn1",
            at + "se_reduce",   at + "se_expand", at + "project_conv",   at + "bn2"};
  }
  auto at = [&, next = 0]() mutable {
    return fmt::format("features.{}.{}.block.{}", stage + 1, in_stage, next++);
  };
  const std::string expand = expands ? at() : "", depthwise = at(), squeeze = squeezes ? at() : "",
                    project = at();
  return {expand + ".0",    expand + ".1",    depthwise + ".0", depthwise + ".1",
          squeeze + ".fc1", squeeze + ".fc2", project + ".0",   project + ".1"};
}

struct EndNames {
  std::string stem, stem_norm, top, top_norm, classifier;
};

EndNames end_names(EfficientNetNames convention, size_t stages) {
  switch (convention) {
    case EfficientNetNames::timm:
      return {"conv_stem", "bn1", "conv_head", "bn2", "classifier"};
    case EfficientNetNames::efficientnet_pytorch:
      return {"_conv_stem", "_bn0", "_conv_head", "_bn1", "_fc"};
    case EfficientNetNames::torchvision:
      break;
  }
  const std::string top = fmt::format("features.{}", stages + 1);
  return {"features.0.0", "features.0.1", top + ".0", top + ".1", "classifier.1"};
}

/// A block of a state dict, by shapes.
struct FoundBlock {
  int64_t in, out, kernel, expansion, squeezed;
};

class FoundNet {
 public:
  FoundNet(const StateDictTensors& tensors, EfficientNetNames convention)
      : tensors_(tensors), convention_(convention) {
    if (convention == EfficientNetNames::efficientnet_pytorch) {
      while (add_block(0, 0, std::ssize(blocks_))) {
      }
      return;
    }
    for (size_t stage = 0; add_block(stage, 0, std::ssize(blocks_)); ++stage)
      for (int64_t i = 1; add_block(stage, i, std::ssize(blocks_)); ++i) {
      }
  }

  EfficientNetConfig config() const {
    const EfficientNetConfig described = by_shapes();
    for (const EfficientNetVariant& variant : efficientnet_variants()) {
      EfficientNetConfig c = described;
      c.depth_divisor = EfficientNetConfig{}.depth_divisor;
      c.stem_channels = EfficientNetConfig{}.stem_channels;
      c.head_channels = EfficientNetConfig{}.head_channels;
      c.out_channels = EfficientNetConfig{}.out_channels;
      c.num_block_repeats = EfficientNetConfig{}.num_block_repeats;
      set_variant(c, variant);
      c.pixel_range = described.pixel_range;
      c.image_size = variant.image_size;
      if ((c.squeeze_expansion_ratio > 0) == (described.squeeze_expansion_ratio > 0) &&
          c.stem_width() == described.stem_width() && c.head_width() == described.head_width() &&
          c.stages() == described.stages())
        return c;
    }
    return described;
  }

 private:
  bool add_block(size_t stage, int64_t in_stage, int64_t block) {
    for (const bool expands : {true, false})
      for (const bool squeezes : {true, false}) {
        const BlockNames names =
            block_names(convention_, expands, squeezes, stage, in_stage, block);
        const auto has = [&](const std::string& name) { return tensors_.has(name + ".weight"); };
        if (!has(names.depthwise) || !has(names.project) || (expands && !has(names.expand)) ||
            (squeezes && !has(names.reduce)))
          continue;
        const auto shape = [&](const std::string& name) -> const Shape& {
          return tensors_.shape(name + ".weight", 4);
        };
        const int64_t inner = shape(names.depthwise).size(0);
        const int64_t in = expands ? shape(names.expand).size(1) : inner;
        blocks_.push_back({in, shape(names.project).size(0), shape(names.depthwise).size(2),
                           std::max<int64_t>(1, inner / std::max<int64_t>(1, in)),
                           squeezes ? shape(names.reduce).size(0) : 0});
        return true;
      }
    return false;
  }

  /// Stages are where channels change: blocks of a stage have the same.
  EfficientNetConfig by_shapes() const {
    EfficientNetConfig c;
    c.out_channels.clear();
    c.num_block_repeats.clear();
    c.kernel_sizes.clear();
    c.expand_ratios.clear();
    for (const FoundBlock& block : blocks_) {
      if (!c.out_channels.empty() && c.out_channels.back() == block.out) {
        ++c.num_block_repeats.back();
        continue;
      }
      c.out_channels.push_back(block.out);
      c.num_block_repeats.push_back(1);
      c.kernel_sizes.push_back(block.kernel);
      c.expand_ratios.push_back(block.expansion);
    }
    if (c.out_channels.size() != c.strides.size())
      user_error(
          "{}: an EfficientNet of {} stages; a state dict does not say their strides, which are "
          "known for {} stages: expected a folder with config.json",
          tensors_.what(), c.out_channels.size(), c.strides.size());
    c.depth_divisor = 1;
    const EndNames ends = end_names(convention_, c.out_channels.size());
    const Shape& stem = tensors_.shape(ends.stem + ".weight", 4);
    c.stem_channels = stem.size(0);
    c.num_channels = stem.size(1);
    c.head_channels = tensors_.shape(ends.top + ".weight", 4).size(0);
    const FoundBlock& first = blocks_.front();
    const bool has_quarter = first.squeezed == std::max<int64_t>(1, first.in / 4);
    if (!has_quarter)
      c.squeeze_expansion_ratio =
          static_cast<double>(first.squeezed) / static_cast<double>(std::max<int64_t>(1, first.in));
    if (first.squeezed == 0) c.hidden_act = EfficientNetActivation::relu6;
    set_origin(c);
    c.task = tensors_.task(ends.classifier + ".weight");
    return c;
  }

  /// Padding, epsilon and pixels are no tensors: they follow from where such files come from.
  /// efficientnet_pytorch's nets, and those that timm names tf_..., are TensorFlow's; others were
  /// trained in PyTorch, where torchvision's B5 to B7 have TensorFlow's epsilon.
  void set_origin(EfficientNetConfig& c) const {
    constexpr double kTorchEpsilon = 1e-5;
    constexpr int64_t kHeadOfB5 = 2048;
    const std::string file = std::filesystem::path(tensors_.what()).filename().string();
    const bool is_tensorflow =
        convention_ == EfficientNetNames::efficientnet_pytorch ||
        (convention_ == EfficientNetNames::timm && file.find("tf_") != std::string::npos);
    if (is_tensorflow) {
      if (c.squeeze_expansion_ratio == 0) c.pixel_range = PixelRange::unit;
      return;
    }
    c.padding = Padding::symmetric;
    const bool is_large =
        convention_ == EfficientNetNames::torchvision && c.head_channels >= kHeadOfB5;
    if (!is_large) c.batch_norm_eps = kTorchEpsilon;
  }

  const StateDictTensors& tensors_;
  EfficientNetNames convention_;
  std::vector<FoundBlock> blocks_;
};

}  // namespace

Pairs state_dict_names(const EfficientNetConfig& c, EfficientNetNames convention) {
  Pairs names;  // theirs, Hugging Face's
  const auto conv = [&](const std::string& theirs, const std::string& ours) {
    names.emplace_back(theirs + ".weight", ours + ".weight");
  };
  const auto with_bias = [&](const std::string& theirs, const std::string& ours) {
    conv(theirs, ours);
    names.emplace_back(theirs + ".bias", ours + ".bias");
  };
  const auto norm = [&](const std::string& theirs, const std::string& ours) {
    for (const char* part :
         {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"})
      names.emplace_back(fmt::format("{}.{}", theirs, part), fmt::format("{}.{}", ours, part));
  };
  const std::vector<EfficientNetStage> stages = c.stages();
  const EndNames ends = end_names(convention, stages.size());
  const std::string prefix = "efficientnet.";
  conv(ends.stem, prefix + "embeddings.convolution");
  norm(ends.stem_norm, prefix + "embeddings.batchnorm");
  int64_t block = 0;
  const bool squeezes = c.squeeze_expansion_ratio > 0;
  for (size_t stage = 0; stage < stages.size(); ++stage)
    for (int64_t i = 0; i < stages[stage].blocks; ++i, ++block) {
      const bool expands = stages[stage].expansion != 1;
      const BlockNames theirs = block_names(convention, expands, squeezes, stage, i, block);
      const std::string ours = fmt::format("{}encoder.blocks.{}.", prefix, block);
      if (expands) {
        conv(theirs.expand, ours + "expansion.expand_conv");
        norm(theirs.expand_norm, ours + "expansion.expand_bn");
      }
      conv(theirs.depthwise, ours + "depthwise_conv.depthwise_conv");
      norm(theirs.depthwise_norm, ours + "depthwise_conv.depthwise_norm");
      if (squeezes) {
        with_bias(theirs.reduce, ours + "squeeze_excite.reduce");
        with_bias(theirs.excite, ours + "squeeze_excite.expand");
      }
      conv(theirs.project, ours + "projection.project_conv");
      norm(theirs.project_norm, ours + "projection.project_bn");
    }
  conv(ends.top, prefix + "encoder.top_conv");
  norm(ends.top_norm, prefix + "encoder.top_bn");
  with_bias(ends.classifier, "classifier");
  return names;
}

FileNames EfficientNetConfig::file_names() const {
  FileNames names;
  names.prefix = "efficientnet.";
  names.trunk = {"embeddings.", "encoder.", "conv_stem.",  "conv_head.",  "bn1.", "bn2.",
                 "blocks.",     "_blocks.", "_conv_stem.", "_conv_head.", "_bn",  "features."};
  // Files are written by the first convention; read again, they are taken for what they are
  // (set_origin).
  std::vector<EfficientNetNames> conventions = {EfficientNetNames::efficientnet_pytorch,
                                                EfficientNetNames::timm,
                                                EfficientNetNames::torchvision};
  if (padding == Padding::symmetric) std::swap(conventions[0], conventions[1]);
  for (const EfficientNetNames convention : conventions) {
    const Pairs more = state_dict_names(*this, convention);
    names.renamed.insert(names.renamed.end(), more.begin(), more.end());
  }
  return names;
}

std::optional<EfficientNetConfig> efficientnet_of_state_dict(const StateDictTensors& tensors) {
  for (const EfficientNetNames convention :
       {EfficientNetNames::timm, EfficientNetNames::efficientnet_pytorch,
        EfficientNetNames::torchvision}) {
    const BlockNames first = block_names(convention, false, false, 0, 0, 0);
    const EndNames ends = end_names(convention, 0);
    if (tensors.has(ends.stem + ".weight") && tensors.has(ends.stem_norm + ".running_mean") &&
        tensors.has(first.depthwise + ".weight"))
      return FoundNet(tensors, convention).config();
  }
  return std::nullopt;
}

}  // namespace brrr::models
