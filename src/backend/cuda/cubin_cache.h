#pragma once
// Compiled kernels on disk: a file for each text, compiler and architecture. A damaged or foreign
// file is as good as none.

#include <functional>
#include <string>
#include <vector>

#include "base/file.h"

namespace brrr::cuda {

class CubinCache {
 public:
  /// `compiler`: all that the code depends on besides the text: version, architecture, options.
  CubinCache(fs::path folder, std::string compiler)
      : folder_(std::move(folder)), compiler_(std::move(compiler)) {}

  /// The machine code of each text, in order; `compile` is called for those that are not on disk,
  /// by several threads at once. A folder that cannot be written is no error.
  std::vector<std::string> get(const std::vector<std::string>& texts,
                               const std::function<std::string(const std::string&)>& compile) const;
  fs::path path_of(const std::string& text) const;

 private:
  fs::path folder_;
  std::string compiler_;
};

}  // namespace brrr::cuda
