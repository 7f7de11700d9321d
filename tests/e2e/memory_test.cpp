// What a run is forecast to need, what it needs, and what happens when that is too much.

#include <algorithm>

#include "base/memory.h"
#include "e2e/run.h"

namespace brrr::test {
namespace {

class Memory : public EndToEnd {
 protected:
  static constexpr int64_t kMiB = 1 << 20;
  std::vector<std::string> plan(std::vector<std::string> train) const {
    train[0] = "plan";
    put_options(train, {"--no-measure", "--json"});
    return train;
  }
  int64_t bytes(const char* key) const { return json().at(key).get<int64_t>(); }
  /// A run whose activations are more than the rest.
  std::vector<std::string> wide_run(const std::string& name, std::vector<std::string> more) const {
    std::vector<std::string> args =
        small_run(name, {"--n-layer", "4", "--n-embd", "64", "--batch-size", "32", "--context",
                         "64", "--max-steps", "3", "--eval-batches", "1", "--save-steps", "0"});
    put_options(args, more);
    return args;
  }
};

TEST_F(Memory, PlanSaysWhatTheRunTakes) {
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {},
           {"--precision", "bf16"},
           {"--gradient-accumulation-steps", "3", "--batch-size", "8"},
           {"--rematerialize", "blocks"},
           {"--threads", "2"}}) {
    const auto args = wide_run("run", more);
    ASSERT_EQ(run(plan(args)), 0) << err_;
    const int64_t arena = bytes("arena_bytes"), process = bytes("process_bytes");
    EXPECT_FALSE(fs::exists(path("run")));
    ASSERT_EQ(run(args), 0) << err_;
    EXPECT_EQ(bytes("arena_bytes"), arena);
    EXPECT_EQ(bytes("forecast_arena_bytes"), arena);
    const auto peak = static_cast<double>(bytes("process_peak_bytes"));
    // How many pages of the program and its libraries the system maps varies by a few MiB, which is
    // much for a run as small as this one; bench/memory_forecast judges the 5% of real ones.
    const double tolerance = std::max(0.05 * peak, 6.0 * kMiB);
    EXPECT_NEAR(static_cast<double>(bytes("forecast_process_bytes")), peak, tolerance);
    EXPECT_NEAR(static_cast<double>(process), peak, tolerance);
    fs::remove_all(path("run"));
  }
}

TEST_F(Memory, ALimitIsKeptByWhatFitChooses) {
  ASSERT_EQ(run(plan(wide_run("run", {}))), 0) << err_;
  const int64_t plain = bytes("needed_bytes");
  const int64_t limit = plain - plain / 4;
  const std::string text = fmt::format("{}MiB", limit / kMiB);
  // Refused as it is, with what would do; nothing was made.
  EXPECT_EQ(run(wide_run("run", {"--memory-limit", text})), 3) << err_;
  EXPECT_NE(err_.find("--fit"), std::string::npos) << err_;
  EXPECT_FALSE(fs::exists(path("run")));
  ASSERT_EQ(run(wide_run("run", {"--memory-limit", text, "--fit"})), 0) << err_;
  EXPECT_LE(bytes("needed_peak_bytes"), limit);
  EXPECT_LE(bytes("forecast_needed_bytes"), limit);
  EXPECT_EQ(bytes("batch_size") * bytes("gradient_accumulation_steps"), 32);
  // The run can be resumed as it was fitted.
  const int64_t batch = bytes("batch_size");
  ASSERT_EQ(run({"train", "--resume", path("run").string(), "--max-steps", "5", "--json"}), 0)
      << err_;
  EXPECT_EQ(bytes("batch_size"), batch);
}

// What is read and freed while text is tokenised must not stay on the heap.
TEST_F(Memory, ARunStaysWithinItsForecast) {
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {"--tokenize", "stream"},
           {"--tokenize", "stream", "--precision", "fp16", "--gradient-accumulation-steps", "2"},
           {"--sampling", "group_by_length", "--context", "2"},
           {"--vocab-size", "30011", "--batch-size", "2", "--param-dtype", "bf16"}}) {
    ASSERT_EQ(run(wide_run("run", more)), 0) << err_;
    EXPECT_LE(bytes("needed_peak_bytes"), bytes("forecast_needed_bytes")) << more[1];
    EXPECT_GE(bytes("needed_peak_bytes") + 6 * kMiB, bytes("forecast_needed_bytes")) << more[1];
    fs::remove_all(path("run"));
  }
}

