#include "folders/sentence_folder.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>

#include "base/errors.h"
#include "base/file.h"
#include "formats/gguf/gguf_file.h"
#include "formats/json_file.h"
#include "models/torch_activation.h"

namespace brrr::io {
namespace {

namespace fs = std::filesystem;

struct PoolingKey {
  const char* name;
  models::Pooling pooling;
};
// In the order in which sentence-transformers puts the vectors one behind the other.
constexpr std::array kPoolingKeys = {
    PoolingKey{"pooling_mode_cls_token", models::Pooling::cls},
    PoolingKey{"pooling_mode_max_tokens", models::Pooling::max},
    PoolingKey{"pooling_mode_mean_tokens", models::Pooling::mean},
    PoolingKey{"pooling_mode_mean_sqrt_len_tokens", models::Pooling::mean_sqrt_len},
    PoolingKey{"pooling_mode_weightedmean_tokens", models::Pooling::weighted_mean},
    PoolingKey{"pooling_mode_lasttoken", models::Pooling::last_token}};
constexpr std::string_view kPoolingPrefix = "pooling_mode_";

Json read_object(const fs::path& path) {
  Json json = parse_json(read_file(path), path.string());
  if (!json.is_object())
    user_error("{}: expected an object; found {}", path.string(), describe(json));
  return json;
}

std::string known_poolings() {
  std::string known;
  for (const PoolingKey& key : kPoolingKeys)
    known += (known.empty() ? "" : ", ") + std::string(key.name).substr(kPoolingPrefix.size());
  return known;
}

/// How rows become a vector, into `settings`.
void read_pooling(const fs::path& path, SentenceSettings& settings) {
  const Json json = read_object(path);
  std::vector<models::Pooling> list;
  for (const auto& [key, value] : json.items()) {
    if (!key.starts_with(kPoolingPrefix)) continue;
    if (!value.is_boolean())
      user_error("{}: {} must be true or false; found {}", path.string(), key, describe(value));
    const bool is_known = std::ranges::any_of(
        kPoolingKeys, [name = key](const PoolingKey& k) { return k.name == name; });
    if (value.get<bool>() && !is_known)
      user_error("{}: {} is not supported (supported: {})", path.string(), key, known_poolings());
  }
  // Newer files name one mode, or several, in a word.
  if (const Json mode = json.value("pooling_mode", Json()); !mode.is_null()) {
    const Json modes = mode.is_array() ? mode : Json::array({mode});
    for (const Json& m : modes) {
      const std::string name = m.is_string() ? m.get<std::string>() : "";
      const PoolingKey* found = nullptr;
      for (const PoolingKey& key : kPoolingKeys) {
        const std::string full = std::string(key.name).substr(kPoolingPrefix.size());
        if (full == name || full == name + "_tokens" || full == name + "_token") found = &key;
      }
      if (found == nullptr)
        user_error("{}: pooling_mode {} is not supported (supported: {})", path.string(),
                   describe(m), known_poolings());
      list.push_back(found->pooling);
    }
  } else {
    for (const PoolingKey& key : kPoolingKeys)
      if (json.value(key.name, false)) list.push_back(key.pooling);
  }
  if (list.empty())
    user_error("{}: no pooling is on; expected one of {}", path.string(), known_poolings());
  settings.task.pooling = list;
  settings.pools_prompt = json.value("include_prompt", Json(true)) != false;
  settings.is_said = true;
}

Similarity similarity_named(const Json& name, const fs::path& path) {
  static const std::map<std::string, Similarity> known{{"cosine", Similarity::cosine},
                                                       {"dot", Similarity::dot},
                                                       {"dot_product", Similarity::dot},
                                                       {"euclidean", Similarity::euclidean},
                                                       {"manhattan", Similarity::manhattan}};
  const auto found = name.is_string() ? known.find(name.get<std::string>()) : known.end();
  if (found == known.end())
    user_error("{}: similarity_fn_name must be cosine, dot, euclidean or manhattan; found {}",
               path.string(), describe(name));
  return found->second;
}

/// The prompts, and the one that is put before texts unless another one is asked for.
void read_prompts(const fs::path& path, SentenceSettings& settings) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return;
  const Json json = read_object(path);
  const Json prompts = json.value("prompts", Json::object());
  if (prompts.is_object())
    for (const auto& [name, prompt] : prompts.items())
      if (prompt.is_string()) settings.prompts[name] = prompt.get<std::string>();
  if (const Json how = json.value("similarity_fn_name", Json()); !how.is_null())
    settings.similarity = similarity_named(how, path);
  const Json name = json.value("default_prompt_name", Json());
  if (name.is_null()) return;
  const auto prompt =
      name.is_string() ? settings.prompts.find(name.get<std::string>()) : settings.prompts.end();
  if (prompt == settings.prompts.end())
    user_error("{}: default_prompt_name is {}, which names no text in \"prompts\"", path.string(),
               describe(name));
  settings.prompt = prompt->second;
}

/// Modules read the vector of the text and write it anew.
void check_names(const Json& json, const fs::path& path) {
  for (const char* key : {"module_input_name", "module_output_name"})
    if (const Json name = json.value(key, Json()); !name.is_null() && name != "sentence_embedding")
      user_error("{}: {} = {} is not supported; expected 'sentence_embedding'", path.string(), key,
                 describe(name));
}

int64_t size_in(const Json& json, const char* key, const fs::path& path) {
  constexpr int64_t kMost = 1 << 20;
  const Json size = json.value(key, Json());
  if (!size.is_number_integer() || size.get<int64_t>() < 1 || size.get<int64_t>() > kMost)
    user_error("{}: {} must be a number from 1 to {}; found {}", path.string(), key, kMost,
               describe(size));
  return size.get<int64_t>();
}

bool flag_in(const Json& json, const char* key, bool otherwise, const fs::path& path) {
  const Json value = json.value(key, Json(otherwise));
  if (!value.is_boolean())
    user_error("{}: {} must be true or false; found {}", path.string(), key, describe(value));
  return value.get<bool>();
}

SentenceLayer read_dense(const fs::path& folder) {
  const fs::path path = folder / "config.json";
  const Json json = read_object(path);
  check_names(json, path);
  SentenceLayer layer{.kind = SentenceLayer::Kind::dense, .folder = folder};
  layer.inputs = size_in(json, "in_features", path);
  layer.outputs = size_in(json, "out_features", path);
  layer.has_bias = flag_in(json, "bias", true, path);
  layer.adds_input = flag_in(json, "use_residual", false, path);
  const Json activation =
      json.value("activation_function", Json("torch.nn.modules.activation.Tanh"));
  layer.activation = activation.is_string() ? activation.get<std::string>() : "";
  if (models::torch_activation(layer.activation) == nullptr)
    user_error("{}: activation_function {} is not supported (supported, of torch.nn: {})",
               path.string(), describe(activation), models::torch_activation_names());
  return layer;
}

SentenceLayer read_layer_norm(const fs::path& folder) {
  const fs::path path = folder / "config.json";
  const int64_t width = size_in(read_object(path), "dimension", path);
  return {
      .kind = SentenceLayer::Kind::layer_norm, .folder = folder, .inputs = width, .outputs = width};
}

SentenceTable read_table(SentenceTable::Kind kind, const fs::path& folder,
                         std::optional<int64_t>& longest) {
  if (kind == SentenceTable::Kind::static_embedding) return {kind, folder};
  const fs::path path = folder / "wordembedding_config.json";
  const Json json = read_object(path);
  const Json tokenizer = json.value("tokenizer_class", Json());
  if (!tokenizer.is_string() ||
      !tokenizer.get<std::string>().ends_with(".TransformersTokenizerWrapper"))
    user_error(
        "{}: tokenizer_class {} is not supported; expected TransformersTokenizerWrapper, "
        "with tokenizer.json beside it",
        path.string(), describe(tokenizer));
  if (json.contains("max_seq_length")) longest = size_in(json, "max_seq_length", path);
  return {kind, folder};
}

/// Reads the modules one by one.
class ModuleList {
 public:
  ModuleList(const fs::path& folder, SentenceSettings& settings)
      : folder_(folder), path_(folder / "modules.json"), settings_(settings) {}

