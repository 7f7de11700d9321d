#include "modules/module.h"

#include <fmt/format.h>

#include "modules/brrr_file.h"
#include "modules/onnx/onnx_module.h"

namespace brrr::modules {

std::string Port::str() const {
  std::string text = type;
  if (!has_shape) return text;
  text += '[';
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i > 0) text += ',';
    text += dims[i].size >= 0 ? fmt::format("{}", dims[i].size)
                              : (dims[i].name.empty() ? "?" : dims[i].name);
  }
  return text + ']';
}

std::shared_ptr<const Module> open_module(const fs::path& path) {
  return is_brrr_file(path) ? open_brrr_file(path) : onnx::open_module(path);
}

}  // namespace brrr::modules
