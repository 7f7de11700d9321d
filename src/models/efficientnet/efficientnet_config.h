#pragma once
// The sizes of an EfficientNet (Tan and Le 2019) or EfficientNet-Lite, with the names of Hugging
// Face's config.json and a few more; the defaults are EfficientNet-B0.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/config_table.h"
#include "models/vision/picture_layers.h"
#include "models/vision/state_dict_tensors.h"
#include "models/vision/vision_model.h"

namespace brrr::models {

/// silu for the nets with squeeze-and-excitation, relu6 = min(max(x, 0), 6) for Lite.
enum class EfficientNetActivation { silu, relu6, relu };
/// How the usual pixels are normalised: by the means and deviations of ImageNet, or to [-1, 1].
enum class PixelRange { imagenet, unit };

/// The blocks of one stage; the first of them has the stride.
struct EfficientNetStage {
  int64_t in = 0, out = 0;  // channels
  int64_t blocks = 1, kernel = 3, stride = 1, expansion = 1;
  bool operator==(const EfficientNetStage&) const = default;
};

struct EfficientNetConfig {
  int64_t num_channels = 3;
  int64_t image_size = 224;      // pictures are square
  double width_coefficient = 1;  // multiplies channels
  double depth_coefficient = 1;  // multiplies the blocks of a stage, rounded up
  int64_t depth_divisor = 8;     // channels are rounded to a multiple of it
  bool fix_head_stem = false;    // Lite: stem, head, first and last stage keep their sizes
  int64_t stem_channels = 32, head_channels = 1280;
  std::vector<int64_t> out_channels = {16, 24, 40, 80, 112, 192, 320};  // of each stage
  std::vector<int64_t> num_block_repeats = {1, 2, 2, 3, 3, 4, 1};
  std::vector<int64_t> kernel_sizes = {3, 3, 5, 3, 5, 5, 3};
  std::vector<int64_t> strides = {1, 2, 2, 2, 1, 2, 1};
  std::vector<int64_t> expand_ratios = {1, 6, 6, 6, 6, 6, 6};
  /// Channels inside squeeze-and-excitation over those of the block's input; 0: there is none.
  double squeeze_expansion_ratio = 0.25;
  EfficientNetActivation hidden_act = EfficientNetActivation::silu;
  Padding padding = Padding::same;
  PixelRange pixel_range = PixelRange::imagenet;
  double batch_norm_eps = 1e-3;
  double batch_norm_share = 0.1;  // of a batch in the running statistics
  double dropout_rate = 0;        // in front of the classifier
  double drop_connect_rate = 0;   // of a picture's residual branch, in the last block
  int64_t variant = 0;            // option: 1 + the index of a published net; sets the sizes above
  int64_t num_labels = 1000;      // of models that options describe
  Task task{.head = Head::classes};
  PictureLoss picture_loss;
  /// Keys of a config.json that Brrr does not know, as a JSON object: they are kept. "": none.
  std::string unknown_keys;

  /// Channels times the width, rounded to the divisor, by at most a tenth downwards.
  int64_t rounded(int64_t channels) const;
  int64_t stem_width() const { return fix_head_stem ? stem_channels : rounded(stem_channels); }
  int64_t head_width() const { return fix_head_stem ? head_channels : rounded(head_channels); }
  std::vector<EfficientNetStage> stages() const;
  int64_t blocks() const;
  /// By how much the net divides height and width.
  int64_t total_stride() const;
  /// transformers' list of blocks with a stride of 2 whose input has an odd height at image_size.
  std::vector<int64_t> depthwise_padding() const;
  ModelSizes sizes() const {
    return {.vocabulary = static_cast<int64_t>(task.labels.size()),
            .context = 1,
            .layers = blocks(),
            .width = head_width(),
            .causal = false,
            .picture = PictureSizes{num_channels, image_size, image_size}};
  }
  FileNames file_names() const;
  TextEnds text_ends() const { return {}; }
  /// Throws UserError naming the field, what is allowed and what it holds.
  void validate() const;
  ConfigLimits limits() const { return ConfigLimits("efficientnet"); }
  static const ConfigTable<EfficientNetConfig>& table();
  static const Architecture& architecture();
  ModelPtr model() const;
  /// The text of a config.json. transformers reads nets with squeeze-and-excitation and padding
  /// "same"; it refuses the weights of others.
  std::string json(DType stored = DType::f32) const;
};

/// A published net: b0 to b7, lite0 to lite4.
struct EfficientNetVariant {
  std::string name;
  double width, depth;
  int64_t image_size;
  double dropout;

  bool is_lite() const { return name.starts_with("lite"); }
  std::string title() const;  // "B0"
};
const std::vector<EfficientNetVariant>& efficientnet_variants();
/// Sets what the variant determines but the size of pictures and the dropout.
void set_variant(EfficientNetConfig& config, const EfficientNetVariant& variant);

/// Reads the text of a config.json; `what` names it in errors. Throws UserError.
EfficientNetConfig parse_efficientnet_config(std::string_view text, const std::string& what);

/// Conventions for the names of tensors in state dicts.
enum class EfficientNetNames {
  timm,                  // "blocks.1.0.conv_pw.weight"
  efficientnet_pytorch,  // "_blocks.1._expand_conv.weight"
  torchvision,           // "features.2.0.block.0.0.weight"
};
/// The names of parameters by a convention, with those of Hugging Face's folders.
std::vector<std::pair<std::string, std::string>> state_dict_names(const EfficientNetConfig& config,
                                                                  EfficientNetNames convention);

/// The net whose names and shapes a state dict has, by any of the conventions; nothing for other
/// tensors. What no tensor says (padding, epsilon, strides) is that of the nets that are published
/// with such names. Throws UserError for names of an EfficientNet that is none of those.
std::optional<EfficientNetConfig> efficientnet_of_state_dict(const StateDictTensors& tensors);

/// The graphs. The config outlives the net.
std::unique_ptr<VisionNet> efficientnet(Parameters& p, const EfficientNetConfig& config,
                                        std::optional<Value> rng_key);

}  // namespace brrr::models
