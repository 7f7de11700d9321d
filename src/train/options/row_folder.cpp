#include "train/options/row_folder.h"

#include "base/file.h"

namespace brrr::train {

void fill_row_folder(TrainOptions& o) {
  if (!renders_conversations(o) || o.data.size() != 1) return;
  const fs::path folder = o.data[0];
  const auto holds = [&](const char* name) {
    std::error_code ignored;
    return fs::is_regular_file(folder / name, ignored);
  };
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) return;
  if (!holds("train.jsonl"))
    usage_error("--data: the folder {} has no train.jsonl; name a file", folder.string());
  o.data = {(folder / "train.jsonl").string()};
  if (!o.val_data.empty()) return;
  for (const char* name : {"valid.jsonl", "validation.jsonl", "val.jsonl"})
    if (holds(name)) {
      o.val_data = {(folder / name).string()};
      return;
    }
}

}  // namespace brrr::train
