#pragma once
// What a task is trained on: files of texts and labels, encoded for a model, and the task that a
// model gets for them.

#include <optional>
#include <string>
#include <vector>

#include "data/labelled/labelled_batches.h"
#include "data/labelled/labelled_file.h"
#include "models/model.h"
#include "text/tokenizer.h"
#include "train/options.h"

namespace brrr::train {

/// The files of --data and --val-data as they are read, or the two parts of one file.
struct TaskFiles {
  io::LabelledFile train, val;
  std::vector<std::string> notes;  // for the user
};

/// Reads the files that --task names. `known`: the labels of a model that has the task already.
/// They stay where the files have no others; with `strict` other labels are an error. Throws
/// UserError.
TaskFiles read_task_files(const TrainOptions& options, const std::vector<std::string>& known,
                          bool strict);

/// The task of a model for the files.
models::Task task_of(const TaskFiles& files);

/// Whether --task means the head: what --resume and a further fine-tuning find in a folder.
bool has_task(const TrainOptions& options, const models::Task& task);

/// Encoded texts and labels.
struct TaskRows {
  io::LabelledBatchOptions labels;
  std::vector<io::EncodedRow> train, val;
  std::string name, val_name;  // for messages
};

/// Encodes the files' texts: at most `longest` tokens each, special ones counted. What was cut is
/// added to the notes; with --no-truncate it is an error that names the line.
TaskRows encode_task(TaskFiles& files, const io::Tokenizer& tokenizer, bool truncate,
                     int64_t longest);

/// The lengths that batches of texts of up to `context` tokens may have.
std::vector<int64_t> task_lengths(int64_t context);

}  // namespace brrr::train
