#include "folders/gguf/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>

#include "base/errors.h"
#include "formats/json_file.h"

namespace brrr::io {
namespace {

constexpr std::string_view kArchitectureKey = "general.architecture";

/// The keys of a file whose names begin with the architecture's.
class GgufKeys {
 public:
  explicit GgufKeys(const GgufFile& file)
      : file_(file), prefix_(std::string(gguf_architecture(file).name) + ".") {}

  std::optional<int64_t> integer(std::string_view key) const {
    return file_.integer(prefix_ + std::string(key));
  }
  std::optional<double> number(std::string_view key) const {
    const auto value = file_.number(prefix_ + std::string(key));
    if (value && !std::isfinite(*value)) refuse(key, fmt::format("{}", *value), "a number");
    return value;
  }
  std::optional<std::string_view> text(std::string_view key) const {
    return file_.text(prefix_ + std::string(key));
  }
  std::optional<bool> flag(std::string_view key) const {
    return file_.flag(prefix_ + std::string(key));
  }
  const GgufValue* find(std::string_view key) const {
    return file_.find(prefix_ + std::string(key));
  }
  int64_t required_integer(std::string_view key) const {
    if (const auto value = integer(key)) return *value;
    missing(key);
  }
  double required_number(std::string_view key) const {
    if (const auto value = number(key)) return *value;
    missing(key);
  }
  [[noreturn]] void missing(std::string_view key) const {
    user_error("{}: the key {}{} is missing; is it a file with a vocabulary alone, or an old one?",
               file_.what(), prefix_, key);
  }
  [[noreturn]] void refuse(std::string_view key, std::string_view found,
                           std::string_view expected) const {
    user_error("{}: {}{} = {} is not supported; expected {}", file_.what(), prefix_, key, found,
               expected);
  }
  /// The first axis of a tensor that must be there.
  int64_t rows_of(std::string_view tensor) const {
    const GgufTensor* const t = file_.find_tensor(tensor);
    if (t == nullptr || t->shape.rank() != 2)
      user_error("{}: the tensor {} is missing, or no matrix", file_.what(), tensor);
    return t->shape.size(0);
  }
  bool has_tensor(std::string_view name) const { return file_.find_tensor(name) != nullptr; }
  const GgufFile& file() const { return file_; }

