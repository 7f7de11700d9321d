#include "models/module.h"

#include <fmt/format.h>

namespace brrr::models {

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

}  // namespace brrr::models
