#include "models/state_dict_config.h"

#include "models/efficientnet/efficientnet_config.h"
#include "models/resnet/resnet_config.h"
#include "models/vision/state_dict_tensors.h"

namespace brrr::models {
namespace {

template <typename C>
std::string valid_json(const C& config, const WeightSource& tensors) {
  try {
    config.validate();
  } catch (const UserError& e) {
    user_error("{}: {}", tensors.what(), e.what());
  }
  return config.json();
}

}  // namespace

std::optional<std::string> config_of_state_dict(const WeightSource& tensors) {
  const StateDictTensors named(tensors);
  if (const auto resnet = resnet_of_state_dict(named)) return valid_json(*resnet, tensors);
  if (const auto net = efficientnet_of_state_dict(named)) return valid_json(*net, tensors);
  return std::nullopt;
}

}  // namespace brrr::models
