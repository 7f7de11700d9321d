#include "formats/protobuf.h"

#include <bit>

#include "base/errors.h"

namespace brrr::io {
namespace {

constexpr const char* kWireNames[] = {"a varint", "a 64-bit number", "bytes",
                                      "a group",  "a group",         "a 32-bit number"};

uint64_t fixed_number(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

}  // namespace

uint64_t ProtobufReader::take_varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 70; shift += 7) {
    if (at_ == bytes_.size())
      user_error("{}: the message ends inside the field at byte {}; is the file cut short?", where_,
                 field_at_);
    const auto byte = static_cast<uint8_t>(bytes_[at_++]);
    if (shift < 64) value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
  user_error(
      "{}: a number of more than 10 bytes in the field at byte {}; this is not a protocol buffer",
      where_, field_at_);
}

std::string_view ProtobufReader::take(uint64_t count) {
  if (count > bytes_.size() - at_)
    user_error(
        "{}: the field {} (at byte {}) has {} bytes, but the message ends after {}; is the "
        "file cut short?",
        where_, field_, field_at_, count, bytes_.size() - at_);
  const std::string_view taken = bytes_.substr(at_, count);
  at_ += count;
  return taken;
}

bool ProtobufReader::next() {
  if (at_ == bytes_.size()) return false;
  field_at_ = at_;
  const uint64_t tag = take_varint();
  if (tag >> 3 == 0 || tag >> 32 != 0)
    user_error("{}: a field has the number {} (at byte {}); this is not a protocol buffer", where_,
               tag >> 3, field_at_);
  field_ = static_cast<uint32_t>(tag >> 3);
  wire_ = static_cast<Wire>(tag & 7);
  value_ = {};
  switch (wire_) {
    case Wire::varint:
      number_ = take_varint();
      return true;
    case Wire::fixed64:
      number_ = fixed_number(take(8));
      return true;
    case Wire::bytes:
      value_ = take(take_varint());
      return true;
    case Wire::fixed32:
      number_ = fixed_number(take(4));
      return true;
  }
  user_error(
      "{}: the field {} (at byte {}) has an encoding that protocol buffers do not use ({}): the "
      "file "
      "is damaged, or of another format",
      where_, field_, field_at_, tag & 7);
}

void ProtobufReader::expect(Wire wire) const {
  if (wire_ != wire)
    user_error("{}: the field {} (at byte {}) is {}; expected {}", where_, field_, field_at_,
               kWireNames[static_cast<uint32_t>(wire_)], kWireNames[static_cast<uint32_t>(wire)]);
}

uint64_t ProtobufReader::varint() const {
  expect(Wire::varint);
  return number_;
}

float ProtobufReader::number() const {
  expect(Wire::fixed32);
  return std::bit_cast<float>(static_cast<uint32_t>(number_));
}

std::string_view ProtobufReader::bytes() const {
  expect(Wire::bytes);
  return value_;
}

void ProtobufReader::append_to(std::vector<int64_t>& varints) const {
  if (!is_bytes()) return varints.push_back(static_cast<int64_t>(varint()));
  ProtobufReader packed(value_, where_);
  packed.field_at_ = field_at_;
  while (packed.at_ < value_.size()) varints.push_back(static_cast<int64_t>(packed.take_varint()));
}

template <typename Bits, typename T>
void ProtobufReader::append_fixed(Wire wire, std::vector<T>& numbers) const {
  if (!is_bytes()) {
    expect(wire);
    return numbers.push_back(std::bit_cast<T>(static_cast<Bits>(number_)));
  }
  if (value_.size() % sizeof(T) != 0)
    user_error("{}: the field {} (at byte {}) has {} bytes, not a multiple of {}", where_, field_,
               field_at_, value_.size(), sizeof(T));
  for (size_t at = 0; at < value_.size(); at += sizeof(T))
    numbers.push_back(
        std::bit_cast<T>(static_cast<Bits>(fixed_number(value_.substr(at, sizeof(T))))));
}

void ProtobufReader::append_to(std::vector<float>& numbers) const {
  append_fixed<uint32_t>(Wire::fixed32, numbers);
}

void ProtobufReader::append_to(std::vector<double>& numbers) const {
  append_fixed<uint64_t>(Wire::fixed64, numbers);
}

}  // namespace brrr::io
