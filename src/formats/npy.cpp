#include "formats/npy.h"

#include <bit>
#include <charconv>
#include <cstring>

#include "base/errors.h"
#include "base/file.h"
#include "formats/file_kind.h"

namespace brrr::io {
namespace {

static_assert(std::endian::native == std::endian::little, "'<f4' is how numbers lie in memory");

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kMostAxes = 64;

// What each dtype is called; those that NumPy lacks are their bits.
constexpr std::pair<DType, std::string_view> kNames[] = {
    {DType::f32, "<f4"},  {DType::f64, "<f8"},    {DType::f16, "<f2"},   {DType::i32, "<i4"},
    {DType::i64, "<i8"},  {DType::i8, "|i1"},     {DType::u8, "|u1"},    {DType::i16, "<i2"},
    {DType::u16, "<u2"},  {DType::u32, "<u4"},    {DType::u64, "<u8"},   {DType::boolean, "|b1"},
    {DType::bf16, "<u2"}, {DType::f8e4m3, "|u1"}, {DType::f8e5m2, "|u1"}};

std::string_view npy_name(DType dtype) {
  for (const auto& [known, name] : kNames)
    if (known == dtype) return name;
  return "";
}

/// ", but a picture (PNG)"; "" where nobody knows.
std::string but_is(std::string_view bytes) {
  const auto kind = kind_of_bytes(bytes.substr(0, 4096));
  return kind ? ", but " + kind->name : "";
}

/// The header's Python literal, read piece by piece.
class Header {
 public:
  Header(std::string_view text, const std::string& what) : text_(text), what_(what) {}

  void read() {
    take('{');
    while (!accept('}')) {
      const std::string_view key = quoted();
      take(':');
      if (key == "descr")
        descr = quoted();
      else if (key == "fortran_order")
        fortran = boolean();
      else if (key == "shape")
        shape = tuple();
      else
        broken();
      accept(',');
    }
    if (descr.empty()) broken();
  }

  std::string_view descr;
  bool fortran = false;
  std::vector<int64_t> shape;

 private:
  [[noreturn]] void broken() const { user_error("{}: its header is not NumPy's", what_); }
  void skip() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool accept(char c) {
    skip();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void take(char c) {
    if (!accept(c)) broken();
  }
  std::string_view quoted() {
    skip();
    if (at_ >= text_.size() || (text_[at_] != '\'' && text_[at_] != '"')) broken();
    const size_t end = text_.find(text_[at_], at_ + 1);
    if (end == std::string_view::npos) broken();
    const std::string_view inside = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return inside;
  }
  bool boolean() {
    skip();
    for (const std::string_view word : {"True", "False"})
      if (text_.substr(at_).starts_with(word)) {
        at_ += word.size();
        return word == "True";
      }
    broken();
  }
  std::vector<int64_t> tuple() {
    std::vector<int64_t> sizes;
    take('(');
    while (!accept(')')) {
      skip();
      int64_t size = 0;
      const char* end = text_.data() + text_.size();
      const auto [next, error] = std::from_chars(text_.data() + at_, end, size);
      if (error != std::errc() || size < 0 || sizes.size() == kMostAxes) broken();
      at_ = static_cast<size_t>(next - text_.data());
      accept('L');  // of Python 2
      sizes.push_back(size);
      accept(',');
    }
    return sizes;
  }

  std::string_view text_;
  const std::string& what_;
  size_t at_ = 0;
};

uint64_t little_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

/// Elements in the order of columns, put into the order of rows.
void reorder(HostTensor& tensor, const char* from) {
  const size_t size = bytes_of(tensor.dtype);
  const std::vector<int64_t> sizes = tensor.shape.sizes();
  std::vector<int64_t> index(sizes.size());
  for (size_t i = 0; i < tensor.bytes.size() / size; ++i) {
    int64_t column = 0;
    for (size_t axis = sizes.size(); axis-- > 0;) column = column * sizes[axis] + index[axis];
    std::memcpy(tensor.bytes.data() + i * size, from + static_cast<size_t>(column) * size, size);
    for (size_t axis = sizes.size(); axis-- > 0;) {
      if (++index[axis] < sizes[axis]) break;
      index[axis] = 0;
    }
  }
}

}  // namespace

std::string npy_bytes(DType dtype, std::span<const int64_t> sizes,
                      std::span<const std::byte> data) {
  constexpr size_t kAlignment = 64;  // of the numbers in the file
  std::string shape;
  for (const int64_t size : sizes) shape += fmt::format("{}{}", shape.empty() ? "" : ", ", size);
  if (sizes.size() == 1) shape += ',';
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}",
                                   npy_name(dtype), shape);
  std::string out(kMagic);
  out += std::string_view("\x01\x00", 2);
  const size_t unpadded = out.size() + sizeof(uint16_t) + header.size() + 1;
  header.append((kAlignment - unpadded % kAlignment) % kAlignment, ' ');
  header += '\n';
  const auto size = static_cast<uint16_t>(header.size());
  out += static_cast<char>(size & 0xff);
  out += static_cast<char>(size >> 8);
  out += header;
  out.append(reinterpret_cast<const char*>(data.data()), data.size());
  return out;
}

