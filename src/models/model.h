#pragma once
// The seam between architectures and everything that uses a model. What an architecture is stands
// in models/<name>/: its configuration (Hugging Face's config.json), its presets and options, its
// parameters, and its graphs as pure functions of sizes. Trainer, generator, plan and profile hold
// a Model and ask; none of them knows which one it is. Models are immutable and may be shared by
// threads.

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/options.h"
#include "ir/graph.h"
#include "models/parameters.h"
#include "models/task.h"

namespace brrr::models {

struct Architecture;
struct PreferenceLoss;
class AdaptedModel;

/// The pictures that a model takes, [B, channels, height, width].
struct PictureSizes {
  int64_t channels = 3, height = 224, width = 224;
  int64_t elements() const { return channels * height * width; }
  bool operator==(const PictureSizes&) const = default;
};

/// How the loss of a model for pictures is made in training; its evaluation knows none of it.
struct PictureLoss {
  double label_smoothing = 0;  // share of the target that all classes divide among them
  /// A picture may be a mix of two: the graph also has the inputs "targets2" [B] i32 and "mix" [B]
  /// f32, the share of the first target.
  bool mixes = false;
  Statistics statistics = Statistics::of_batch;
};

/// The sizes that reports show and memory depends on.
struct ModelSizes {
  int64_t vocabulary = 0;   // V
  int64_t context = 0;      // the longest sequence that the model takes, T
  int64_t layers = 0;       // L
  int64_t heads = 0;        // H, of queries
  int64_t width = 0;        // C
  int64_t query_width = 0;  // H * D
  int64_t cache_width = 0;  // elements of keys and values that a position adds, over all layers
  int64_t cache_heads = 0;  // heads of keys and values, over all layers
  bool causal = true;       // a token sees those before it; false: all of its text
  /// What a model for pictures takes instead of text (models/vision/vision_model.h); its vocabulary
  /// is its classes, its context 1.
  std::optional<PictureSizes> picture = std::nullopt;
};

/// How the tensors of a file are told apart, besides the names of parameters.
struct FileNames {
  std::string prefix;  // of names, which a file may leave out; "": none
  /// Names of the trunk, without the prefix, begin with one of these: such a tensor that no
  /// parameter claims is an error. Others (heads for other tasks) are passed over.
  std::vector<std::string> trunk;
  /// Buffers that some files hold and nobody needs (masks, frequencies).
  std::function<bool(std::string_view name)> is_buffer;
  /// Older names of parameters, prefix included, and the names that they have now: a file may use
  /// either.
  std::vector<std::pair<std::string, std::string>> renamed;
  /// Tensors that this model lacks and other readers of its files expect: written as zeros, which
  /// change nothing, and passed over where they are zeros.
  std::vector<std::pair<std::string, Shape>> zeros;
  /// A tied head: the tensor that a file may hold for it, and the parameter it is tied to. Where
  /// both differ, the model is Model::with_untied_head().
  std::optional<std::pair<std::string, std::string>> tied;
};

/// The sizes of a graph for concatenated texts.
struct FlatBinding {
  int64_t tokens = 1, texts = 1;                 // N, R
  std::optional<int64_t> places = std::nullopt;  // P: compute the logits of P tokens only
  int64_t longest = 0;  // upper bound on the length of a text; 0: the context
};

/// The sizes that a decoding graph is bound to.
struct DecodeBinding {
  int64_t batch = 1;
  int64_t length = 1;    // tokens that one call adds
  int64_t capacity = 0;  // positions that the cache has room for
  DType cache = DType::f32;
};

/// Number of positions in a block of a KV cache.
inline constexpr int64_t kBlockRows = 16;

/// The sizes of a decode_sequences() graph.
struct SequencesBinding {
  int64_t tokens = 1;     // N, new tokens of all sequences
  int64_t sequences = 1;  // R
  int64_t wanted = 1;     // P, tokens whose logits are computed
  int64_t table = 1;      // M, maximum number of blocks of a sequence
  int64_t blocks = 1;     // size of the pool
  DType cache = DType::f32;
  /// Each token has an adapter of its own, or none; else adapters are added. Only for a model with
  /// adapters, whose graph has the input "adapters" then (AdaptedModel).
  bool chooses_adapters = false;
};

/// The sizes of a graph for other runtimes.
struct ExchangeBinding {
  int64_t batch = 1;
  int64_t length = 1;           // tokens of each text
  std::optional<int64_t> past;  // of a decoder with a cache: tokens that the cache holds
};

/// Ids of the tokens that begin and end a text, as config.json has them: none outside the
/// vocabulary.
struct TextEnds {
  std::optional<int32_t> begin;
  std::vector<int32_t> ends;
};
TextEnds text_ends_within(int64_t vocabulary, int64_t begin, const std::vector<int64_t>& ends);

class Model;
using ModelPtr = std::shared_ptr<const Model>;

class Model {
 public:
  virtual ~Model() = default;
  virtual const Architecture& architecture() const = 0;
  virtual ModelSizes sizes() const = 0;
  /// As the net declares them. A tied head is no parameter of its own.
  std::vector<ParameterInfo> parameters() const;
  virtual FileNames file_names() const = 0;
  virtual TextEnds text_ends() const = 0;
  /// The architecture's own options that describe this model (Architecture::options), complete.
  virtual KeyValues settings() const = 0;
  /// The text of a config.json with every key that transformers needs.
  virtual std::string config_json(DType stored) const = 0;
  /// The same model with another dropout, with a larger vocabulary, or with a head of its own
  /// instead of the tied one.
  virtual ModelPtr with_dropout(double probability) const = 0;
  virtual ModelPtr with_vocabulary(int64_t size) const = 0;
  virtual ModelPtr with_untied_head() const = 0;
  /// The probability with which training drops an element of what layers add.
  virtual double dropout() const = 0;

