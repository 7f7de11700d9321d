#pragma once
// The kinds of places that pictures come from, for image_set.cpp.

#include <optional>
#include <string_view>

#include "base/file.h"
#include "data/images/image_set.h"

namespace brrr::io {

/// Pictures that are files of their own.
class PictureFiles final : public PictureStore {
 public:
  struct File {
    std::string path;  // below the folder
    uint64_t bytes = 0;
  };
  PictureFiles(fs::path folder, std::vector<File> files)
      : folder_(std::move(folder)), files_(std::move(files)) {}
  std::string name(size_t i) const override { return (folder_ / files_[i].path).string(); }
  Image read(size_t i, const DecodeOptions& options) const override {
    return read_image(folder_ / files_[i].path, options);
  }
  std::string file_bytes(size_t i) const override { return read_file(folder_ / files_[i].path); }
  std::string path(size_t i) const override { return files_[i].path; }
  std::string identity(size_t i) const override;

 private:
  fs::path folder_;
  std::vector<File> files_;
};

/// Finds the label of class names: those that are given, or new ones in the order of their sorted
/// names.
class ClassNames {
 public:
  /// `what` is the data that `found` occur in. Throws UserError where one is none of the given
  /// ones, and for fewer than two classes.
  ClassNames(const std::string& what, const std::vector<std::string>& given,
             std::vector<std::string> found);
  int32_t label(std::string_view name) const;
  const std::vector<std::string>& names() const { return names_; }

 private:
  std::vector<std::string> names_;
};

/// "DATA: the class 'ant' has no pictures, nor have 2 more"; "" where `empty` names no class.
std::string empty_classes_note(const std::string& what, const std::vector<std::string>& empty);

bool has_picture_ending(const fs::path& path);

/// Whether a folder in it holds a picture, by its ending. Never throws.
bool has_class_folders(const fs::path& folder);
ImageSet open_class_folders(const fs::path& folder, const ImageSetOptions& options);

/// Whether a file's first line is `path<tab>class` with the path of a picture. Never throws.
bool is_picture_list(const fs::path& path);
ImageSet open_picture_list(const fs::path& path, const ImageSetOptions& options);

enum class IdxPart { train, test };
/// The file of pictures of MNIST's names in a folder, packed or not; none where there is none.
std::optional<fs::path> idx_pictures_of(const fs::path& folder, IdxPart part);
/// Whether a file, packed by gzip or not, begins as IDX pictures of bytes. Never throws.
bool is_idx_file(const fs::path& path);
ImageSet open_idx_pictures(const fs::path& pictures, const ImageSetOptions& options);

}  // namespace brrr::io
