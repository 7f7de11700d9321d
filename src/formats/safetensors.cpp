#include "formats/safetensors.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <tuple>

#include "base/errors.h"
#include "base/human.h"
#include "formats/json_file.h"
#include "formats/safetensors_layout.h"

namespace brrr::io {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint64_t kLargestHeader = 100'000'000;  // the limit of the format
constexpr size_t kLengthBytes = 8;
constexpr size_t kDataAlignment = 64;
constexpr const char* kMetadataKey = "__metadata__";

struct FormatDType {
  const char* name;
  DType dtype;
};
constexpr FormatDType kFormatDTypes[] = {
    {"F64", DType::f64},      {"F32", DType::f32}, {"F16", DType::f16}, {"BF16", DType::bf16},
    {"I64", DType::i64},      {"I32", DType::i32}, {"I8", DType::i8},   {"U8", DType::u8},
    {"BOOL", DType::boolean}, {"I16", DType::i16}, {"U16", DType::u16}, {"U32", DType::u32},
    {"U64", DType::u64},
};

std::optional<DType> dtype_of_format(std::string_view name) {
  for (const FormatDType& f : kFormatDTypes)
    if (f.name == name) return f.dtype;
  return std::nullopt;
}

const char* format_name(DType dtype) {
  for (const FormatDType& f : kFormatDTypes)
    if (f.dtype == dtype) return f.name;
  BRRR_CHECK(false, "dtype {} has no safetensors name", name_of(dtype));
}

struct Entry {
  std::string name;
  std::string dtype;
  std::vector<int64_t> sizes;
  uint64_t begin = 0, end = 0;
};

[[noreturn]] void broken(const std::string& file, const std::string& tensor,
                         const std::string& fault) {
  user_error("{}: broken safetensors header: tensor {}: {}", file, in_quotes(tensor), fault);
}

const Json& field(const std::string& file, const std::string& tensor, const Json& entry,
                  const char* key) {
  const auto at = entry.find(key);
  if (at == entry.end()) broken(file, tensor, fmt::format("'{}' is missing", key));
  return *at;
}

Entry read_entry(const std::string& file, const std::string& name, const Json& value,
                 uint64_t data_bytes) {
  if (!value.is_object())
    broken(file, name,
           "expected an object with dtype, shape and data_offsets, found " + describe(value));
  Entry e;
  e.name = name;
  const Json& dtype = field(file, name, value, "dtype");
  if (!dtype.is_string()) broken(file, name, "dtype must be a string, found " + describe(dtype));
  e.dtype = dtype.get<std::string>();

  const Json& shape = field(file, name, value, "shape");
  if (!shape.is_array()) broken(file, name, "shape must be an array, found " + describe(shape));
  for (const Json& size : shape) {
    if (!size.is_number_unsigned() ||
        size.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      broken(file, name, "shape must hold sizes of 0 or more, found " + describe(size));
    e.sizes.push_back(static_cast<int64_t>(size.get<uint64_t>()));
  }

  const Json& offsets = field(file, name, value, "data_offsets");
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned())
    broken(file, name, "data_offsets must be [begin, end], two numbers of 0 or more");
  e.begin = offsets[0].get<uint64_t>();
  e.end = offsets[1].get<uint64_t>();
  if (e.begin > e.end)
    broken(file, name, fmt::format("data_offsets [{}, {}] end before they begin", e.begin, e.end));
  if (e.end > data_bytes)
    user_error(
        "{}: truncated: tensor {} ends at data byte {}, but the file holds only {} data bytes; "
        "copy or download it again",
        file, in_quotes(name), e.end, data_bytes);

  if (const auto known = dtype_of_format(e.dtype)) {
    uint64_t bytes = bytes_of(*known);
    for (const int64_t size : e.sizes)
      if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes))
        broken(file, name, "shape " + Shape(e.sizes).str() + " has too many elements");
    if (bytes != e.end - e.begin)
      broken(file, name,
             fmt::format("dtype {} and shape {} need {} bytes, data_offsets give {}", e.dtype,
                         Shape(e.sizes).str(), bytes, e.end - e.begin));
  }
  return e;
}

