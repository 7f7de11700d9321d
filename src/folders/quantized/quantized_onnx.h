#pragma once
// An ONNX file with integers in place of weights, which DequantizeLinear turns into floats, and,
// where ranges of activations are given, with activations that are rounded to integers, too (QDQ).
// In memory: what `brrr quantize FILE.onnx` measures and writes. Everything else of the file is
// copied byte for byte.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "folders/quantized/integer_matrix.h"
#include "folders/quantized/onnx_weights.h"
#include "formats/onnx/onnx_file.h"

namespace brrr::io {

/// The numbers that an activation takes; others are clipped.
struct ActivationRange {
  float low = 0, high = 0;
};
/// By the name of a value of the main graph.
using ActivationRanges = std::map<std::string, ActivationRange, std::less<>>;

/// The values of the main graph whose ranges static quantisation needs: f32 inputs of MatMul, Gemm
/// and Conv nodes that read a chosen f32 weight. In the order of the nodes.
std::vector<std::string> quantizable_activations(const std::vector<OnnxWeight>& chosen);

/// Quantisation of an activation to 8 bits: u8 = round(x / scale) + zero.
struct ActivationScale {
  float scale = 1;
  uint8_t zero = 0;
};
/// Zero is exact. A range without numbers other than zero has the scale 1.
ActivationScale activation_scale(ActivationRange range);

class QuantizedOnnx {
 public:
  struct Weight {
    OnnxWeight weight;
    double error = 0;                    // |W - Q| / |W|, the Frobenius norms
    int64_t plain_bytes = 0, bytes = 0;  // of the tensor, and of the integers and scales
  };

  /// `group`: inputs that share a scale, with 4 bits. Each product of quantizable_activations()
  /// whose input has a range reads u8 through QuantizeLinear and DequantizeLinear. Throws
  /// UserError, which names the tensor, for weights that are not finite, for tensors of subgraphs
  /// and attributes that lie in other files, and for a file that would exceed 2 GiB.
  QuantizedOnnx(const fs::path& file, int64_t bits, int64_t group,
                const std::vector<OnnxWeight>& weights, const ActivationRanges& ranges = {});

  const std::vector<Weight>& weights() const { return weights_; }
  /// The new file.
  const std::string& bytes() const { return bytes_; }

 private:
  std::vector<Weight> weights_;
  std::string bytes_;
};

}  // namespace brrr::io
