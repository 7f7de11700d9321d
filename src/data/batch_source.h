#pragma once
// What a loader hands out: batches of token ids as a pure function of their index. Sources are
// immutable to their readers; fill() may be called from any thread, for any index, in any order.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace brrr::io {

enum class Sampling {
  /// Every row starts at a uniformly random token (nanoGPT).
  kRandom,
  /// Rows of T tokens side by side, in another random order each epoch; every target once per
  /// epoch. The last row of the text may be shorter. Batches run on over the end of an epoch.
  kEpoch,
  /// The same rows in order, for evaluation: every target once per pass. Each pass begins with a
  /// new
  /// batch, so the last batches of a pass are padded with empty rows.
  kSequential,
  /// Rows are documents, in another random order each epoch.
  kDocuments,
  /// The same, documents of similar length in one batch.
  kGroupByLength,
};

std::string_view name_of(Sampling mode);
/// "random", "epoch", "sequential", "documents", "group_by_length". Throws UserError (usage) for
/// another name.
Sampling sampling_from_name(std::string_view name);

/// Target of a position that is not scored; its input is 0.
inline constexpr int32_t kIgnoreId = -1;

struct BatchOptions {
  Sampling mode = Sampling::kRandom;
  int64_t batch = 1;    // B: rows
  int64_t context = 1;  // T
  int64_t vocab = 0;    // ids are checked against it
  uint32_t seed = 0;
  /// Rows are concatenated without padding: a batch has as many tokens as its rows together,
  /// rounded up to one of `lengths`.
  bool flat = false;
  /// Maximum number of documents that are packed into a flat row; else 1.
  int64_t sequences_per_row = 1;
  /// Allowed sizes of a batch, ascending. Padded rows of documents and labelled texts: lengths, the
  /// last one T; empty: T only. Flat rows: numbers of tokens, the last one B T; empty: B T only.
  std::vector<int64_t> lengths = {};
  /// Of documents: consecutive batches that make one step. However a step is cut into batches, it
  /// has the same rows.
  int64_t batches_per_step = 1;

  /// Number of sequences of a batch, empty ones included.
  int64_t sequences() const { return batch * sequences_per_row; }
  /// The number of row `b` of batch `index` in the endless sequence of rows.
  int64_t row(int64_t index, int64_t b) const { return index * batch + b; }
};
/// Throws UserError (usage) for sizes below 1 or beyond any memory.
void check_options(const BatchOptions& options);

/// One batch: tensors for the inputs of a loss graph, by name. Models for text in one direction
/// take tokens and targets; encoders take the rest as well.
///   tokens     i32 [B, T], or shorter rows (BatchOptions::lengths), or the N tokens of flat rows
///              [N]. Always the first tensor.
///   targets    i32, like tokens: the target of each position, or [B]: the class of each row.
///              kIgnoreId where nothing is scored. Beside values: 0 for each row that is scored.
///   types      i32, like tokens: which of two texts a token belongs to
///   values     f32 [B, K]: targets of a regression
///   lengths    i32 [B], padded rows: tokens of each row, at least 1; what follows is padding
///   starts     i32 [R + 1], flat rows: sequence r is tokens [starts[r], starts[r + 1]). A row of
///              packed documents has several sequences, other rows have one.
///   positions  i32 [N], flat rows: the position of each token in its sequence
/// Batches of pictures have other tensors: see data/images/image_batches.h.
struct Batch {
  struct Tensor {
    std::string_view name;  // a literal: batches outlive their source
    /// Bytes hold the numbers of other dtypes. A span borrows the caller's memory, which must stay
    /// valid until the step that reads the batch has returned.
    std::variant<std::vector<int32_t>, std::vector<float>, std::vector<std::byte>,
                 std::span<const std::byte>>
        numbers;
    bool is_borrowed() const { return std::holds_alternative<std::span<const std::byte>>(numbers); }

