// Run folders as they may be found: whole, of another version, cut off, or no run at all.

#include "insight/pages/run_record.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

#include "folders/folder_lock.h"
#include "support/temp_folder.h"
#include "train/options.h"

namespace brrr::insight {
namespace {

using Json = nlohmann::json;

class RunRecordTest : public testing::Test {
 protected:
  fs::path put_run(const std::string& name, const std::string& log,
                   const std::string& config = train::to_json(train::resolve({}))) {
    const fs::path run = folder_ / name;
    fs::create_directories(run);
    if (!log.empty()) write_file_atomically(run / "log.jsonl", log);
    if (!config.empty()) write_file_atomically(run / "train_config.json", config);
    return run;
  }
  static std::string steps(int count) {
    std::string log;
    for (int i = 1; i <= count; ++i)
      log += fmt::format("{{\"step\":{},\"loss\":{},\"tokens_per_second\":{}}}\n", i, 3.0 / i,
                         100 * i);
    return log;
  }
  test::TempFolder folder_;
};

TEST_F(RunRecordTest, AFinishedRun) {
  const RunRecord r = read_run(
      put_run("a", steps(9) + "{\"step\":5,\"val_loss\":0.5}\n{\"step\":9,\"val_loss\":0.75}\n"
                              "{\"step\":9,\"finished\":true,\"figures\":{\"seconds\":12.5,"
                              "\"tokens_per_second\":450,\"skipped_steps\":2,"
                              "\"process_peak_bytes\":4096}}\n"));
  EXPECT_EQ(r.name, "a");
  EXPECT_EQ(r.status, "finished");
  EXPECT_EQ(r.last_step, 9);
  EXPECT_EQ(r.max_steps, 2000);
  EXPECT_NEAR(r.train_loss.value_or(0), 3.0 / 9, 1e-12);
  EXPECT_EQ(r.val_loss, 0.75);
  EXPECT_EQ(r.best_val_loss, 0.5);
  EXPECT_EQ(r.best_step, 5);
  EXPECT_EQ(r.tokens_per_second, 450) << "as the run itself says";
  EXPECT_EQ(r.median_tokens_per_second, 500);
  EXPECT_EQ(r.skipped_steps, 2);
  EXPECT_EQ(r.seconds, 12.5);
  EXPECT_EQ(r.process_bytes, 4096);
  EXPECT_TRUE(r.remarks.empty()) << r.remarks[0];
}

TEST_F(RunRecordTest, ARunThatWentOnAfterItsEndIsNotFinished) {
  const std::string end = "{\"step\":3,\"finished\":true,\"figures\":{\"seconds\":2}}\n";
  EXPECT_EQ(read_run(put_run("a", steps(3) + end + "{\"step\":4,\"loss\":1}\n")).status, "stopped");
  EXPECT_EQ(read_run(put_run("b", steps(3) + end + "{\"step\":4,\"loss\":1}\n" + end)).status,
            "finished");
  EXPECT_EQ(read_run(put_run("c", steps(3) + "{\"step\":4,\"health\":\"non_finite\","
                                             "\"text\":\"the loss is not a number\"}\n"))
                .status,
            "failed");
}

// The best of a run and losses of several runs are compared on equal tokens only.
TEST_F(RunRecordTest, LossesOnOtherTokensAreNotCompared) {
  const auto evaluation = [](int64_t step, double loss, const std::string& set, int64_t tokens) {
    return Json({{"step", step}, {"val_loss", loss}, {"val_set", set}, {"val_tokens", tokens}})
               .dump() +
           "\n";
  };
  const RunRecord changed = read_run(put_run("changed", steps(9) + evaluation(3, 0.5, "aa", 640) +
                                                            evaluation(6, 0.75, "bb", 1280) +
                                                            evaluation(9, 0.7, "bb", 1280)));
  EXPECT_EQ(changed.val_loss, 0.7);
  EXPECT_EQ(changed.best_val_loss, 0.7);
  EXPECT_EQ(changed.best_step, 9);
  EXPECT_EQ(changed.val_tokens, 1280);
  EXPECT_EQ(changed.val_set, "bb");
  const RunRecord same = read_run(put_run("same", steps(9) + evaluation(9, 0.5, "bb", 1280)));
  const RunRecord other = read_run(put_run("other", steps(9) + evaluation(9, 0.5, "cc", 640)));
  const RunRecord old = read_run(put_run("old", steps(9) + "{\"step\":9,\"val_loss\":0.5}\n"));
  EXPECT_EQ(evaluation_note({changed, same}), "");
  EXPECT_EQ(evaluation_note({old, old}), "");
  EXPECT_EQ(evaluation_note({changed, other}),
            "The validation losses are not measured on the same tokens and cannot be compared: "
            "changed on "
            "1,280 tokens (set bb), other on 640 tokens (set cc).");
  EXPECT_NE(evaluation_note({old, other}).find("old on tokens that its log does not name"),
            std::string::npos);
  const Json j = Json::parse(report_json({changed, other}));
  EXPECT_EQ(j["evaluation_note"], evaluation_note({changed, other}));
  EXPECT_EQ(j["runs"][0]["val_tokens"], 1280);
  EXPECT_EQ(j["runs"][1]["val_set"], "cc");
}

// The train loss is that of the last step, as on the terminal; the smoothed one has its own name.
TEST_F(RunRecordTest, TheTrainLossIsOfTheLastStep) {
  std::string log;
  for (int i = 1; i <= 400; ++i)
    log += fmt::format("{{\"step\":{},\"loss\":{}}}\n", i, i % 2 == 0 ? 1.0 : 3.0);
  const RunRecord r = read_run(put_run("a", log));
  EXPECT_EQ(r.train_loss, 1.0);
  ASSERT_TRUE(r.smoothed_train_loss.has_value());
  EXPECT_NEAR(*r.smoothed_train_loss, 2, 0.2);
}

TEST_F(RunRecordTest, AValidationLossThatIsNoNumberIsTheLastOne) {
  for (const char* key : {"val_loss", "final_val_loss"}) {
    const fs::path run = put_run(
        key, steps(3) + "{\"step\":0,\"val_loss\":4}\n" +
                 fmt::format("{{\"step\":3,\"{}\":null}}\n", key) +
                 "{\"step\":3,\"health\":\"non_finite\",\"text\":\"the validation loss\"}\n");
    const RunRecord r = read_run(run);
    EXPECT_EQ(r.status, "failed");
    ASSERT_TRUE(r.val_loss.has_value());
    EXPECT_TRUE(std::isnan(*r.val_loss));
    EXPECT_EQ(r.best_val_loss, 4);
    EXPECT_EQ(r.best_step, 0);
    const Json j = Json::parse(report_json({r}))["runs"][0];
    EXPECT_TRUE(j["val_loss"].is_null()) << j["val_loss"];
  }
}

TEST_F(RunRecordTest, ARunThatHasNotEndedHasTheSpeedOfItsSteps) {
  const RunRecord r =
      read_run(put_run("a", steps(3) + "{\"step\":4,\"loss\":1,\"skipped_steps\":7}\n"));
  EXPECT_FALSE(r.tokens_per_second);
  EXPECT_EQ(r.median_tokens_per_second, 200);
  EXPECT_EQ(r.skipped_steps, 7);
}

TEST_F(RunRecordTest, ACheckpointIsNoRun) {
  const fs::path checkpoint = put_run("a/checkpoint-000003", "");
  write_file_atomically(checkpoint / "trainer_state.json", "{}");
  EXPECT_USER_ERROR(read_run(checkpoint), "checkpoint-000003 is a checkpoint");
}

TEST_F(RunRecordTest, ARunThatGoesOnHoldsItsLock) {
  const fs::path run = put_run("a", steps(3));
  EXPECT_EQ(read_run(run).status, "stopped");
  const io::FolderLock lock(run, "training");
  EXPECT_EQ(read_run(run).status, "running");
}

// Pages that look at a run do not see each other, and do not keep a run from starting.
TEST_F(RunRecordTest, WhoLooksIsNoRun) {
  const fs::path run = put_run("a", steps(1));
  std::atomic<bool> done = false;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> lookers;
  for (int i = 0; i < 3; ++i)
    lookers.emplace_back([&] {
      while (!done) {
        wrong += io::FolderLock::is_held(run);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
  int refused = 0;
  for (int i = 0; i < 200; ++i) wrong += read_run(run).status != "stopped";
  EXPECT_EQ(wrong, 0);
  for (int i = 0; i < 50; ++i) try {
      const io::FolderLock lock(run, "training");
    } catch (const UserError&) {
      ++refused;
    }
  done = true;
  for (std::thread& t : lookers) t.join();
  EXPECT_EQ(refused, 0);
}

TEST_F(RunRecordTest, WhatIsNoRunIsSaid) {
  EXPECT_USER_ERROR(read_run(folder_ / "absent"), "no such folder");
  fs::create_directories(folder_ / "empty");
  EXPECT_USER_ERROR(read_run(folder_ / "empty"), "holds no run: expected log.jsonl");
  write_file_atomically(folder_ / "file", "x");
  EXPECT_USER_ERROR(read_run(folder_ / "file"), "no such folder");
}

TEST_F(RunRecordTest, AnotherVersionIsRemarkedOnAndShown) {
  const RunRecord r =
      read_run(put_run("a", steps(3), "{\"n_layer\": 5, \"warp_drive\": true, \"seed\": 1}"));
  ASSERT_EQ(r.remarks.size(), 1u);
  EXPECT_TRUE(r.remarks[0].starts_with("written by another version")) << r.remarks[0];
  EXPECT_NE(r.remarks[0].find("warp_drive"), std::string::npos) << r.remarks[0];
  EXPECT_EQ(option_text(r, "n_layer"), "5");
  EXPECT_EQ(r.last_step, 3);
}

TEST_F(RunRecordTest, DamageIsOneLineAndTheRestIsThere) {
  std::string log = steps(3);
  for (int i = 0; i < 100; ++i) log += "{\"step\":4,\"lo\n";
  log += std::string("\0\0\n", 3) + "[1]\n" + "{\"step\":5,\"loss\":7}\n{\"step\":6,\"lo";
  const RunRecord r = read_run(put_run("a", log, "{\"n_layer\": "));
  ASSERT_EQ(r.remarks.size(), 2u);
  EXPECT_NE(r.remarks[0].find("train_config.json"), std::string::npos) << r.remarks[0];
  EXPECT_TRUE(r.remarks[1].starts_with("102 lines of log.jsonl could not be read")) << r.remarks[1];
  EXPECT_EQ(r.history.table(RunHistory::steps).rows(), 4u);
  EXPECT_EQ(r.last_step, 5);
}

TEST_F(RunRecordTest, ARunThatDidNothingYet) {
  const RunRecord r = read_run(put_run("a", ""));
  ASSERT_EQ(r.remarks.size(), 1u);
  EXPECT_EQ(r.remarks[0], "log.jsonl holds no training step");
  EXPECT_FALSE(r.train_loss || r.val_loss || r.tokens_per_second || r.median_tokens_per_second ||
               r.waiting_share);
  const RunRecord log_only = read_run(put_run("b", steps(2), ""));
  ASSERT_EQ(log_only.remarks.size(), 1u);
  EXPECT_NE(log_only.remarks[0].find("train_config.json"), std::string::npos);
}

// The history of so many is shortened to means; the best of them is none.
TEST_F(RunRecordTest, TheBestOfManyEvaluationsIsExact) {
  std::string log = steps(2);
  for (int i = 1; i <= 10'001; ++i)
    log += fmt::format("{{\"step\":{},\"val_loss\":{}}}\n", i,
                       i == 4321     ? 0.25
                       : i == 10'001 ? 3
                                     : 1);
  const RunRecord r = read_run(put_run("a", log));
  EXPECT_EQ(r.best_val_loss, 0.25);
  EXPECT_EQ(r.best_step, 4321);
  EXPECT_EQ(r.val_loss, 3);
}

TEST_F(RunRecordTest, RunsOfOneNameAreToldApart) {
  fs::create_directories(folder_ / "x");
  fs::create_directories(folder_ / "y");
  std::vector<RunRecord> runs{read_run(put_run("x/run", steps(1))),
                              read_run(put_run("y/run", steps(1))),
                              read_run(put_run("other", steps(1)))};
  tell_apart(runs);
  EXPECT_EQ(runs[0].name, "run (" + (folder_ / "x/run").string() + ")");
  EXPECT_EQ(runs[1].name, "run (" + (folder_ / "y/run").string() + ")");
  EXPECT_EQ(runs[2].name, "other");
}

TEST_F(RunRecordTest, OptionsThatDiffer) {
  const std::string same = "{\"n_layer\":4,\"optim\":\"adamw\",\"output_dir\":\"a\"}";
  const std::vector<RunRecord> runs{
      read_run(put_run("a", steps(1), same)), read_run(put_run("b", steps(1), same)),
      read_run(put_run("c", steps(1), "{\"n_layer\":4,\"optim\":\"lion\",\"text\":[\"x\"]}")),
      read_run(put_run("d", steps(1), "broken"))};
  EXPECT_EQ(differing_options(runs), (std::vector<std::string>{"optim", "text"}));
  EXPECT_EQ(option_text(runs[2], "text"), "[\"x\"]");
  EXPECT_EQ(option_text(runs[0], "text"), "");
  EXPECT_TRUE(differing_options({runs[0], runs[1]}).empty());
}

TEST_F(RunRecordTest, JsonHasCurvesAndFigures) {
  const Json j = Json::parse(report_json(
      {read_run(put_run("a", steps(4) + "{\"step\":4,\"health\":\"data_stall\",\"text\":\"t\"}\n")),
       read_run(put_run("b", "", "{\"run_name\":\"named <b>\"}"))}));
  ASSERT_EQ(j["runs"].size(), 2u);
  EXPECT_EQ(j["runs"][0]["curves"]["steps"]["loss"].size(), 4u);
  EXPECT_EQ(j["runs"][0]["health"][0]["kind"], "data_stall");
  EXPECT_EQ(j["runs"][1]["name"], "named <b>");
  EXPECT_TRUE(j["runs"][1]["train_loss"].is_null());
  EXPECT_FALSE(j["differing_options"].empty());
}

}  // namespace
}  // namespace brrr::insight
