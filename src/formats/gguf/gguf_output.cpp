#include "formats/gguf/gguf_output.h"

#include <limits>

#include "base/errors.h"

namespace brrr::io {
namespace {

constexpr uint32_t kVersion = 3;
constexpr uint64_t kAlignment = 32;  // the default, which needs no key

uint64_t aligned(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

template <typename T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}
void put_text(std::string& out, std::string_view text) {
  put<uint64_t>(out, text.size());
  out += text;
}

}  // namespace

void GgufMetadata::begin(std::string_view key, GgufType type) {
  BRRR_CHECK(keys_.emplace(key).second, "the key {} is there twice", key);
  put_text(bytes_, key);
  put(bytes_, type);
}
void GgufMetadata::begin_array(std::string_view key, GgufType element, size_t count) {
  begin(key, GgufType::array);
  put(bytes_, element);
  put<uint64_t>(bytes_, count);
}

GgufMetadata& GgufMetadata::text(std::string_view key, std::string_view value) {
  begin(key, GgufType::text);
  put_text(bytes_, value);
  return *this;
}
GgufMetadata& GgufMetadata::flag(std::string_view key, bool value) {
  begin(key, GgufType::boolean);
  put<uint8_t>(bytes_, value);
  return *this;
}
GgufMetadata& GgufMetadata::count(std::string_view key, int64_t value) {
  BRRR_CHECK(value >= 0 && value <= std::numeric_limits<uint32_t>::max(), "{} = {}", key, value);
  begin(key, GgufType::u32);
  put(bytes_, static_cast<uint32_t>(value));
  return *this;
}
GgufMetadata& GgufMetadata::integer(std::string_view key, int32_t value) {
  begin(key, GgufType::i32);
  put(bytes_, value);
  return *this;
}
GgufMetadata& GgufMetadata::real(std::string_view key, double value) {
  begin(key, GgufType::f32);
  put(bytes_, static_cast<float>(value));
  return *this;
}
GgufMetadata& GgufMetadata::texts(std::string_view key, std::span<const std::string> values) {
  begin_array(key, GgufType::text, values.size());
  for (const std::string& value : values) put_text(bytes_, value);
  return *this;
}
GgufMetadata& GgufMetadata::integers(std::string_view key, std::span<const int32_t> values) {
  begin_array(key, GgufType::i32, values.size());
  for (const int32_t value : values) put(bytes_, value);
  return *this;
}
GgufMetadata& GgufMetadata::flags(std::string_view key, std::span<const bool> values) {
  begin_array(key, GgufType::boolean, values.size());
  for (const bool value : values) put<uint8_t>(bytes_, value);
  return *this;
}
GgufMetadata& GgufMetadata::reals(std::string_view key, std::span<const float> values) {
  begin_array(key, GgufType::f32, values.size());
  for (const float value : values) put(bytes_, value);
  return *this;
}
GgufMetadata& GgufMetadata::copy(std::string_view key, const GgufValue& value) {
  const std::string_view bytes(reinterpret_cast<const char*>(value.bytes.data()),
                               value.bytes.size());
  if (value.type == GgufType::text) return text(key, bytes);
  if (value.type == GgufType::array)
    begin_array(key, value.element, value.count);
  else
    begin(key, value.type);
  bytes_ += bytes;
  return *this;
}

GgufMetadata& GgufMetadata::append(const GgufMetadata& other) {
  for (const std::string& key : other.keys_)
    BRRR_CHECK(keys_.insert(key).second, "the key {} is there twice", key);
  bytes_ += other.bytes_;
  return *this;
}

uint64_t GgufPlanned::bytes() const {
  return static_cast<uint64_t>(shape.elements() / type->elements * type->bytes);
}

GgufOutput::GgufOutput(const GgufMetadata& metadata, std::vector<GgufPlanned> tensors)
    : tensors_(std::move(tensors)), header_("GGUF") {
  put(header_, kVersion);
  put<uint64_t>(header_, tensors_.size());
  put<uint64_t>(header_, metadata.size());
  header_ += metadata.bytes();
  uint64_t offset = 0;
  std::set<std::string_view> names;
  for (const GgufPlanned& t : tensors_) {
    BRRR_CHECK(names.insert(t.name).second, "two tensors are called {}", t.name);
    BRRR_CHECK(t.shape.rank() > 0 && t.shape.size(-1) % t.type->elements == 0,
               "{} of shape {} in blocks of {}", t.name, t.shape.str(), t.type->name);
    put_text(header_, t.name);
    put(header_, static_cast<uint32_t>(t.shape.rank()));
    for (int i = static_cast<int>(t.shape.rank()); i-- > 0;)
      put(header_, static_cast<uint64_t>(t.shape.size(i)));
    put(header_, t.type->id);
    put(header_, offset);
    offset = aligned(offset + t.bytes());
  }
  header_.resize(aligned(header_.size()), '\0');
  bytes_ = header_.size() + offset;  // the last tensor is padded, too, as llama.cpp does
}

void GgufOutput::write(
    const fs::path& path,
    const std::function<void(const GgufPlanned&, std::span<std::byte>)>& make) const {
  NewFile file(path);
  file.out().write(header_);
  std::vector<std::byte> room;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (i == tensors_.size() / 2) fault_point("gguf.write");
    const uint64_t bytes = tensors_[i].bytes();
    room.assign(aligned(bytes), std::byte{0});
    make(tensors_[i], std::span(room).first(bytes));
    file.out().write(room.data(), room.size());
  }
  BRRR_CHECK(file.out().bytes_written() == bytes_, "{} bytes of {}", file.out().bytes_written(),
             bytes_);
  file.commit();
}

}  // namespace brrr::io
