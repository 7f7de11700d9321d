#include "folders/gguf/gguf_hyperparameters.h"

#include <cmath>

#include "base/errors.h"
#include "formats/json_file.h"
#include "models/config_reader.h"
#include "models/rope_json.h"

namespace brrr::io {
namespace {

using models::ConfigReader;

/// Writes the keys of one architecture from a config.json.
class HyperparameterWriter {
 public:
  HyperparameterWriter(const models::Model& model, const std::string& where)
      : model_(model), where_(where), config_(model.config_json(DType::f32), where) {}

  GgufHyperparameters write() {
    const std::string type = config_.text("model_type", "");
    const models::Head head = model_.task().head;
    if (type == "llama" || type == "mistral" || type == "qwen2" || type == "qwen3")
      write_llama(type);
    else if (type == "gemma3_text")
      write_gemma3();
    else if (type == "gpt2")
      write_gpt2();
    else if (type == "gpt_neox")
      write_gpt_neox();
    else if (type == "bert")
      write_bert();
    else
      user_error(
          "{}: models of the type {} are not written as GGUF files; those that are: llama, "
          "mistral, qwen2, qwen3, gemma3, gpt2, gpt_neox, bert",
          where_, type);
    if (type != "bert" && head != models::Head::next_token)
      user_error("{}: a {} for {} is not written as a GGUF file; those that continue texts are",
                 where_, type, models::description(head));
    return std::move(made_);
  }

 private:
  void begin(std::string_view architecture) {
    made_.architecture = find_gguf_architecture(architecture);
    prefix_ = std::string(architecture) + ".";
  }
  GgufMetadata& keys() { return made_.keys; }
  void count(const char* key, int64_t value) { keys().count(prefix_ + key, value); }
  void real(const char* key, double value) { keys().real(prefix_ + key, value); }

  [[noreturn]] void refuse(std::string_view setting, std::string_view reason) const {
    user_error("{}: {} cannot be written into a GGUF file: {}", where_, setting, reason);
  }

  /// What all have, by the names of the configuration.
  void add_sizes(const char* context, const char* width, const char* layers, const char* heads) {
    const models::ModelSizes sizes = model_.sizes();
    count("vocab_size", sizes.vocabulary);
    count("context_length", std::min(sizes.context, config_.required_integer(context)));
    count("embedding_length", config_.required_integer(width));
    count("block_count", config_.required_integer(layers));
    made_.heads = config_.required_integer(heads);
    made_.kv_heads = config_.integer("num_key_value_heads", made_.heads);
    count("attention.head_count", made_.heads);
    count("attention.head_count_kv", made_.kv_heads);
  }

  void add_rotary_sizes() {
    add_sizes("max_position_embeddings", "hidden_size", "num_hidden_layers", "num_attention_heads");
    const int64_t width = config_.required_integer("head_dim");
    count("feed_forward_length", config_.required_integer("intermediate_size"));
    count("attention.key_length", width);
    count("attention.value_length", width);
    count("rope.dimension_count", width);
    real("attention.layer_norm_rms_epsilon", config_.required_number("rms_norm_eps"));
    real("rope.freq_base", config_.required_number("rope_theta"));
  }

  /// `width`: rotated columns of a head.
  void add_rope(int64_t width, bool takes_factors) {
    models::RopeConfig rope;
    rope.theta = config_.number("rope_theta", rope.theta);
    models::read_rope(rope, config_, config_.required_integer("max_position_embeddings"));
    using Type = models::RopeConfig::Kind;
    switch (rope.kind) {
      case Type::plain:
      case Type::dynamic:  // plain within the context, which ends at the trained length
        return;
      case Type::linear:
        keys().text(prefix_ + "rope.scaling.type", "linear");
        return real("rope.scaling.factor", rope.factor);
      case Type::llama3: {
        if (!takes_factors) refuse("rope_type llama3", "llama.cpp reads it of llama models alone");
        const auto scaled = models::rope_frequencies(rope, width).radians_per_position;
        rope.kind = Type::plain;
        const auto plain = models::rope_frequencies(rope, width).radians_per_position;
        for (size_t i = 0; i < plain.size(); ++i)
          made_.rope_factors.push_back(static_cast<float>(plain[i] / scaled[i]));
        return;
      }
      case Type::yarn:
        break;
    }
    if (rope.mscale != 0 || rope.mscale_all_dim != 0 || !rope.truncate)
      refuse("rope_type yarn with mscale or without truncate", "there is no key for it");
    keys().text(prefix_ + "rope.scaling.type", "yarn");
    real("rope.scaling.factor", rope.factor);
    count("rope.scaling.original_context_length", rope.original_context);
    real("rope.scaling.yarn_beta_fast", rope.beta_fast);
    real("rope.scaling.yarn_beta_slow", rope.beta_slow);
    // llama.cpp multiplies the factor of the paper by this.
    if (rope.attention_factor != 0)
      real("rope.scaling.attn_factor", rope.attention_factor / (1 + 0.1 * std::log(rope.factor)));
  }

