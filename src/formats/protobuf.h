#pragma once
// The wire format of protocol buffers, read field by field. The bytes come from outside: every
// length is checked, and errors name the file, the message and the field.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace brrr::io {

/// Walks over the fields of one message:
///
///     ProtobufReader message(bytes, "tokenizer.model");
///     while (message.next())
///       if (message.field() == 1) name = message.bytes();
///
/// A field that nobody asks for is skipped. Strings and nested messages are views of the bytes. A
/// nested message is read by a reader of its own; one that comes twice continues the first, as the
/// format wants it. `where` must outlive the reader.
class ProtobufReader {
 public:
  ProtobufReader(std::string_view bytes, const std::string& where) : bytes_(bytes), where_(where) {}

  /// Goes to the next field; false at the end. Throws UserError for bytes that are no message.
  bool next();
  /// The number of the field.
  uint32_t field() const { return field_; }
  /// The value. Throws UserError when the field has another wire type.
  uint64_t varint() const;
  bool flag() const { return varint() != 0; }
  int32_t integer() const { return static_cast<int32_t>(varint()); }
  float number() const;
  std::string_view bytes() const;
  /// Whether the field is bytes: a string, a message, or numbers of a repeated field in one piece.
  bool is_bytes() const { return wire_ == Wire::bytes; }
  /// Appends the numbers of a repeated field, which come one by one or packed into one piece.
  void append_to(std::vector<int64_t>& varints) const;
  void append_to(std::vector<float>& numbers) const;
  void append_to(std::vector<double>& numbers) const;
  const std::string& where() const { return where_; }

 private:
  enum class Wire : uint32_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };
  uint64_t take_varint();
  std::string_view take(uint64_t count);
  void expect(Wire wire) const;
  template <typename Bits, typename T>
  void append_fixed(Wire wire, std::vector<T>& numbers) const;

  std::string_view bytes_;  // of the message
  const std::string& where_;
  size_t at_ = 0, field_at_ = 0;
  uint32_t field_ = 0;
  Wire wire_ = Wire::varint;
  uint64_t number_ = 0;     // of a varint and of fixed numbers
  std::string_view value_;  // of bytes
};

}  // namespace brrr::io
