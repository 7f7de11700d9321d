#pragma once
// Weights of quantised folders, whatever their format: each is stored in several tensors (integers,
// scales, zero points) and is dequantised when it is read. A format is a function that finds the
// weights of its files.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/weight_source.h"

namespace brrr::io {

/// The suffix of the name of a layer's weight.
inline constexpr std::string_view kWeightSuffix = ".weight";

/// Symmetric integers with one scale for `group` neighbours of a row; 0: one for the whole row.
struct IntegerGrid {
  int64_t bits = 0;  // 8: [-128, 127], or 4: [-8, 7]; 0: no integers
  int64_t group = 0;
  bool operator==(const IntegerGrid&) const = default;
};

/// The integers of a weight whose values are scale * integer; zero points are taken off.
struct WeightIntegers {
  IntegerGrid grid;
  std::function<std::vector<int8_t>()> integers;  // [rows, columns]
  std::function<std::vector<float>()> scales;     // [rows, groups]
};

/// A weight [rows, columns] of a linear layer: a row is an output.
struct QuantizedWeight {
  int64_t rows = 0, columns = 0;
  std::vector<std::string> parts;  // the tensors of the files that store it
  /// Writes its values in row-major order, with all threads.
  std::function<void(std::span<float> to)> read;
  std::optional<WeightIntegers> integers = {};  // nothing for values of another form
  /// Writes the same values as blocks of `storage`; null where no block type holds them.
  Storage storage = {};
  std::function<void(std::span<std::byte> to)> blocks = {};
};

/// "W:blocks": name of the tensor with the values of a weight W as blocks, which a source lists
/// beside its floats.
std::string blocks_name(std::string_view weight);

struct QuantizedWeights {
  std::map<std::string, QuantizedWeight> weights;  // by the name of the weight's tensor
  std::string layout;  // what the tensors, not config.json, say about the format
};

/// Finds tensors by name in weight files and checks them. Tensors of e4m3 are among them, although
/// they are foreign to WeightSource.
class TensorFinder {
 public:
  explicit TensorFinder(std::shared_ptr<const WeightSource> files);

  const std::shared_ptr<const WeightSource>& files() const { return files_; }
  /// Returns nullptr if there is no such tensor.
  const TensorView* find(const std::string& name) const;
  /// Calls `see` with every tensor whose name ends in `suffix`, and with the name before it.
  void each_with(
      std::string_view suffix,
      const std::function<void(const std::string& before, const TensorView&)>& see) const;

  /// A tensor that `needed_by` cannot do without. Throws UserError if it is missing.
  const TensorView& part(const std::string& name, const std::string& needed_by) const;
  /// The same with its dtype and shape checked. `why` says what the shape follows from.
  const TensorView& part(const std::string& name, const std::string& needed_by, DType dtype,
                         const Shape& shape, const std::string& why) const;
  /// Throws UserError for tensors that do not hold floats of this shape, or values that are not
  /// finite.
  std::vector<float> floats(const TensorView& tensor, const Shape& shape,
                            const std::string& why) const;

  /// Throws UserError for a tensor of floats that holds a negative scale or one that is not finite.
  void check_scales(const TensorView& tensor) const;

  /// Throws a UserError that names file and tensor.
  [[noreturn]] void refuse(const std::string& tensor, const std::string& why) const;

 private:
  std::shared_ptr<const WeightSource> files_;
  std::map<std::string, TensorView, std::less<>> tensors_;
};

/// Rows and columns of a matrix must be in [1, 2^31), so that their product fits 63 bits.
bool is_size_of_matrix(int64_t rows, int64_t columns);

/// The tensors of `files` with each quantised weight as an f32 tensor, whose parts are left out,
/// and with its integers and scales where it has such (integers_name(), base/weight_source.h).
std::shared_ptr<const WeightSource> with_floats(std::shared_ptr<const WeightSource> files,
                                                QuantizedWeights quantized);

}  // namespace brrr::io
