#include "modules/module.h"

#include <fmt/format.h>

#include "formats/file_kind.h"
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
  if (is_brrr_file(path)) return open_brrr_file(path);
  const auto kind = io::kind_of_file(path);
  if (kind && !kind->is_module) io::refuse_file(path.string(), "an ONNX or .brrr file");
  return onnx::open_module(path);
}

}  // namespace brrr::modules
