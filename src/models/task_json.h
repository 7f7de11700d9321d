#pragma once
// What config.json says about the task of a model: the names of labels and what they mean.

#include <string>
#include <vector>

#include "models/config_reader.h"
#include "models/task.h"

namespace brrr::models {

constexpr int64_t kMostLabels = 1 << 20;

/// The names of the labels by their number ("id2label"). Without them there are as many as
/// "num_labels" says, or transformers' two. Throws UserError.
std::vector<std::string> read_labels(const ConfigReader& keys);

/// The task of a class ...ForSequenceClassification, whose kind "problem_type" says; without it one
/// label means a number. Throws UserError.
Task read_text_task(const ConfigReader& keys);

/// The name of the class in "architectures"; "" when there is none.
std::string class_name(const ConfigReader& keys);

/// The task of an encoder by the class name in "architectures": masked tokens, classes of texts or
/// classes of tokens. For any other class only the trunk is loaded. Throws UserError.
Task read_encoder_task(const ConfigReader& keys);
/// The ending of the name of the class for a head: "ForMaskedLM".
const char* class_ending(Head head);

/// "id2label", "label2id" and "problem_type" of a task that has labels.
void write_labels(const Task& task, io::Json& json);

}  // namespace brrr::models
