#include "cli/model_option.h"

#include <cstdio>

namespace brrr::cli {

io::ModelFolder open_named_model(const std::string& name) {
  return io::open_model(io::find_model(
      name, [](const std::string& line) { fmt::print(stderr, "warning: {}\n", line); }));
}

}  // namespace brrr::cli
