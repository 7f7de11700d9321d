// The list of architectures. A new one is a folder beside this file and a line here.

#include <algorithm>

#include "formats/json_file.h"
#include "models/bert/bert_config.h"
#include "models/causal_text.h"
#include "models/efficientnet/efficientnet_config.h"
#include "models/gemma3/gemma3_config.h"
#include "models/gpt2/gpt2_config.h"
#include "models/gpt_neox/gpt_neox_config.h"
#include "models/llama/llama_config.h"
#include "models/lstm/lstm_config.h"
#include "models/modernbert/modernbert_config.h"
#include "models/resnet/resnet_config.h"

namespace brrr::models {

const std::vector<const Architecture*>& all_architectures() {
  static const std::vector<const Architecture*> all = {
      &Gpt2Config::architecture(),        &LlamaConfig::architecture(),
      &Gemma3Config::architecture(),      &GptNeoxConfig::architecture(),
      &LstmConfig::architecture(),        &BertConfig::architecture(),
      &ModernBertConfig::architecture(),  &ResNetConfig::architecture(),
      &EfficientNetConfig::architecture()};
  return all;
}

const Architecture& find_architecture(std::string_view name) {
  std::string known;
  for (const Architecture* a : all_architectures()) {
    if (a->name == name) return *a;
    known += (known.empty() ? "" : ", ") + a->name;
  }
  usage_error("unknown architecture '{}': expected one of {}", name, known);
}

namespace {

std::string known_model_types() {
  std::string known;
  for (const Architecture* a : all_architectures())
    for (const std::string& type : a->model_types) known += (known.empty() ? "" : ", ") + type;
  return known;
}

/// A causal language model may have the head that tells classes of texts instead of its own.
ModelPtr parse_as(const Architecture& a, std::string_view text, const std::string& what) {
  if (a.head == Head::next_token)
    if (const auto task = text_task_of(text, what)) return causal_text_model(a, text, what, *task);
  return a.parse(text, what);
}

}  // namespace

ModelPtr parse_config(std::string_view text, const std::string& what) {
  const io::Json root = io::parse_json(text, what);
  if (!root.is_object())
    user_error("{}: expected a JSON object with the configuration of a model, found {}", what,
               io::describe(root));
  if (const auto type = root.find("model_type"); type != root.end()) {
    for (const Architecture* a : all_architectures())
      for (const std::string& known : a->model_types)
        if (*type == known) return parse_as(*a, text, what);
    user_error("{}: model_type must be one of {}; found {}", what, known_model_types(),
               io::describe(*type));
  }
  // Configurations from before model_type name their class only.
  const auto classes = root.find("architectures");
  if (classes == root.end() || !classes->is_array() || classes->empty())
    user_error(
        "{}: this is not the configuration of a model: it has neither \"model_type\" ({}) "
        "nor \"architectures\"",
        what, known_model_types());
  const io::Json& first = classes->front();
  if (first.is_string())
    for (const Architecture* a : all_architectures())
      for (const std::string& start : a->class_names)
        if (first.get_ref<const std::string&>().starts_with(start)) return parse_as(*a, text, what);
  user_error(
      "{}: expected the configuration of one of {}; found the architecture {}", what,
      known_model_types(),
      first.is_string() ? io::in_quotes(first.get_ref<const std::string&>()) : io::describe(first));
}

}  // namespace brrr::models