 private:
  const GgufFile& file_;
  std::string prefix_;
};

/// A number of a file that has it as f32, without the digits that f32 does not hold: 1e-06 instead
/// of 9.999999974752427e-07.
double as_written(double value) {
  const float narrow = static_cast<float>(value);
  if (static_cast<double>(narrow) != value) return value;
  return std::stod(fmt::format("{}", narrow));
}

/// head_count, head_count_kv and the width of a head, which keys and values must share.
void add_heads(const GgufKeys& keys, Json& config) {
  const int64_t heads = keys.required_integer("attention.head_count");
  const int64_t width = keys.required_integer("embedding_length");
  config["num_attention_heads"] = heads;
  config["num_key_value_heads"] = keys.integer("attention.head_count_kv").value_or(heads);
  const int64_t head_width =
      keys.integer("attention.key_length").value_or(heads > 0 ? width / heads : 0);
  config["head_dim"] = head_width;
  for (const char* key : {"attention.value_length", "rope.dimension_count"})
    if (const auto value = keys.integer(key); value && *value != head_width)
      keys.refuse(key, std::to_string(*value), fmt::format("the width of a head, {}", head_width));
}

/// Llama 3.1 and later slow rotation down by factors of a tensor, which its writers compute of four
/// numbers of config.json: these are found again.
Json llama3_rope(const GgufKeys& keys, const GgufTensor& tensor, double theta, int64_t head_width) {
  std::vector<float> factors(static_cast<size_t>(tensor.shape.elements()));
  const auto refuse = [&] {
    user_error(
        "{}: {} holds other factors than those of Llama 3 (rope_type llama3 with low_freq_factor 1 "
        "and high_freq_factor 4 on 8,192 positions), which are not supported",
        keys.file().what(), in_quotes(tensor.name));
  };
  if (!tensor.type->is_read() || std::ssize(factors) * 2 != head_width || factors.empty()) refuse();
  dequantise(*tensor.type, tensor.bytes, factors);
  constexpr double kLow = 1, kHigh = 4, kPositions = 8192, kTolerance = 1e-3;
  const double factor = factors.back();
  for (size_t i = 0; i < factors.size(); ++i) {
    const double frequency =
        std::pow(theta, -2 * static_cast<double>(i) / static_cast<double>(head_width));
    const double turns = kPositions * frequency / (2 * std::numbers::pi);
    const double smooth = std::clamp((turns - kLow) / (kHigh - kLow), 0.0, 1.0);
    const double expected = 1 / ((1 - smooth) / factor + smooth);
    if (!(std::fabs(factors[i] - expected) <= kTolerance * expected)) refuse();
  }
  if (!(factor >= 1 && factor <= 1e6)) refuse();
  return {{"rope_type", "llama3"},
          {"factor", as_written(factor)},
          {"low_freq_factor", kLow},
          {"high_freq_factor", kHigh},
          {"original_max_position_embeddings", static_cast<int64_t>(kPositions)}};
}

/// How a trained context is stretched: "rope_scaling"; null where it is not.
Json rope_scaling(const GgufKeys& keys) {
  const std::string type(keys.text("rope.scaling.type").value_or(""));
  std::optional<double> factor = keys.number("rope.scaling.factor");
  if (!factor) factor = keys.number("rope.scale_linear");  // of old files
  if (type == "none" || (type.empty() && factor.value_or(1) == 1)) return Json();
  Json scaling = {{"rope_type", type.empty() ? "linear" : type}};
  if (factor) scaling["factor"] = as_written(*factor);
  if (const auto length = keys.integer("rope.scaling.original_context_length"))
    scaling["original_max_position_embeddings"] = *length;
  for (const auto& [key, name] : {std::pair{"rope.scaling.yarn_beta_fast", "beta_fast"},
                                  {"rope.scaling.yarn_beta_slow", "beta_slow"}})
    if (const auto value = keys.number(key)) scaling[name] = as_written(*value);
  if (const auto value = keys.number("rope.scaling.attn_factor");
      value && *value != 1 && type == "yarn" && factor && *factor > 0)
    scaling["attention_factor"] = *value * (1 + 0.1 * std::log(*factor));
  return scaling;
}

Json common_config(const GgufKeys& keys) {
  Json config;
  config["vocab_size"] = keys.rows_of("token_embd.weight");
  config["hidden_size"] = keys.required_integer("embedding_length");
  config["num_hidden_layers"] = keys.required_integer("block_count");
  config["max_position_embeddings"] = keys.required_integer("context_length");
  config["intermediate_size"] = keys.required_integer("feed_forward_length");
  config["num_attention_heads"] = keys.required_integer("attention.head_count");
  const GgufFile& file = keys.file();
  config["tie_word_embeddings"] = !keys.has_tensor("output.weight");
  if (const auto begin = file.integer("tokenizer.ggml.bos_token_id"))
    config["bos_token_id"] = *begin;
  if (const auto pad = file.integer("tokenizer.ggml.padding_token_id"))
    config["pad_token_id"] = *pad;
  config["eos_token_id"] = gguf_ends_of_text(file);
  return config;
}

void add_rope(const GgufKeys& keys, Json& config) {
  const double theta = as_written(keys.number("rope.freq_base").value_or(10000));
  config["rope_theta"] = theta;
  config["rope_scaling"] = rope_scaling(keys);
  if (const GgufTensor* const factors = keys.file().find_tensor("rope_freqs.weight"))
    config["rope_scaling"] = llama3_rope(keys, *factors, theta, config["head_dim"].get<int64_t>());
}

Json llama_config(const GgufKeys& keys) {
  Json config = common_config(keys);
  const std::string type(gguf_architecture(keys.file()).name);
  config["model_type"] = type;
  config["rms_norm_eps"] = as_written(keys.required_number("attention.layer_norm_rms_epsilon"));
  add_heads(keys, config);
  add_rope(keys, config);
  if (const auto experts = keys.integer("expert_count"); experts && *experts > 0)
    keys.refuse("expert_count", std::to_string(*experts), "none");
  const bool has_biases = keys.has_tensor("blk.0.attn_q.bias");
  const bool has_output_bias = keys.has_tensor("blk.0.attn_output.bias");
  config["attention_bias"] = has_biases;
  if (type != "llama") return config;
  config["mlp_bias"] = keys.has_tensor("blk.0.ffn_up.bias");
  // Qwen2 is the only model of the Llama family with biases in q, k and v and none in the output.
  if (has_biases && !has_output_bias) config["model_type"] = "qwen2";
  if (const auto window = keys.integer("attention.sliding_window"); window && *window > 0) {
    config["model_type"] = "mistral";
    config["sliding_window"] = *window;
  }
  return config;
}

Json gemma3_config(const GgufKeys& keys) {
  Json config = common_config(keys);
  config["model_type"] = "gemma3_text";
  config["rms_norm_eps"] = as_written(keys.required_number("attention.layer_norm_rms_epsilon"));
  add_heads(keys, config);
  add_rope(keys, config);
  config["rope_local_base_freq"] = as_written(keys.number("rope.freq_base_swa").value_or(10000));
  config["sliding_window"] = keys.required_integer("attention.sliding_window");
  const GgufValue* const pattern = keys.find("attention.sliding_window_pattern");
  if (pattern != nullptr && pattern->type == GgufType::array) {
    Json layers = Json::array();
    pattern->each([&](const GgufValue& slides) {
      layers.push_back(slides.flag().value_or(false) ? "sliding_attention" : "full_attention");
    });
    config["layer_types"] = std::move(layers);
  } else if (const auto period = keys.integer("attention.sliding_window_pattern")) {
    config["sliding_window_pattern"] = *period;
  }
  // The largest model divides scores by the root of another number than the width of a head.
  constexpr int64_t kLayersOf27b = 62;
  const int64_t heads = config["num_attention_heads"].get<int64_t>();
  config["query_pre_attn_scalar"] = config["num_hidden_layers"] == kLayersOf27b && heads > 0
                                        ? config["hidden_size"].get<int64_t>() / heads
                                        : config["head_dim"].get<int64_t>();
  return config;
}

Json gpt2_config(const GgufKeys& keys) {
  const Json common = common_config(keys);
  Json config = {
      {"model_type", "gpt2"},
      {"vocab_size", common["vocab_size"]},
      {"n_positions", common["max_position_embeddings"]},
      {"n_embd", common["hidden_size"]},
      {"n_layer", common["num_hidden_layers"]},
      {"n_head", common["num_attention_heads"]},
      {"n_inner", common["intermediate_size"]},
      {"tie_word_embeddings", common["tie_word_embeddings"]},
      {"layer_norm_epsilon", as_written(keys.required_number("attention.layer_norm_epsilon"))}};
  for (const char* key : {"bos_token_id", "eos_token_id"})
    if (const auto id = keys.file().integer(std::string("tokenizer.ggml.") + key))
      config[key] = *id;
  return config;
}

Json gpt_neox_config(const GgufKeys& keys) {
  Json config = common_config(keys);
  config["model_type"] = "gpt_neox";
  config["layer_norm_eps"] = as_written(keys.required_number("attention.layer_norm_epsilon"));
  config["hidden_act"] = "gelu";
  config["use_parallel_residual"] = keys.flag("use_parallel_residual").value_or(true);
  config["attention_bias"] = keys.has_tensor("blk.0.attn_qkv.bias");
  config["rotary_emb_base"] = as_written(keys.number("rope.freq_base").value_or(10000));
  config["rope_scaling"] = rope_scaling(keys);
  const int64_t heads = config["num_attention_heads"].get<int64_t>();
  const double width =
      heads > 0 ? config["hidden_size"].get<double>() / static_cast<double>(heads) : 0;
  if (const auto columns = keys.integer("rope.dimension_count"); columns && width > 0)
    config["rotary_pct"] = static_cast<double>(*columns) / width;
  return config;
}

Json bert_config(const GgufKeys& keys) {
  Json config = common_config(keys);
  config.erase("tie_word_embeddings");
  config.erase("eos_token_id");
  config["model_type"] = "bert";
  config["layer_norm_eps"] = as_written(keys.required_number("attention.layer_norm_epsilon"));
  config["hidden_act"] = "gelu";
  // A table of positions that begins behind padding (RoBERTa's) is written without those rows.
  config["max_position_embeddings"] = keys.rows_of("position_embd.weight");
  config["type_vocab_size"] =
      keys.has_tensor("token_types.weight") ? keys.rows_of("token_types.weight") : 0;
  config["architectures"] = {"BertModel"};
  if (!keys.has_tensor("cls.output.weight")) return config;
  config["architectures"] = {"BertForSequenceClassification"};
  config["num_labels"] = keys.rows_of("cls.output.weight");
  return config;
}

}  // namespace

const GgufArchitecture& gguf_architecture(const GgufFile& file) {
  const auto name = file.text(kArchitectureKey);
  if (!name) user_error("{}: the key {} is missing", file.what(), kArchitectureKey);
  if (const GgufArchitecture* const known = find_gguf_architecture(*name)) return *known;
  user_error("{}: the architecture {} is not supported; those that are: {}", file.what(),
             in_quotes(*name), known_gguf_architectures());
}

std::string gguf_config(const GgufFile& file) {
  const GgufKeys keys(file);
  const std::string_view name = gguf_architecture(file).name;
  if (name == "gemma3") return json_line(gemma3_config(keys));
  if (name == "gpt2") return json_line(gpt2_config(keys));
  if (name == "gptneox") return json_line(gpt_neox_config(keys));
  if (name == "bert") return json_line(bert_config(keys));
  return json_line(llama_config(keys));
}

std::vector<int64_t> gguf_ends_of_text(const GgufFile& file) {
  static constexpr std::string_view kNames[] = {
      "<|eot_id|>",    "<|im_end|>",        "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>",
      "<|endoftext|>", "<|eom_id|>",        "<EOT>",   "_<EOT>",     "[EOT]",    "<|end_of_text|>",
      "[EOS]",         "<end_of_utterance>"};
  std::set<int64_t> ends;
  for (const char* key : {"eos_token_id", "eot_token_id", "eom_token_id"})
    if (const auto id = file.integer(std::string("tokenizer.ggml.") + key)) ends.insert(*id);
  constexpr int64_t kControl = 3;
  const std::vector<int64_t> kinds = file.integers("tokenizer.ggml.token_type");
  const GgufValue* const tokens = file.find("tokenizer.ggml.tokens");
  if (tokens == nullptr || tokens->type != GgufType::array) return {ends.begin(), ends.end()};
  int64_t id = 0;
  tokens->each([&](const GgufValue& token) {
    const bool is_control = id < std::ssize(kinds) && kinds[static_cast<size_t>(id)] == kControl;
    if (is_control && std::ranges::find(kNames, token.text().value_or("")) != std::end(kNames))
      ends.insert(id);
    ++id;
  });
  return {ends.begin(), ends.end()};
}

}  // namespace brrr::io