Metadata read_metadata(const std::string& file, const Json& value) {
  if (!value.is_object())
    user_error("{}: broken safetensors header: __metadata__ must be an object of strings, found {}",
               file, describe(value));
  Metadata out;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string())
      user_error("{}: broken safetensors header: __metadata__ {} must be a string, found {}", file,
                 in_quotes(key), describe(text));
    out[key] = text.get<std::string>();
  }
  return out;
}

}  // namespace

void SafetensorsFile::each(const std::function<void(const TensorView&)>& see) const {
  std::ranges::for_each(tensors_, see);
}

void SafetensorsFile::each_foreign(const std::function<void(const ForeignTensor&)>& see) const {
  std::ranges::for_each(foreign_, see);
}

void SafetensorsFile::let_go(std::span<const std::byte> bytes) const {
  const std::span<const std::byte> mapped = map_.bytes();
  const bool inside = !bytes.empty() && bytes.data() >= mapped.data() &&
                      bytes.data() + bytes.size() <= mapped.data() + mapped.size();
  if (inside) map_.let_go(bytes);
}

SafetensorsFile::SafetensorsFile(const fs::path& path) : what_(path.string()), map_(path) {
  parse(map_.bytes());
}

SafetensorsFile::SafetensorsFile(std::span<const std::byte> bytes, const std::string& what)
    : what_(what) {
  parse(bytes);
}

void SafetensorsFile::parse(std::span<const std::byte> bytes) {
  if (bytes.size() < kLengthBytes)
    user_error("{}: not a safetensors file: it has {}, the header length alone takes 8", what_,
               counted(std::ssize(bytes), "byte"));
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), kLengthBytes);
  if (header_bytes > kLargestHeader)
    user_error(
        "{}: not a safetensors file: it asks for a header of {} bytes, at most {} are allowed",
        what_, header_bytes, kLargestHeader);
  if (header_bytes > bytes.size() - kLengthBytes)
    user_error("{}: truncated: the header needs {} bytes, {} are there; copy or download it again",
               what_, header_bytes, bytes.size() - kLengthBytes);
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes,
                                static_cast<size_t>(header_bytes));
  if (header.empty() || header[0] != '{')
    user_error("{}: not a safetensors file: the header must be a JSON object", what_);
  const Json root = parse_json(header, what_ + ": safetensors header");
  const auto data = bytes.subspan(kLengthBytes + static_cast<size_t>(header_bytes));

  std::vector<Entry> entries;
  for (const auto& [name, value] : root.items()) {
    if (name == kMetadataKey)
      metadata_ = read_metadata(what_, value);
    else
      entries.push_back(read_entry(what_, name, value, data.size()));
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  uint64_t expected = 0;
  for (const Entry& e : entries) {
    if (e.begin != expected)
      broken(
          what_, e.name,
          fmt::format("its bytes begin at {}, expected {}: tensors must follow each other without "
                      "{}",
                      e.begin, expected, e.begin < expected ? "overlap" : "a gap"));
    expected = e.end;
  }
  if (expected != data.size())
    user_error("{}: broken safetensors file: the header describes {} data bytes, the file holds {}",
               what_, expected, data.size());

  for (Entry& e : entries) {
    const auto part =
        data.subspan(static_cast<size_t>(e.begin), static_cast<size_t>(e.end - e.begin));
    if (const auto dtype = dtype_of_format(e.dtype))
      tensors_.push_back({std::move(e.name), *dtype, Shape(e.sizes), part});
    else
      foreign_.push_back({std::move(e.name), std::move(e.dtype), Shape(e.sizes), part});
  }
  for (size_t i = 0; i < tensors_.size(); ++i) index_[tensors_[i].name] = i;
  for (size_t i = 0; i < foreign_.size(); ++i) index_[foreign_[i].name] = tensors_.size() + i;
}

const TensorView* SafetensorsFile::find(std::string_view name) const {
  const auto at = index_.find(std::string(name));
  if (at == index_.end()) return nullptr;
  if (at->second < tensors_.size()) return &tensors_[at->second];
  const ForeignTensor& foreign = foreign_[at->second - tensors_.size()];
  user_error(
      "{}: tensor {} has dtype {}, which is not supported; convert it to one of F64 F32 F16 BF16 "
      "I64 I32 I8 U8 BOOL",
      what_, in_quotes(name), in_quotes(foreign.dtype));
}

