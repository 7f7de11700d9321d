#pragma once
// What quantising costs and gains, measured here before a model is written: speed, loss or vectors
// in fp32, bf16 and the quantised precision.

#include <cstdint>
#include <string>
#include <vector>

#include "folders/quantized/quantized_model.h"
#include "infer/room.h"
#include "infer/token_comparison.h"
#include "passes/precision/precision.h"

namespace brrr::cli {

struct MeasuredPrecision {
  Precision name = Precision::fp32;
  int64_t bytes = 0;                   // of the weights on disk
  double per_second = 0;               // tokens that are decoded, or texts
  infer::TokenComparison tokens = {};  // of a language model
  double mean_cosine = 1;              // of an encoder's vectors with those in fp32
  double least_cosine = 1;
  double agreement = 1;  // share of texts with the class that they have in fp32
};

struct QuantizeMeasurements {
  bool has_loss = false;                      // of a language model; else there are cosines
  bool has_classes = false;                   // agreement is known
  std::string text;                           // what was measured on
  int64_t counted = 0;                        // tokens, or texts
  std::vector<MeasuredPrecision> precisions;  // fp32, bf16, quantised

  const MeasuredPrecision& fp32() const { return precisions[0]; }
  const MeasuredPrecision& bf16() const { return precisions[1]; }
  const MeasuredPrecision& quantised() const { return precisions[2]; }
  /// Percent: how much the loss increases, or how far the mean cosine is below 1.
  double loss_increase() const;
  /// The speed of the quantised model over that in bf16.
  double speedup() const;
};

struct MeasureOptions {
  std::vector<std::string> text;          // files; empty: the default text
  Precision precision = Precision::int8;  // of the quantised one
  infer::Memory memory = {};
};

/// Throws UserError for text that is too short or that the tokenizer does not know.
QuantizeMeasurements measure_quantized(const io::ModelFolder& model, const io::QuantizedModel& made,
                                       const MeasureOptions& options);

}  // namespace brrr::cli
