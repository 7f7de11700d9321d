#pragma once
// The sizes of a ResNet (He et al. 2015), with the names of Hugging Face's config.json; the
// defaults are ResNet-50.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/activation.h"
#include "models/config_table.h"
#include "models/vision/state_dict_tensors.h"
#include "models/vision/vision_model.h"

namespace brrr::models {

/// What a block is made of: two 3 x 3 convolutions, or a 3 x 3 between two of 1 x 1.
enum class ResNetLayer { basic, bottleneck };
/// The first layers: a 7 x 7 convolution of stride 2 and a max pool, or a 3 x 3 convolution (as for
/// CIFAR).
enum class ResNetStem { imagenet, cifar };

struct ResNetConfig {
  int64_t num_channels = 3;
  int64_t image_size = 224;                                    // pictures are square
  int64_t embedding_size = 64;                                 // channels behind the stem
  std::vector<int64_t> hidden_sizes = {256, 512, 1024, 2048};  // channels of each stage
  std::vector<int64_t> depths = {3, 4, 6, 3};                  // blocks of each stage
  ResNetLayer layer_type = ResNetLayer::bottleneck;
  Activation hidden_act = Activation::relu;
  bool downsample_in_first_stage = false;
  bool downsample_in_bottleneck = false;  // v1: the first 1 x 1 has the stride; v1.5: the 3 x 3
  ResNetStem stem = ResNetStem::imagenet;
  bool zero_init_residual = false;  // the last norm of a block begins as 0
  double batch_norm_momentum = 0.1;
  double classifier_dropout = 0;
  int64_t depth = 0;          // option: 18, 34, 50, 101, 152, or 6 n + 2 with the stem cifar
  double width_factor = 1;    // option: of all channels
  int64_t num_labels = 1000;  // of models that options describe
  Task task{.head = Head::classes};
  PictureLoss picture_loss;
  /// Keys of a config.json that Brrr does not know, as a JSON object: they are kept. "": none.
  std::string unknown_keys;

  /// The stride of the first block of a stage.
  int64_t stride_of(size_t stage) const { return stage > 0 || downsample_in_first_stage ? 2 : 1; }
  /// By how much the net divides height and width.
  int64_t total_stride() const;
  int64_t blocks() const;
  ModelSizes sizes() const {
    return {.vocabulary = static_cast<int64_t>(task.labels.size()),
            .context = 1,
            .layers = blocks(),
            .width = hidden_sizes.back(),
            .causal = false,
            .picture = PictureSizes{num_channels, image_size, image_size}};
  }
  FileNames file_names() const;
  TextEnds text_ends() const { return {}; }
  /// Throws UserError naming the field, what is allowed and what it holds.
  void validate() const;
  ConfigLimits limits() const { return ConfigLimits("resnet"); }
  static const ConfigTable<ResNetConfig>& table();
  static const Architecture& architecture();
  ModelPtr model() const;
  /// The text of a config.json. transformers has no stem for CIFAR: it refuses such weights.
  std::string json(DType stored = DType::f32) const;
};

/// Reads the text of a config.json; `what` names it in errors. Throws UserError.
ResNetConfig parse_resnet_config(std::string_view text, const std::string& what);

/// The net whose names and shapes torchvision's state dicts have; nothing for other tensors. Throws
/// UserError for names of a ResNet with tensors that are missing.
std::optional<ResNetConfig> resnet_of_state_dict(const StateDictTensors& tensors);

/// The name of a parameter in torchvision's state dicts by its name in Hugging Face's folders.
std::vector<std::pair<std::string, std::string>> torchvision_names(const ResNetConfig& config);

/// The graphs. The config outlives the net.
std::unique_ptr<VisionNet> resnet(Parameters& p, const ResNetConfig& config,
                                  std::optional<Value> rng_key);

}  // namespace brrr::models
