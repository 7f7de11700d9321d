#pragma once
// The wire format of protocol buffers, written field by field. Large bytes are not copied: a
// message is a list of pieces, which go to the file one after the other.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace brrr::io {

class ProtobufWriter {
 public:
  void varint(uint32_t field, uint64_t value);
  /// A negative number takes ten bytes, as the format has it.
  void integer(uint32_t field, int64_t value) { varint(field, static_cast<uint64_t>(value)); }
  void number(uint32_t field, float value);
  void number(uint32_t field, double value);
  void text(uint32_t field, std::string_view value);
  void message(uint32_t field, ProtobufWriter&& inner);
  /// Numbers of a repeated field in one piece; nothing where there are none.
  void packed(uint32_t field, std::span<const int64_t> values);
  void packed(uint32_t field, std::span<const float> values);
  /// Bytes that must live until the message is written.
  void view(uint32_t field, std::span<const std::byte> bytes);

  /// Appends the fields of another message. Its views stay views.
  void append(const ProtobufWriter& fields);

  uint64_t size() const { return size_; }
  /// The whole message.
  std::string str() const;
  /// write(bytes) for each piece, in order.
  void write_to(const std::function<void(std::string_view)>& write) const;

 private:
  using Piece = std::variant<std::string, std::string_view>;
  void tag(uint32_t field, uint32_t wire);
  void raw_varint(uint64_t value);
  void raw(std::string_view bytes);

  std::vector<Piece> pieces_;
  uint64_t size_ = 0;
};

}  // namespace brrr::io
