#include "formats/onnx/external_files.h"

#include "base/errors.h"
#include "formats/onnx/packed_integers.h"

namespace brrr::onnx {
namespace {

bool lies_in(const fs::path& file, const fs::path& folder) {
  const fs::path inside = file.lexically_relative(folder);
  return !inside.empty() && *inside.begin() != "..";
}

/// The folder to which the links of a snapshot in a Hugging Face cache lead: the blobs of the same
/// model. `folder` is the snapshot, models--ORG--NAME/snapshots/COMMIT, or lies in it, as onnx/
/// often does. "" elsewhere.
fs::path blobs_of_snapshot(const fs::path& folder) {
  for (fs::path at = folder; at.has_relative_path(); at = at.parent_path()) {
    const fs::path snapshots = at.parent_path(), model = snapshots.parent_path();
    if (snapshots.filename() == "snapshots" && model.filename().string().starts_with("models--"))
      return model / "blobs";
  }
  return {};
}

}  // namespace

ExternalFiles::ExternalFiles(const std::string& what, const fs::path& model) : what_(what) {
  folder_ = fs::canonical(fs::absolute(model).parent_path());
}

std::shared_ptr<const MappedFile> ExternalFiles::open(std::string_view location) {
  const auto known = files_.find(location);
  if (known != files_.end()) return known->second;
  const fs::path name(location);
  const auto refuse = [&](const char* why) {
    user_error("{}: its tensors lie in '{}', {}; only files beside it are read", what_, location,
               why);
  };
  if (folder_.empty()) refuse("and there is no folder");
  if (name.is_absolute()) refuse("which is an absolute path");
  for (const fs::path& part : name)
    if (part == "..") refuse("which leads out of its folder");
  std::error_code error;
  const fs::path target = fs::canonical(folder_ / name, error);
  if (error) user_error("{}: its tensors lie in '{}', which is missing", what_, location);
  const fs::path blobs = blobs_of_snapshot(folder_);
  if (!lies_in(target, folder_) && (blobs.empty() || !lies_in(target, blobs)))
    refuse("a link that leads out of its folder");
  auto map = std::make_shared<const MappedFile>(target);
  bytes_ += map->bytes().size();
  files_.emplace(location, map);
  return map;
}

void ExternalFiles::read(TensorProto& tensor) {
  const std::shared_ptr<const MappedFile> map = open(tensor.location);
  if (!dtype_of(tensor.type))
    user_error("{}: the tensor '{}' in '{}' is of {}, which is not supported", what_, tensor.name,
               tensor.location, name_of(tensor.type));
  const std::optional<uint64_t> wanted = bytes_in_file(tensor);
  const uint64_t size = map->bytes().size();
  if (!wanted || (tensor.length && tensor.length != wanted) || tensor.offset > size ||
      *wanted > size - tensor.offset)
    user_error("{}: the tensor '{}' needs {} bytes from byte {} of '{}', which has {}", what_,
               tensor.name, wanted ? std::to_string(*wanted) : "too many", tensor.offset,
               tensor.location, size);
  tensor.keeps_bytes = map;
  tensor.bytes = map->bytes().subspan(tensor.offset, *wanted);
  unpack(tensor);
}

}  // namespace brrr::onnx
