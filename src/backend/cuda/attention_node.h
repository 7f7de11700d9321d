#pragma once
// An attention node as its kernels need it: sizes, where the optional operands are, and the text of
// what becomes of a score.

#include <string>
#include <vector>

#include "backend/cuda/launch.h"

namespace brrr::cuda {

struct AttentionNode {
  explicit AttentionNode(const NodeView& node);

  int64_t heads = 1, queries, keys, width, values;
  DType dtype;
  double scale, p;
  int64_t stream;  // of the dropout: an argument, so that layers share a kernel
  bool backward, causal, has_dlse;
  size_t dlse = 0;             // operand, where has_dlse
  std::vector<size_t> extras;  // operands of struct Extra, in order
  bool has_position = false, has_mask = false, has_lengths = false;

  /// struct Extra and struct Options.
  std::string text;
  /// The address of every member of Extra.
  LaunchArg extra() const;
  std::string extra_parameter() const {
    return extras.empty() ? "" : ", BRRR_GRID_CONSTANT const Extra extra";
  }
};

}  // namespace brrr::cuda
