#include "folders/adapters/adapter_config.h"

#include <cmath>
#include <map>

#include "base/errors.h"
#include "formats/json_file.h"
#include "text/patterns/split_pattern.h"

namespace brrr::io {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int64_t kLargestRank = int64_t{1} << 20;

/// Reads fields of the object with messages that name the file.
class AdapterFields {
 public:
  AdapterFields(const Json& json, std::string what) : json_(json), what_(std::move(what)) {}

  const Json* find(const char* key) const {
    const auto at = json_.find(key);
    return at == json_.end() || at->is_null() ? nullptr : &*at;
  }
  [[noreturn]] void refuse(const char* key, const std::string& expected) const {
    user_error("{}: expected {} for \"{}\"; found {}", what_, expected, key,
               describe(json_.value(key, Json())));
  }
  bool flag(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr) return false;
    if (!value->is_boolean()) refuse(key, "true or false");
    return value->get<bool>();
  }
  std::string text(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr) return "";
    if (!value->is_string()) refuse(key, "a string");
    return value->get<std::string>();
  }
  double number(const char* key, double low, double high, bool low_open, double usual) const {
    const Json* value = find(key);
    if (value == nullptr) return usual;
    if (!is_within(*value, low, high, low_open)) refuse(key, range_text(low, high, low_open));
    return value->get<double>();
  }
  NumberByModule by_module(const char* key, const char* patterns, double high, bool whole,
                           double usual) const {
    NumberByModule numbers{number(key, 0, high, true, usual), {}};
    if (whole && numbers.number != std::floor(numbers.number)) refuse(key, "a whole number");
    const Json* list = find(patterns);
    if (list == nullptr) return numbers;
    if (!list->is_object()) refuse(patterns, "an object from patterns of names to numbers");
    for (const auto& [pattern, value] : list->items()) {
      if (!is_within(value, 0, high, true) || (whole && !value.is_number_integer()))
        refuse(patterns, fmt::format("{} for each pattern", range_text(0, high, true)));
      numbers.patterns.emplace_back(pattern, value.get<double>());
    }
    return numbers;
  }

 private:
  static bool is_within(const Json& value, double low, double high, bool low_open) {
    if (!value.is_number()) return false;
    const auto x = value.get<double>();
    return (low_open ? x > low : x >= low) && x <= high;
  }
  static std::string range_text(double low, double high, bool low_open) {
    return fmt::format("a number {} {} and at most {}", low_open ? "above" : "from", low, high);
  }

  const Json& json_;
  std::string what_;
};

void refuse_variants(const AdapterFields& fields) {
  const std::string type = fields.text("peft_type");
  if (type != "LORA") fields.refuse("peft_type", "\"LORA\"");
  if (const std::string bias = fields.text("bias"); bias != "" && bias != "none")
    fields.refuse("bias", "\"none\"");
  for (const char* key : {"layer_replication", "trainable_token_indices", "target_parameters",
                          "use_qalora", "use_bdlora", "lora_bias", "alora_invocation_tokens",
                          "arrow_config", "kasa_config", "velora_config", "monteclora_config"}) {
    const Json* value = fields.find(key);
    if (value != nullptr && *value != Json(false) && !(value->is_structured() && value->empty()))
      fields.refuse(key, "nothing");
  }
  // These subtract what A and B begin with from the base, so that the files of both are needed.
  if (const Json* init = fields.find("init_lora_weights"); init != nullptr && init->is_string())
    for (const char* changes_base : {"pissa", "olora", "corda", "loftq"})
      if (init->get<std::string>().starts_with(changes_base))
        fields.refuse("init_lora_weights",
                      "an initialisation that leaves the base as it is (PEFT's save_pretrained "
                      "converts others with path_initial_model_for_weight_conversion)");
}

/// A pattern that keeps to the name of a module: PEFT's patterns are regular expressions.
std::string escaped_name(const std::string& name) {
  std::string text = "^";
  for (const char c : name) text.append(c == '.' ? "\\." : std::string(1, c));
  return text;
}

