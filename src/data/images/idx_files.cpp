#include "data/images/idx_files.h"

#include <cstring>

#include "base/errors.h"
#include "base/human.h"
#include "data/images/picture_stores.h"
#include "data/packed/unpacked_file.h"

namespace brrr::io {
namespace {

constexpr uint64_t kLargestIdx = uint64_t{8} << 30;
constexpr const char* kIdxBegin = "\0\0\x08";

/// The pictures of one file, in memory.
class IdxPictures final : public PictureStore {
 public:
  IdxPictures(std::string bytes, const std::string& name)
      : bytes_(std::move(bytes)), name_(name), array_(parse_idx(bytes_, name, 3)) {}
  int64_t count() const { return array_.sizes[0]; }
  std::string name(size_t i) const override { return fmt::format("{}, picture {}", name_, i + 1); }
  Image read(size_t i, const DecodeOptions& options) const override {
    const int64_t height = array_.sizes[1], width = array_.sizes[2];
    if (width * height > options.most_pixels)
      user_error("{}: the picture has {} x {} pixels; expected at most {}", name(i), width, height,
                 options.most_pixels);
    Image image{width, height, options.channels, {}};
    const std::string_view values = value_bytes(i);
    image.pixels.reserve(values.size() * static_cast<size_t>(options.channels));
    for (const char value : values)
      image.pixels.insert(image.pixels.end(), static_cast<size_t>(options.channels),
                          static_cast<uint8_t>(value));
    return image;
  }
  std::string identity(size_t i) const override { return std::string(value_bytes(i)); }

 private:
  std::string_view value_bytes(size_t i) const {
    const auto size = static_cast<size_t>(array_.sizes[1] * array_.sizes[2]);
    return array_.values.substr(i * size, size);
  }

  std::string bytes_, name_;
  IdxArray array_;  // views of bytes_
};

/// The file of labels beside a file of pictures: "images" becomes "labels" and "idx3" "idx1".
fs::path labels_of(const fs::path& pictures) {
  std::string name = pictures.filename().string();
  const auto replace = [&](std::string_view from, std::string_view to) {
    const size_t at = name.rfind(from);
    if (at == std::string::npos)
      user_error(
          "{}: expected a name with 'images' and 'idx3' in it, so that the file of labels can be "
          "found",
          pictures.string());
    name.replace(at, from.size(), to);
  };
  replace("images", "labels");
  replace("idx3", "idx1");
  const fs::path packed = pictures.parent_path() / name;
  std::error_code error;
  if (fs::exists(packed, error)) return packed;
  // One of the two may be unpacked.
  const fs::path other = packed.extension() == ".gz" ? fs::path(packed).replace_extension()
                                                     : fs::path(packed.string() + ".gz");
  if (fs::exists(other, error)) return other;
  user_error("{}: expected its labels in {}, which is missing", pictures.string(), packed.string());
}

}  // namespace

IdxArray parse_idx(std::string_view bytes, const std::string& name, int axes) {
  const size_t header = 4 + 4 * static_cast<size_t>(axes);
  if (bytes.size() < 4 || bytes[0] != 0 || bytes[1] != 0) user_error("{} is no IDX file", name);
  if (bytes[2] != 8)
    user_error("{}: its values have the type {:#04x}; expected 0x08, bytes", name,
               static_cast<unsigned>(static_cast<uint8_t>(bytes[2])));
  if (bytes[3] != axes)
    user_error("{}: its number of axes is {}; expected {}", name, static_cast<uint8_t>(bytes[3]),
               axes);
  if (bytes.size() < header) user_error("{} is truncated", name);
  IdxArray array;
  uint64_t values = 1;
  bool fits = true;
  for (int i = 0; i < axes; ++i) {
    uint32_t size = 0;
    for (size_t b = 0; b < 4; ++b)
      size = size << 8 | static_cast<uint8_t>(bytes[4 + 4 * static_cast<size_t>(i) + b]);
    array.sizes.push_back(size);
    fits = fits && !__builtin_mul_overflow(values, uint64_t{size}, &values);
  }
  array.values = bytes.substr(header);
  if (!fits || array.values.size() != values)
    user_error("{}: its header needs {} bytes of values, the file has {}", name,
               fits ? std::to_string(values) : "more than 2^64", array.values.size());
  return array;
}

std::optional<fs::path> idx_pictures_of(const fs::path& folder, IdxPart part) {
  const std::string begin = part == IdxPart::train ? "train-images" : "t10k-images";
  for (const char* ending : {"-idx3-ubyte", "-idx3-ubyte.gz", ".idx3-ubyte", ".idx3-ubyte.gz"}) {
    std::error_code error;
    const fs::path path = folder / (begin + ending);
    if (fs::is_regular_file(path, error)) return path;
  }
  return std::nullopt;
}

bool is_idx_file(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return false;
  try {
    char begin[4] = {};
    UnpackedFile file(path);
    return file.read(begin, sizeof begin) == sizeof begin &&
           std::memcmp(begin, kIdxBegin, 3) == 0 && begin[3] == 3;
  } catch (const UserError&) {
    return false;
  }
}

ImageSet open_idx_pictures(const fs::path& pictures, const ImageSetOptions& options) {
  const std::string what = pictures.string();
  auto store = std::make_shared<IdxPictures>(read_unpacked(pictures, kLargestIdx), what);
  const fs::path labels_path = labels_of(pictures);
  const std::string bytes = read_unpacked(labels_path, kLargestIdx);
  const std::string_view labels = parse_idx(bytes, labels_path.string(), 1).values;
  if (std::ssize(labels) != store->count())
    user_error("{} has {}, but {} has {}", what, counted(store->count(), "picture"),
               labels_path.string(), counted(std::ssize(labels), "label"));
  int64_t classes = std::ssize(options.classes);
  if (classes == 0)
    for (const char label : labels)
      classes = std::max<int64_t>(classes, static_cast<uint8_t>(label) + 1);
  std::vector<std::string> names = options.classes;
  for (int64_t c = std::ssize(names); c < classes; ++c) names.push_back(std::to_string(c));
  std::vector<ImageSet::Item> items;
  for (size_t i = 0; i < labels.size(); ++i) {
    const int32_t label = static_cast<uint8_t>(labels[i]);
    if (label >= classes)
      user_error("{}: label {} is {}; expected 0 to {}, as many as there are classes",
                 labels_path.string(), i + 1, label, classes - 1);
    items.push_back({i, label});
  }
  if (names.size() < 2 && !items.empty())
    user_error("{} has the class 0 alone; expected two classes or more", labels_path.string());
  ImageSet set(what, std::move(names), std::move(items), std::move(store));
  if (options.classes.empty()) {
    std::vector<std::string> empty;
    const std::vector<int64_t> counts = set.counts();
    for (size_t c = 0; c < counts.size(); ++c)
      if (counts[c] == 0) empty.push_back(set.classes()[c]);
    if (!empty.empty()) set.notes.push_back(empty_classes_note(labels_path.string(), empty));
  }
  return set;
}

}  // namespace brrr::io
