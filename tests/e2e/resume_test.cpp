// A run that is killed at any moment and resumed is, bit for bit, the run that was not killed.

#include <algorithm>
#include <set>

#include "base/clock.h"
#include "base/rng.h"
#include "e2e/run.h"
#include "folders/checkpoint.h"
#include "support/long_proof.h"

namespace brrr::test {
namespace {

class Resume : public EndToEnd {
 protected:
  void expect_same_run(const std::string& a, const std::string& b) {
    EXPECT_EQ(loss_series(a), loss_series(b));
    EXPECT_TRUE(read_file(path(a) / "model.safetensors") ==
                read_file(path(b) / "model.safetensors"))
        << "the final weights differ";
  }
  /// Writes checkpoint 9 of a run again, with the optimizer's file of another folder.
  void give_optimizer(const std::string& run_name, const fs::path& other) {
    const fs::path folder = path(run_name) / "checkpoint-000009";
    io::CheckpointWriter writer(path(run_name), 9);
    for (const auto& entry : fs::directory_iterator(folder)) {
      const std::string name = entry.path().filename();
      if (name == "manifest.json") continue;
      fs::copy_file(name == "optimizer.safetensors" ? other / name : entry.path(),
                    writer.path(name));
    }
    writer.commit();
  }
  bool has_checkpoint(const std::string& run_name) {
    return fs::exists(path(run_name)) && !io::list_checkpoints(path(run_name)).empty();
  }
};

// By every signal that ends processes, and by SIGPIPE, which must not; 200 of them with --long.
TEST_F(Resume, KilledAtRandomMoments) {
  struct Way {
    const char* name;
    std::vector<std::string> options;
  };
  const std::vector<Way> ways = {{"fp32", {}},
                                 {"bf16", {"--precision", "bf16"}},
                                 {"8bit", {"--optim", "adamw_8bit"}},
                                 {"muon", {"--optim", "muon"}},
                                 {"stream", {"--tokenize", "stream", "--tokenizer", "byte"}}};
  constexpr int kSignals[] = {SIGKILL, SIGTERM, SIGPIPE, SIGINT, SIGHUP};
  const int kills_per_way = rounds(40, 5);
  RngStream random({2026, 0}, 1);
  int resumed = 0;
  for (size_t w = 0; w < ways.size(); ++w) {
    SCOPED_TRACE(ways[w].name);
    const auto args = [&](const std::string& name) {
      std::vector<std::string> all = small_run(name, ways[w].options);
      put_options(all, {"--max-steps", is_long() ? "300" : "60", "--overwrite"});
      return all;
    };
    const std::string whole = fmt::format("whole-{}", ways[w].name);
    const double begin = now_seconds();
    ASSERT_EQ(run(args(whole)), 0) << err_;
    const double whole_seconds = now_seconds() - begin;
    int kills = 0;
    for (int run = 0; kills < kills_per_way && run < 100; ++run) {
      const std::string name = fmt::format("{}-{}", ways[w].name, run);
      int code = -1;
      for (int attempt = 0; attempt < 200 && code != 0; ++attempt) {
        const bool resume = has_checkpoint(name);
        resumed += resume;
        Child child(path("."),
                    resume ? std::vector<std::string>{"train", "--resume", path(name).string()}
                           : args(name));
        ASSERT_TRUE(child.started());
        int signal = SIGPIPE;
        // Anywhere from the first moment to the end of what is left of the run.
        while (signal == SIGPIPE && kills < kills_per_way) {
          const double wait = static_cast<double>(random.next_uniform()) * whole_seconds * 0.6;
          ::usleep(static_cast<useconds_t>(1e6 * wait));
          if (!child.is_running()) break;
          signal = kSignals[(w + static_cast<size_t>(kills++)) % std::size(kSignals)];
          child.send(signal);
        }
        code = child.wait();
        // Before its first line the program has SIGPIPE as every process has it.
        if (code != 0) {
          ASSERT_EQ(code, 128 + signal) << child.err();
        }
      }
      ASSERT_EQ(code, 0);
      expect_same_run(whole, name);
    }
    EXPECT_EQ(kills, kills_per_way);
  }
  EXPECT_GE(resumed, kills_per_way) << "too few kills hit a run that had a checkpoint";
}

// Steps, evaluations, samples, notes and ends: whatever was killed when, each stands once, with the
// values of the run that was not killed. Each case ends a process before its n-th record.
TEST_F(Resume, EveryRecordStandsOnce) {
  const auto args = [&](const std::string& name) {
    std::vector<std::string> all =
        small_run(name, {"--max-steps", "11", "--eval-steps", "2", "--save-steps", "3",
                         "--sample-steps", "4", "--samples", "1", "--sample-tokens", "4",
                         "--lr-scheduler-type", "constant", "--overwrite"});
    return all;
  };
  // By step and kind; times and the starts of processes are left out.
  const auto records = [&](const std::string& name) {
    std::vector<std::string> found;
    std::set<std::string> starts;
    for (const nlohmann::json& record : io::read_jsonl(path(name) / "log.jsonl")) {
      const std::string step = record["step"].dump();
      if (record.contains("machine")) {
        EXPECT_TRUE(starts.insert(step).second) << name << " starts twice at " << step;
        continue;
      }
      std::string text = step;
      for (const char* kind : {"loss", "val_loss", "val_tokens", "samples", "health", "finished"})
        if (record.contains(kind)) text += fmt::format(" {} {}", kind, record[kind].dump());
      found.push_back(text);
    }
    return found;
  };
  ASSERT_EQ(run(args("whole")), 0) << err_;
  const std::vector<std::string> whole = records("whole");
  ASSERT_EQ(std::set<std::string>(whole.begin(), whole.end()).size(), whole.size());
  ASSERT_EQ(whole.size(), 11u + 7 + 3 + 1) << "steps, evaluations, samples, the end";
  const auto goes_on = [&](const std::string& name, const std::string& fault) {
    const bool resume = has_checkpoint(name);
    return run(
        resume ? std::vector<std::string>{"train", "--resume", path(name).string()} : args(name),
        {"BRRR_FAULT=" + fault});
  };
  // A signal that comes with the record of step 6 or 8 leaves a checkpoint without the evaluation
  // and the samples of that step, which the next process logs before it is killed.
  std::vector<std::pair<int, int>> cases{{11, 3}, {14, 4}, {24, 1}};
  if (is_long())
    for (int first = 1; first <= 24; ++first)
      for (int second = 1; second <= 4; ++second) cases.emplace_back(first, second);
  for (const char* end : {"kill", "term"})
    for (const auto& [first, second] : cases) {
      const std::string name = fmt::format("{}-{}-{}", end, first, second);
      SCOPED_TRACE(name);
      // The second process is always killed, and soon: it has saved nothing.
      const int code = goes_on(name, fmt::format("log.write={}:{}", end, first));
      if (code != 0) {
        ASSERT_EQ(code, 128 + (*end == 'k' ? SIGKILL : SIGTERM)) << err_;
      }
      const int again = goes_on(name, fmt::format("log.write=kill:{}", second));
      if (again != 0) {
        ASSERT_EQ(again, 128 + SIGKILL) << err_;
      }
      ASSERT_EQ(goes_on(name, "start=pause:0"), 0) << err_;
      EXPECT_EQ(records(name), whole);
      fs::remove_all(path(name));
    }
}

// The learning rate and what else decides how a run goes on may change. It is said, recorded and
// kept, whatever is killed; what the checkpoint holds may not change.
TEST_F(Resume, ChangesAreRecordedAndKept) {
  const std::vector<std::string> options{"--max-steps",         "30",      "--save-steps", "10",
                                         "--lr-scheduler-type", "constant"};
  const std::vector<std::string> change{"--learning-rate", "1e-4", "--weight-decay", "0.3",
                                        "--max-grad-norm", "0.5"};
  for (const char* name : {"plain", "changed", "killed"}) {
    ASSERT_EQ(run(small_run(name, options), {"BRRR_FAULT=log.write=term:13"}), 128 + SIGTERM)
        << err_;
    ASSERT_EQ(io::list_checkpoints(path(name)).back().step, 11);
  }
  ASSERT_EQ(run({"train", "--resume", path("plain").string()}), 0) << err_;
  EXPECT_EQ(err_.find("changed from step"), std::string::npos) << err_;
  std::vector<std::string> resume{"train", "--resume", path("changed").string()};
  put_options(resume, change);
  ASSERT_EQ(run(resume), 0) << err_;
  EXPECT_NE(err_.find("changed from step 11 on: --learning-rate 0.0001 (was 0.001), --min-lr 1e-05 "
                      "(was 0.0001), --weight-decay 0.3 (was 0.1), --max-grad-norm 0.5 (was 1)"),
            std::string::npos)
      << err_;
  EXPECT_NE(loss_series("plain"), loss_series("changed"));
  for (const nlohmann::json& record : io::read_jsonl(path("changed") / "log.jsonl"))
    if (record.contains("lr")) {
      EXPECT_EQ(record["lr"], record["step"] <= 11 ? 1e-3 : 1e-4) << record;
    }
  // Killed before it saved anything of its own, it goes on with the changes all the same.
  resume[2] = path("killed").string();
  ASSERT_EQ(run(resume, {"BRRR_FAULT=log.write=kill:5"}), 128 + SIGKILL) << err_;
  ASSERT_EQ(run({"train", "--resume", path("killed").string()}), 0) << err_;
  EXPECT_NE(err_.find("changed from step 11 on: --learning-rate 0.0001 (was 0.001)"),
            std::string::npos)
      << err_;
  expect_same_run("changed", "killed");
  int changes = 0;
  for (const nlohmann::json& record : io::read_jsonl(path("killed") / "log.jsonl"))
    if (record.contains("changed")) {
      ++changes;
      EXPECT_EQ(record["step"], 11);
      EXPECT_EQ(record["changed"][0]["option"], "learning-rate");
    }
  EXPECT_EQ(changes, 1);
  const auto config = nlohmann::json::parse(read_file(path("killed") / "train_config.json"));
  EXPECT_EQ(config["learning_rate"], 1e-4);
  ASSERT_EQ(run({"train", "--resume", path("killed").string(), "--max-steps", "32"}), 0) << err_;
  EXPECT_EQ(err_.find("--learning-rate"), std::string::npos)
      << "nothing is changed again: " << err_;
  for (const auto& [name, value] : {std::pair{"--batch-size", "8"},
                                    {"--n-layer", "2"},
                                    {"--optim", "sgd"},
                                    {"--dropout", "0.2"},
                                    {"--seed", "5"}}) {
    EXPECT_EQ(run({"train", "--resume", path("killed").string(), name, value}), 2) << name;
    EXPECT_NE(err_.find(fmt::format("--resume cannot change {} (", name)), std::string::npos)
        << err_;
  }
}

TEST_F(Resume, KilledWhileSaving) {
  ASSERT_EQ(run(small_run("whole", {"--max-steps", "40"})), 0) << err_;
  for (const char* point : {"safetensors.write", "checkpoint.write", "checkpoint.manifest",
                            "checkpoint.rename", "checkpoint.prune"}) {
    const std::string name = std::string("at-") + point;
    ASSERT_EQ(
        run(small_run(name, {"--max-steps", "40"}), {fmt::format("BRRR_FAULT={}=kill", point)}),
        128 + SIGKILL)
        << point << " was not reached";
    auto args = has_checkpoint(name)
                    ? std::vector<std::string>{"train", "--resume", path(name).string()}
                    : small_run(name, {"--max-steps", "40", "--overwrite"});
    ASSERT_EQ(run(args), 0) << point << ": " << err_;
    expect_same_run("whole", name);
  }
}

// What is computed again is no part of the run's maths: each leg may have another policy.
TEST_F(Resume, AnotherPolicyOfRematerialisationGivesTheSameBits) {
  using Words = std::vector<std::string>;
  std::vector<int64_t> arenas;
  auto legs = [&](const std::string& name, const std::vector<Words>& policies) {
    for (size_t i = 0; i < policies.size(); ++i) {
      Words args{"--max-steps", std::to_string(10 * (i + 1))};
      put_options(args, policies[i]);
      if (i == 0) {
        put_options(args, {"--dropout", "0.1", "--n-layer", "3"});
        args = small_run(name, args);
      } else {
        args.insert(args.begin(), {"train", "--resume", path(name).string()});
      }
      args.push_back("--json");
      ASSERT_EQ(run(args), 0) << err_;
      arenas.push_back(json()["arena_bytes"].get<int64_t>());
    }
  };
  legs("plain", {{}, {}, {}});
  legs("legs", {{"--gradient-checkpointing"},
                {"--activation-memory", "300KiB"},
                {"--rematerialize", "none"}});
  expect_same_run("plain", "legs");
  ASSERT_EQ(arenas.size(), 6u);
  EXPECT_LT(arenas[3], arenas[0]);
  EXPECT_LT(arenas[4], arenas[1]);
  EXPECT_EQ(arenas[5], arenas[2]);
}

// The loss scale and its counters are state like any other.
TEST_F(Resume, MixedPrecisionGoesOnWithTheSameBits) {
  for (const char* precision : {"bf16", "fp16"}) {
    const std::vector<std::string> options{"--max-steps",       "40",  "--precision", precision,
                                           "--init-loss-scale", "1e12"};
    const std::string whole = std::string("whole-") + precision;
    const std::string killed = std::string("killed-") + precision;
    ASSERT_EQ(run(small_run(whole, options)), 0) << err_;
    ASSERT_EQ(run(small_run(killed, options), {"BRRR_FAULT=checkpoint.prune=kill"}), 128 + SIGKILL);
    ASSERT_TRUE(has_checkpoint(killed));
    ASSERT_EQ(run({"train", "--resume", path(killed).string()}), 0) << err_;
    expect_same_run(whole, killed);
  }
}

// Every optimizer's state is in the checkpoint: half a run and the other half, with another number
// of threads, is the whole. Another optimizer, or another width of its state, is refused.
TEST_F(Resume, EveryOptimizerGoesOnWithTheSameBits) {
  const std::vector<std::vector<std::string>> rows = {
      {"adamw"},
      {"adamw_8bit"},
      {"sgd"},
      {"lion"},
      {"adafactor"},
      {"adafactor", "--learning-rate", "1e-3"},
      {"muon"},
      {"adamw_8bit", "--gradient-accumulation-steps", "3"},
      {"adamw", "--param-dtype", "bf16"},
      {"adamw_8bit", "--param-dtype", "bf16", "--precision", "bf16"},
      {"sgd", "--param-dtype", "bf16", "--precision", "bf16"},
      {"lion", "--param-dtype", "bf16"},
      {"muon", "--param-dtype", "bf16", "--precision", "bf16"},
      {"adamw_8bit", "--precision", "fp16", "--init-loss-scale", "1e12"}};
  const auto all = sampled(rows, 7, "optimizers");
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(all[i], " ")));
    std::vector<std::string> options{"--bias", "--optim"};
    put_options(options, all[i]);
    // Killed once a few steps are saved; then up to 40.
    const std::string whole = fmt::format("whole{}", i), half = fmt::format("half{}", i);
    put_options(options, {"--max-steps", "40"});
    ASSERT_EQ(run(small_run(whole, options)), 0) << err_;
    ASSERT_EQ(run(small_run(half, options), {"BRRR_FAULT=checkpoint.prune=kill"}), 128 + SIGKILL);
    ASSERT_TRUE(has_checkpoint(half));
    ASSERT_EQ(run({"train", "--resume", path(half).string(), "--threads", "2"}), 0) << err_;
    expect_same_run(whole, half);
    ASSERT_EQ(run({"generate", "--model", path(half).string(), "--max-new-tokens", "4"}), 0)
        << err_;
  }
  const auto refused = [&](std::vector<std::string> more, const char* part) {
    std::vector<std::string> args{"train", "--resume", path("whole0").string(), "--max-steps",
                                  "50"};
    put_options(args, more);
    EXPECT_EQ(run(args), 2) << err_;
    EXPECT_NE(err_.find(part), std::string::npos) << err_;
    EXPECT_EQ(std::count(err_.begin(), err_.end(), '\n'), 1) << err_;
  };
  for (const char* other : {"sgd", "lion", "adafactor", "muon"})
    refused({"--optim", other}, "--optim (adamw in ");
  refused({"--optim", "adamw_8bit"}, ", now adamw_8bit); leave it out");
  refused({"--param-dtype", "bf16"}, "--param-dtype (fp32 in ");
  refused({"--momentum", "0.5"}, "momentum");
}

