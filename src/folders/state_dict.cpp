#include "folders/state_dict.h"

#include <algorithm>
#include <vector>

#include "base/errors.h"
#include "formats/pickle/torch_file.h"
#include "formats/safetensors.h"
#include "models/state_dict_config.h"

namespace brrr::io {

namespace {

bool has_torch_ending(const fs::path& path) {
  return path.extension() == ".pth" || path.extension() == ".pt";
}

}  // namespace

bool is_state_dict(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return false;
  const fs::path ending = path.extension();
  if (has_torch_ending(path)) return true;
  return ending == ".safetensors" && !fs::exists(path.parent_path() / "config.json", ignored);
}

std::optional<fs::path> state_dict_in(const fs::path& folder) {
  std::error_code ignored;
  if (fs::exists(folder / "config.json", ignored)) return std::nullopt;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder, ignored))
    if (has_torch_ending(entry.path()) && is_state_dict(entry.path()))
      found.push_back(entry.path());
  if (found.empty()) return std::nullopt;
  std::sort(found.begin(), found.end());
  if (found.size() > 1)
    user_error("{} holds several files of PyTorch; name one of them, such as {}", folder.string(),
               found[0].string());
  return found[0];
}

std::shared_ptr<const WeightSource> open_state_dict(const fs::path& path) {
  if (path.extension() == ".safetensors") return std::make_shared<const SafetensorsFile>(path);
  return std::make_shared<const TorchFile>(path);
}

std::string state_dict_config(const fs::path& path) {
  const std::shared_ptr<const WeightSource> tensors = open_state_dict(path);
  if (const auto config = models::config_of_state_dict(*tensors)) return *config;
  user_error(
      "{}: its tensors are not those of a net that is known by its names (a ResNet of torchvision, "
      "an EfficientNet); expected a folder with config.json beside the weights",
      path.string());
}

}  // namespace brrr::io
