#pragma once
// An attention node as its kernels need it: sizes, where each matrix lies, where the optional
// operands are, and the text of what becomes of a score.

#include <string>
#include <vector>

#include "backend/cuda/launch.h"

namespace brrr::cuda {

struct AttentionNode {
  explicit AttentionNode(const NodeView& node);

  /// Row r of head h of batch entry b begins `batch` b + `head` h + `row` r elements behind `at`;
  /// its elements lie side by side.
  struct Matrix {
    LaunchArg at;
    int64_t batch = 0, head = 0, row = 0;
  };
  // [queries, width], [keys, width], [keys, values], [queries, values]
  Matrix q, k, v, y;
  // A gradient lies by the strides of what it is the gradient of. `backward` alone has them.
  Matrix dq, dk, dv, dy;
  LaunchArg lse;  // [heads, queries] f32, dense in both ops

  int64_t batches, heads_per_batch;
  int64_t heads;      // of all batch entries; head h is h % heads_per_batch of h / heads_per_batch
  int64_t group = 1;  // query heads that share keys and values
  int64_t queries, keys, width, values;
  DType dtype;
  double scale, p;
  int64_t stream;  // of the dropout: an argument, so that layers share a kernel
  bool backward, causal, has_dlse;
  size_t dlse = 0;             // operand, where has_dlse
  std::vector<size_t> extras;  // operands of struct Extra, in order
  bool has_position = false, has_mask = false, has_lengths = false, is_ragged = false,
       sees_some_after = false;
  bool has_distances = false;
  bool one_position = true;  // the same for all batch entries
  int64_t window = 0;

  /// The largest power of two, at most 256, that divides the address in bytes of every row of the
  /// matrices.
  int64_t alignment;

  /// Why the kernels of the matrix unit and cuDNN do not compute it, whatever its sizes; empty: no
  /// reason.
  std::string beyond_the_matrix_unit() const;

  /// struct Extra and struct Options.
  std::string text;
  /// The address of every member of Extra.
  LaunchArg extra() const;
  /// A kernel that does `call` with the options, `extra` and its parameters. alone: its blocks may
  /// have all registers of a multiprocessor.
  KernelSource source(const std::string& name, std::vector<std::string> headers, uint32_t threads,
                      const std::string& parameters, const std::string& call,
                      bool alone = false) const;
};

}  // namespace brrr::cuda