// Rows are grouped by the step, not by the portions that it is cut into.
TEST_F(Memory, FitTrainsTheSameRowsWhenTheyAreGroupedByLength) {
  const auto grouped = [&](const std::string& name, std::vector<std::string> more) {
    more.insert(more.begin(), {"--sampling", "group_by_length", "--separator", "\n", "--dropout",
                               "0", "--max-steps", "20"});
    return wide_run(name, more);
  };
  const auto losses = [&](const std::string& name) {
    std::vector<double> list;
    for (const nlohmann::json& record : io::read_jsonl(path(name) / "log.jsonl"))
      if (record.contains("grad_norm")) list.push_back(record["loss"].get<double>());
    return list;
  };
  ASSERT_EQ(run(grouped("whole", {})), 0) << err_;
  const auto whole = losses("whole");
  ASSERT_EQ(whole.size(), 20u);
  const std::string limit = fmt::format("{}MiB", bytes("forecast_needed_bytes") / kMiB - 6);
  const std::vector<std::vector<std::string>> cuts{
      {"--batch-size", "8", "--gradient-accumulation-steps", "4"},
      {"--batch-size", "1", "--gradient-accumulation-steps", "32"},
      {"--memory-limit", limit, "--fit", "--rematerialize", "none"}};
  for (const auto& cut : cuts) {
    ASSERT_EQ(run(grouped("cut", cut)), 0) << err_;
    EXPECT_LT(bytes("batch_size"), 32);
    const auto now = losses("cut");
    ASSERT_EQ(now.size(), whole.size());
    for (size_t i = 0; i < now.size(); ++i) EXPECT_NEAR(now[i], whole[i], 1e-4 * whole[i]) << i;
    fs::remove_all(path("cut"));
  }
}

TEST_F(Memory, TheSmallestBudgetThatIsNamedDoes) {
  EXPECT_EQ(run(wide_run("run", {"--memory-limit", "1MiB"})), 3) << err_;
  const size_t at = err_.find("that fits is --memory-limit ");
  ASSERT_NE(at, std::string::npos) << err_;
  const size_t begin = at + std::string("that fits is --memory-limit ").size();
  const std::string least = err_.substr(begin, err_.find_first_of(" ;", begin) - begin);
  EXPECT_EQ(run(wide_run("run", {"--memory-limit", least, "--fit", "--max-steps", "1"})), 0)
      << least << "\n"
      << err_;
}

// The system carries the peak of whoever starts a program over into it.
TEST_F(Memory, ThePeakIsNotOfTheProcessThatStartedTheRun) {
  const std::vector<char> held(size_t{300} * kMiB, 1);
  ASSERT_EQ(run(wide_run("run", {"--max-steps", "1"})), 0) << err_;
  EXPECT_EQ(held.back(), 1);
  EXPECT_GT(bytes("process_peak_bytes"), bytes("arena_bytes"));
  EXPECT_LT(bytes("process_peak_bytes"), 200 * kMiB);
}

TEST_F(Memory, AFittedRunIsResumedByItsOwnCommandEachTime) {
  // Room for half of the batch.
  ASSERT_EQ(run(plan(wide_run("run", {"--batch-size", "16"}))), 0) << err_;
  const int64_t limit = bytes("needed_bytes") / kMiB + 4;
  const auto command = wide_run(
      "run", {"--rematerialize", "none", "--fit", "--memory-limit", fmt::format("{}MiB", limit)});
  ASSERT_EQ(run(command), 0) << err_;
  const int64_t batch = bytes("batch_size"), val_tokens = bytes("val_tokens");
  EXPECT_LT(batch, 32);
  int64_t steps = 3;
  for (const bool whole : {false, true, false, true}) {
    std::vector<std::string> next{"train", "--output-dir", path("run").string(), "--json"};
    if (whole) next = command;
    put_options(next, {"--resume", "--max-steps", std::to_string(++steps)});
    ASSERT_EQ(run(next), 0) << err_;
    EXPECT_EQ(bytes("batch_size"), batch);
    EXPECT_EQ(bytes("val_tokens"), val_tokens);
  }
}

TEST_F(Memory, TheSmallerEvaluationThatIsNamedDoes) {
  const auto with = [&](const std::string& evaluation) {
    return wide_run("run", {"--batch-size", "4", "--eval-batch-size", evaluation, "--max-steps",
                            "1", "--memory-limit", "60MiB"});
  };
  EXPECT_EQ(run(with("512")), 3) << err_;
  EXPECT_NE(err_.find("with --eval-batch-size 4 it runs in "), std::string::npos) << err_;
  EXPECT_EQ(run(with("4")), 0) << err_;
}

// Measuring the machine takes memory of the process that plans, not of the one that runs.
TEST_F(Memory, APlanIsTheSameWhetherThisMachineIsMeasuredNow) {
  const std::vector<std::string> cache{"BRRR_CACHE=" + path("cache").string()};
  std::vector<std::string> args = plan(wide_run("run", {}));
  ASSERT_EQ(run(args, cache), 0) << err_;
  const int64_t unmeasured = bytes("process_bytes");
  std::replace(args.begin(), args.end(), std::string("--no-measure"), std::string("--measure"));
  ASSERT_EQ(run(args, cache), 0) << err_;
  EXPECT_GT(json().at("predicted_ms").get<double>(), 0);
  EXPECT_NEAR(static_cast<double>(bytes("process_bytes")), static_cast<double>(unmeasured),
              4.0 * kMiB);
}

