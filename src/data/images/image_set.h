#pragma once
// Pictures with classes: a list that says where each picture is and which class it has. It holds no
// pixels but those of IDX files. Sets are values that share what they were opened from; reading is
// safe from any thread.
//
//   folder    a folder per class, with pictures anywhere beneath it; the class is the name of the
//             folder at the top. Classes are sorted as strings, and so are the pictures of each.
//             Names that begin with a dot are left out, files with other endings than .jpg, .jpeg,
//             .png, .webp, .ppm, .pgm and .pnm (in any case) are counted in a note. A folder
//             without pictures is a class all the same, which a note says. Pictures that differ
//             only in their ending are both read, which a note says.
//             Links to files are followed, links to folders below the class are not. Links whose
//             target is missing are left out, which a note says; in the place of a class such a
//             link is refused.
//             A folder that holds train/ and one of val/, valid/, validation/ or test/ is two sets.
//   IDX       MNIST's and Fashion-MNIST's files, packed by gzip or not: a folder that holds
//             train-images-idx3-ubyte and train-labels-idx1-ubyte (and t10k-... for validation), or
//             the file of pictures, whose labels are in the file of the same name with "labels" and
//             "idx1" in it. Labels are numbers; one below the largest that no picture has is a
//             class without pictures, which a note says.
//   list      a text file of lines `path<tab>class`, paths relative to its folder; a UTF-8 byte
//             order mark at its beginning is ignored. A path that leaves this folder, by ".." or a
//             link, is refused, and so is a header.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/images/image.h"

namespace brrr::io {

struct ImageSetOptions {
  /// The classes, in the order of their ids: those of the model that a set is for. Empty: those of
  /// the data, in order. A label that is none of them is an error.
  std::vector<std::string> classes = {};
};

/// Where pictures come from.
class PictureStore {
 public:
  virtual ~PictureStore() = default;
  /// Names picture i, for messages: its path, or "FILE, picture 17".
  virtual std::string name(size_t i) const = 0;
  /// Decodes picture i. Throws UserError as decode_image() does.
  virtual Image read(size_t i, const DecodeOptions& options) const = 0;
  /// The bytes of its file, where it is a file; else none.
  virtual std::string file_bytes(size_t) const { return {}; }
  /// Its path below the folder, or "" where it has none.
  virtual std::string path(size_t) const { return {}; }
  /// Identifies picture i as far as that is known without decoding it: path and size, or bytes.
  virtual std::string identity(size_t i) const = 0;
};

class ImageSet {
 public:
  struct Item {
    size_t picture = 0;  // in the store
    int32_t label = 0;   // index in classes()
  };
  ImageSet(std::string what, std::vector<std::string> classes, std::vector<Item> items,
           std::shared_ptr<const PictureStore> store);

  /// The folder or file it was opened from, for messages.
  const std::string& what() const { return what_; }
  const std::vector<std::string>& classes() const { return classes_; }
  /// At least one.
  size_t size() const { return items_.size(); }
  int32_t label(size_t i) const { return items_[i].label; }
  std::string name(size_t i) const { return store_->name(items_[i].picture); }
  Image read(size_t i, const DecodeOptions& options = {}) const {
    return store_->read(items_[i].picture, options);
  }
  /// The bytes of a picture that is a file; none for those of IDX files.
  std::string file_bytes(size_t i) const { return store_->file_bytes(items_[i].picture); }
  const std::vector<Item>& items() const { return items_; }
  const PictureStore& store() const { return *store_; }
  /// How many pictures each class has.
  std::vector<int64_t> counts() const;
  /// Over classes, labels and what is known of each picture without decoding it.
  std::string fingerprint() const;

  std::vector<std::string> notes;  // for the user: what was decided, left out, or is odd

  /// The same store with other items; `what` replaces the name.
  ImageSet with_items(std::vector<Item> items, std::string what) const;

 private:
  std::string what_;
  std::vector<std::string> classes_;
  std::vector<Item> items_;
  std::shared_ptr<const PictureStore> store_;
};

/// What a path holds: the pictures to train on, and those for validation where it names them.
struct ImageData {
  ImageSet train;
  std::optional<ImageSet> validation;  // with the classes of `train`
};

/// Whether a folder or a file holds pictures in one of the ways above; false where it is text.
/// Reads names and first bytes only, never throws.
bool holds_images(const fs::path& path);

/// Throws UserError: nothing is there, it holds no pictures, fewer than two classes, a label
/// outside the classes, a list whose line is no `path<tab>class` or whose path leaves the folder,
/// damaged IDX files.
ImageData open_images(const fs::path& path, const ImageSetOptions& options = {});
/// One set for evaluation: the validation part where the path has two.
ImageSet open_images_to_evaluate(const fs::path& path, const ImageSetOptions& options = {});

struct ImageSplit {
  ImageSet train, validation;
};
/// Every k-th picture of each class is for validation, k = 1 / fraction rounded: pictures k, 2 k,
/// ... from 1, in the order of the set. A class of 2 to k - 1 pictures gives its last one. A pure
/// function of the set. Throws UserError (usage) for a fraction outside (0, 0.5], and UserError
/// where no class has 2 pictures.
ImageSplit hold_out(const ImageSet& set, double fraction);

}  // namespace brrr::io
