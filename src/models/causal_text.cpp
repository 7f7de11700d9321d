#include "models/causal_text.h"

#include <algorithm>

#include "base/errors.h"
#include "models/causal_lm.h"
#include "models/encoder.h"
#include "models/exchange_names.h"
#include "models/layers.h"
#include "models/task_json.h"
#include "ops/ops.h"

namespace brrr::models {
namespace {

using io::Json;

constexpr const char* kScore = "score.weight";
constexpr std::string_view kTextClass = "ForSequenceClassification";

}  // namespace

class CausalTextModel final : public Model {
 public:
  CausalTextModel(ModelPtr language, Task task)
      : language_(std::dynamic_pointer_cast<const CausalModel>(std::move(language))),
        task_(std::move(task)) {
    BRRR_CHECK(language_ != nullptr, "a causal language model is expected");
    if (task_.labels.empty() || std::ssize(task_.labels) > kMostLabels)
      user_error("[{}] expected between 1 and {} labels; got {}", architecture().name, kMostLabels,
                 task_.labels.size());
  }

  const Architecture& architecture() const override { return language_->architecture(); }
  ModelSizes sizes() const override { return language_->sizes(); }

  FileNames file_names() const override {
    FileNames names = language_->file_names();
    names.tied.reset();  // the head of a language model may stand in a file, and is not read
    return names;
  }
  TextEnds text_ends() const override { return language_->text_ends(); }
  KeyValues settings() const override { return language_->settings(); }

  std::string config_json(DType stored) const override {
    Json json = io::parse_json(language_->config_json(stored), "config.json");
    std::string name = json["architectures"][0].get<std::string>();
    for (const std::string_view ending : {"LMHeadModel", "ForCausalLM"})
      if (name.ends_with(ending)) name.resize(name.size() - ending.size());
    json["architectures"] = {name + std::string(kTextClass)};
    // transformers finds a text's last token by the token of padding.
    if (const auto pad = json.find("pad_token_id"); pad == json.end() || pad->is_null()) {
      const std::vector<int32_t> ends = text_ends().ends;
      json["pad_token_id"] = ends.empty() ? Json(0) : Json(ends[0]);
    }
    write_labels(task_, json);
    return config_text(std::move(json), "");
  }

  ModelPtr with_dropout(double probability) const override {
    return std::make_shared<CausalTextModel>(language_->with_dropout(probability), task_);
  }
  ModelPtr with_vocabulary(int64_t size) const override {
    return std::make_shared<CausalTextModel>(language_->with_vocabulary(size), task_);
  }
  ModelPtr with_untied_head() const override {
    return std::make_shared<CausalTextModel>(language_->with_untied_head(), task_);
  }
  double dropout() const override { return language_->dropout(); }

  Task task() const override { return task_; }
  ModelPtr with_task(const Task& task) const override { return language_->with_task(task); }

  Graph loss(int64_t batch, int64_t length) const override {
    return loss_graph(batch, length, true);
  }
  Graph scored(int64_t batch, int64_t length) const override {
    return loss_graph(batch, length, false);
  }
  bool has_flat() const override { return !is_recurrent(sizes()); }
  Graph flat(const FlatBinding& binding) const override {
    Graph g;
    const CausalRows causal = language_->flat_rows(g, binding);
    Parameters parameters(g, Purpose::inference);
    g.output("logits", logits_of(parameters, std::nullopt, causal, texts_of(causal)));
    return g;
  }
  bool has_flat_loss() const override { return has_flat(); }
  Graph flat_loss(const FlatBinding& binding) const override {
    return flat_loss_graph(binding, true);
  }
  Graph flat_scored(const FlatBinding& binding) const override {
    return flat_loss_graph(binding, false);
  }
  Graph forward(Dim batch, Dim length) const override {
    Graph g;
    const EncoderRows rows = rows_of(g, batch, length);
    Parameters parameters(g, Purpose::inference);
    g.output("logits", logits_of(parameters, std::nullopt, {rows.tokens, positions(length)}, rows));
    return g;
  }
  Graph decode(const DecodeBinding&) const override {
    user_error("[{}] a model for {} does not generate text: use `brrr classify`",
               architecture().name, description(task_.head));
  }
  Graph exchange(const ExchangeBinding& binding) const override {
    if (binding.past)
      user_error("[{}] a model for {} has no cache", architecture().name, description(task_.head));
    language_->check_length(Dim(binding.length));
    Graph g;
    const Shape shape{binding.batch, binding.length};
    const Value tokens = g.input(exchange_names::kIds, shape, DType::i64);
    const Value mask = g.input(exchange_names::kMask, shape, DType::i64);
    const Value is_real = not_equal(mask, scalar(g, 0, DType::i64));
    CausalRows causal{cast(tokens, DType::i32), binding.length};
    causal.padding = hidden_padding(is_real);
    EncoderRows rows;
    rows.tokens = causal.tokens;
    rows.is_real = is_real;
    Parameters parameters(g, Purpose::inference);
    g.output("logits", logits_of(parameters, std::nullopt, causal, rows));
    return g;
  }

