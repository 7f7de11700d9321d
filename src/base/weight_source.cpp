#include "base/weight_source.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/blocks/block_types.h"
#include "base/errors.h"

namespace brrr {

void WeightSource::read(const TensorView& tensor, std::span<std::byte> to) const {
  BRRR_CHECK(tensor.bytes.size() == to.size(), "the tensor {} has {} bytes for {}", tensor.name,
             tensor.bytes.size(), to.size());
  if (!to.empty()) std::memcpy(to.data(), tensor.bytes.data(), to.size());
}

WeightList::WeightList(std::string what, std::shared_ptr<const WeightSource> behind,
                       FloatWeights make, TensorBytes make_bytes)
    : what_(std::move(what)),
      behind_(std::move(behind)),
      make_(std::move(make)),
      make_bytes_(std::move(make_bytes)) {}

void WeightList::add(TensorView tensor) {
  const std::string name = tensor.name;
  if (!tensors_.emplace(name, std::move(tensor)).second)
    user_error("{}: the tensor '{}' is there twice", what_, name);
}

const TensorView* WeightList::find(std::string_view name) const {
  const auto at = tensors_.find(name);
  return at == tensors_.end() ? nullptr : &at->second;
}

void WeightList::each(const std::function<void(const TensorView&)>& see) const {
  for (const auto& [name, tensor] : tensors_) see(tensor);
}

void WeightList::read(const TensorView& tensor, std::span<std::byte> to) const {
  if (!tensor.bytes.empty() || to.empty()) return WeightSource::read(tensor, to);
  if (tensor.dtype != DType::f32 && make_bytes_) return make_bytes_(tensor.name, to);
  BRRR_CHECK(make_ && tensor.dtype == DType::f32 && to.size() % sizeof(float) == 0,
             "nothing makes the tensor {}", tensor.name);
  make_(tensor.name, {reinterpret_cast<float*>(to.data()), to.size() / sizeof(float)});
}

void WeightList::let_go(std::span<const std::byte> bytes) const {
  if (behind_) behind_->let_go(bytes);
}

std::string integers_name(std::string_view weight, int bits) {
  return fmt::format("{}:int{}", weight, bits);
}
std::string scales_name(std::string_view weight) { return fmt::format("{}:scales", weight); }

bool is_part_of_integers(std::string_view name) {
  return name.ends_with(":int8") || name.ends_with(":int4") || name.ends_with(":scales") ||
         name.ends_with(":blocks");
}

namespace {

void read_blocks_as(const WeightSource& source, const TensorView& tensor, DType dtype,
                    std::span<std::byte> to) {
  const BlockType& type = block_type_of(tensor.storage);
  std::vector<std::byte> room;
  std::span<const std::byte> blocks = tensor.bytes;
  if (blocks.empty()) {
    room.resize(static_cast<size_t>(stored_bytes(tensor.storage, tensor.dtype, tensor.shape)));
    source.read(tensor, room);
    blocks = room;
  }
  constexpr int64_t kPiece = int64_t{1} << 20;  // elements
  const auto width = static_cast<int64_t>(bytes_of(dtype));
  const int64_t elements = tensor.shape.elements();
  std::vector<float> values(static_cast<size_t>(std::min(kPiece, elements)));
  for (int64_t at = 0; at < elements; at += kPiece) {
    const int64_t count = std::min(kPiece, elements - at);
    const auto piece = blocks.subspan(static_cast<size_t>(at / type.elements * type.bytes),
                                      static_cast<size_t>(count / type.elements * type.bytes));
    dequantise(type, piece, std::span(values).first(static_cast<size_t>(count)));
    convert(DType::f32, values.data(), dtype, to.data() + at * width, count);
    if (room.empty()) source.let_go(piece);
  }
}

}  // namespace

void read_as(const WeightSource& source, const TensorView& tensor, DType dtype,
             std::span<std::byte> to) {
  if (tensor.storage.is_blocks()) return read_blocks_as(source, tensor, dtype, to);
  constexpr size_t kPiece = size_t{1} << 22;  // elements
  const auto elements = static_cast<size_t>(tensor.shape.elements());
  const size_t from_width = bytes_of(tensor.dtype), to_width = bytes_of(dtype);
  BRRR_CHECK(to.size() == elements * to_width, "{} elements into {} bytes of {}", elements,
             to.size(), name_of(dtype));
  if (tensor.bytes.empty()) {
    if (tensor.dtype == dtype) return source.read(tensor, to);
    std::vector<std::byte> room(elements * from_width);
    source.read(tensor, room);
    convert(tensor.dtype, room.data(), dtype, to.data(), tensor.shape.elements());
    return;
  }
  for (size_t at = 0; at < elements; at += kPiece) {
    const size_t count = std::min(kPiece, elements - at);
    const std::span<const std::byte> piece =
        tensor.bytes.subspan(at * from_width, count * from_width);
    convert(tensor.dtype, piece.data(), dtype, to.data() + at * to_width,
            static_cast<int64_t>(count));
    source.let_go(piece);
  }
}

}  // namespace brrr
