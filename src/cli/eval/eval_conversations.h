#pragma once
// brrr eval of a language model on a file of conversations, or of pairs of answers: the loss that
// `train --task chat` or `--task dpo` reports for validation data.

#include <optional>

#include "folders/model_folder.h"
#include "infer/options.h"
#include "train/tasks/train_task.h"

namespace brrr {
class Communicator;
}

namespace brrr::cli {

/// The task whose data the files of --data are: one .jsonl file, packed or not, of conversations
/// (chat) or of pairs of answers (dpo). Nothing for other files. Throws UserError for a .jsonl file
/// with rows of another form.
std::optional<train::TrainTask> task_of_files(const infer::EvalOptions& options);

/// Prints the result. Pairs of answers are for a model with adapters: its base is the reference.
/// Throws UserError.
int eval_conversations(const infer::EvalOptions& options, const io::ModelFolder& model,
                       train::TrainTask task, Communicator* communicator);

}  // namespace brrr::cli
