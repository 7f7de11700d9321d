#pragma once
// The values of --precision: in which number format a model is stored, trained or run.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/errors.h"
#include "base/options.h"

namespace brrr {

enum class Precision : uint8_t {
  fp32,
  bfloat16,
  fp16,
  fp8,  // bf16, but products of blocks in 8-bit floats
  // Weights in 8 or 4 bits, which multiply rows in 8 bits or, weight-only, in 16 bits.
  int8,
  int8_weight_only,
  int4,
  int4_weight_only
};

/// The canonical spelling: "fp32", "int8-weight-only".
std::string_view name_of(Precision precision);
/// The dtype of activations. With fp8 and integers, products read other types.
DType dtype_of_precision(Precision precision);
bool is_quantized(Precision precision);

/// What --precision applies to: numbers of files, the stored parameters of a
/// training, its products, or a model that only runs.
enum class PrecisionUse : uint8_t { storage, parameters, training, inference };
/// The values that a use has, in the order in which --help lists them.
std::vector<Precision> precisions_for(PrecisionUse use);
/// Reads any spelling ("bfloat16", "w8a8"). Throws UserError for what the use does not have.
Precision parse_precision(const std::string& text, PrecisionUse use);

/// The help of a --precision for inference.
inline constexpr const char* kPrecisionHelp =
    "fp32; bf16, fp16: weights and products in 16 bits; int8, int4: weights in 8 or 4 bits, which "
    "multiply rows in 8 bits; int8-weight-only, int4-weight-only: which multiply rows in 16 bits";

/// Adds a row whose field is a Precision.
template <typename T, typename Owner>
Option<T>& add_precision_row(OptionTable<T>& t, std::string name, Precision Owner::*field,
                             PrecisionUse use, std::string help, std::vector<std::string> aliases) {
  Option<T>& row = t.template parsed<Precision>(
      std::move(name), field, [use](const std::string& s) { return parse_precision(s, use); },
      [](Precision p) { return std::string(name_of(p)); }, "NAME", std::move(help),
      std::move(aliases));
  for (const Precision p : precisions_for(use)) row.choices.emplace_back(name_of(p));
  return row;
}

}  // namespace brrr

template <>
struct fmt::formatter<brrr::Precision> : fmt::formatter<std::string_view> {
  auto format(brrr::Precision precision, format_context& context) const {
    return fmt::formatter<std::string_view>::format(brrr::name_of(precision), context);
  }
};
