#pragma once
// The files beside an ONNX file that hold its tensors. A name comes from the file, so it may lead
// nowhere but into the folder: no absolute path, no "..", no link that leaves the folder (links of
// a Hugging Face cache, which lead to its blobs, are followed), nothing but regular files.

#include <map>
#include <memory>
#include <string>

#include "base/file.h"

namespace brrr::onnx {

struct TensorProto;

class ExternalFiles {
 public:
  /// For bytes that lie in no folder: every tensor is refused. `what` must outlive it.
  explicit ExternalFiles(const std::string& what) : what_(what) {}
  ExternalFiles(const std::string& what, const fs::path& model);

  /// Gives an external tensor its bytes; it keeps their file mapped.
  void read(TensorProto& tensor);
  /// The size of all files that were opened.
  uint64_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<const MappedFile> open(std::string_view location);

  const std::string& what_;
  fs::path folder_;  // "": none
  std::map<std::string, std::shared_ptr<const MappedFile>, std::less<>> files_;
  uint64_t bytes_ = 0;
};

}  // namespace brrr::onnx
