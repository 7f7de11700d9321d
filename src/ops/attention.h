#pragma once
// What the attributes and the operand types of an attention or attention_grad node say: its sizes,
// where q, k, v and y lie, and which operand is which. The op itself, passes and kernels read it.

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "ir/graph.h"
#include "ir/op_def.h"
#include "ops/ops.h"

namespace brrr {

/// Where an element of a matrix [batch, head, row, column] lies in a tensor, in elements:
/// first + batch * `batch` + head * `head` + row * `row` + column.
struct HeadStrides {
  int64_t first = 0, batch = 0, head = 0, row = 0;
};

/// A node of attention or attention_grad whose attributes infer() has accepted.
class AttentionForm {
 public:
  AttentionForm(const Attrs& attrs, std::span<const Type> in, bool gradient);
  AttentionForm(const Node& node, std::span<const Type> in);

  bool gradient;
  Shape batch;        // the leading axes "..."
  Dim queries, keys;  // T and S
  AttentionPlaces places;
  bool causal;
  bool mask_by_distance;  // the mask is [H, 2 L - 1]
  int64_t window;
  std::optional<int64_t> window_after;
  DType dtype;
  bool has_int8_keys = false;  // keys and values lie in int8 rows, with a scale for each head

  size_t sources;                 // they are the first operands
  size_t y = 0, lse = 0, dy = 0;  // operands of the gradient
  std::optional<size_t> position, mask, lengths, starts, blocks, key, dlse;  // operands
  size_t operands;                                                           // how many there are

  /// Number of keys after its position that a query sees; nothing: all.
  std::optional<int64_t> keys_after() const {
    return causal ? std::optional<int64_t>(0) : window_after;
  }
  /// Query heads that share a key and value head.
  int64_t group() const { return places.heads / places.kv_heads; }
  int64_t batches() const { return batch.elements(); }
  /// The number of sequences R of a ragged batch, whose {starts} are [R + 1]; else 0.
  int64_t ragged_sequences = 0;
  /// Upper bound on the rows of a sequence of a ragged batch; 0: unknown.
  int64_t longest = 0;
  /// Keys and values in blocks of a pool: rows per block (0: they are contiguous), and the columns
  /// M of the block table [R, M].
  int64_t block_rows = 0, table_columns = 0;
  Shape y_shape() const;       // [..., T, H Dv] or [..., H, T, Dv]
  Shape lse_shape() const;     // [..., H, T]
  Shape scores_shape() const;  // [..., H, T, S]
  /// Where q, k and v lie in their sources, and gradients in theirs; and where y and dy lie.
  HeadStrides q_strides() const { return strides(0); }
  HeadStrides k_strides() const { return strides(1); }
  HeadStrides v_strides() const { return strides(2); }
  HeadStrides y_strides() const;
  int64_t columns(size_t source) const { return columns_[source]; }

  /// q, k or v and the columns that it takes of its source.
  struct Part {
    size_t which;  // 0, 1, 2: q, k, v
    HeadPlace place;
    int64_t heads, width;
    Dim rows;
    int64_t taken() const { return place.in_rows ? heads * width : width; }
  };
  std::array<Part, 3> parts() const;
  int64_t bytes_of_part(const Part& part) const {
    const int64_t head = part.which > 0 && has_int8_keys
                             ? part.width + static_cast<int64_t>(sizeof(float))
                             : part.width * static_cast<int64_t>(bytes_of(dtype));
    return batches() * part.heads * part.rows.size() * head;
  }
  /// The parts of a source by column, where they are all of its columns and none is in two of them.
  std::optional<std::vector<Part>> partition(size_t source) const;

 private:
  HeadStrides strides(size_t which) const;
  std::vector<int64_t> columns_;
};

/// Validates the attributes and operands of attention or attention_grad and returns the form of the
/// node. Throws UserError if they are invalid.
AttentionForm checked_attention(const InferContext& c, bool gradient);

}  // namespace brrr