// Checkpoints whose optimizer file is not of this run, though its folder says so.
TEST_F(Resume, TheStateOfAnotherOptimizerIsRefused) {
  for (const auto& [name, optim] : {std::pair{"adamw", "adamw"}, {"8bit", "adamw_8bit"}})
    ASSERT_EQ(run(small_run(name, {"--n-embd", "48", "--max-steps", "9", "--optim", optim})), 0)
        << err_;
  const fs::path kept = path("kept");
  fs::copy(path("adamw") / "checkpoint-000009", kept, fs::copy_options::recursive);
  give_optimizer("adamw", path("8bit") / "checkpoint-000009");
  give_optimizer("8bit", kept);
  for (const auto& [name, part] :
       {std::pair{"adamw", "it needs 'adam_m:"}, {"8bit", "it needs 'adam_m_code:"}}) {
    EXPECT_EQ(run({"train", "--resume", path(name).string(), "--max-steps", "20"}), 1) << err_;
    EXPECT_NE(err_.find(part), std::string::npos) << err_;
    EXPECT_NE(err_.find("optimizer.safetensors"), std::string::npos) << err_;
  }
}

TEST_F(Resume, SignalsSaveFirst) {
  ASSERT_EQ(run(small_run("whole", {"--max-steps", "800", "--save-steps", "0"})), 0) << err_;
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const std::string name = "signal" + std::to_string(signal);
    Child child(path("."), small_run(name, {"--max-steps", "800", "--save-steps", "0"}));
    const double begin = now_seconds();
    while (!fs::exists(path(name) / "log.jsonl") ||
           fs::file_size(path(name) / "log.jsonl") < 2000) {
      ASSERT_LT(now_seconds() - begin, 60);
      ::usleep(2000);
    }
    child.send(signal);
    ASSERT_EQ(child.wait(), 128 + signal) << child.err();
    ASSERT_TRUE(has_checkpoint(name));
    ASSERT_EQ(run({"train", "--resume", path(name).string()}), 0) << err_;
    expect_same_run("whole", name);
  }
}

