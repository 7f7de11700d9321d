#include "train/options/row_folder.h"

#include "base/file.h"

namespace brrr::train {

void fill_row_folder(TrainOptions& o) {
  std::error_code ignored;
  if (o.data.size() != 1 || !fs::is_directory(o.data[0], ignored)) return;
  const fs::path folder = o.data[0];
  const auto holds = [&](const char* name) {
    std::error_code unreadable;
    return fs::is_regular_file(folder / name, unreadable);
  };
  if (o.task == TrainTask::text && holds("train.jsonl"))
    usage_error(
        "--data {}: the folder has conversations or pairs of answers in train.jsonl: add --task "
        "chat or --task dpo",
        folder.string());
  if (!renders_conversations(o)) return;
  if (!holds("train.jsonl"))
    usage_error("--data {}: the folder has no train.jsonl; name a file", folder.string());
  o.data = {(folder / "train.jsonl").string()};
  if (o.was_given("val-data") || o.was_given("val-fraction")) return;
  for (const char* name : {"valid.jsonl", "validation.jsonl", "val.jsonl"})
    if (holds(name)) {
      o.val_data = {(folder / name).string()};
      return;
    }
}

}  // namespace brrr::train
