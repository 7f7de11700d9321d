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
    if (is_bottleneck) refuse_other_bottlenecks();
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
  /// A bottleneck of a ResNet has a quarter of its channels inside. Throws UserError for the two
  /// families of torchvision that have the same names and other sizes.
  void refuse_other_bottlenecks() const {
    constexpr int64_t kFactor = 4;
    const int64_t inner = shape("layer1.0.conv1.weight", 4).size(0),
                  of_group = shape("layer1.0.conv2.weight", 4).size(1),
                  outer = shape("layer1.0.conv3.weight", 4).size(0);
    constexpr const char* kWanted =
        "expected a ResNet-18, 34, 50, 101 or 152; export the net to ONNX by torch.onnx.export, "
        "and `brrr run FILE.onnx` runs it";
    if (of_group > 0 && of_group < inner)
      user_error("{} is a ResNeXt: its 3 x 3 convolutions have {} groups of {} channels; {}",
                 tensors_.what(), inner / of_group, of_group, kWanted);
    if (kFactor * inner != outer)
      user_error("{} is a wide ResNet: its blocks have {} channels inside and {} outside; {}",
                 tensors_.what(), inner, outer, kWanted);
  }
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
  constexpr const char* kSigns[] = {"conv1.weight", "bn1.running_mean", "layer1.0.conv1.weight",
                                    "layer2.0.conv1.weight"};
  std::vector<std::string> missing;
  for (const char* name : kSigns)
    if (tensors.find(name) == nullptr) missing.emplace_back(name);
  if (missing.size() > 1) return std::nullopt;
  if (!missing.empty())
    user_error("{}: the tensor {} of torchvision's ResNet is missing", tensors.what(), missing[0]);
  const ResNetConfig config = ResNetTensors(tensors).config();
  try {
    config.validate();
  } catch (const UserError& e) {
    user_error("{}: {}", tensors.what(), e.what());
  }
  return config.json();
}

}  // namespace brrr::models