 private:
  int64_t outputs() const { return std::ssize(task_.labels); }
  int64_t positions(Dim length) const {
    return length.is_symbol() ? sizes().context : length.size();
  }

  EncoderRows rows_of(Graph& g, Dim batch, Dim length) const {
    language_->check_length(length);
    EncoderRows rows;
    rows.tokens = g.input("tokens", {batch, length}, DType::i32);
    rows.lengths = g.input("lengths", {batch}, DType::i32);
    return rows;
  }

  /// Returns the rows as pooled() takes them.
  static EncoderRows texts_of(const CausalRows& causal) {
    EncoderRows rows;
    rows.tokens = causal.tokens;
    rows.positions = causal.position_ids;
    rows.starts = causal.starts;
    return rows;
  }

  void declare(Parameters& p) const override {
    language_->build(p, std::nullopt, CausalHead::none);
    score_of(p);
  }
  Value score_of(Parameters& p) const {
    p.set_part(Part::head);
    p.set_place("head");
    return p.weight(kScore, {outputs(), sizes().width});
  }

  /// Returns [B, K], or [R, K] of flat rows.
  Value logits_of(Parameters& p, const std::optional<Value>& rng_key, const CausalRows& causal,
                  const EncoderRows& rows) const {
    const auto net = language_->build(p, rng_key, CausalHead::none);
    const Value x = net->trunk(causal);  // [B, T, C] or [N, C]
    Scope scope(p.graph(), "score");
    const Value weight = score_of(p);
    const Value last = pooled(x, rows, {.pooling = {Pooling::last_token}});  // [B, C]
    return matmul(net->normed(last), weight, false, true);
  }

  Graph loss_graph(int64_t batch, int64_t length, bool trains) const {
    Graph g;
    const EncoderRows rows = rows_of(g, Dim(batch), Dim(length));
    add_loss(g, {rows.tokens, length}, rows, trains);
    return g;
  }
  Graph flat_loss_graph(const FlatBinding& binding, bool trains) const {
    Graph g;
    const CausalRows causal = language_->flat_rows(g, binding);
    add_loss(g, causal, texts_of(causal), trains);
    return g;
  }
  void add_loss(Graph& g, const CausalRows& causal, const EncoderRows& rows, bool trains) const {
    if (task_.several)
      user_error("[{}] a model for multi-label classification cannot be trained",
                 architecture().name);
    const Value targets = g.input("targets", {rows.texts()}, DType::i32);
    std::optional<Value> values;
    if (task_.head == Head::values)
      values = g.input("values", {rows.texts(), outputs()}, DType::f32);
    const Value scale = g.input("loss_scale", {}, DType::f32);
    std::optional<Value> key;
    if (trains && language_->has_dropout()) key = g.input("rng_key", {2}, DType::i32);
    Parameters parameters(g, trains ? Purpose::training : Purpose::inference);
    const Value logits = logits_of(parameters, key, causal, rows);
    Scope scope(g, "loss");
    g.output("loss", text_loss(logits, targets, values) * scale);
    if (!trains) g.output("logits", cast(logits, DType::f32));
  }

  std::shared_ptr<const CausalModel> language_;
  Task task_;
};

std::optional<Task> text_task_of(std::string_view config, const std::string& what) {
  const ConfigReader keys(config, what);
  if (!class_name(keys).ends_with(kTextClass)) return std::nullopt;
  return read_text_task(keys);
}

ModelPtr causal_text_model(const Architecture& architecture, std::string_view config,
                           const std::string& what, const Task& task) {
  return std::make_shared<CausalTextModel>(architecture.parse(config, what), task);
}

}  // namespace brrr::models
