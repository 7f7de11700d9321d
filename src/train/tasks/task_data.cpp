#include "train/tasks/task_data.h"

#include <algorithm>

#include "base/errors.h"
#include "data/labelled/encode_labelled.h"

namespace brrr::train {
namespace {

io::LabelKind kind_of(const TrainOptions& o) {
  if (o.task == "regress") return io::LabelKind::kValues;
  return o.task == "tokens" ? io::LabelKind::kTags : io::LabelKind::kClasses;
}

io::LabelledFileOptions file_options(const TrainOptions& o, std::vector<std::string> labels) {
  io::LabelledFileOptions f;
  f.kind = kind_of(o);
  f.text_column = o.text_column;
  f.text2_column = o.text2_column;
  f.label_column = o.label_column;
  f.header = io::header_from_name(o.header);
  f.quoting = io::quoting_from_name(o.quoting);
  f.labels = std::move(labels);
  return f;
}

bool holds_all(const std::vector<std::string>& known, const std::vector<std::string>& labels) {
  return std::ranges::all_of(labels, [&](const std::string& label) {
    return std::ranges::find(known, label) != known.end();
  });
}

/// transformers' names for classes that nobody named.
bool are_named(const std::vector<std::string>& labels) {
  return !std::ranges::all_of(labels, [](const std::string& l) { return l.starts_with("LABEL_"); });
}

}  // namespace

TaskFiles read_task_files(const TrainOptions& o, const std::vector<std::string>& known,
                          bool strict) {
  TaskFiles files;
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
                      o.data[0], fmt::join(all.labels, ", ")));
  }
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

bool has_task(const TrainOptions& o, const models::Task& task) {
  switch (kind_of(o)) {
    case io::LabelKind::kClasses:
      return task.head == models::Head::classes && !task.several;
    case io::LabelKind::kTags:
      return task.head == models::Head::token_classes;
    case io::LabelKind::kValues:
      return task.head == models::Head::values;
  }
  return false;
}

TaskRows encode_task(TaskFiles& files, const io::Tokenizer& tokenizer, bool truncate,
                     int64_t longest) {
  TaskRows rows;
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

std::vector<int64_t> task_lengths(int64_t context) {
  std::vector<int64_t> lengths;
  // An eighth to a quarter more than the row before, from 16 on: little padding, few programs.
  for (int64_t length = 16, step = 8; length < context; length += step) {
    lengths.push_back(length);
    if (length >= 4 * step) step *= 2;
  }
  lengths.push_back(context);
  return lengths;
}

}  // namespace brrr::train