  void read() {
    const Json list = parse_json(read_file(path_), path_.string());
    if (!list.is_array())
      user_error("{}: expected a list of modules; found {}", path_.string(), describe(list));
    for (const Json& module : list) {
      const Json type = module.is_object() ? module.value("type", Json()) : Json();
      const Json path = module.is_object() ? module.value("path", Json()) : Json();
      if (!type.is_string() || !path.is_string())
        user_error("{}: a module must have a \"type\" and a \"path\"; found {}", path_.string(),
                   describe(module));
      add(type.get<std::string>(), path.get<std::string>());
    }
    // The usual case needs no layer: the encoder's program does it.
    if (layers().size() == 1 && layers()[0].kind == SentenceLayer::Kind::normalize) {
      settings_.task.normalize = true;
      layers().clear();
    }
  }

 private:
  std::vector<SentenceLayer>& layers() { return settings_.layers; }

  void add(const std::string& type, const std::string& where) {
    const std::string name = type.substr(type.rfind('.') + 1);
    if (name == "Transformer") {
      if (!where.empty() && fs::path(where).filename() == where && where != ".")
        settings_.model = folder_ / where;
    } else if (name == "StaticEmbedding" || name == "WordEmbeddings") {
      add_table(name, where);
    } else if (name == "Pooling") {
      if (has_pooled_vectors())
        user_error("{}: StaticEmbedding gives whole vectors, which are not pooled again",
                   path_.string());
      // It starts again from the vectors of the tokens.
      layers().clear();
      settings_.task.normalize = false;
      read_pooling(own_folder(name, where) / "config.json", settings_);
      has_vector_ = true;
    } else if (name == "Normalize") {
      std::error_code ignored;
      const fs::path config = folder_ / where / "config.json";
      if (fs::path(where).filename() == where && fs::exists(config, ignored))
        check_names(read_object(config), config);
      if (has_vector_)
        layers().push_back({.kind = SentenceLayer::Kind::normalize});
      else
        settings_.task.normalize = true;  // of the mean, if no module pools
    } else if (name == "Dense" || name == "LayerNorm") {
      if (!has_vector_)
        user_error("{}: the module {} stands before Pooling, where there is no vector yet",
                   path_.string(), name);
      const fs::path own = own_folder(name, where);
      layers().push_back(name == "Dense" ? read_dense(own) : read_layer_norm(own));
    } else if (name != "Dropout") {  // which drops nothing but in training
      user_error(
          "{}: the module {} is not supported (supported: Transformer, StaticEmbedding, "
          "WordEmbeddings, Pooling, Dense, LayerNorm, Normalize, Dropout)",
          path_.string(), in_quotes(type));
    }
  }

