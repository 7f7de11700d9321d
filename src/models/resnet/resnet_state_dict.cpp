#include "models/resnet/resnet_config.h"

namespace brrr::models {
namespace {

/// A bottleneck of a ResNet has a quarter of its channels inside. Throws UserError for the two
/// families of torchvision that have the same names and other sizes.
void refuse_other_bottlenecks(const StateDictTensors& tensors) {
  constexpr int64_t kFactor = 4;
  const int64_t inner = tensors.shape("layer1.0.conv1.weight", 4).size(0),
                of_group = tensors.shape("layer1.0.conv2.weight", 4).size(1),
                outer = tensors.shape("layer1.0.conv3.weight", 4).size(0);
  constexpr const char* kWanted =
      "expected a ResNet-18, 34, 50, 101 or 152; export the net to ONNX by torch.onnx.export, "
      "and `brrr run FILE.onnx` runs it";
  if (of_group > 0 && of_group < inner)
    user_error("{} is a ResNeXt: its 3 x 3 convolutions have {} groups of {} channels; {}",
               tensors.what(), inner / of_group, of_group, kWanted);
  if (kFactor * inner != outer)
    user_error("{} is a wide ResNet: its blocks have {} channels inside and {} outside; {}",
               tensors.what(), inner, outer, kWanted);
}

}  // namespace

std::optional<ResNetConfig> resnet_of_state_dict(const StateDictTensors& tensors) {
  std::vector<std::string> missing;
  for (const char* name :
       {"conv1.weight", "bn1.running_mean", "layer1.0.conv1.weight", "layer2.0.conv1.weight"})
    if (!tensors.has(name)) missing.emplace_back(name);
  if (missing.size() > 1) return std::nullopt;
  if (!missing.empty())
    user_error("{}: the tensor {} of torchvision's ResNet is missing", tensors.what(), missing[0]);
  constexpr int64_t kSmallStem = 3;
  ResNetConfig c;
  const Shape& stem = tensors.shape("conv1.weight", 4);
  c.num_channels = stem.size(1);
  c.embedding_size = stem.size(0);
  c.stem = stem.size(2) == kSmallStem ? ResNetStem::cifar : ResNetStem::imagenet;
  if (c.stem == ResNetStem::cifar) c.image_size = 32;
  const bool is_bottleneck = tensors.has("layer1.0.conv3.weight");
  if (is_bottleneck) refuse_other_bottlenecks(tensors);
  c.layer_type = is_bottleneck ? ResNetLayer::bottleneck : ResNetLayer::basic;
  c.hidden_sizes.clear();
  c.depths.clear();
  for (int64_t stage = 1; tensors.has(fmt::format("layer{}.0.conv1.weight", stage)); ++stage) {
    int64_t blocks = 0;
    while (tensors.has(fmt::format("layer{}.{}.conv1.weight", stage, blocks))) ++blocks;
    c.depths.push_back(blocks);
    const std::string last = fmt::format("layer{}.0.conv{}.weight", stage, is_bottleneck ? 3 : 2);
    c.hidden_sizes.push_back(tensors.shape(last, 4).size(0));
  }
  c.task = tensors.task("fc.weight");
  return c;
}

}  // namespace brrr::models