  void write_llama(const std::string& type) {
    begin(type == "mistral" ? "llama" : type);
    add_rotary_sizes();
    add_rope(config_.required_integer("head_dim"), prefix_ == "llama.");
    if (type == "qwen3" && config_.flag("attention_bias", false))
      refuse("attention_bias of a qwen3", "llama.cpp has no such biases");
    const int64_t window = config_.integer("sliding_window", 0);
    if (window == 0 || !config_.flag("use_sliding_window", true)) return;
    if (type != "mistral")
      refuse(fmt::format("the sliding window of a {}", type), "llama.cpp has none");
    count("attention.sliding_window", window);
    if (window < model_.sizes().context)
      made_.notes.push_back(
          fmt::format("llama.cpp ignores the sliding window of this architecture, so that it "
                      "differs from token {} on",
                      window + 1));
  }

  void write_gemma3() {
    begin("gemma3");
    add_rotary_sizes();
    add_rope(config_.required_integer("head_dim"), false);
    if (config_.flag("attention_bias", false))
      refuse("attention_bias of a gemma3", "llama.cpp has no such biases");
    count("attention.sliding_window", config_.required_integer("sliding_window"));
    if (const double local = config_.number("rope_local_base_freq", 10000); local != 10000)
      real("rope.freq_base_swa", local);
    const int64_t layers = config_.required_integer("num_hidden_layers");
    constexpr int64_t kUsualPeriod = 6, kLayersOf27b = 62;
    const Json* const kinds = config_.find("layer_types");
    for (int64_t i = 0; kinds != nullptr && i < layers; ++i)
      if (((*kinds)[static_cast<size_t>(i)] == "sliding_attention") !=
          ((i + 1) % kUsualPeriod != 0))
        refuse("layer_types", "llama.cpp expects every sixth layer to see all tokens");
    const int64_t scalar = config_.required_integer("query_pre_attn_scalar");
    const int64_t expected = layers == kLayersOf27b
                                 ? config_.required_integer("hidden_size") / made_.heads
                                 : config_.required_integer("head_dim");
    if (scalar != expected)
      refuse(fmt::format("query_pre_attn_scalar = {}", scalar),
             fmt::format("llama.cpp expects {}", expected));
  }

  void write_gpt2() {
    begin("gpt2");
    add_sizes("n_positions", "n_embd", "n_layer", "n_head");
    count("feed_forward_length",
          config_.integer("n_inner", 4 * config_.required_integer("n_embd")));
    real("attention.layer_norm_epsilon", config_.required_number("layer_norm_epsilon"));
    const std::string activation = config_.text("activation_function", "gelu_new");
    if (activation != "gelu_new")
      refuse("activation_function " + activation, "llama.cpp computes gelu_new");
    if (!config_.flag("scale_attn_weights", true) ||
        config_.flag("scale_attn_by_inverse_layer_idx", false))
      refuse("scale_attn_weights = false or scale_attn_by_inverse_layer_idx",
             "llama.cpp divides scores by the root of the width of a head");
  }

  void write_gpt_neox() {
    begin("gptneox");
    add_sizes("max_position_embeddings", "hidden_size", "num_hidden_layers", "num_attention_heads");
    count("feed_forward_length", config_.required_integer("intermediate_size"));
    real("attention.layer_norm_epsilon", config_.required_number("layer_norm_eps"));
    keys().flag(prefix_ + "use_parallel_residual", config_.flag("use_parallel_residual", true));
    const int64_t head = config_.required_integer("hidden_size") / made_.heads;
    const double share = config_.number("rotary_pct", config_.number("partial_rotary_factor", 1));
    const auto rotated = static_cast<int64_t>(static_cast<double>(head) * share);
    count("rope.dimension_count", rotated);
    real("rope.freq_base", config_.number("rotary_emb_base", config_.number("rope_theta", 10000)));
    add_rope(rotated, false);
    expect_gelu();
    if (!config_.flag("attention_bias", true))
      refuse("attention_bias = false of a gpt_neox", "llama.cpp expects biases");
  }

  void write_bert() {
    begin("bert");
    add_sizes("max_position_embeddings", "hidden_size", "num_hidden_layers", "num_attention_heads");
    count("feed_forward_length", config_.required_integer("intermediate_size"));
    real("attention.layer_norm_epsilon", config_.required_number("layer_norm_eps"));
    keys().flag(prefix_ + "attention.causal", false);
    expect_gelu();
    const models::Task task = model_.task();
    if (task.head == models::Head::embedding) {
      if (task.pooling == std::vector{models::Pooling::mean})
        count("pooling_type", 1);
      else if (task.pooling == std::vector{models::Pooling::cls})
        count("pooling_type", 2);
      else
        refuse("this pooling", "llama.cpp takes the mean or the first token");
    } else if (task.head == models::Head::classes || task.head == models::Head::values) {
      keys().texts(prefix_ + "classifier.output_labels", task.labels);
    } else {
      refuse(fmt::format("a head for {}", models::description(task.head)), "there is no such head");
    }
  }

  void expect_gelu() const {
    const std::string activation = config_.text("hidden_act", "gelu");
    if (activation != "gelu") refuse("hidden_act " + activation, "llama.cpp computes gelu");
  }

  const models::Model& model_;
  const std::string& where_;
  ConfigReader config_;
  std::string prefix_;
  GgufHyperparameters made_;
};

}  // namespace

GgufHyperparameters gguf_hyperparameters(const models::Model& model, const std::string& where) {
  return HyperparameterWriter(model, where).write();
}

}  // namespace brrr::io
