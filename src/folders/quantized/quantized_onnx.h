#pragma once
// An ONNX file whose weights of MatMul and Gemm are integers that DequantizeLinear turns into
// floats (QDQ, weights alone), in memory: what `brrr quantize FILE.onnx` measures and writes.
// Everything else of the file is copied byte for byte.

#include <memory>
#include <string>
#include <vector>

#include "folders/quantized/integer_matrix.h"
#include "formats/onnx/onnx_file.h"

namespace brrr::io {

/// The weight of a MatMul or Gemm node: an f32 initializer, perhaps behind a Transpose, that
/// nothing else reads, of at least 16,384 elements and 32 inputs and outputs.
struct OnnxWeight {
  std::string initializer, node;    // `node`: the first that multiplies by it; "": without a name
  int64_t outputs = 0, inputs = 0;  // of the layer
  bool outputs_first = false;       // stored as [outputs, inputs], for Gemm's transB or a Transpose
};

/// Throws UserError where the file holds quantised operators already, its opset is too old for
/// per-axis scales, or it has no such weight.
std::vector<OnnxWeight> onnx_weights(const onnx::File& file, int64_t bits);

/// The weights that are left when those are kept whose initializer or node `keep` names, in whole
/// or by a part between dots or slashes. Throws UserError for a name that fits none, where none is
/// left, and where groups (0: none) do not divide the inputs of a weight.
std::vector<OnnxWeight> chosen_onnx_weights(const std::vector<OnnxWeight>& weights,
                                            const std::vector<std::string>& keep, int64_t group,
                                            const std::string& what);

class QuantizedOnnx {
 public:
  struct Weight {
    OnnxWeight weight;
    double error = 0;  // |W - Q| / |W|, the Frobenius norms
  };

  /// `group`: inputs that share a scale, with 4 bits. Throws UserError, which names the tensor, for
  /// weights that are not finite, for tensors of subgraphs and attributes that lie in other files,
  /// and for a file that would exceed 2 GiB.
  QuantizedOnnx(const fs::path& file, int64_t bits, int64_t group,
                const std::vector<OnnxWeight>& weights);

  const std::vector<Weight>& weights() const { return weights_; }
  /// The new file.
  const std::string& bytes() const { return bytes_; }

 private:
  std::vector<Weight> weights_;
  std::string bytes_;
};

}  // namespace brrr::io
