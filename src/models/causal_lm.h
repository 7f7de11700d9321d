#pragma once
// What causal language models share: the loss, forward and decode graphs around a trunk of blocks,
// and the cache of keys and values. An architecture brings a CausalNet, which declares its
// parameters and builds the nodes between tokens and logits.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/model.h"
#include "ops/ops.h"

namespace brrr::models {

/// Whether what a causal model knows of earlier tokens is a state of fixed size, instead of keys
/// and values of each of them. A state cannot be taken back to an earlier token, and it has no
/// limit of length: a text may outgrow the context of training.
inline bool is_recurrent(const ModelSizes& sizes) { return sizes.causal && sizes.cache_width == 0; }

/// The most tokens of a text that is generated.
inline int64_t longest_generated_text(const ModelSizes& sizes) {
  constexpr int64_t kNoLimit = int64_t{1} << 24;
  return is_recurrent(sizes) ? kNoLimit : sizes.context;
}

/// The KV cache of decode_sequences(): a pool of blocks of kBlockRows positions, and the blocks of
/// each sequence.
struct BlockCache {
  int64_t blocks = 0;        // size of the pool
  DType dtype = DType::f32;  // dtype of keys and values
  Value table;               // [R, M] i32: the blocks of each sequence, in order
  Value lengths;             // [R] i32: length of each sequence, new tokens included
  Value slots;               // [N] i32: row of the pool for each new token; -1: none
};

/// The rows that a graph computes: where they stand, and the cache that they extend, if there is
/// one. They are a batch of rows of equal length [B, T], or, if `starts` is set, R sequences
/// [N], one behind the other.
struct CausalRows {
  Value tokens;           // [B, T] or [N] i32
  int64_t positions = 0;  // T, the most that it can be, or what the cache has room for
  std::optional<Value> first = std::nullopt;  // i32[]: where the first row stands; absent: at 0
  const DecodeBinding* binding = nullptr;     // null: there is no cache in states
  // What only graphs for other runtimes have (Model::exchange):
  std::optional<int64_t> past = std::nullopt;        // tokens of a cache in inputs
  std::optional<Value> position_ids = std::nullopt;  // i32[B, T], instead of places in the row
  std::optional<Value> padding = std::nullopt;       // f32[B, 1, 1, S], added to scores
  // Flat rows only; they also have position_ids i32[N]:
  std::optional<Value> starts = std::nullopt;  // i32[R + 1]
  int64_t longest = 0;                         // upper bound on the length of a sequence; 0: N
  std::optional<BlockCache> blocks = std::nullopt;

  bool is_flat() const { return starts.has_value(); }
  bool has_cache() const { return binding != nullptr || past || blocks; }
  Dim batch() const { return tokens.shape()[0]; }
  Dim length() const { return tokens.shape()[1]; }
  /// i32[T]: where each row stands.
  Value places() const;
  /// i32[T] or i32[B, T]: the position that each row has for the model.
  Value positions_of_rows() const { return position_ids ? *position_ids : places(); }
  /// Rows of a table by position: where the positions are given, all that the model takes.
  int64_t table_rows(int64_t context) const { return position_ids ? context : positions; }
  /// Appends the keys ("key") or values ("value") of a layer to its cache. part: [N, K D],
  /// [B, T, K D] or [B, K, T, D], whose heads have `width` columns. Returns those of all positions:
  /// the state "cache.<name>.<layer>" with `part` written into it, or the input
  /// "past_key_values.<layer>.<name>" with `part` behind it, which is then the output
  /// "present.<layer>.<name>". Without a cache it returns `part`.
  Value append_to_cache(const char* name, int64_t layer, Value part, int64_t width) const;
  /// Returns the options of causal attention among these rows.
  AttentionOptions attention(double scale, int64_t window = 0) const;
};

/// The operands of attention and where q, k and v lie in them.
struct HeadSources {
  std::vector<Value> sources;
  HeadPlace q, k, v;
};
/// Splits the result of one product for q, k and v. qkv: [..., 3 C], the heads of q, of k and of v
/// side by side, `head_width` columns each. With a cache k and v are appended to it.
HeadSources heads_in_one(const CausalRows& rows, int64_t layer, Value qkv, int64_t head_width);

/// The product that makes logits.
enum class CausalHead {
  none,  // another head reads the trunk
  tied,  // the table of embeddings
  own,
};

class CausalNet {
 public:
  virtual ~CausalNet() = default;
  /// Returns [B, T, C], before the last norm.
  virtual Value trunk(const CausalRows& rows) const = 0;
  /// x: [..., C]. The last norm alone.
  virtual Value normed(Value x) const = 0;
  /// x: [..., C]. The last norm and the head; returns [..., V].
  virtual Value logits(Value x) const = 0;
};

/// The table of embeddings, the blocks, the last norm, and the head, which may be the table.
template <typename Block, typename Norm>
class CausalStack : public CausalNet {
 public:
  Value normed(Value x) const final { return (*norm_)(x); }
  Value logits(Value x) const final {
    x = normed(x);
    Scope scope(g_, "lm_head");
    return matmul(x, head_.value_or(embed_), false, true);
  }

