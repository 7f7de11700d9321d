#include "cli/pictures/export_state_dict.h"

#include <deque>
#include <set>

#include "base/human.h"
#include "base/tell.h"
#include "cli/model_option.h"
#include "formats/safetensors.h"

namespace brrr::cli {

namespace {

/// The Python package that has these names: of an EfficientNet with TensorFlow's padding
/// efficientnet_pytorch, of another timm.
const char* library_of(const models::Model& model) {
  if (model.architecture().name == "resnet") return "torchvision";
  for (const auto& [name, value] : model.settings())
    if (name == "padding" && value == "same") return "efficientnet_pytorch";
  return "timm";
}

}  // namespace

int export_state_dict(const std::string& name, const std::string& output) {
  const io::ModelFolder model = open_named_model(name, {.reads_tokenizer = false});
  if (!model.definition->sees_pictures())
    user_error(
        "{}: a .safetensors file has the names of torchvision's ResNet or of an EfficientNet; a "
        "{} is exported as ONNX, GGUF or .brrr, and its folder holds its weights by transformers' "
        "names",
        model.folder.string(), model.definition->architecture().title);
  std::vector<TensorView> tensors;
  std::deque<std::vector<std::byte>> copies;  // of tensors that are made when they are read
  std::set<std::string> written;              // the first name of each parameter counts
  for (const auto& [theirs, ours] : model.definition->file_names().renamed) {
    const TensorView* const tensor = model.weights->find(ours);
    if (tensor == nullptr) continue;  // a head, of a trunk alone
    if (!written.insert(ours).second) continue;
    TensorView renamed = *tensor;
    renamed.name = theirs;
    if (renamed.bytes.empty()) {
      copies.emplace_back(static_cast<size_t>(tensor->shape.elements()) * bytes_of(tensor->dtype));
      model.weights->read(*tensor, copies.back());
      renamed.bytes = copies.back();
    }
    tensors.push_back(std::move(renamed));
  }
  io::write_safetensors(output, tensors, {{"format", "pt"}});
  tell("wrote {} ({}), for {}: model.load_state_dict(safetensors.torch.load_file(...))\n", output,
       counted(std::ssize(tensors), "tensor"), library_of(*model.definition));
  return 0;
}

}  // namespace brrr::cli
