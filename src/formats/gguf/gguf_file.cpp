#include "formats/gguf/gguf_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <limits>

#include "base/errors.h"
#include "base/human.h"
#include "formats/json_file.h"

namespace brrr::io {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::string_view kGgufMagic = "GGUF";
constexpr uint32_t kOldestGguf = 2, kNewestGguf = 3;
// More keys or tensors than any model has: what the lists of them take stays small so, whatever a
// file says.
constexpr uint64_t kMostEntries = uint64_t{1} << 16;
constexpr uint32_t kMostDims = 4;  // of ggml
constexpr int kDeepestArray = 8;   // arrays inside one another
constexpr uint64_t kUsualAlignment = 32;
constexpr int64_t kMostParts = 99'999;  // the name of a part has five digits
constexpr size_t kMostMissing = 10;     // that a message names
constexpr const char* kCopyAgain = "copy or download it again";

constexpr std::string_view kTypeNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                           "bool", "string", "array", "u64", "i64", "f64"};
constexpr size_t kTypeBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};  // 0: it differs

size_t bytes_of_type(GgufType type) { return kTypeBytes[static_cast<size_t>(type)]; }

template <typename T>
T number_at(std::span<const std::byte> bytes) {
  T value{};
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

/// Reads a file from its beginning.
class GgufCursor {
 public:
  GgufCursor(std::span<const std::byte> bytes, const std::string& file)
      : bytes_(bytes), file_(file) {}

  size_t at() const { return at_; }
  size_t left() const { return bytes_.size() - at_; }

  /// `thing` names in errors what is read.
  std::span<const std::byte> take(uint64_t count, const std::string& thing) {
    if (count > left())
      user_error("{}: truncated: {} needs {} at byte {}, and {} are left; {}", file_, thing,
                 counted(static_cast<int64_t>(
                             std::min<uint64_t>(count, std::numeric_limits<int64_t>::max())),
                         "byte"),
                 at_, left(), kCopyAgain);
    const auto taken = bytes_.subspan(at_, static_cast<size_t>(count));
    at_ += taken.size();
    return taken;
  }
  template <typename T>
  T number(const std::string& thing) {
    return number_at<T>(take(sizeof(T), thing));
  }
  std::string_view text(const std::string& thing) {
    const auto bytes = take(number<uint64_t>("the length of " + thing), thing);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  GgufType type(const std::string& thing) {
    const uint32_t id = number<uint32_t>("the type of " + thing);
    if (id >= std::size(kTypeNames))
      user_error("{}: broken GGUF file: {} has the type {}; there are types 0 to {}", file_, thing,
                 id, std::size(kTypeNames) - 1);
    return static_cast<GgufType>(id);
  }
  GgufValue value(GgufType type, const std::string& thing, int depth = 0) {
    GgufValue value{.type = type};
    const size_t width = bytes_of_type(type);
    if (width > 0) {
      value.bytes = take(width, thing);
    } else if (type == GgufType::text) {
      const std::string_view text = this->text(thing);
      value.bytes = std::as_bytes(std::span(text));
    } else {
      value.element = this->type("the elements of " + thing);
      value.count = number<uint64_t>("the length of " + thing);
      value.bytes = elements(value, thing, depth);
    }
    return value;
  }

 private:
  std::span<const std::byte> elements(const GgufValue& array, const std::string& thing, int depth) {
    if (depth >= kDeepestArray)
      user_error("{}: broken GGUF file: {} has more than {} arrays inside one another", file_,
                 thing, kDeepestArray);
    // The least that an element takes: a string its length, an array its type and its length.
    const size_t width = bytes_of_type(array.element);
    const size_t least = width > 0 ? width : array.element == GgufType::text ? 8 : 12;
    if (array.count > left() / least)
      user_error("{}: truncated: {} says that it has {} elements, and {} bytes are left; {}", file_,
                 thing, array.count, left(), kCopyAgain);
    const size_t begin = at_;
    if (width > 0)
      take(array.count * width, thing);
    else
      for (uint64_t i = 0; i < array.count; ++i) value(array.element, thing, depth + 1);
    return bytes_.subspan(begin, at_ - begin);
  }

  std::span<const std::byte> bytes_;
  const std::string& file_;
  size_t at_ = 0;
};

/// What one file holds.
struct GgufPart {
  uint32_t version = 0;
  GgufFile::Metadata metadata;
  std::vector<GgufTensor> tensors;
};

[[noreturn]] void broken_gguf(const std::string& file, const std::string& fault) {
  user_error("{}: broken GGUF file: {}", file, fault);
}

uint32_t read_version(GgufCursor& in, const std::string& file) {
  const auto magic = in.take(std::min(in.left(), kGgufMagic.size()), "the magic");
  if (std::string_view(reinterpret_cast<const char*>(magic.data()), magic.size()) != kGgufMagic)
    user_error("{}: not a GGUF file: it does not begin with \"{}\"", file, kGgufMagic);
  const uint32_t version = in.number<uint32_t>("the version");
  if (version >= kOldestGguf && version <= kNewestGguf) return version;
  if (version != 0 && (version & 0xffff) == 0)
    user_error("{}: a GGUF file for big-endian machines, which is not read", file);
  user_error("{}: a GGUF file of version {}; versions {} and {} are read", file, version,
             kOldestGguf, kNewestGguf);
}

uint64_t read_count(GgufCursor& in, const std::string& file, const char* things) {
  const uint64_t count = in.number<uint64_t>(fmt::format("the number of {}", things));
  if (count > kMostEntries)
    broken_gguf(file, fmt::format("it says that it has {} {}; at most {} are read", count, things,
                                  kMostEntries));
  return count;
}

/// A tensor as the file describes it.
struct GgufEntry {
  GgufTensor tensor;
  uint64_t offset = 0, bytes = 0;
};

GgufEntry read_tensor(GgufCursor& in, const std::string& file) {
  GgufEntry e;
  e.tensor.name = in.text("the name of a tensor");
  const std::string thing = "the tensor " + in_quotes(e.tensor.name);
  const uint32_t rank = in.number<uint32_t>(thing);
  if (rank > kMostDims)
    broken_gguf(
        file, fmt::format("{} has {} dimensions; at most {} are allowed", thing, rank, kMostDims));
  std::vector<int64_t> sizes(rank);
  uint64_t elements = 1;
  for (uint32_t i = rank; i-- > 0;) {  // the file begins with the axis that lies together
    const uint64_t size = in.number<uint64_t>(thing);
    if (size > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      broken_gguf(file, fmt::format("{} has a dimension of {}", thing, size));
    sizes[i] = static_cast<int64_t>(size);
  }
  // The largest product that does not count a size of 0 must fit, too: strides are such products.
  for (const int64_t size : sizes)
    if (__builtin_mul_overflow(elements, static_cast<uint64_t>(std::max<int64_t>(size, 1)),
                               &elements) ||
        elements > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      broken_gguf(file,
                  fmt::format("{} of shape {} has too many elements", thing, Shape(sizes).str()));
  e.tensor.shape = Shape(sizes);
  const uint32_t id = in.number<uint32_t>(thing);
  e.tensor.type = find_block_type(id);
  if (e.tensor.type == nullptr)
    user_error("{}: {} has the type {}, which is not known; types that are read: {}", file, thing,
               id, names_of_read_types());
  const BlockType& type = *e.tensor.type;
  const int64_t row = rank == 0 ? 1 : sizes.back();
  if (row % type.elements != 0)
    broken_gguf(file, fmt::format("{} has rows of {} elements, which blocks of {} of the type {} "
                                  "do not divide",
                                  thing, row, type.elements, type.name));
  const auto blocks = static_cast<uint64_t>(e.tensor.shape.elements() / type.elements);
  if (__builtin_mul_overflow(blocks, static_cast<uint64_t>(type.bytes), &e.bytes))
    broken_gguf(file,
                fmt::format("{} of shape {} has too many elements", thing, e.tensor.shape.str()));
  e.offset = in.number<uint64_t>(thing);
  return e;
}

uint64_t alignment_of(const GgufFile::Metadata& metadata, const std::string& file) {
  const auto at = metadata.find("general.alignment");
  if (at == metadata.end()) return kUsualAlignment;
  const std::optional<int64_t> value = at->second.integer();
  if (!value || *value < 1 || !std::has_single_bit(static_cast<uint64_t>(*value)))
    broken_gguf(file, fmt::format("general.alignment must be a power of two; found {}",
                                  at->second.describe()));
  return static_cast<uint64_t>(*value);
}

/// Gives each tensor its bytes, which must lie in `data` and not overlap.
void place_tensors(std::vector<GgufEntry>& entries, std::span<const std::byte> data,
                   uint64_t alignment, const std::string& file) {
  std::vector<const GgufEntry*> order;
  for (GgufEntry& e : entries) {
    const std::string name = in_quotes(e.tensor.name);
    if (e.offset % alignment != 0)
      broken_gguf(file, fmt::format("the tensor {} begins at data byte {}, which is no multiple of "
                                    "the alignment {}",
                                    name, e.offset, alignment));
    if (e.offset > data.size() || e.bytes > data.size() - e.offset)
      user_error(
          "{}: truncated: the tensor {} needs {} bytes at data byte {}, and the file holds {} data "
          "bytes; {}",
          file, name, e.bytes, e.offset, data.size(), kCopyAgain);
    e.tensor.bytes = data.subspan(static_cast<size_t>(e.offset), static_cast<size_t>(e.bytes));
    if (e.bytes > 0) order.push_back(&e);
  }
  std::ranges::sort(order, {}, &GgufEntry::offset);
  for (size_t i = 1; i < order.size(); ++i)
    if (order[i]->offset < order[i - 1]->offset + order[i - 1]->bytes)
      broken_gguf(file,
                  fmt::format("the tensors {} and {} overlap", in_quotes(order[i - 1]->tensor.name),
                              in_quotes(order[i]->tensor.name)));
}

GgufPart read_part(std::span<const std::byte> bytes, const std::string& file) {
  GgufCursor in(bytes, file);
  GgufPart part;
  part.version = read_version(in, file);
  const uint64_t tensors = read_count(in, file, "tensors");
  const uint64_t keys = read_count(in, file, "keys");
  for (uint64_t i = 0; i < keys; ++i) {
    const std::string_view key = in.text("a key");
    const std::string thing = "the key " + in_quotes(key);
    const GgufType type = in.type(thing);
    if (!part.metadata.emplace(key, in.value(type, thing)).second)
      broken_gguf(file, thing + " is there twice");
  }
  std::vector<GgufEntry> entries;
  for (uint64_t i = 0; i < tensors; ++i) entries.push_back(read_tensor(in, file));
  const uint64_t alignment = alignment_of(part.metadata, file);
  const uint64_t padding = (alignment - in.at() % alignment) % alignment;
  const auto data = bytes.subspan(in.at() + std::min<uint64_t>(padding, in.left()));
  place_tensors(entries, data, alignment, file);
  for (const GgufEntry& e : entries) part.tensors.push_back(e.tensor);
  return part;
}

/// An integer of the metadata, or `fallback` where the key is absent.
int64_t integer_of(const GgufPart& part, std::string_view key, int64_t fallback,
                   const std::string& file) {
  const auto at = part.metadata.find(key);
  if (at == part.metadata.end()) return fallback;
  if (const auto value = at->second.integer()) return *value;
  broken_gguf(file, fmt::format("{} must be an integer; found {}", key, at->second.describe()));
}

constexpr std::string_view kPartNumber = "split.no", kPartCount = "split.count",
                           kTensorCount = "split.tensors.count";

}  // namespace

std::string_view name_of(GgufType type) { return kTypeNames[static_cast<size_t>(type)]; }

std::optional<int64_t> GgufValue::integer() const {
  switch (type) {
    case GgufType::u8:
      return number_at<uint8_t>(bytes);
    case GgufType::i8:
      return number_at<int8_t>(bytes);
    case GgufType::u16:
      return number_at<uint16_t>(bytes);
    case GgufType::i16:
      return number_at<int16_t>(bytes);
    case GgufType::u32:
      return number_at<uint32_t>(bytes);
    case GgufType::i32:
      return number_at<int32_t>(bytes);
    case GgufType::i64:
      return number_at<int64_t>(bytes);
    case GgufType::u64:
      if (const auto value = number_at<uint64_t>(bytes); value >> 63 == 0)
        return static_cast<int64_t>(value);
      return std::nullopt;
    default:
      return std::nullopt;
  }
}

std::optional<double> GgufValue::number() const {
  if (type == GgufType::f32) return number_at<float>(bytes);
  if (type == GgufType::f64) return number_at<double>(bytes);
  if (type == GgufType::u64) return static_cast<double>(number_at<uint64_t>(bytes));
  if (const auto value = integer()) return static_cast<double>(*value);
  return std::nullopt;
}

std::optional<bool> GgufValue::flag() const {
  if (type != GgufType::boolean) return std::nullopt;
  return number_at<uint8_t>(bytes) != 0;
}

std::optional<std::string_view> GgufValue::text() const {
  if (type != GgufType::text) return std::nullopt;
  return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void GgufValue::each(const std::function<void(const GgufValue&)>& see) const {
  BRRR_CHECK(type == GgufType::array, "a GGUF value of type {} has no elements", name_of(type));
  const std::string nothing;
  GgufCursor in(bytes, nothing);
  for (uint64_t i = 0; i < count; ++i) see(in.value(element, nothing));
}

std::string GgufValue::describe() const {
  if (type == GgufType::array)
    return fmt::format("an array of {} elements of type {}", count, name_of(element));
  if (const auto value = text()) return "the string " + in_quotes(*value);
  if (const auto value = flag()) return *value ? "true" : "false";
  if (type == GgufType::u64) return fmt::format("the u64 {}", number_at<uint64_t>(bytes));
  if (const auto value = integer()) return fmt::format("the {} {}", name_of(type), *value);
  return fmt::format("the {} {}", name_of(type), *number());
}

GgufFile::GgufFile(std::span<const std::byte> bytes, const std::string& what) : what_(what) {
  GgufPart part = read_part(bytes, what);
  if (integer_of(part, kPartCount, 1, what) > 1)
    broken_gguf(what, "it is one part of a split file, and the others are missing");
  version_ = part.version;
  metadata_ = std::move(part.metadata);
  add(std::move(part.tensors), what);
}

GgufFile::GgufFile(const fs::path& path) : what_(path.string()) {
  MappedFile& map = maps_.emplace_back(path);
  GgufPart part = read_part(map.bytes(), what_);
  const int64_t count = integer_of(part, kPartCount, 1, what_);
  if (count > 1) {
    maps_.clear();
    open_parts(path, count);
    return;
  }
  paths_ = {path};
  version_ = part.version;
  metadata_ = std::move(part.metadata);
  add(std::move(part.tensors), what_);
}

void GgufFile::open_parts(const fs::path& path, int64_t count) {
  if (count > kMostParts)
    broken_gguf(what_,
                fmt::format("{} says {}; at most {} are read", kPartCount, count, kMostParts));
  std::vector<std::string> missing;
  std::error_code ignored;
  for (int64_t i = 1; i <= count && missing.size() < kMostMissing; ++i) {
    const std::optional<fs::path> part = gguf_part(path, i, count);
    if (!part)
      user_error(
          "{}: a part of a split file of {}, whose name must end in -00001-of-{:05}.gguf (or the "
          "number of the part instead of 1): the other parts are found by it",
          what_, count, count);
    if (!fs::exists(*part, ignored)) missing.push_back(part->filename().string());
    paths_.push_back(*part);
  }
  if (!missing.empty())
    user_error(
        "{}: a part of a split file of {}, of which {} {} missing: all parts belong into "
        "one folder",
        what_, count, fmt::join(missing, ", "), missing.size() == 1 ? "is" : "are");
  what_ = paths_.front().string();
  int64_t tensors = -1;
  for (int64_t i = 0; i < count; ++i) {
    const std::string file = paths_[static_cast<size_t>(i)].string();
    GgufPart part = read_part(maps_.emplace_back(file).bytes(), file);
    const int64_t number = integer_of(part, kPartNumber, -1, file);
    const int64_t parts = integer_of(part, kPartCount, 1, file);
    if (number != i || parts != count)
      broken_gguf(file, fmt::format("its name says part {} of {}; {} is {} and {} is {}", i + 1,
                                    count, kPartNumber, number, kPartCount, parts));
    if (i == 0) {
      tensors = integer_of(part, kTensorCount, -1, file);
      version_ = part.version;
      metadata_ = std::move(part.metadata);
    }
    add(std::move(part.tensors), file);
  }
  if (tensors >= 0 && tensors != std::ssize(tensors_))
    broken_gguf(what_, fmt::format("{} says {}, the parts hold {}", kTensorCount, tensors,
                                   tensors_.size()));
}

void GgufFile::add(std::vector<GgufTensor> tensors, const std::string& what) {
  for (GgufTensor& tensor : tensors) {
    if (!tensor_index_.emplace(tensor.name, tensors_.size()).second)
      broken_gguf(what, fmt::format("the tensor {} is there twice", in_quotes(tensor.name)));
    tensors_.push_back(std::move(tensor));
  }
}

void GgufFile::wrong(std::string_view key, const char* wanted, const GgufValue& found) const {
  user_error("{}: {} must be {}; found {}", what_, key, wanted, found.describe());
}

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto at = metadata_.find(key);
  return at == metadata_.end() ? nullptr : &at->second;
}

std::optional<int64_t> GgufFile::integer(std::string_view key) const {
  const GgufValue* const value = find(key);
  if (value == nullptr) return std::nullopt;
  if (const auto integer = value->integer()) return integer;
  wrong(key, "an integer", *value);
}

std::optional<double> GgufFile::number(std::string_view key) const {
  const GgufValue* const value = find(key);
  if (value == nullptr) return std::nullopt;
  if (const auto number = value->number()) return number;
  wrong(key, "a number", *value);
}

std::optional<bool> GgufFile::flag(std::string_view key) const {
  const GgufValue* const value = find(key);
  if (value == nullptr) return std::nullopt;
  if (const auto flag = value->flag()) return flag;
  wrong(key, "true or false", *value);
}

std::optional<std::string_view> GgufFile::text(std::string_view key) const {
  const GgufValue* const value = find(key);
  if (value == nullptr) return std::nullopt;
  if (const auto text = value->text()) return text;
  wrong(key, "a string", *value);
}

std::vector<std::string_view> GgufFile::texts(std::string_view key) const {
  const GgufValue* const value = find(key);
  std::vector<std::string_view> texts;
  if (value == nullptr) return texts;
  if (value->type != GgufType::array || value->element != GgufType::text)
    wrong(key, "an array of strings", *value);
  texts.reserve(value->count);
  value->each([&](const GgufValue& element) { texts.push_back(*element.text()); });
  return texts;
}

std::vector<int64_t> GgufFile::integers(std::string_view key) const {
  const GgufValue* const value = find(key);
  std::vector<int64_t> integers;
  if (value == nullptr) return integers;
  if (value->type != GgufType::array) wrong(key, "an array of integers", *value);
  value->each([&](const GgufValue& element) {
    if (!element.integer()) wrong(key, "an array of integers", *value);
    integers.push_back(*element.integer());
  });
  return integers;
}

std::vector<float> GgufFile::numbers(std::string_view key) const {
  const GgufValue* const value = find(key);
  std::vector<float> numbers;
  if (value == nullptr) return numbers;
  if (value->type != GgufType::array) wrong(key, "an array of numbers", *value);
  value->each([&](const GgufValue& element) {
    if (!element.number()) wrong(key, "an array of numbers", *value);
    numbers.push_back(static_cast<float>(*element.number()));
  });
  return numbers;
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  const auto at = tensor_index_.find(name);
  return at == tensor_index_.end() ? nullptr : &tensors_[at->second];
}

void GgufFile::let_go(std::span<const std::byte> bytes) const {
  for (const MappedFile& map : maps_) {
    const std::span<const std::byte> mapped = map.bytes();
    if (!bytes.empty() && bytes.data() >= mapped.data() &&
        bytes.data() + bytes.size() <= mapped.data() + mapped.size())
      map.let_go(bytes);
  }
}

bool is_gguf_file(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return false;
  std::ifstream file(path, std::ios::binary);
  std::string magic(kGgufMagic.size(), '\0');
  return file.read(magic.data(), std::ssize(magic)) && magic == kGgufMagic;
}

std::optional<fs::path> gguf_part(const fs::path& path, int64_t part, int64_t count) {
  const std::string name = path.filename().string();
  const std::string ending = fmt::format("-of-{:05}.gguf", count);
  constexpr size_t kDigits = 5;
  if (name.size() <= ending.size() + kDigits + 1 || !name.ends_with(ending)) return std::nullopt;
  const size_t digits = name.size() - ending.size() - kDigits;
  if (name[digits - 1] != '-' || name.find_first_not_of("0123456789", digits) < digits + kDigits)
    return std::nullopt;
  return path.parent_path() / fmt::format("{}{:05}{}", name.substr(0, digits), part, ending);
}

}  // namespace brrr::io
