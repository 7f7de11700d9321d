#include "formats/protobuf_writer.h"

#include <array>
#include <bit>
#include <utility>

namespace brrr::io {
namespace {

constexpr uint32_t kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;

}  // namespace

void ProtobufWriter::raw(std::string_view bytes) {
  if (pieces_.empty() || !std::holds_alternative<std::string>(pieces_.back()))
    pieces_.emplace_back(std::string());
  std::get<std::string>(pieces_.back()).append(bytes);
  size_ += bytes.size();
}

void ProtobufWriter::raw_varint(uint64_t value) {
  constexpr uint64_t kMore = 0x80;
  std::string bytes;
  for (; value >= kMore; value >>= 7) bytes.push_back(static_cast<char>(value | kMore));
  bytes.push_back(static_cast<char>(value));
  raw(bytes);
}

void ProtobufWriter::tag(uint32_t field, uint32_t wire) { raw_varint(uint64_t{field} << 3 | wire); }

void ProtobufWriter::varint(uint32_t field, uint64_t value) {
  tag(field, kVarint);
  raw_varint(value);
}

void ProtobufWriter::number(uint32_t field, float value) {
  tag(field, kFixed32);
  const auto bits = std::bit_cast<std::array<char, sizeof(float)>>(value);
  raw({bits.data(), bits.size()});
}

void ProtobufWriter::number(uint32_t field, double value) {
  tag(field, kFixed64);
  const auto bits = std::bit_cast<std::array<char, sizeof(double)>>(value);
  raw({bits.data(), bits.size()});
}

void ProtobufWriter::text(uint32_t field, std::string_view value) {
  tag(field, kBytes);
  raw_varint(value.size());
  raw(value);
}

void ProtobufWriter::message(uint32_t field, ProtobufWriter&& inner) {
  tag(field, kBytes);
  raw_varint(inner.size_);
  for (Piece& piece : inner.pieces_)
    if (const auto* own = std::get_if<std::string>(&piece))
      raw(*own);
    else
      pieces_.push_back(std::move(piece));
  for (const Piece& piece : inner.pieces_)
    if (const auto* view = std::get_if<std::string_view>(&piece)) size_ += view->size();
}

void ProtobufWriter::packed(uint32_t field, std::span<const int64_t> values) {
  if (values.empty()) return;
  ProtobufWriter inner;
  for (const int64_t value : values) inner.raw_varint(static_cast<uint64_t>(value));
  message(field, std::move(inner));
}

void ProtobufWriter::packed(uint32_t field, std::span<const float> values) {
  if (values.empty()) return;
  tag(field, kBytes);
  raw_varint(values.size_bytes());
  raw({reinterpret_cast<const char*>(values.data()), values.size_bytes()});
}

void ProtobufWriter::view(uint32_t field, std::span<const std::byte> bytes) {
  tag(field, kBytes);
  raw_varint(bytes.size());
  pieces_.emplace_back(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  size_ += bytes.size();
}

void ProtobufWriter::append(const ProtobufWriter& fields) {
  for (const Piece& piece : fields.pieces_)
    if (const auto* own = std::get_if<std::string>(&piece)) {
      raw(*own);
    } else {
      pieces_.push_back(piece);
      size_ += std::get<std::string_view>(piece).size();
    }
}

std::string ProtobufWriter::str() const {
  std::string all;
  all.reserve(size_);
  write_to([&](std::string_view bytes) { all.append(bytes); });
  return all;
}

void ProtobufWriter::write_to(const std::function<void(std::string_view)>& write) const {
  for (const Piece& piece : pieces_)
    std::visit([&](std::string_view bytes) { write(bytes); }, piece);
}

}  // namespace brrr::io
