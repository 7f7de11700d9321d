#include "modules/open_module.h"

#include "formats/file_kind.h"
#include "modules/brrr_file.h"
#include "modules/onnx/onnx_module.h"
#include "modules/silero/silero.h"

namespace brrr::modules {

std::shared_ptr<const Runnable> open_module(const fs::path& path) {
  if (is_brrr_file(path)) return open_brrr_file(path);
  if (is_silero_file(path)) return open_silero(path);
  const auto kind = io::kind_of_file(path);
  if (kind && !kind->is_module) io::refuse_file(path.string(), "an ONNX or .brrr file");
  return onnx::open_module(path);
}

}  // namespace brrr::modules
