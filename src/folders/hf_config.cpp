#include "folders/hf_config.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/errors.h"
#include "formats/json_file.h"

namespace brrr::io {
namespace {

constexpr std::string_view kPrefix = "transformer.";
constexpr int64_t kNoToken = -1;

/// Typed access to the keys of one config.json.
class Keys {
 public:
  Keys(const Json& root, const std::string& what) : root_(root), what_(what) {}

  int64_t required_integer(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr)
      user_error(
          "{}: '{}' is missing; a GPT-2 configuration needs vocab_size, n_positions, n_embd, "
          "n_layer and n_head",
          what_, key);
    return integer(key, *value);
  }
  std::optional<int64_t> optional_integer(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr || value->is_null()) return std::nullopt;
    return integer(key, *value);
  }
  double number(const char* key, double fallback) const {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_number()) wrong(key, "a number", *value);
    return value->get<double>();
  }
  bool flag(const char* key, bool fallback) const {
    const Json* value = find(key);
    if (value == nullptr || value->is_null()) return fallback;
    if (!value->is_boolean()) wrong(key, "true or false", *value);
    return value->get<bool>();
  }
  std::string text(const char* key, const char* fallback) const {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_string()) wrong(key, "a string", *value);
    return value->get<std::string>();
  }
  const Json* find(const char* key) const {
    const auto at = root_.find(key);
    return at == root_.end() ? nullptr : &*at;
  }
  /// GPT-2 as it was published has `wanted`; anything else computes another function.
  void insist(const char* key, bool wanted) const {
    if (flag(key, wanted) != wanted)
      user_error("{}: {} = {} is not supported; expected {}", what_, key, !wanted, wanted);
  }

 private:
  [[noreturn]] void wrong(const char* key, const char* wanted, const Json& found) const {
    user_error("{}: '{}' must be {}; found {}", what_, key, wanted, describe(found));
  }
  int64_t integer(const char* key, const Json& value) const {
    // Unsigned values beyond int64 would wrap to negative ones.
    const bool fits = value.is_number_integer() &&
                      (!value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t{1} << 62);
    if (!fits) wrong(key, "an integer", value);
    return value.get<int64_t>();
  }

  const Json& root_;
  const std::string& what_;
};

void check_model_type(const Json& root, const Keys& keys, const std::string& what) {
  if (const Json* type = keys.find("model_type")) {
    if (*type != "gpt2")
      user_error("{}: expected the configuration of a GPT-2 (\"model_type\": \"gpt2\"), found {}",
                 what, describe(*type));
    return;
  }
  // Configurations from before model_type name their class only.
  const auto architectures = root.find("architectures");
  if (architectures != root.end() && architectures->is_array() && !architectures->empty()) {
    const Json& first = architectures->front();
    if (!first.is_string() || !first.get_ref<const std::string&>().starts_with("GPT2"))
      user_error(
          "{}: expected the configuration of a GPT-2, found the architecture {}", what,
          first.is_string() ? in_quotes(first.get_ref<const std::string&>()) : describe(first));
    return;
  }
  if (!root.contains("n_embd"))
    user_error(
        "{}: this is not the configuration of a GPT-2: it has neither \"model_type\": \"gpt2\" "
        "nor \"n_embd\"",
        what);
}

std::string activation_of(const std::string& name, const std::string& what) {
  if (name == "gelu_new" || name == "gelu_pytorch_tanh") return "gelu_new";
  if (name == "gelu") return "gelu";
  user_error("{}: activation_function must be gelu_new, gelu_pytorch_tanh or gelu; found {}", what,
             in_quotes(name));
}

bool is_mask(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

bool is_trunk(std::string_view name) {
  for (const char* part : {"h.", "wte.", "wpe.", "ln_f."})
    if (name.starts_with(part)) return true;
  return false;
}

std::string_view without_prefix(std::string_view name) {
  return name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
}

const TensorView& find_expected(const SafetensorsFile& file, const ExpectedTensor& expected) {
  const TensorView* tensor = file.find(expected.name);
  if (tensor == nullptr) tensor = file.find(without_prefix(expected.name));
  if (tensor == nullptr)
    user_error("{}: the tensor {} {} is missing; the file does not belong to its config.json",
               file.what(), expected.name, expected.shape.str());
  if (tensor->shape != expected.shape)
    user_error("{}: the tensor {} must have the shape {} by config.json; the file has {}",
               file.what(), expected.name, expected.shape.str(), tensor->shape.str());
  if (!is_float(tensor->dtype))
    user_error("{}: the tensor {} must hold floating-point weights; the file has {}", file.what(),
               expected.name, name_of(tensor->dtype));
  return *tensor;
}

}  // namespace

