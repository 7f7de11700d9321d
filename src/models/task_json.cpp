#include "models/task_json.h"

#include <algorithm>
#include <array>

#include "base/errors.h"

namespace brrr::models {

using io::Json;

namespace {

/// The endings of the names of transformers' classes.
struct ClassEnding {
  const char* text;
  Head head;
};
constexpr std::array kClassEndings = {ClassEnding{"ForMaskedLM", Head::masked_token},
                                      ClassEnding{"ForPreTraining", Head::masked_token},
                                      ClassEnding{"ForSequenceClassification", Head::classes},
                                      ClassEnding{"ForTokenClassification", Head::token_classes},
                                      ClassEnding{"Model", Head::embedding}};

}  // namespace

std::vector<std::string> read_labels(const ConfigReader& keys) {
  const Json* map = keys.find("id2label");
  if (map == nullptr || map->is_null()) {
    const int64_t count = keys.integer("num_labels", 2);
    if (count < 1 || count > kMostLabels)
      user_error("{}: num_labels must be between 1 and {}; got {}", keys.what(), kMostLabels,
                 count);
    std::vector<std::string> labels;
    for (int64_t i = 0; i < count; ++i) labels.push_back(fmt::format("LABEL_{}", i));
    return labels;
  }
  if (!map->is_object() || map->empty())
    user_error("{}: id2label must be an object with the names of labels by their number; got {}",
               keys.what(), io::describe(*map));
  std::vector<std::string> labels(map->size());
  std::vector<bool> known(map->size());
  for (const auto& [number, label] : map->items()) {
    const bool is_number = !number.empty() && number.size() < 8 &&
                           std::ranges::all_of(number, [](char c) { return c >= '0' && c <= '9'; });
    const size_t i = is_number ? std::stoul(number) : labels.size();
    if (i >= labels.size() || known[i])
      user_error("{}: id2label must number its {} labels from 0 to {}; it has {}", keys.what(),
                 labels.size(), labels.size() - 1, io::in_quotes(number));
    if (!label.is_string() && !label.is_number_integer())
      user_error("{}: id2label: the label {} must be a text; got {}", keys.what(), number,
                 io::describe(label));
    known[i] = true;
    labels[i] = label.is_string() ? label.get<std::string>() : label.dump();
  }
  std::vector<std::string> sorted = labels;
  std::sort(sorted.begin(), sorted.end());
  if (const auto twice = std::adjacent_find(sorted.begin(), sorted.end()); twice != sorted.end())
    user_error("{}: id2label has the label {} twice; expected a different name for each",
               keys.what(), io::in_quotes(*twice));
  return labels;
}

std::string class_name(const ConfigReader& keys) {
  const Json* classes = keys.find("architectures");
  const bool has_name = classes != nullptr && classes->is_array() && !classes->empty() &&
                        classes->front().is_string();
  return has_name ? classes->front().get<std::string>() : "";
}

Task read_text_task(const ConfigReader& keys) {
  Task task{.head = Head::classes, .labels = read_labels(keys)};
  const std::string problem =
      keys.text("problem_type", task.labels.size() == 1 ? "regression" : "");
  if (problem == "regression")
    task.head = Head::values;
  else if (problem == "multi_label_classification")
    task.several = true;
  else if (!problem.empty() && problem != "single_label_classification")
    user_error(
        "{}: problem_type must be regression, single_label_classification or "
        "multi_label_classification; got {}",
        keys.what(), io::in_quotes(problem));
  return task;
}

const char* class_ending(Head head) {
  if (head == Head::values) head = Head::classes;
  for (const ClassEnding& ending : kClassEndings)
    if (ending.head == head) return ending.text;
  return "Model";
}

Task read_encoder_task(const ConfigReader& keys) {
  Task task{.head = Head::embedding};
  const std::string name = class_name(keys);
  for (const ClassEnding& ending : kClassEndings)
    if (name.ends_with(ending.text)) {
      task.head = ending.head;
      break;
    }
  if (task.head == Head::classes) return read_text_task(keys);
  if (task.head == Head::token_classes) task.labels = read_labels(keys);
  return task;
}

void write_labels(const Task& task, Json& json) {
  if (!task.labels.empty()) {
    Json names = Json::object(), numbers = Json::object();
    for (size_t i = 0; i < task.labels.size(); ++i) {
      names[std::to_string(i)] = task.labels[i];
      numbers[task.labels[i]] = i;
    }
    json["id2label"] = names;
    json["label2id"] = numbers;
  }
  if (task.head == Head::values)
    json["problem_type"] = "regression";
  else if (task.head == Head::classes)
    json["problem_type"] =
        task.several ? "multi_label_classification" : "single_label_classification";
}

}  // namespace brrr::models