const TensorView& SafetensorsFile::get(std::string_view name) const {
  if (const TensorView* tensor = find(name)) return *tensor;
  user_error("{}: there is no tensor {} among its {}", what_, in_quotes(name), index_.size());
}

std::vector<const TensorView*> in_file_order(std::span<const TensorView> tensors) {
  std::vector<const TensorView*> order;
  for (const TensorView& t : tensors) order.push_back(&t);
  std::sort(order.begin(), order.end(), [](const TensorView* a, const TensorView* b) {
    if (bytes_of(a->dtype) != bytes_of(b->dtype)) return bytes_of(a->dtype) > bytes_of(b->dtype);
    return a->name < b->name;
  });
  return order;
}

SafetensorsLayout layout_of(std::span<const TensorView> tensors, const Metadata& metadata) {
  SafetensorsLayout layout;
  std::string header = "{";
  if (!metadata.empty()) header += fmt::format("\"{}\":{},", kMetadataKey, Json(metadata).dump());
  uint64_t offset = 0;
  std::map<std::string_view, int> seen;
  for (const TensorView* t : in_file_order(tensors)) {
    BRRR_CHECK(t->name != kMetadataKey && !t->name.empty(), "tensor name '{}'", t->name);
    BRRR_CHECK(seen[t->name]++ == 0, "two tensors are called {}", t->name);
    const auto bytes = static_cast<uint64_t>(t->shape.elements()) * bytes_of(t->dtype);
    header += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}},",
                          Json(t->name).dump(), format_name(t->dtype), t->shape.str(), offset,
                          offset + bytes);
    layout.places.push_back({t, offset, bytes});
    offset += bytes;
  }
  if (header.back() == ',') header.pop_back();
  header += '}';
  header.append((kDataAlignment - (kLengthBytes + header.size()) % kDataAlignment) % kDataAlignment,
                ' ');
  BRRR_CHECK(header.size() <= kLargestHeader, "a safetensors header of {} bytes", header.size());
  const uint64_t header_bytes = header.size();
  layout.head.assign(reinterpret_cast<const char*>(&header_bytes), sizeof header_bytes);
  layout.head += header;
  for (SafetensorsLayout::Place& place : layout.places) place.begin += layout.head.size();
  layout.bytes = layout.head.size() + offset;
  return layout;
}

void write_safetensors(const fs::path& path, std::span<const TensorView> tensors,
                       const Metadata& metadata, const TensorContent& content) {
  const SafetensorsLayout layout = layout_of(tensors, metadata);
  const auto check_size = [](const SafetensorsLayout::Place& place, size_t bytes) {
    BRRR_CHECK(bytes == place.bytes, "tensor {} of {}{} has {} bytes", place.tensor->name,
               name_of(place.tensor->dtype), place.tensor->shape.str(), bytes);
  };
  if (!content)
    for (const auto& place : layout.places) check_size(place, place.tensor->bytes.size());
  NewFile file(path);
  file.out().write(layout.head);
  for (size_t i = 0; i < layout.places.size(); ++i) {
    if (i == layout.places.size() / 2) fault_point("safetensors.write");
    const TensorView& tensor = *layout.places[i].tensor;
    const std::span<const std::byte> bytes = content ? content(tensor) : tensor.bytes;
    check_size(layout.places[i], bytes.size());
    file.out().write(bytes.data(), bytes.size());
  }
  file.commit();
}

void copy_as_f32(const TensorView& tensor, std::span<float> out) {
  BRRR_CHECK(static_cast<uint64_t>(tensor.shape.elements()) == out.size(), "{} elements into {}",
             tensor.shape.elements(), out.size());
  if (!is_float(tensor.dtype))
    user_error("tensor {} holds {}; expected floating-point weights", in_quotes(tensor.name),
               name_of(tensor.dtype));
  convert(tensor.dtype, tensor.bytes.data(), DType::f32, out.data(), std::ssize(out));
}

}  // namespace brrr::io
