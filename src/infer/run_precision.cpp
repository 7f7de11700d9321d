#include "infer/run_precision.h"

namespace brrr::infer {

RunPrecision run_precision(Precision precision) {
  return {precision, dtype_of_precision(precision), quantization_of_precision(precision)};
}

std::optional<RunPrecision> own_precision(const io::ModelFolder& model, const Backend& backend) {
  if (!model.has_integers()) return std::nullopt;
  if (backend.memory_bytes > 0) return run_precision(Precision::bfloat16);
  const WeightQuantization own = model.own_quantization();
  if (own.bits == 0) return run_precision(Precision::bfloat16);
  return RunPrecision{precision_of(own), DType::bf16, own};
}

RunPrecision for_made_weights(RunPrecision precision) {
  precision.quantization.blocks = nullptr;
  precision.quantization.given = nullptr;
  return precision;
}

}  // namespace brrr::infer
