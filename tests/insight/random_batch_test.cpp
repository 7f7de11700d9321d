// Steps on random batches, for every task: profile, bench and ladder time them.

#include "insight/profile/random_batch.h"

#include <gtest/gtest.h>

#include <cmath>

#include "insight/profile/timed_step.h"
#include "insight/profile/workload.h"
#include "train/dataset.h"

namespace brrr::insight {
namespace {

using train::TaskData;
using train::TaskTraits;
using train::TrainOptions;

/// Options of a small run of the task, and the model that it would start from.
struct SmallRun {
  TrainOptions options;
  models::ModelPtr model;
};

SmallRun small_run_of(const TaskTraits& task) {
  KeyValues given{{"batch-size", "2"}, {"max-steps", "4"}, {"threads", "1"}, {"context", "16"}};
  const bool is_encoder = task.task == train::TrainTask::tokens;
  if (task.data == TaskData::pictures) {
    given.pop_back();
    given.insert(given.end(), {{"preset", "resnet20-cifar"}, {"task", "images"}});
  } else if (is_encoder) {
    given.insert(given.end(), {{"preset", "bert-mini"}, {"n-layer", "1"}});
  } else {
    given.insert(given.end(),
                 {{"preset", "char-cpu"}, {"n-layer", "1"}, {"n-embd", "16"}, {"n-head", "2"}});
  }
  SmallRun run{train::resolve(given), nullptr};
  run.options.vocab_size = 65;
  run.model = models::find_architecture(run.options.architecture)
                  .describe({{run.options.model_settings.begin(), run.options.model_settings.end()},
                             task.data == TaskData::pictures ? 10 : 65,
                             run.options.context,
                             0.0,
                             std::nullopt});
  run.options.task = task.task;
  if (task.packs) run.options.pack = "documents";
  if (!task.samplings.empty()) run.options.sampling = task.samplings.front();
  if (task.data == TaskData::labelled_texts)
    run.model = run.model->with_task(
        {.head = task.labels == io::LabelKind::kValues ? models::Head::values
                 : task.labels == io::LabelKind::kTags ? models::Head::token_classes
                                                       : models::Head::classes,
         .labels = {"a", "b"}});
  return run;
}

TEST(RandomBatches, StepsOfEveryTaskRun) {
  for (const TaskTraits& task : train::task_table()) {
    SCOPED_TRACE(task.spellings.back());
    const SmallRun run = small_run_of(task);
    TimedStep step(run.options, std::numeric_limits<int64_t>::max(), run.model);
    EXPECT_TRUE(std::isfinite(step.run()));
    const int64_t per_row = task.data == TaskData::pictures ? 1 : 16 * task.sequences_per_row;
    EXPECT_EQ(step.tokens(), 2 * per_row);
    const std::unique_ptr<Workload> workload =
        make_workload({.options = run.options, .model = run.model});
    workload->allocate();
    EXPECT_GT(workload->run(nullptr).wall, 0);
    EXPECT_EQ(workload->tokens(), step.tokens());
    EXPECT_GE(workload->evaluation_seconds(), 0);
  }
}

TEST(RandomBatches, PairsAreTwoFullSequences) {
  const SmallRun run = small_run_of(train::traits_of(train::TrainTask::dpo));
  io::BatchOptions layout{.batch = 3, .context = 32, .vocab = 65};
  layout.flat = true;
  layout.sequences_per_row = 2;
  io::Batch batch;
  fill_random_batch(run.options, *run.model, layout, 0, batch);
  EXPECT_EQ(batch.ids("starts"), (std::vector<int32_t>{0, 16, 32, 48, 64, 80, 96}));
  EXPECT_EQ(batch.values("reference"), std::vector<float>(6, 0.0f));
  EXPECT_EQ(batch.count, 3);
}

}  // namespace
}  // namespace brrr::insight