  virtual Task task() const { return {}; }
  /// The same trunk with the head of another task. Throws UserError for a task that the
  /// architecture does not have.
  virtual ModelPtr with_task(const Task& task) const;
  /// This model, if it is one with adapters (adapters/adapted_model.h).
  virtual const AdaptedModel* adapted() const { return nullptr; }
  /// Whether graphs have the input "types" (encoder.h).
  virtual bool has_token_types() const { return false; }

  /// Whether graphs have the input "pixels" instead of "tokens" (vision/vision_model.h).
  bool sees_pictures() const { return sizes().picture.has_value(); }
  /// The same model for square pictures of another size, or with another loss in training.
  /// InternalError for a model of text.
  virtual ModelPtr with_image_size(int64_t size) const;
  virtual ModelPtr with_picture_loss(const PictureLoss& loss) const;

  /// Inputs "tokens", "targets" [B, T] i32 (-1: ignored), "loss_scale" f32[] (1 / real tokens of
  /// the step, 1 for a sum), "rng_key" i32[2] when the model has dropout. Output "loss" f32[].
  virtual Graph loss(int64_t batch, int64_t length) const = 0;
  /// Input "tokens" [B, T] i32. Output "logits" [B, T, V].
  virtual Graph forward(Dim batch, Dim length) const = 0;
  /// The loss without dropout; where the task is scored by more than its loss, the output "logits"
  /// as forward() gives it beside it.
  virtual Graph scored(int64_t batch, int64_t length) const { return loss(batch, length); }
  /// An encoder's logits of some tokens alone (encoder.h).
  virtual Graph forward_at(int64_t batch, int64_t length, int64_t places) const;
  /// Whether the model implements flat(), as encoders and text classifiers do.
  virtual bool has_flat() const { return false; }
  /// The forward pass of texts one behind the other, without padding. Inputs "tokens" [N] i32, with
  /// token types "types" [N], "positions" [N] i32 (of a token in its text) and "starts" [R + 1]
  /// i32: text r is tokens [starts[r], starts[r + 1]), what lies outside all texts is ignored.
  /// Output "logits" [N, V], [R, K] or [N, K] by head, of Head::embedding "embedding" [R, D]; with
  /// the input "places" [P] i32 those of these tokens alone, [P, V] (Head::masked_token).
  virtual Graph flat(const FlatBinding& binding) const;
  /// Whether training should use flat_loss() and flat_scored() instead of padded rows.
  virtual bool has_flat_loss() const { return false; }
  /// The loss of concatenated texts, without padding. Inputs are those of flat() and "targets" i32:
  /// [N] per token, or [R] per text for classes and values, which also have "values" [R, K] f32; -1
  /// is not scored, and tokens outside all texts must have -1. A token of a decoder sees the tokens
  /// before it in its own text. "loss_scale", "rng_key" and the output "loss" are those of loss().
  virtual Graph flat_loss(const FlatBinding& binding) const;
  /// flat_loss() without dropout, and with the outputs of scored().
  virtual Graph flat_scored(const FlatBinding& binding) const;
  /// The loss of pairs of concatenated texts, in training and evaluation (preference_loss.h has its
  /// outputs). Inputs are those of flat_loss() and "reference" f32 [R]; "loss_scale" is 1 / pairs.
  /// Models that continue texts and have flat_loss() implement it.
  virtual Graph preference_loss(const FlatBinding& binding, const PreferenceLoss& loss) const;
  /// Inputs "tokens" [B, T] i32 and "position" i32[], the index of the first of them. Output
  /// "logits" [B, V] of the last token; the cache is state.
  virtual Graph decode(const DecodeBinding& binding) const = 0;
  /// Computes new tokens of many sequences, whose KV cache is a pool of blocks, which is state.
  /// Inputs, all i32:
  ///   tokens     [N]      new tokens; those of sequence r are [starts[r], starts[r + 1])
  ///   positions  [N]      position of each token in its sequence
  ///   starts     [R + 1]  ascending; tokens outside all sequences are padding
  ///   lengths    [R]      length of each sequence, new tokens included
  ///   blocks     [R, M]   position p of sequence r lies in block blocks[r, p / kBlockRows]
  ///   slots      [N]      row of the pool for the keys and values of each token; -1 for padding
  ///   wanted     [P]      tokens whose logits are computed
  /// Output "logits" [P, V]. The result for a sequence depends on its own tokens only, bit for bit,
  /// and not on how they are divided into steps.
  virtual Graph decode_sequences(const SequencesBinding& binding) const;
  /// The graph that other runtimes know, with the names and dtypes that files for them have: inputs
  /// "input_ids" i64 [B, T] and "attention_mask" i64 [B, P + T], 0 at padding, wherever it stands.
  /// A decoder has "position_ids" i64 [B, T] and the output "logits" [B, T, V]; with a cache also
  /// "past_key_values.N.key" and ".value" [B, K, P, D] and the outputs "present.N.key" and ".value"
  /// [B, K, P + T, D] of each layer N. An encoder has "token_type_ids" where it tells texts apart,
  /// and the output "logits", or of Head::embedding "last_hidden_state" [B, T, C] and
  /// "sentence_embedding".
  virtual Graph exchange(const ExchangeBinding& binding) const = 0;

