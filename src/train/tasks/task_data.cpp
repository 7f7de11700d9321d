#include "train/tasks/task_data.h"

#include <algorithm>

#include "base/errors.h"
#include "base/human.h"
#include "data/images/image_set.h"
#include "data/labelled/encode_labelled.h"
#include "formats/json_file.h"

namespace brrr::train {
namespace {

io::LabelledFileOptions file_options(const TrainOptions& o, std::vector<std::string> labels) {
  io::LabelledFileOptions f;
  f.kind = traits_of(o).labels;
  f.text_column = o.text_column;
  f.text2_column = o.text2_column;
  f.label_column = o.label_column;
  f.header = io::header_from_name(o.header);
  f.quoting = io::quoting_from_name(o.quoting);
  f.any_labels = o.any_labels;
  f.labels = std::move(labels);
  return f;
}

bool holds_all(const std::vector<std::string>& known, const std::vector<std::string>& labels) {
  return std::ranges::all_of(labels, [&](const std::string& label) {
    return std::ranges::find(known, label) != known.end();
  });
}

bool has_task(io::LabelKind kind, const models::Task& task) {
  switch (kind) {
    case io::LabelKind::kClasses:
      return task.head == models::Head::classes && !task.several;
    case io::LabelKind::kTags:
      return task.head == models::Head::token_classes;
    case io::LabelKind::kValues:
      return task.head == models::Head::values;
  }
  return false;
}

/// transformers' names for classes that nobody named.
bool are_named(const std::vector<std::string>& labels) {
  return !std::ranges::all_of(labels, [](const std::string& l) { return l.starts_with("LABEL_"); });
}

}  // namespace

TaskFiles read_task_files(const TrainOptions& o, const models::Model* model, bool strict) {
  TaskFiles files;
  std::error_code ignored;
  if (fs::is_directory(o.data[0], ignored) && io::holds_images(o.data[0]))
    usage_error("--task {}: {} holds pictures with classes; to learn them use --task images",
                o.task, o.data[0]);
  std::vector<std::string> known;
  if (model != nullptr && traits_of(o).labels != io::LabelKind::kValues &&
      has_task(traits_of(o).labels, model->task()))
    known = model->task().labels;
  const auto read = [&](const std::string& path, const std::vector<std::string>& labels) {
    return io::read_labelled_file(path, file_options(o, labels));
  };
  io::LabelledFile all = read(o.data[0], strict ? known : std::vector<std::string>{});
  if (!strict && !known.empty() && !all.labels.empty() && are_named(known)) {
    if (holds_all(known, all.labels))
      all = read(o.data[0], known);
    else
      files.notes.push_back(
          fmt::format("{} has labels that the model lacks: the model gets a new head for {}",
                      o.data[0], listed(all.labels)));
  }
  if (all.kind != io::LabelKind::kValues && all.labels.size() < 2)
    user_error("{}: every example has the label {}; expected at least two labels", o.data[0],
               io::in_quotes(all.labels.empty() ? "" : all.labels[0]));
  if (o.val_data.empty()) {
    auto [train, val] = io::hold_out(std::move(all), o.val_fraction);
    files.train = std::move(train);
    files.val = std::move(val);
  } else {
    files.val = read(o.val_data[0], all.labels);
    files.train = std::move(all);
    if (files.val.values_per_row != files.train.values_per_row)
      user_error("{} has {} numbers for a text, {} has {}", o.val_data[0], files.val.values_per_row,
                 o.data[0], files.train.values_per_row);
    if (files.val.has_pairs != files.train.has_pairs)
      user_error("{} has {} for a row, {} has {}", o.val_data[0],
                 files.val.has_pairs ? "two texts" : "one text", o.data[0],
                 files.train.has_pairs ? "two" : "one");
  }
  for (const io::LabelledFile* file : {&files.train, &files.val})
    files.notes.insert(files.notes.end(), file->notes.begin(), file->notes.end());
  return files;
}

std::string text_of(const io::LabelledFile& file) {
  std::string text;
  for (const io::LabelledRow& row : file.rows) {
    text += row.text + "\n";
    if (file.has_pairs) text += row.text2 + "\n";
  }
  return text;
}

models::Task task_of(const TaskFiles& files) {
  models::Task task;
  task.labels = files.train.labels;
  switch (files.train.kind) {
    case io::LabelKind::kClasses:
      task.head = models::Head::classes;
      break;
    case io::LabelKind::kTags:
      task.head = models::Head::token_classes;
      break;
    case io::LabelKind::kValues:
      task.head = models::Head::values;
      for (int64_t i = 0; i < files.train.values_per_row; ++i)
        task.labels.push_back(fmt::format("LABEL_{}", i));
  }
  return task;
}

io::OpenOptions open_for(const TaskFiles& files, const models::Model& known) {
  const models::Task task = task_of(files);
  const bool is_same =
      has_task(files.train.kind, known.task()) && known.task().labels == task.labels;
  return {.task = task, .head = is_same ? io::TaskHead::of_files : io::TaskHead::fresh};
}

io::OpenOptions open_for_text(const models::Model& known) {
  const models::Head wanted = known.architecture().head;
  if (known.task().head == wanted) return {};
  return {.task = models::Task{.head = wanted}, .head = io::TaskHead::fresh};
}

TaskRows encode_task(TaskFiles& files, const io::Tokenizer& tokenizer, bool truncate,
                     int64_t longest) {
  TaskRows rows;
  rows.task = task_of(files);
  rows.labels.kind = files.train.kind;
  rows.labels.pad = std::max(tokenizer.pad_token(), 0);
  rows.labels.has_types = true;
  rows.name = files.train.name;
  rows.val_name = files.val.name;
  const auto encode = [&](const io::LabelledFile& file) {
    io::EncodedFile encoded = io::encode_labelled(file, tokenizer, longest, truncate);
    files.notes.insert(files.notes.end(), encoded.notes.begin(), encoded.notes.end());
    return std::move(encoded.rows);
  };
  rows.train = encode(files.train);
  rows.val = encode(files.val);
  return rows;
}

}  // namespace brrr::train
