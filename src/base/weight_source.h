#pragma once
// WeightSource: named tensors that weights are loaded from, whatever holds them: safetensors, a
// folder of shards, an ONNX file, numbers that a function makes. Each tensor has a dtype, a shape,
// a storage and bytes, which are memory-mapped or are read when they are asked for. A new kind of
// file is a new WeightSource; the loader (Engine::use_weights, Engine::load) knows none of them.

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/dtype.h"
#include "base/shape.h"
#include "base/storage.h"

namespace brrr {

/// A tensor of a WeightSource. Its bytes are little-endian and belong to the source. They may be
/// misaligned for the dtype: read them with memcpy or read_as(), not through a float pointer.
struct TensorView {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::span<const std::byte> bytes;  // empty: WeightSource::read() writes them
  Storage storage = {};
};

/// A tensor whose dtype Brrr does not support ("F8_E4M3", "U16"). It is listed so that messages can
/// name it; its numbers cannot be read.
struct ForeignTensor {
  std::string name;
  std::string dtype;
  Shape shape;
  std::span<const std::byte> bytes;
};

/// Views and the bytes that they show stay valid as long as the source. Reading is safe from any
/// thread.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  /// The name of the file or the folder, for errors.
  virtual const std::string& what() const = 0;
  /// nullptr when absent. Throws UserError for a tensor of a foreign dtype.
  virtual const TensorView* find(std::string_view name) const = 0;
  /// Calls `see` for every tensor, each name once.
  virtual void each(const std::function<void(const TensorView&)>& see) const = 0;
  virtual void each_foreign(const std::function<void(const ForeignTensor&)>& see) const {
    static_cast<void>(see);
  }
  /// Writes the bytes of one of its tensors, as the tensor stores them.
  virtual void read(const TensorView& tensor, std::span<std::byte> to) const;
  /// Gives the pages of mapped bytes back to the system after they were read: they no longer count
  /// as resident memory of this process.
  virtual void let_go(std::span<const std::byte> bytes) const { static_cast<void>(bytes); }
};

/// A function that writes the values of the parameter `name` into `to`, in row-major order.
using FloatWeights = std::function<void(std::string_view name, std::span<float> to)>;

/// A function that writes the bytes of the tensor `name`, of another dtype than f32.
using TensorBytes = std::function<void(std::string_view name, std::span<std::byte> to)>;

/// Tensors that are listed one by one: views into memory that outlives the list, and tensors that
/// have no bytes and that a function makes when they are read.
class WeightList final : public WeightSource {
 public:
  /// `behind`: the source that the views are of; it is kept, and let_go() goes to it.
  explicit WeightList(std::string what, std::shared_ptr<const WeightSource> behind = nullptr,
                      FloatWeights make = {}, TensorBytes make_bytes = {});
  /// Throws UserError for a second tensor of one name.
  void add(TensorView tensor);

  const std::string& what() const override { return what_; }
  const TensorView* find(std::string_view name) const override;
  void each(const std::function<void(const TensorView&)>& see) const override;
  void read(const TensorView& tensor, std::span<std::byte> to) const override;
  void let_go(std::span<const std::byte> bytes) const override;

 private:
  std::string what_;
  std::shared_ptr<const WeightSource> behind_;
  FloatWeights make_;
  TensorBytes make_bytes_;
  std::map<std::string, TensorView, std::less<>> tensors_;
};

/// The names of two tensors that a source of quantised weights lists beside the floats of a weight
/// W [R, C]: its integers, i8 [R, C] in the range of 8 or 4 bits, and its scales, f32 [R, groups],
/// one for each group of neighbouring columns. W = integers * scales.
std::string integers_name(std::string_view weight, int bits);  // "W:int8", "W:int4"
std::string scales_name(std::string_view weight);              // "W:scales"
/// Whether the name is one of these.
bool is_part_of_integers(std::string_view name);

/// Converts a tensor in row-major order, or in blocks, to `dtype` with all threads, rounding as
/// store_from_double() does. The pages that were read are given back piece by piece (let_go), so
/// that tensor and copy are not both resident.
void read_as(const WeightSource& source, const TensorView& tensor, DType dtype,
             std::span<std::byte> to);

}  // namespace brrr
