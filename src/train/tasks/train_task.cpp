#include "train/tasks/train_task.h"

#include "base/options.h"

namespace brrr::train {

const std::vector<TaskTraits>& task_table() {
  static const std::vector<TaskTraits> table{
      {.task = TrainTask::text,
       .spellings = {"", "none"},
       .data = TaskData::text,
       .fine_tuning_preset = kFineTuneText,
       .scored = "token",
       .metrics = {"loss"}},
      {.task = TrainTask::classify,
       .spellings = {"classify", "classes"},
       .data = TaskData::labelled_texts,
       .fine_tuning_preset = kFineTune,
       .scored = "text",
       .metrics = {"accuracy", "f1", "f1_macro", "f1_micro", "precision", "recall",
                   "matthews_correlation", "loss"},
       .reads = "texts and labels",
       .file = "FILE.tsv",
       .row = "row",
       .samplings = {"epoch", "group_by_length"},
       .labels = io::LabelKind::kClasses},
      {.task = TrainTask::regress,
       .spellings = {"regress", "regression"},
       .data = TaskData::labelled_texts,
       .fine_tuning_preset = kFineTune,
       .scored = "text",
       .metrics = {"pearson", "spearmanr", "mse", "rmse", "mae", "loss"},
       .reads = "texts and labels",
       .file = "FILE.tsv",
       .row = "row",
       .samplings = {"epoch", "group_by_length"},
       .labels = io::LabelKind::kValues},
      {.task = TrainTask::tokens,
       .spellings = {"tokens", "ner"},
       .data = TaskData::labelled_texts,
       .fine_tuning_preset = kFineTune,
       .scored = "word",
       .metrics = {"f1", "f1_macro", "precision", "recall", "accuracy", "loss"},
       .reads = "texts and labels",
       .file = "FILE.tsv",
       .row = "row",
       .samplings = {"epoch", "group_by_length"},
       .labels = io::LabelKind::kTags},
      {.task = TrainTask::images,
       .spellings = {"images", "pictures"},
       .data = TaskData::pictures,
       .fine_tuning_preset = kFineTunePictures,
       .scored = "picture",
       .metrics = {"accuracy", "top5_accuracy", "f1", "f1_macro", "f1_micro", "precision", "recall",
                   "matthews_correlation", "loss"},
       .reads = "pictures",
       .file = "FOLDER",
       .row = "picture",
       .samplings = {"epoch"}},
      {.task = TrainTask::chat,
       .spellings = {"chat", "sft"},
       .data = TaskData::conversations,
       .fine_tuning_preset = kFineTuneText,
       .scored = "token",
       .metrics = {"loss"},
       .reads = "conversations",
       .file = "FILE.jsonl",
       .row = "conversation",
       .samplings = {"documents", "group_by_length"},
       .packs = true},
      {.task = TrainTask::dpo,
       .spellings = {"dpo", "preferences"},
       .data = TaskData::preferences,
       .fine_tuning_preset = kFineTuneText,
       .scored = "pair",
       .metrics = {"loss", "rewards/accuracies", "rewards/margins"},
       .reads = "pairs of answers",
       .file = "FILE.jsonl",
       .row = "pair",
       .samplings = {"documents", "group_by_length"},
       .sequences_per_row = 2,
       .has_reference = true}};
  return table;
}

const TaskTraits& traits_of(TrainTask task) {
  for (const TaskTraits& traits : task_table())
    if (traits.task == task) return traits;
  check_failed(__FILE__, __LINE__, "every task has a row", "");
}

const TaskTraits* find_task(std::string_view name) {
  for (const TaskTraits& traits : task_table())
    if (traits.spellings[0] == name) return &traits;
  return nullptr;
}

std::string_view name_of(TrainTask task) { return traits_of(task).spellings[0]; }

TrainTask parse_task(const std::string& text) {
  std::vector<std::vector<std::string>> spellings;
  for (const TaskTraits& traits : task_table()) spellings.push_back(traits.spellings);
  return task_table()[match_choice(text, spellings)].task;
}

}  // namespace brrr::train
