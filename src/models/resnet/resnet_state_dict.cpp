#include "models/resnet/resnet_config.h"

namespace brrr::models {

std::optional<ResNetConfig> resnet_of_state_dict(const StateDictTensors& tensors) {
  for (const char* name : {"conv1.weight", "bn1.running_mean", "layer1.0.conv1.weight"})
    if (!tensors.has(name)) return std::nullopt;
  constexpr int64_t kSmallStem = 3;
  ResNetConfig c;
  const Shape& stem = tensors.shape("conv1.weight", 4);
  c.num_channels = stem.size(1);
  c.embedding_size = stem.size(0);
  c.stem = stem.size(2) == kSmallStem ? ResNetStem::cifar : ResNetStem::imagenet;
  if (c.stem == ResNetStem::cifar) c.image_size = 32;
  const bool is_bottleneck = tensors.has("layer1.0.conv3.weight");
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
