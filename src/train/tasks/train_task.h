#pragma once
// What a run can learn (--task), as one table. Every part of a run reads a task's row instead of
// comparing its name, so a new task begins with a row here.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "data/labelled/labelled_file.h"

namespace brrr::train {

enum class TrainTask : uint8_t {
  text,  // no --task: continuing texts, or of an encoder filling in masked tokens
  classify,
  regress,
  tokens,
  images,
  chat,
  dpo
};

/// What the files of a task hold.
enum class TaskData : uint8_t {
  text,            // running text, or token shards
  labelled_texts,  // rows of texts and labels
  pictures,        // pictures with classes
  conversations,   // what an assistant is asked and answers
  preferences      // pairs of answers to a prompt, the preferred one first
};

/// Names of presets for training a model further.
inline constexpr const char *kFineTune = "fine-tune", *kFineTuneText = "fine-tune-text",
                            *kFineTunePictures = "fine-tune-images";

struct TaskTraits {
  TrainTask task;
  std::vector<std::string> spellings;  // of --task, the canonical one first
  TaskData data;
  const char* fine_tuning_preset;    // the preset of --init-from where none is named
  const char* scored;                // what an evaluation counts, in the singular
  std::vector<std::string> metrics;  // of --metric-for-best-model, the default first

  // The rest is for tasks with files of their own.
  const char *reads = "", *file = "";              // "conversations", "FILE.jsonl"
  const char* row = "";                            // "conversation": a row of such a file
  std::vector<std::string> samplings = {};         // values of --sampling that the task works with
  io::LabelKind labels = io::LabelKind::kClasses;  // of labelled texts
  bool packs = false;             // several sequences share a row unless --pack says otherwise
  int64_t sequences_per_row = 1;  // without packing
  /// The loss compares the model with the one that the run starts from: the data have numbers of
  /// that model, which are computed before the first step and kept in each checkpoint.
  bool has_reference = false;

  /// Whether a chat template writes what is learnt.
  bool renders_conversations() const {
    return data == TaskData::conversations || data == TaskData::preferences;
  }
  /// Whether labels are learnt, of texts or of pictures.
  bool has_labels() const { return data == TaskData::labelled_texts || data == TaskData::pictures; }
};

/// All tasks, in the order in which --help lists them.
const std::vector<TaskTraits>& task_table();
const TaskTraits& traits_of(TrainTask task);
/// The row that has the canonical spelling `name`; null where none has.
const TaskTraits* find_task(std::string_view name);

/// The canonical spelling; "" for TrainTask::text.
std::string_view name_of(TrainTask task);
/// Reads any spelling. Throws UserError (exit 2).
TrainTask parse_task(const std::string& text);

}  // namespace brrr::train

template <>
struct fmt::formatter<brrr::train::TrainTask> : fmt::formatter<std::string_view> {
  auto format(brrr::train::TrainTask task, format_context& context) const {
    return fmt::formatter<std::string_view>::format(brrr::train::name_of(task), context);
  }
};