 protected:
  /// `name` of the table, [vocabulary, width]. `head` as in CausalModel::build.
  CausalStack(Parameters& p, const std::string& name, int64_t vocabulary, int64_t width,
              CausalHead head)
      : g_(p.graph()), embed_(begin(p, name, {vocabulary, width}, head)) {}
  /// Declares block `i` as the parameters `name`.i.
  template <typename... Arguments>
  void add_block(Parameters& p, const std::string& name, Arguments&&... arguments) {
    const size_t i = blocks_.size();
    p.set_place(fmt::format("h.{}", i));
    blocks_.emplace_back(p, fmt::format("{}.{}", name, i), arguments...);
  }
  /// Declares the last norm, and the head where it is one of its own.
  template <typename... Arguments>
  void finish(Parameters& p, CausalHead head, const std::string& name, Arguments&&... arguments) {
    p.set_place("norm");
    norm_.emplace(p, name, arguments...);
    p.set_place("head");
    if (head == CausalHead::own) head_ = p.weight("lm_head.weight", embed_.shape());
  }

  Graph& g_;
  Value embed_;
  std::vector<Block> blocks_;

 private:
  static Value begin(Parameters& p, const std::string& name, Shape shape, CausalHead head) {
    p.set_place("embed");
    return p.table(name, std::move(shape), head == CausalHead::tied);
  }

  std::optional<Norm> norm_;
  std::optional<Value> head_;
};

class CausalModel : public Model {
 public:
  Graph loss(int64_t batch, int64_t length) const final;
  Graph forward(Dim batch, Dim length) const final;
  Graph decode(const DecodeBinding& binding) const final;
  Graph decode_sequences(const SequencesBinding& binding) const final;
  bool has_flat_loss() const final { return !is_recurrent(sizes()); }
  Graph flat_loss(const FlatBinding& binding) const final;
  Graph preference_loss(const FlatBinding& binding, const PreferenceLoss& loss) const final;
  Graph exchange(const ExchangeBinding& binding) const final;
  /// Classes and values of texts: the state of the last token and a linear layer (causal_text.h).
  ModelPtr with_task(const Task& task) const final;

 protected:
  friend class CausalTextModel;
  /// Declares the parameters. `rng_key`: i32[2] (seed, step); without it nothing is dropped.
  virtual std::unique_ptr<CausalNet> build(Parameters& p, std::optional<Value> rng_key,
                                           CausalHead head) const = 0;
  virtual CausalHead head() const = 0;
  virtual bool has_dropout() const = 0;
  void declare(Parameters& p) const final { build(p, std::nullopt, head()); }

 private:
  void check_length(Dim length) const;
  /// Appends the inputs "tokens", "positions" and "starts" of concatenated sequences.
  CausalRows flat_rows(Graph& g, const FlatBinding& binding) const;
  /// What losses of concatenated sequences are made of.
  struct FlatLosses {
    Value targets, starts, scale;
    Value losses;  // [N], of each token
  };
  FlatLosses flat_losses(Graph& g, const FlatBinding& binding) const;
};

}  // namespace brrr::models