  void add_table(const std::string& name, const std::string& where) {
    const fs::path own = where.empty() || where == "." ? folder_ : own_folder(name, where);
    const bool pools = name == "StaticEmbedding";
    settings_.table = read_table(
        pools ? SentenceTable::Kind::static_embedding : SentenceTable::Kind::word_embeddings, own,
        settings_.longest);
    if (!pools) return;
    settings_.is_said = has_vector_ = true;
  }
  bool has_pooled_vectors() const {
    return settings_.table && settings_.table->kind == SentenceTable::Kind::static_embedding;
  }

  // A folder in this one: a path could lead anywhere.
  fs::path own_folder(const std::string& name, const std::string& where) const {
    if (where.empty() || where == "." || where == ".." || fs::path(where).filename() != where)
      user_error("{}: the module {} must be in a folder of this folder; found {}", path_.string(),
                 name, in_quotes(where));
    return folder_ / where;
  }

  fs::path folder_, path_;
  SentenceSettings& settings_;
  bool has_vector_ = false;  // of the text: something has pooled its tokens
};

/// As llama.cpp makes vectors: of length 1.
void read_gguf_pooling(const GgufFile& file, SentenceSettings& settings) {
  const std::string prefix(file.text("general.architecture").value_or(""));
  settings.task.normalize = true;
  settings.longest = file.integer(prefix + ".context_length");
  const auto pooling = file.integer(prefix + ".pooling_type");
  if (!pooling || *pooling == 0) return;
  // The numbers are llama.cpp's; 4 is the head of a cross-encoder.
  constexpr models::Pooling kKinds[] = {models::Pooling::mean, models::Pooling::cls,
                                        models::Pooling::last_token};
  if (*pooling < 0 || *pooling > std::ssize(kKinds))
    user_error("{}: {}.pooling_type is {}, which is not supported; expected 0 to {}", file.what(),
               prefix, *pooling, std::ssize(kKinds));
  settings.task.pooling = {kKinds[*pooling - 1]};
  settings.is_said = true;
}

}  // namespace

void SentenceSettings::keep_lengths() {
  task.normalize = false;
  if (!layers.empty() && ends_normalized()) layers.pop_back();
}

SentenceSettings read_sentence_settings(const fs::path& folder) {
  SentenceSettings settings;
  settings.model = folder;
  if (is_gguf_file(folder)) {
    read_gguf_pooling(GgufFile(folder), settings);
    return settings;
  }
  read_prompts(folder / "config_sentence_transformers.json", settings);
  std::error_code ignored;
  if (const fs::path own = folder / "sentence_bert_config.json"; fs::exists(own, ignored)) {
    const Json json = read_object(own);
    settings.lowercase = json.value("do_lower_case", Json()) == true;
    const Json longest = json.value("max_seq_length", Json());
    if (!longest.is_null()) {
      if (!longest.is_number_integer() || longest.get<int64_t>() < 1)
        user_error("{}: max_seq_length must be a number of tokens; found {}", own.string(),
                   describe(longest));
      settings.longest = longest.get<int64_t>();
    }
  }
  if (fs::exists(folder / "modules.json", ignored)) ModuleList(folder, settings).read();
  return settings;
}

std::optional<int64_t> read_context(const fs::path& folder) {
  constexpr int64_t kNoLimit = 1 << 24;  // tokenizers without a limit say 10^30
  std::optional<int64_t> context;
  const auto look = [&](const char* file, const char* key) {
    std::error_code ignored;
    if (!fs::exists(folder / file, ignored)) return;
    const Json value = read_object(folder / file).value(key, Json());
    if (!value.is_number_integer() || value.get<int64_t>() < 1 || value.get<int64_t>() > kNoLimit)
      return;
    context = std::min(context.value_or(kNoLimit), value.get<int64_t>());
  };
  look("config.json", "max_position_embeddings");
  look("tokenizer_config.json", "model_max_length");
  return context;
}

}  // namespace brrr::io