void write_npy(const std::filesystem::path& path, const HostTensor& tensor) {
  write_named_file(path, npy_bytes(tensor.dtype, tensor.shape.sizes(), tensor.bytes));
}

void write_npy(const std::filesystem::path& path, std::span<const float> numbers, int64_t rows,
               int64_t columns) {
  BRRR_CHECK(std::ssize(numbers) == rows * columns, "{} numbers for [{}, {}]", numbers.size(), rows,
             columns);
  const int64_t sizes[] = {rows, columns};
  write_named_file(path, npy_bytes(DType::f32, sizes, std::as_bytes(numbers)));
}

HostTensor parse_npy(std::string_view bytes, const std::string& what) {
  constexpr size_t kVersionEnd = 8;
  if (!bytes.starts_with(kMagic) || bytes.size() < kVersionEnd + 2)
    user_error("{}: this is no .npy file{}", what, but_is(bytes));
  const int version = bytes[kMagic.size()];
  const size_t length_bytes = version == 1 ? 2 : 4;
  if (version < 1 || version > 3 || bytes.size() < kVersionEnd + length_bytes)
    user_error("{}: version {} of .npy is not supported", what, version);
  const uint64_t length = little_endian(bytes.substr(kVersionEnd, length_bytes));
  const size_t start = kVersionEnd + length_bytes;
  if (length > bytes.size() - start) user_error("{}: the file is cut short in its header", what);
  Header header(bytes.substr(start, length), what);
  header.read();
  std::optional<DType> dtype;
  for (const auto& [known, name] : kNames)
    if (!dtype && (name == header.descr || (name[0] == '|' && header.descr.size() == 3 &&
                                            header.descr.substr(1) == name.substr(1))))
      dtype = known;
  if (!dtype)
    user_error("{}: elements of type '{}' are not supported; save it as float32, int64, ...", what,
               header.descr);
  const Shape shape(header.shape);
  const std::string_view data = bytes.substr(start + length);
  uint64_t wanted = 0;
  if (__builtin_mul_overflow(static_cast<uint64_t>(shape.elements()), bytes_of(*dtype), &wanted) ||
      data.size() < wanted)
    user_error("{}: it has {} bytes for {} of {}", what, data.size(), shape.str(),
               brrr::name_of(*dtype));
  HostTensor tensor(*dtype, shape);
  if (header.fortran)
    reorder(tensor, data.data());
  else if (wanted > 0)
    std::memcpy(tensor.bytes.data(), data.data(), wanted);
  return tensor;
}

HostTensor read_npy(const std::filesystem::path& path) {
  const MappedFile file(path);
  return parse_npy(file.text(), path.string());
}

}  // namespace brrr::io
