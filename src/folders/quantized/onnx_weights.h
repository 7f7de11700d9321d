#pragma once
// The constants of an ONNX file that can be stored as integers: weights of MatMul, Gemm, Conv,
// ConvTranspose, LSTM, GRU and RNN, in the main graph and in the bodies of If, Loop and Scan.

#include <string>
#include <vector>

#include "formats/onnx/onnx_file.h"

namespace brrr::io {

/// A node that multiplies by a weight.
struct OnnxProduct {
  enum class Kind {
    matrix,                  // MatMul, Gemm
    convolution,             // Conv
    transposed_convolution,  // ConvTranspose
    recurrent,               // LSTM, GRU, RNN
  };
  Kind kind = Kind::matrix;
  size_t graph = 0;  // numbered as OnnxWeight::graph
  size_t node = 0;   // its place among the nodes of the graph
  std::string name;
  std::string input;  // the value that the weight multiplies
};

/// An f32 or f16 tensor that only products read: directly, or after nodes that move its elements
/// (Transpose, Slice, Concat, Split, Reshape, Squeeze, Unsqueeze, Identity, Cast).
struct OnnxWeight {
  std::string initializer;    // its name, or that of a Constant node's output
  std::string node;           // the first product's; "": without a name
  std::vector<int64_t> dims;  // as stored
  int axis = 0;               // of `dims`: the layer's outputs, or the gates' rows
  int64_t outputs = 0;        // dims[axis]
  int64_t inputs = 0;         // the other elements, over `outputs`
  size_t graph = 0;           // 0: the main graph; then bodies, depth first, in the nodes' order
  bool is_constant_node = false;
  size_t constant_node = 0;  // its place among the nodes of the graph
  onnx::ElementType type = onnx::ElementType::f32;
  std::vector<OnnxProduct> products;
};

/// The weights of at least 16,384 elements and 32 inputs and outputs. With 4 bits, matrices of
/// MatMul and Gemm alone. Throws UserError where the file holds quantised operators already, its
/// opset is too old for per-axis scales, or it has no such weight.
std::vector<OnnxWeight> onnx_weights(const onnx::File& file, int64_t bits);

/// The weights that are left when those are kept whose initializer or node `keep` names, in whole
/// or by a part between dots or slashes. Throws UserError for a name that fits none, where none is
/// left, and where groups (0: none) do not divide the inputs of a weight.
std::vector<OnnxWeight> chosen_onnx_weights(const std::vector<OnnxWeight>& weights,
                                            const std::vector<std::string>& keep, int64_t group,
                                            const std::string& what);

}  // namespace brrr::io
