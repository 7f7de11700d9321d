#pragma once
// Writes small GGUF files for tests, and broken ones.

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/gguf/gguf_file.h"

namespace brrr::test {

template <typename T>
std::string gguf_number(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

inline std::string gguf_text(std::string_view text) {
  return gguf_number<uint64_t>(text.size()).append(text);
}

class GgufWriter {
 public:
  uint32_t version = 3;
  uint64_t alignment = 32;  // of the data; a key of its own says so

  GgufWriter& key(std::string_view name, io::GgufType type, std::string_view value) {
    keys_ += gguf_text(name) + gguf_number(type);
    keys_ += value;
    ++key_count_;
    return *this;
  }
  GgufWriter& text(std::string_view name, std::string_view value) {
    return key(name, io::GgufType::text, gguf_text(value));
  }
  GgufWriter& u32(std::string_view name, uint32_t value) {
    return key(name, io::GgufType::u32, gguf_number(value));
  }
  GgufWriter& i32(std::string_view name, int32_t value) {
    return key(name, io::GgufType::i32, gguf_number(value));
  }
  GgufWriter& u16(std::string_view name, uint16_t value) {
    return key(name, io::GgufType::u16, gguf_number(value));
  }
  GgufWriter& f32(std::string_view name, float value) {
    return key(name, io::GgufType::f32, gguf_number(value));
  }
  GgufWriter& flag(std::string_view name, bool value) {
    return key(name, io::GgufType::boolean, gguf_number<uint8_t>(value));
  }
  GgufWriter& texts(std::string_view name, const std::vector<std::string>& values) {
    std::string elements;
    for (const std::string& value : values) elements += gguf_text(value);
    return key(name, io::GgufType::array, array(io::GgufType::text, values.size(), elements));
  }
  template <typename T>
  GgufWriter& numbers(std::string_view name, io::GgufType type, const std::vector<T>& values) {
    std::string elements;
    for (const T value : values) elements += gguf_number(value);
    return key(name, io::GgufType::array, array(type, values.size(), elements));
  }
  static std::string array(io::GgufType element, uint64_t count, std::string_view elements) {
    return (gguf_number(element) + gguf_number(count)).append(elements);
  }

  /// `shape` is row-major. The bytes lie at the next multiple of the alignment, or at `offset`.
  GgufWriter& tensor(std::string_view name, std::vector<uint64_t> shape, uint32_t type,
                     std::string_view bytes, int64_t offset = -1) {
    data_.resize((data_.size() + alignment - 1) / alignment * alignment, '\0');
    tensors_ += gguf_text(name) + gguf_number(static_cast<uint32_t>(shape.size()));
    for (size_t i = shape.size(); i-- > 0;) tensors_ += gguf_number(shape[i]);
    tensors_ +=
        gguf_number(type) + gguf_number(offset < 0 ? data_.size() : static_cast<uint64_t>(offset));
    data_ += bytes;
    ++tensor_count_;
    return *this;
  }
  GgufWriter& floats(std::string_view name, std::vector<uint64_t> shape,
                     const std::vector<float>& values) {
    return tensor(name, std::move(shape), 0,
                  {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
  }

  std::string bytes() const {
    std::string out = "GGUF" + gguf_number(version) + gguf_number(tensor_count_) +
                      gguf_number(key_count_) + keys_ + tensors_;
    out.resize((out.size() + alignment - 1) / alignment * alignment, '\0');
    return out + data_;
  }

 private:
  uint64_t key_count_ = 0, tensor_count_ = 0;
  std::string keys_, tensors_, data_;
};

}  // namespace brrr::test
