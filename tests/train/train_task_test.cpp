// The table of tasks: each task has one row, and each spelling names one task.

#include "train/tasks/train_task.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/errors.h"
#include "data/batch_source.h"
#include "data/labelled/metrics.h"
#include "train/options.h"

namespace brrr::train {
namespace {

TEST(TrainTasks, EverySpellingNamesOneTask) {
  std::set<std::string> all;
  for (const TaskTraits& row : task_table())
    for (const std::string& spelling : row.spellings) {
      EXPECT_TRUE(all.insert(spelling).second) << spelling;
      EXPECT_EQ(parse_task(spelling), row.task) << spelling;
    }
  for (const TaskTraits& row : task_table()) {
    EXPECT_EQ(&traits_of(row.task), &row);
    EXPECT_EQ(find_task(name_of(row.task)), &row);
    EXPECT_EQ(fmt::format("{}", row.task), row.spellings[0]);
  }
  EXPECT_EQ(find_task("translate"), nullptr);
  EXPECT_USER_ERROR(parse_task("clasify"), "expected one of none, classify, regress");
}

TEST(TrainTasks, RowsAreComplete) {
  for (const TaskTraits& row : task_table()) {
    SCOPED_TRACE(row.spellings.back());
    EXPECT_EQ(find_preset(row.fine_tuning_preset).name, row.fine_tuning_preset);
    EXPECT_EQ(std::ranges::count(row.metrics, "loss"), 1);
    EXPECT_FALSE(std::string(row.scored).empty());
    if (row.data == TaskData::text) continue;
    for (const char* word : {row.reads, row.file, row.row}) EXPECT_NE(*word, '\0');
    ASSERT_FALSE(row.samplings.empty());
    for (const std::string& sampling : row.samplings)
      EXPECT_EQ(io::name_of(io::sampling_from_name(sampling)), sampling);
    if (!row.has_labels()) continue;
    // The default metric is the first that is computed.
    const std::vector<std::string> labels{"a", "b"};
    const auto metrics = row.data == TaskData::pictures
                             ? io::make_picture_metrics(labels)
                             : io::make_task_metrics(row.labels, labels, 2);
    EXPECT_EQ(metrics->results().front().name, row.metrics.front());
  }
}

}  // namespace
}  // namespace brrr::train
