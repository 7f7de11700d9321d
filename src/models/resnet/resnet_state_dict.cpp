#include "models/resnet/resnet_config.h"
#include "models/state_dict_config.h"

namespace brrr::models {
namespace {

class ResNetTensors {
 public:
  explicit ResNetTensors(const WeightSource& tensors) : tensors_(tensors) {}

  ResNetConfig config() const {
    constexpr int64_t kSmallStem = 3;
    ResNetConfig c;
    const Shape& stem = shape("conv1.weight", 4);
    c.num_channels = stem.size(1);
    c.embedding_size = stem.size(0);
    c.stem = stem.size(2) == kSmallStem ? ResNetStem::cifar : ResNetStem::imagenet;
    if (c.stem == ResNetStem::cifar) c.image_size = 32;
    const bool is_bottleneck = has("layer1.0.conv3.weight");
    c.layer_type = is_bottleneck ? ResNetLayer::bottleneck : ResNetLayer::basic;
    c.hidden_sizes.clear();
    c.depths.clear();
    for (int64_t stage = 1; has(fmt::format("layer{}.0.conv1.weight", stage)); ++stage) {
      int64_t blocks = 0;
      while (has(fmt::format("layer{}.{}.conv1.weight", stage, blocks))) ++blocks;
      c.depths.push_back(blocks);
      c.hidden_sizes.push_back(
          shape(fmt::format("layer{}.0.conv{}.weight", stage, is_bottleneck ? 3 : 2), 4).size(0));
    }
    c.task = {.head = Head::embedding};
    if (has("fc.weight")) {
      c.task.head = Head::classes;
      for (int64_t i = 0; i < shape("fc.weight", 2).size(0); ++i)
        c.task.labels.push_back(fmt::format("LABEL_{}", i));
    }
    return c;
  }

 private:
  bool has(const std::string& name) const { return tensors_.find(name) != nullptr; }
  const Shape& shape(const std::string& name, int rank) const {
    const TensorView* const tensor = tensors_.find(name);
    if (tensor == nullptr) user_error("{}: the tensor {} is missing", tensors_.what(), name);
    if (tensor->shape.rank() != rank)
      user_error("{}: the tensor {} must have {} axes; the file has {}", tensors_.what(), name,
                 rank, tensor->shape.str());
    return tensor->shape;
  }

  const WeightSource& tensors_;
};

}  // namespace

std::optional<std::string> config_of_state_dict(const WeightSource& tensors) {
  for (const char* name : {"conv1.weight", "bn1.running_mean", "layer1.0.conv1.weight"})
    if (tensors.find(name) == nullptr) return std::nullopt;
  const ResNetConfig config = ResNetTensors(tensors).config();
  try {
    config.validate();
  } catch (const UserError& e) {
    user_error("{}: {}", tensors.what(), e.what());
  }
  return config.json();
}

}  // namespace brrr::models
