#pragma once
// A causal language model that tells classes or values of texts, as transformers' classes
// ...ForSequenceClassification do: the state of a text's last token, the last norm, and a linear
// layer without bias, "score.weight" [K, C]. Padding stands behind a text, so that no token sees
// it.

#include <optional>

#include "models/model.h"
#include "models/task.h"

namespace brrr::models {

/// The task that the text of a config.json gives a causal language model; nothing where its class
/// is no ...ForSequenceClassification. Throws UserError.
std::optional<Task> text_task_of(std::string_view config, const std::string& what);

/// The model of `config`, the text of a config.json that `architecture` reads, with the head for
/// `task` (classes or values). Throws as Architecture::parse does.
ModelPtr causal_text_model(const Architecture& architecture, std::string_view config,
                           const std::string& what, const Task& task);

}  // namespace brrr::models
