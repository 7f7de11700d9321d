#include "passes/precision/precision.h"

#include <algorithm>

namespace brrr {
namespace {

struct Row {
  Precision precision;
  std::vector<std::string> spellings;  // the canonical one first
};

const std::vector<Row>& rows() {
  static const std::vector<Row> all{
      {Precision::fp32, {"fp32", "f32", "float32", "float", "no", "32"}},
      {Precision::bfloat16, {"bf16", "bfloat16", "bf16-mixed"}},
      {Precision::fp16, {"fp16", "f16", "float16", "half", "16-mixed"}},
      {Precision::fp8, {"fp8", "float8"}},
      {Precision::int8, {"int8", "int8-dynamic", "w8a8"}},
      {Precision::int8_weight_only, {"int8-weight-only", "w8a16"}},
      {Precision::int4, {"int4", "int4-dynamic", "w4a8"}},
      {Precision::int4_weight_only, {"int4-weight-only", "w4a16"}}};
  return all;
}

const std::vector<std::string>& spellings_of(Precision precision) {
  return std::ranges::find(rows(), precision, &Row::precision)->spellings;
}

}  // namespace

std::string_view name_of(Precision precision) { return spellings_of(precision).front(); }

DType dtype_of_precision(Precision precision) {
  if (precision == Precision::fp32) return DType::f32;
  return precision == Precision::fp16 ? DType::f16 : DType::bf16;
}

bool is_quantized(Precision precision) { return precision >= Precision::int8; }

std::vector<Precision> precisions_for(PrecisionUse use) {
  std::vector<Precision> list;
  for (const Row& row : rows()) {
    const bool is_for_it = is_quantized(row.precision)        ? use == PrecisionUse::inference
                           : row.precision == Precision::fp8  ? use == PrecisionUse::training
                           : row.precision == Precision::fp16 ? use != PrecisionUse::parameters
                                                              : true;
    if (is_for_it) list.push_back(row.precision);
  }
  return list;
}

Precision parse_precision(const std::string& text, PrecisionUse use) {
  if (use == PrecisionUse::training)
    for (const Row& row : rows())
      if (is_quantized(row.precision) &&
          std::ranges::find(row.spellings, text) != row.spellings.end())
        usage_error(
            "{} is for a trained model that only runs: `plan` and `profile` take it with "
            "--inference; to train for it, use --qat {}, or bf16 and quantise afterwards with "
            "`brrr quantize`",
            text, text);
  const std::vector<Precision> list = precisions_for(use);
  std::vector<std::vector<std::string>> choices;
  for (const Precision p : list) choices.push_back(spellings_of(p));
  return list[match_choice(text, choices)];
}

}  // namespace brrr