/// The most frequent number, and a pattern for each module that has another.
class UsualNumber {
 public:
  void add(const std::string& module, double number) {
    numbers_.emplace_back(module, number);
    ++counts_[number];
  }
  OrderedJson usual() const { return as_json(usual_number()); }
  OrderedJson patterns() const {
    OrderedJson json = OrderedJson::object();
    for (const auto& [module, number] : numbers_)
      if (number != usual_number()) json[escaped_name(module)] = as_json(number);
    return json;
  }

 private:
  double usual_number() const {
    double best = 0;
    int most = 0;
    for (const auto& [number, count] : counts_)
      if (count > most) most = count, best = number;
    return best;
  }
  static OrderedJson as_json(double x) {
    return x == std::floor(x) && std::abs(x) < 1e15 ? OrderedJson(static_cast<int64_t>(x))
                                                    : OrderedJson(x);
  }

  std::vector<std::pair<std::string, double>> numbers_;
  std::map<double, int> counts_;
};

/// PEFT's name of the task, which it has for texts alone.
OrderedJson task_type_of(const models::Model& model) {
  if (model.sees_pictures()) return nullptr;
  switch (model.task().head) {
    case models::Head::next_token:
      return "CAUSAL_LM";
    case models::Head::classes:
    case models::Head::values:
      return "SEQ_CLS";
    case models::Head::token_classes:
      return "TOKEN_CLS";
    case models::Head::embedding:
      return "FEATURE_EXTRACTION";
    case models::Head::masked_token:
      break;
  }
  return nullptr;
}

}  // namespace

double NumberByModule::of(const std::string& module) const {
  // The first pattern that matches the whole name, or what follows a dot in it, as PEFT does.
  for (const auto& [pattern, value] : patterns)
    if (SplitPattern::regex("\\A(?:.*\\.)?(?:" + pattern + ")\\z", kAdapterConfig)
            .find(module, 0)
            .has_value())
      return value;
  return number;
}

AdapterConfig read_adapter_config(const fs::path& folder) {
  const fs::path path = folder / kAdapterConfig;
  const Json json = parse_json(read_file(path), path.string());
  if (!json.is_object())
    user_error("{}: expected an object, got {}", path.string(), describe(json));
  const AdapterFields fields(json, path.string());
  refuse_variants(fields);
  AdapterConfig config;
  config.base = fields.text("base_model_name_or_path");
  config.rank = fields.by_module("r", "rank_pattern", static_cast<double>(kLargestRank), true, 8);
  config.alpha = fields.by_module("lora_alpha", "alpha_pattern", 1e9, false, 8);
  config.dropout = fields.number("lora_dropout", 0, 0.999, false, 0);
  config.rslora = fields.flag("use_rslora");
  config.dora = fields.flag("use_dora");
  config.task_type = fields.text("task_type");
  return config;
}

std::string adapter_config_text(const models::Model& base_model, const models::Adapter& adapter,
                                const std::string& base) {
  UsualNumber rank, alpha;
  bool has_conv1d = false, has_factor = false;
  for (const models::AdaptedLayer& layer : adapter.layers) {
    rank.add(layer.layer.module, static_cast<double>(layer.rank));
    alpha.add(layer.layer.module, layer.alpha);
    has_conv1d |= layer.layer.form == models::WeightForm::conv1d;
    has_factor |= layer.has_factor;
  }
  OrderedJson json;
  json["peft_type"] = "LORA";
  json["auto_mapping"] = nullptr;
  json["base_model_name_or_path"] = base;
  json["revision"] = nullptr;
  json["task_type"] = task_type_of(base_model);
  json["inference_mode"] = true;
  json["r"] = rank.usual();
  json["target_modules"] = models::target_names(base_model, adapter.layers);
  json["lora_alpha"] = alpha.usual();
  json["lora_dropout"] = adapter.dropout;
  json["fan_in_fan_out"] = has_conv1d;
  json["bias"] = "none";
  json["use_rslora"] = adapter.rslora;
  json["use_dora"] = has_factor;
  json["modules_to_save"] = nullptr;
  if (const auto saved = models::saved_modules(adapter.saved); !saved.empty())
    json["modules_to_save"] = saved;
  json["init_lora_weights"] = true;
  json["layers_to_transform"] = nullptr;
  json["layers_pattern"] = nullptr;
  json["rank_pattern"] = rank.patterns();
  json["alpha_pattern"] = alpha.patterns();
  return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

}  // namespace brrr::io