models::Gpt2Config parse_gpt2_config(std::string_view text, const std::string& what) {
  const Json root = parse_json(text, what);
  if (!root.is_object())
    user_error("{}: expected a JSON object with the configuration of a GPT-2, found {}", what,
               describe(root));
  const Keys keys(root, what);
  check_model_type(root, keys, what);

  models::Gpt2Config c;
  c.vocab_size = keys.required_integer("vocab_size");
  c.n_positions = keys.required_integer("n_positions");
  c.n_embd = keys.required_integer("n_embd");
  c.n_layer = keys.required_integer("n_layer");
  c.n_head = keys.required_integer("n_head");
  c.resid_pdrop = keys.number("resid_pdrop", c.resid_pdrop);
  c.embd_pdrop = keys.number("embd_pdrop", c.embd_pdrop);
  c.attn_pdrop = keys.number("attn_pdrop", c.attn_pdrop);
  c.layer_norm_epsilon = keys.number("layer_norm_epsilon", c.layer_norm_epsilon);
  c.initializer_range = keys.number("initializer_range", c.initializer_range);
  c.activation = activation_of(keys.text("activation_function", "gelu_new"), what);
  c.tie_word_embeddings = keys.flag("tie_word_embeddings", true);
  c.bias = keys.flag("bias", true);
  if (keys.find("bos_token_id"))
    c.bos_token_id = keys.optional_integer("bos_token_id").value_or(kNoToken);
  if (keys.find("eos_token_id"))
    c.eos_token_id = keys.optional_integer("eos_token_id").value_or(kNoToken);
  try {
    c.validate();
  } catch (const UserError& e) {
    user_error("{}: {}", what, e.what());
  }
  if (const auto inner = keys.optional_integer("n_inner"); inner && *inner != c.mlp_width())
    user_error("{}: n_inner = {} is not supported; expected 4 * n_embd = {}", what, *inner,
               c.mlp_width());
  keys.insist("scale_attn_weights", true);
  keys.insist("scale_attn_by_inverse_layer_idx", false);
  keys.insist("add_cross_attention", false);
  return c;
}

models::Gpt2Config read_gpt2_config(const fs::path& path) {
  return parse_gpt2_config(read_file(path), path.string());
}

std::string gpt2_config_json(const models::Gpt2Config& c, DType stored) {
  const char* dtype = stored == DType::bf16 ? "bfloat16" : "float32";
  const auto token = [&](int64_t id) { return id >= 0 && id < c.vocab_size ? Json(id) : Json(); };
  Json out = {{"activation_function", c.activation},
              {"architectures", {"GPT2LMHeadModel"}},
              {"attn_pdrop", c.attn_pdrop},
              {"bos_token_id", token(c.bos_token_id)},
              {"dtype", dtype},
              {"embd_pdrop", c.embd_pdrop},
              {"eos_token_id", token(c.eos_token_id)},
              {"initializer_range", c.initializer_range},
              {"layer_norm_epsilon", c.layer_norm_epsilon},
              {"model_type", "gpt2"},
              {"n_ctx", c.n_positions},
              {"n_embd", c.n_embd},
              {"n_head", c.n_head},
              {"n_inner", Json()},
              {"n_layer", c.n_layer},
              {"n_positions", c.n_positions},
              {"reorder_and_upcast_attn", false},
              {"resid_pdrop", c.resid_pdrop},
              {"scale_attn_by_inverse_layer_idx", false},
              {"scale_attn_weights", true},
              {"tie_word_embeddings", c.tie_word_embeddings},
              {"torch_dtype", dtype},
              {"use_cache", true},
              {"vocab_size", c.vocab_size}};
  if (!c.bias) out["bias"] = false;
  return out.dump(2) + "\n";
}