TEST_F(Memory, LargestBatchRunsAndOneMoreDoesNot) {
  auto args = plan(wide_run("run", {"--memory-limit", "60MiB"}));
  args.push_back("--largest-batch");
  ASSERT_EQ(run(args), 0) << err_;
  const int64_t batch = bytes("batch_size");
  EXPECT_GT(batch, 1);
  const auto with = [&](int64_t n) {
    return wide_run("run", {"--memory-limit", "60MiB", "--max-steps", "1", "--batch-size",
                            std::to_string(n), "--overwrite"});
  };
  EXPECT_EQ(run(with(batch - batch / 16)), 0) << err_;
  EXPECT_EQ(run(with(batch + 1 + batch / 16)), 3) << err_;
}

// A folder alone is planned as its run was; --init-from is the run that `train` would start.
TEST_F(Memory, APlanOfInitFromIsTheRunThatTrainStarts) {
  ASSERT_EQ(run(wide_run("from", {"--max-steps", "1", "--precision", "bf16", "--optim", "sgd",
                                  "--batch-size", "3"})),
            0)
      << err_;
  const std::vector<std::string> next{"--init-from",        path("from").string(), "--text",
                                      text_path().string(), "--threads",           "1"};
  std::vector<std::string> args{"plan", "--json", "--no-measure"};
  put_options(args, next);
  ASSERT_EQ(run(args), 0) << err_;
  const int64_t arena = bytes("arena_bytes"), batch = bytes("batch_size");
  EXPECT_NE(batch, 3);
  args = {"train",     "--json", "--max-steps",  "1",
          "--samples", "0",      "--output-dir", path("next").string()};
  put_options(args, next);
  ASSERT_EQ(run(args), 0) << err_;
  EXPECT_EQ(bytes("arena_bytes"), arena);
  EXPECT_EQ(bytes("batch_size"), batch);
  ASSERT_EQ(run({"plan", path("from").string(), "--json", "--no-measure"}), 0) << err_;
  EXPECT_EQ(bytes("batch_size"), 3);
  const std::string by_folder = out_;
  ASSERT_EQ(run({"plan", "--model", path("from").string(), "--json", "--no-measure"}), 0) << err_;
  EXPECT_EQ(json()["arena_bytes"], nlohmann::json::parse(by_folder)["arena_bytes"]);
  ASSERT_EQ(run({"profile", "--model", path("from").string(), "--json", "--seconds", "0.1",
                 "--no-advice"}),
            0)
      << err_;
  EXPECT_NE(json()["title"].get<std::string>().find(path("from").string()), std::string::npos);
  for (const auto& [model, part] :
       {std::pair{"a.toml", "is a file of options; name it without --model"}, {"", "empty one"}}) {
    EXPECT_EQ(run({"plan", "--model", model}), 2);
    EXPECT_NE(err_.find(part), std::string::npos) << err_;
  }
  EXPECT_EQ(run({"plan", "--model", "a", "--model", "b"}), 2);
  EXPECT_NE(err_.find("--model a and --model b contradict each other"), std::string::npos) << err_;
  EXPECT_EQ(run({"profile", "--model", path("from").string(), path("from").string()}), 2);
  EXPECT_EQ(run({"plan", path("from").string(), "--init-from", path("from").string()}), 2);
  EXPECT_NE(err_.find("expected one model"), std::string::npos) << err_;
}

TEST_F(Memory, APlanForALargerMachineSaysSo) {
  auto args = plan(wide_run("run", {"--memory-limit", "1000TiB"}));
  ASSERT_EQ(run(args), 0) << err_;
  EXPECT_NE(err_.find("note: --memory-limit 1000.00 TiB is more than the "), std::string::npos)
      << err_;
  args = plan(wide_run("run", {"--memory-limit", "200MiB"}));
  ASSERT_EQ(run(args), 0) << err_;
  EXPECT_EQ(err_.find("note: --memory-limit"), std::string::npos) << err_;
}

TEST_F(Memory, PlansARunFolderAndAPicture) {
  ASSERT_EQ(run(wide_run("run", {"--max-steps", "1"})), 0) << err_;
  const int64_t arena = bytes("arena_bytes");
  ASSERT_EQ(
      run({"plan", path("run").string(), "--no-measure", "--json", "--text", text_path().string(),
           "--svg", path("memory.svg").string(), "--html", path("memory.html").string()}),
      0)
      << err_;
  EXPECT_EQ(bytes("arena_bytes"), arena);
  EXPECT_TRUE(read_file(path("memory.svg")).starts_with("<svg"));
  EXPECT_NE(read_file(path("memory.html")).find("<svg"), std::string::npos);
  const std::vector<std::string> unmeasured{"BRRR_CACHE=" + path("cache").string()};
  ASSERT_EQ(run({"plan", "--preset", "gpt2-medium", "--no-measure"}, unmeasured), 0) << err_;
  for (const char* part :
       {"gpt2-medium", "arena", "peak:", "by layer", "rules of thumb", "not measured", "KV cache"})
    EXPECT_NE(out_.find(part), std::string::npos) << part;
}

}  // namespace
}  // namespace brrr::test