TEST_F(Resume, AFullDiskLeavesTheEarlierCheckpointUsable) {
  ASSERT_EQ(run(small_run("whole", {"--max-steps", "40"})), 0) << err_;
  ASSERT_EQ(run(small_run("full", {"--max-steps", "9"})), 0) << err_;
  ASSERT_EQ(run({"train", "--resume", path("full").string(), "--max-steps", "40"},
                {"BRRR_FAULT=checkpoint.write=enospc"}),
            1);
  EXPECT_NE(err_.find("No space left"), std::string::npos) << err_;
  ASSERT_EQ(io::list_checkpoints(path("full")).back().step, 9);
  io::verify(io::list_checkpoints(path("full")).back());
}

TEST_F(Resume, ADamagedCheckpointIsPassedOver) {
  ASSERT_EQ(run(small_run("whole", {"--max-steps", "40"})), 0) << err_;
  ASSERT_EQ(run(small_run("hit", {"--max-steps", "40"})), 0) << err_;
  const auto all = io::list_checkpoints(path("hit"));
  ASSERT_GE(all.size(), 2u);
  const fs::path file = all.back().folder / "model.safetensors";
  std::string bytes = read_file(file);
  bytes[bytes.size() / 2] ^= 1;
  write_file_atomically(file, bytes);
  ASSERT_EQ(run({"train", "--resume", path("hit").string()}), 0) << err_;
  EXPECT_NE(err_.find("model.safetensors"), std::string::npos) << "says which file is damaged";
  expect_same_run("whole", "hit");
}

