#pragma once
// The safetensors format: named tensors in one file, an 8-byte header length, a JSON header, then
// the bytes. Reading maps the file and checks every number in it before use, so a damaged or
// hostile file ends in a UserError that names the file and the fault, never in a bad access.
// Writing is streamed, atomic, and gives the same bytes for the same tensors in any order.
// Little-endian machines only.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/dtype.h"
#include "base/file.h"
#include "base/shape.h"
#include "base/weight_source.h"

namespace brrr::io {

using brrr::ForeignTensor;
using brrr::TensorView;

using Metadata = std::map<std::string, std::string>;

/// Views stay valid as long as the file object (moving it is fine). Reading is safe from any
/// thread.
class SafetensorsFile final : public WeightSource {
 public:
  explicit SafetensorsFile(const fs::path& path);
  /// Over bytes that outlive the object; `what` stands for the path in errors.
  SafetensorsFile(std::span<const std::byte> bytes, const std::string& what);

  /// In the order of their bytes.
  const std::vector<TensorView>& tensors() const { return tensors_; }
  const std::vector<ForeignTensor>& foreign() const { return foreign_; }
  const Metadata& metadata() const { return metadata_; }

  const std::string& what() const override { return what_; }
  void each(const std::function<void(const TensorView&)>& see) const override;
  void each_foreign(const std::function<void(const ForeignTensor&)>& see) const override;
  /// Nothing happens to bytes that are not of this file.
  void let_go(std::span<const std::byte> bytes) const override;
  const TensorView* find(std::string_view name) const override;
  /// Throws UserError when absent or foreign.
  const TensorView& get(std::string_view name) const;

 private:
  void parse(std::span<const std::byte> bytes);

  std::string what_;
  MappedFile map_;
  std::vector<TensorView> tensors_;
  std::vector<ForeignTensor> foreign_;
  std::unordered_map<std::string, size_t>
      index_;  // into tensors_, or tensors_.size() + into foreign_
  Metadata metadata_;
};

/// The bytes of a tensor when it is written; valid until the next call.
using TensorContent = std::function<std::span<const std::byte>(const TensorView&)>;

/// Writes the file: the largest elements first, then by name, so that every tensor is aligned to
/// its element; the data begins at a multiple of 64. Names must differ. With `content`, tensors
/// need no bytes of their own. Throws UserError when the disk does; `path` then still holds what it
/// held before.
void write_safetensors(const fs::path& path, std::span<const TensorView> tensors,
                       const Metadata& metadata = {}, const TensorContent& content = {});
/// The order in which they are written.
std::vector<const TensorView*> in_file_order(std::span<const TensorView> tensors);

/// The elements of `tensor` (any float dtype) as f32. out.size() must be its number of elements.
/// f64 is rounded to nearest; the 16-bit types are exact. Throws UserError for other dtypes.
void copy_as_f32(const TensorView& tensor, std::span<float> out);

}  // namespace brrr::io