    size_t size() const;
    std::span<const std::byte> bytes() const;
  };
  std::vector<Tensor> tensors;
  int64_t count = 0;  // targets that are scored: what the loss is a mean over

  /// Makes the tensor `name`, all `value`; reuses the memory of one that has this name already.
  template <typename T>
  std::span<T> make(std::string_view name, size_t size, T value) {
    auto at = std::ranges::find(tensors, name, &Tensor::name);
    if (at == tensors.end()) at = tensors.insert(at, {name, std::vector<T>()});
    auto& numbers = std::get<std::vector<T>>(at->numbers);
    numbers.assign(size, value);
    return numbers;
  }
  struct Text {
    std::span<int32_t> tokens, targets;
  };
  /// Makes B * T tokens that are 0 and targets that are not scored.
  Text make_text(int64_t batch, int64_t context);
  struct TokenRows {
    std::span<int32_t> tokens;
    std::vector<size_t> begins;  // index of the first token of each row
  };
  /// Makes "tokens", all `pad`, for options.sequences() rows of which the first have these lengths
  /// and the others are empty: padded to `length` tokens, with "lengths", or flat, with "starts"
  /// and "positions".
  TokenRows make_rows(std::span<const int64_t> lengths, const BatchOptions& options, int64_t length,
                      int32_t pad);
  struct Row {
    size_t begin = 0, tokens = 0;
  };
  /// Returns where the rows of make_rows() lie; a batch without "starts" and "lengths" has
  /// `of_equal_length` equal rows. An empty row has 0 tokens if rows are flat, and 1 if padded.
  std::vector<Row> rows(int64_t of_equal_length) const;
  /// The numbers of the tensor `name`; none where the batch has no such tensor.
  const std::vector<int32_t>& ids(std::string_view name) const { return get<int32_t>(name); }
  const std::vector<float>& values(std::string_view name) const { return get<float>(name); }
  /// The same batch with memory of its own.
  Batch owned() const;
  /// The elements of the first tensor.
  size_t positions() const { return tensors.empty() ? 0 : tensors[0].size(); }

 private:
  template <typename T>
  const std::vector<T>& get(std::string_view name) const {
    static const std::vector<T> none;
    const auto at = std::ranges::find(tensors, name, &Tensor::name);
    return at == tensors.end() ? none : std::get<std::vector<T>>(at->numbers);
  }
};

/// A group of rows that only reading shows the size of, and the number of its first row. Where a
/// source has no such groups: zeros.
struct Anchor {
  int64_t group = 0, row = 0;
  bool operator==(const Anchor&) const = default;
};

class BatchSource {
 public:
  virtual ~BatchSource() = default;
  /// Batch `index` >= 0, in place of the one that this source filled before. Throws UserError for
  /// what is wrong with the data.
  virtual void fill(int64_t index, Batch& batch) const = 0;
  /// The epoch of the batch's first row; 0 where there are none.
  virtual int64_t epoch_of(int64_t index) const = 0;
  /// Batches until every target was seen once: of a pass (sequential), of an epoch rounded up
  /// (epoch), or tokens / (B * T) rounded up (random).
  virtual int64_t batches_per_pass() const = 0;
  virtual int64_t tokens() const = 0;
  /// Bytes of a batch for each of its B * T positions: a token and its target, or a pixel's number.
  virtual int64_t bytes_per_position() const { return 2 * sizeof(int32_t); }
  /// Identifies what is read.
  virtual std::string fingerprint() const = 0;
  /// The group that batch `index` begins in: what a saved position needs besides the index.
  virtual Anchor anchor(int64_t) const { return {}; }
  /// Batches from `index` on will be asked for, and it begins in the group `anchor`. False, and
  /// nothing is changed, when it does not. Batches before it may be refused from here on.
  virtual bool start_from(const Anchor& anchor, int64_t) { return anchor == Anchor{}; }
};

}  // namespace brrr::io
