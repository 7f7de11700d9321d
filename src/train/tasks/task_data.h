#pragma once
// What a task is trained on: files of texts and labels, encoded for a model, and the task that a
// model gets for them.

#include <optional>
#include <string>
#include <vector>

#include "data/labelled/labelled_batches.h"
#include "data/labelled/labelled_file.h"
#include "folders/model_folder.h"
#include "models/model.h"
#include "text/tokenizer.h"
#include "train/options.h"

namespace brrr::train {

/// The files of --data and --val-data as they are read, or the two parts of one file.
struct TaskFiles {
  io::LabelledFile train, val;
  std::vector<std::string> notes;  // for the user
};

/// Reads the files that --task names, for a model that begins as `known`, or from scratch where
/// that is null. Where it has the task, its labels stay if the files have no others; with `strict`
/// other labels are an error. Throws UserError.
TaskFiles read_task_files(const TrainOptions& options, const models::Model* known, bool strict);
/// The texts of the rows, with line feeds between them, for a tokenizer that learns from them.
std::string text_of(const io::LabelledFile& file);

/// The task of a model for the files.
models::Task task_of(const TaskFiles& files);

/// How a model is opened that begins as `known` and learns the task of the files: with its own head
/// where that is for the same labels.
io::OpenOptions open_for(const TaskFiles& files, const models::Model& known);
/// The same for a model that learns from text: an encoder gets the head that tells masked tokens.
io::OpenOptions open_for_text(const models::Model& known);

/// Encoded texts and labels.
struct TaskRows {
  models::Task task;  // of a new model for these rows
  io::LabelledBatchOptions labels;
  std::vector<io::EncodedRow> train, val;
  std::string name, val_name;  // for messages
};

/// Encodes the files' texts: at most `longest` tokens each, special ones counted. What was cut is
/// added to the notes; with --no-truncate it is an error that names the line.
TaskRows encode_task(TaskFiles& files, const io::Tokenizer& tokenizer, bool truncate,
                     int64_t longest);

}  // namespace brrr::train