// Text that is tokenised while training, shuffled or not: resumed in the middle, by another number
// of workers, it is the same run.
TEST_F(Resume, StreamedTextWithAnyNumberOfWorkers) {
  for (const std::string sampling : {"random", "epoch"}) {
    const auto args = [&](const std::string& name, const std::string& steps,
                          const std::string& workers) {
      return small_run(
          name + sampling,
          {"--tokenize", "stream", "--tokenizer", "byte", "--sampling", sampling, "--max-steps",
           steps, "--dataloader-num-workers", workers, "--lr-scheduler-type", "constant"});
    };
    ASSERT_EQ(run(args("whole-", "150", "1")), 0) << err_;
    ASSERT_EQ(run(args("part-", "80", "0")), 0) << err_;
    ASSERT_EQ(run({"train", "--resume", path("part-" + sampling).string(), "--max-steps", "150",
                   "--dataloader-num-workers", "3", "--dataloader-prefetch-factor", "7", "--json"}),
              0)
        << err_;
    EXPECT_TRUE(json().contains("waiting_share"));
    EXPECT_TRUE(read_file(path("whole-" + sampling) / "model.safetensors") ==
                read_file(path("part-" + sampling) / "model.safetensors"));
    for (const nlohmann::json& record : io::read_jsonl(path("part-" + sampling) / "log.jsonl"))
      EXPECT_EQ(record.contains("loss"), record.contains("waiting_share"));
  }
}

// A text that changes while it is read ends the run with a line that says so.
TEST_F(Resume, AStreamedTextThatChangesIsNoticed) {
  ASSERT_EQ(run(small_run("run", {"--tokenize", "stream", "--max-steps", "20"})), 0) << err_;
  write_file_atomically(text_path(), read_file(text_path()) + "and more\n");
  EXPECT_EQ(run({"train", "--resume", path("run").string(), "--max-steps", "40"}), 1);
  EXPECT_NE(err_.find("resume with the same text and tokenizer"), std::string::npos) << err_;
}

}  // namespace
}  // namespace brrr::test