std::vector<ExpectedTensor> expected_tensors(const models::Gpt2Config& config) {
  const int64_t V = config.vocab_size, T = config.n_positions, C = config.n_embd,
                M = config.mlp_width();
  std::vector<ExpectedTensor> out;
  const auto add = [&](const std::string& name, Shape shape) {
    out.push_back({std::string(kPrefix) + name, std::move(shape)});
  };
  const auto add_pair = [&](const std::string& name, Shape weight) {
    const int64_t width = weight.size(-1);
    add(name + ".weight", std::move(weight));
    if (config.bias) add(name + ".bias", Shape({width}));
  };
  add("wte.weight", {V, C});
  add("wpe.weight", {T, C});
  for (int64_t layer = 0; layer < config.n_layer; ++layer) {
    const std::string h = fmt::format("h.{}.", layer);
    add_pair(h + "ln_1", {C});
    add_pair(h + "attn.c_attn", {C, 3 * C});
    add_pair(h + "attn.c_proj", {C, C});
    add_pair(h + "ln_2", {C});
    add_pair(h + "mlp.c_fc", {C, M});
    add_pair(h + "mlp.c_proj", {M, C});
  }
  add_pair("ln_f", {C});
  if (!config.tie_word_embeddings) out.push_back({"lm_head.weight", {V, C}});
  return out;
}

std::map<std::string, TensorView> match_tensors(const SafetensorsFile& file,
                                                const models::Gpt2Config& config) {
  std::map<std::string, TensorView> out;
  for (const ExpectedTensor& expected : expected_tensors(config)) {
    TensorView tensor = find_expected(file, expected);
    tensor.name = expected.name;
    out.emplace(expected.name, std::move(tensor));
  }
  const auto check_unexpected = [&](const std::string& name, const Shape& shape) {
    const std::string canonical = std::string(kPrefix).append(without_prefix(name));
    const bool known = out.contains(canonical) && (name == canonical || !file.find(canonical));
    if (known || is_mask(name) || !is_trunk(without_prefix(name))) return;
    user_error("{}: config.json ({} layers{}) does not know the tensor {} {} of the file",
               file.what(), config.n_layer, config.bias ? "" : ", no bias", in_quotes(name),
               shape.str());
  };
  for (const TensorView& t : file.tensors()) check_unexpected(t.name, t.shape);
  for (const ForeignTensor& t : file.foreign()) check_unexpected(t.name, t.shape);

  if (const TensorView* head = config.tie_word_embeddings ? file.find("lm_head.weight") : nullptr) {
    const TensorView& embedding = out.at(std::string(kPrefix) + "wte.weight");
    const bool equal =
        head->shape == embedding.shape && head->dtype == embedding.dtype &&
        std::memcmp(head->bytes.data(), embedding.bytes.data(), head->bytes.size()) == 0;
    if (!equal)
      user_error(
          "{}: lm_head.weight differs from transformer.wte.weight, but config.json ties them; set "
          "\"tie_word_embeddings\": false there to use both",
          file.what());
  }
  return out;
}

void write_hf_gpt2(const fs::path& folder, const models::Gpt2Config& config,
                   std::span<const TensorView> tensors) {
  const std::vector<ExpectedTensor> expected = expected_tensors(config);
  BRRR_CHECK(tensors.size() == expected.size(), "{} tensors, expected {}", tensors.size(),
             expected.size());
  std::map<std::string_view, const TensorView*> by_name;
  DType stored = DType::f32;
  for (const TensorView& t : tensors) {
    by_name[t.name] = &t;
    if (t.dtype == DType::bf16) stored = DType::bf16;
  }
  for (const ExpectedTensor& e : expected) {
    const auto at = by_name.find(e.name);
    BRRR_CHECK(at != by_name.end(), "{} is missing", e.name);
    BRRR_CHECK(at->second->shape == e.shape, "{} has shape {}, expected {}", e.name,
               at->second->shape.str(), e.shape.str());
  }
  // transformers before version 5 refuses a file that does not say which framework its layout is
  // of.
  write_safetensors(folder / "model.safetensors", tensors, {{"format", "pt"}});
  write_file_atomically(folder / "config.json", gpt2_config_json(config, stored));
}

}  // namespace brrr::io