  /// Elements of all parameters, buffers left out.
  int64_t parameter_count() const;
  /// Elements of the parameters that are no tables and no buffers: N of the usual count of FLOPs,
  /// and what one token reads.
  int64_t multiplied_count() const;
  /// 6 N + 6 L (H D) T, the usual count of a training step's FLOPs for each token, attention
  /// causal; with `whole_scores`, and where attention is not causal, 6 N + 12 L (H D) T: every
  /// query sees every key.
  virtual double flops_per_token(int64_t length, bool whole_scores = false) const;

 protected:
  /// Declares the parameters.
  virtual void declare(Parameters& p) const = 0;

 private:
  /// parameters(), made once.
  const std::vector<ParameterInfo>& declared() const;

  mutable std::once_flag declared_;
  mutable std::vector<ParameterInfo> parameters_;
};

/// What a model is made of when it is described by options.
struct Description {
  KeyValues settings;  // of the architecture, by canonical name; what is left out has a default
  int64_t vocabulary = 0;
  int64_t context = 0;
  double dropout = 0;
  std::optional<int64_t> pad_token = std::nullopt;  // the tokenizer's
};

/// A named starting point for training: options of `brrr train` and of the architecture.
struct Preset {
  std::string name, summary;
  KeyValues values;
};

/// An option of an architecture; its values are kept as canonical text.
struct ModelOption : OptionInfo {
  /// The canonical text of a value. Throws UserError for one that is out of range.
  std::function<std::string(const std::string&)> canonical;
};

struct Architecture {
  std::string name = {};                      // of --architecture: "gpt2"
  std::string title = {};                     // for people: "GPT-2"
  std::vector<std::string> model_types = {};  // of config.json
  std::vector<std::string> class_names = {};  // beginnings of config.json's "architectures"
  std::vector<ModelOption> options = {};
  std::vector<Preset> presets = {};  // the first one stands for the architecture
  Head head = Head::next_token;      // of models that options describe
  /// Throws UserError (exit 2) for sizes that do not go together.
  std::function<ModelPtr(const Description&)> describe = {};
  /// From the text of a config.json; `what` names it in errors. Keys that the architecture does not
  /// need are ignored. Throws UserError for a missing or mistyped key, a value outside the sane
  /// range, and for variants that compute something else.
  std::function<ModelPtr(std::string_view text, const std::string& what)> parse = {};

  const ModelOption* find_option(std::string_view canonical_name) const;
  /// The option's default.
  KeyValues defaults() const;
};

/// The rows of a table as options of an architecture.
template <typename S>
std::vector<ModelOption> options_of(const OptionTable<S>& table) {
  std::vector<ModelOption> list;
  const auto infos = table.infos();
  for (size_t i = 0; i < infos.size(); ++i) {
    ModelOption option;
    static_cast<OptionInfo&>(option) = infos[i];
    option.canonical = [row = table.rows()[i],
                        defaults = table.defaults()](const std::string& text) {
      S settings = defaults;
      row.set(settings, text);
      return row.get(settings)[0];
    };
    list.push_back(std::move(option));
  }
  return list;
}

/// The settings that `given` describes; others have the table's defaults.
template <typename S>
S settings_from(const OptionTable<S>& table, const KeyValues& given) {
  S settings = table.defaults();
  for (const auto& [name, value] : given) table.set(settings, table.find(name), value, "--" + name);
  return settings;
}
/// All of them by canonical name.
template <typename S>
KeyValues settings_to(const OptionTable<S>& table, const S& settings) {
  KeyValues all;
  for (const auto& row : table.rows()) all.emplace_back(row.name, row.get(settings)[0]);
  return all;
}

/// The values of a preset, written as on a command line: "--n-layer 4 --dropout 0".
KeyValues preset_values(std::string_view command_line);

/// Every architecture; all_models.cpp is the list.
const std::vector<const Architecture*>& all_architectures();
/// By name. Throws UserError (exit 2) that lists what there is.
const Architecture& find_architecture(std::string_view name);

/// A model from the text of a config.json, whose "model_type" (or, in old files, "architectures")
/// says which architecture reads it; `what` names the file in errors.
ModelPtr parse_config(std::string_view text, const std::string& what);

}  // namespace brrr::models
