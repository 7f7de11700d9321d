#pragma once
// How a number in a graph follows from the sizes of its inputs. A graph is built for sizes that are
// known; a file for other runtimes leaves them open. So graphs of several sizes are compared, and
// each number in which they differ becomes a formula of the sizes.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace brrr::onnx {

/// (offset + sum of factor * product of sizes) / divisor, rounded down; the numerator is not
/// negative, so that an integer division does it.
struct SizeFormula {
  struct Term {
    int64_t factor = 1;
    std::vector<size_t> sizes;  // indices
    bool operator==(const Term&) const = default;
  };
  int64_t offset = 0;
  std::vector<Term> terms;
  int64_t divisor = 1;

  static SizeFormula constant(int64_t value) { return {value, {}, 1}; }
  bool is_constant() const { return terms.empty(); }
  /// The number that a constant is.
  int64_t value() const { return offset / divisor; }
  /// The index of the size that it is; nothing: it is something else.
  std::optional<size_t> as_size() const;
  /// "past_sequence_length + sequence_length"
  std::string text(std::span<const std::string> names) const;
  bool operator==(const SizeFormula&) const = default;
};

/// What a size was in each of the graphs.
using SizeValues = std::vector<int64_t>;

/// The simplest formula that gives values[k] from sizes[i][k] for every k; nothing where none of
/// those that are tried does: a size, a multiple and a sum or product of two of them, with an
/// offset, and a quotient as convolutions with strides have.
std::optional<SizeFormula> fit_formula(const SizeValues& values, std::span<const SizeValues> sizes);

}  // namespace brrr::onnx
