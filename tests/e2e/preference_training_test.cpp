// train --task dpo: preferred answers gain on the others, from a loss of log 2; resumed runs, other
// portions of a step and several ranks have the same bits or numbers.

#include <unistd.h>

#include <cmath>
#include <csignal>

#include "base/clock.h"
#include "e2e/run.h"

namespace brrr::test {
namespace {

constexpr const char* kPairsTemplate =
    "{% for m in messages %}{{ m.role[0] }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}a: {% endif %}";

class PreferenceTraining : public EndToEnd {
 protected:
  void SetUp() override {
    EndToEnd::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(run(small_run("base", {"--max-steps", "4", "--tokenizer", "byte", "--context", "64",
                                     "--save-steps", "0", "--eval-steps", "0"})),
              0)
        << err_;
    std::string lines;
    for (int i = 0; i < 60; ++i) {
      const char* better = "yes";
      const char* worse = i % 2 == 0 ? "no" : "never, ever";
      lines += fmt::format(
          "{{\"prompt\": \"say {0}\", \"chosen\": \"{1} {0}\", \"rejected\": \"{2} {0}\"}}\n",
          i % 7, better, worse);
    }
    write_file_atomically(path("pairs.jsonl"), lines);
    write_file_atomically(path("chat.jinja"), kPairsTemplate);
  }
  std::vector<std::string> prefer(const std::string& name,
                                  const std::vector<std::string>& more = {}) const {
    std::vector<std::string> args{"train",
                                  "--task",
                                  "dpo",
                                  "--init-from",
                                  path("base").string(),
                                  "--data",
                                  path("pairs.jsonl").string(),
                                  "--chat-template",
                                  path("chat.jinja").string(),
                                  "--output-dir",
                                  path(name).string(),
                                  "--lora-r",
                                  "4",
                                  "--max-steps",
                                  "12",
                                  "--eval-steps",
                                  "4",
                                  "--learning-rate",
                                  "0.02",
                                  "--warmup-steps",
                                  "0",
                                  "--batch-size",
                                  "4",
                                  "--samples",
                                  "0",
                                  "--threads",
                                  "1"};
    put_options(args, more);
    return args;
  }
  /// The values of a field in the records that have `beside`.
  std::vector<double> series(const std::string& run, const char* field,
                             const char* beside = "loss") const {
    std::vector<double> values;
    for (const nlohmann::json& record : io::read_jsonl(path(run) / "log.jsonl"))
      if (record.contains(beside) && record.contains(field))
        values.push_back(record[field].get<double>());
    return values;
  }
  static constexpr const char* kFigures[] = {"rewards/chosen",     "rewards/rejected",
                                             "rewards/accuracies", "rewards/margins",
                                             "logps/chosen",       "logps/rejected"};
};

TEST_F(PreferenceTraining, PreferredAnswersGain) {
  for (const auto& [name, more] : {std::pair<const char*, std::vector<std::string>>{"lora", {}},
                                   {"full", {"--lora-r", "off", "--learning-rate", "0.002"}},
                                   {"ipo", {"--dpo-loss", "ipo", "--dpo-beta", "0.5"}},
                                   {"smoothed", {"--dpo-label-smoothing", "0.1"}},
                                   {"bf16", {"--precision", "bf16"}},
                                   {"four", {"--load-in-4bit"}},
                                   {"saved", {"--lora-modules-to-save", "wte"}}}) {
    ASSERT_EQ(run(prefer(name, more)), 0) << name << "\n" << err_;
    EXPECT_NE(err_.find("54 pairs for training and 6 for validation"), std::string::npos) << err_;
    EXPECT_NE(err_.find("computing the reference's log probabilities of 60 pairs"),
              std::string::npos)
        << err_;
    EXPECT_NE(err_.find("reference: 60 pairs in "), std::string::npos) << err_;
    const std::vector<double> losses = series(name, "loss"),
                              margins = series(name, "rewards/margins"),
                              evaluated = series(name, "rewards/margins", "val_loss");
    ASSERT_EQ(losses.size(), 12u) << name;
    const double start = std::string(name) == "ipo" ? 1.0 : std::log(2.0);  // (1 / (2 beta))^2
    EXPECT_NEAR(losses.front(), start, 1e-5) << name;
    EXPECT_LT(losses.back(), losses.front()) << name;
    EXPECT_GT(margins.back(), 0.05) << name;
    ASSERT_EQ(evaluated.size(), 4u) << name;  // before the first step, too
    EXPECT_NEAR(evaluated.front(), 0, 1e-5) << name;
    EXPECT_GT(evaluated.back(), 0.05) << name;
    EXPECT_EQ(series(name, "rewards/accuracies", "val_loss").back(), 1) << name;
    for (const char* figure : kFigures) {
      EXPECT_EQ(series(name, figure).size(), 12u) << figure;
      EXPECT_EQ(series(name, figure, "val_loss").size(), 4u) << figure;
    }
  }
}

TEST_F(PreferenceTraining, ResumedRunsHaveTheSameBits) {
  for (const auto& [name, more] :
       {std::pair<const char*, std::vector<std::string>>{"lora", {"--lora-dropout", "0.1"}},
        {"dropped", {"--dropout", "0.2"}},
        {"full", {"--lora-r", "off", "--learning-rate", "0.002"}},
        {"eight", {"--load-in-8bit", "--precision", "bf16"}}}) {
    ASSERT_EQ(run(prefer(name, more)), 0) << err_;
    const std::string parts = std::string(name) + "_parts";
    fs::copy(path(name), path(parts), fs::copy_options::recursive);
    fs::remove_all(path(parts) / "checkpoint-000012");
    ASSERT_EQ(run({"train", "--resume", path(parts).string()}), 0) << err_;
    EXPECT_EQ(err_.find("computing the reference"), std::string::npos) << err_;
    EXPECT_EQ(loss_series(parts), loss_series(name));
    for (const char* figure : kFigures) EXPECT_EQ(series(parts, figure), series(name, figure));
    const char* weights =
        std::string(name) == "full" ? "model.safetensors" : "adapter_model.safetensors";
    EXPECT_EQ(read_file(path(parts) / weights), read_file(path(name) / weights));
  }
}

TEST_F(PreferenceTraining, PortionsOfAStepGiveTheSameNumbers) {
  ASSERT_EQ(run(prefer("whole")), 0) << err_;
  ASSERT_EQ(run(prefer("cut", {"--batch-size", "1", "--gradient-accumulation-steps", "4"})), 0)
      << err_;
  const std::vector<double> whole = series("whole", "loss"), cut = series("cut", "loss");
  ASSERT_EQ(whole.size(), cut.size());
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(cut[i], whole[i], 1e-4) << i;
  const std::vector<double> margins = series("whole", "rewards/margins"),
                            of_parts = series("cut", "rewards/margins");
  for (size_t i = 0; i < margins.size(); ++i) EXPECT_NEAR(of_parts[i], margins[i], 1e-3) << i;
}

TEST_F(PreferenceTraining, RanksHaveTheSameBits) {
  const std::vector<std::string> slots = {"--deterministic-ranks", "2", "--batch-size", "4"};
  ASSERT_EQ(run(prefer("one", slots)), 0) << err_;
  std::vector<std::string> args{"launch", "-n", "2"};
  std::vector<std::string> two = prefer("two", slots);
  args.insert(args.end(), two.begin(), two.end());
  ASSERT_EQ(run(args), 0) << err_;
  EXPECT_EQ(loss_series("two"), loss_series("one"));
  for (const char* figure : kFigures)
    EXPECT_EQ(series("two", figure, "val_loss"), series("one", figure, "val_loss")) << figure;
  EXPECT_EQ(read_file(path("two") / "adapter_model.safetensors"),
            read_file(path("one") / "adapter_model.safetensors"));
}

TEST_F(PreferenceTraining, ASignalStopsTheReferencePass) {
  std::string lines;
  for (int i = 0; i < 12'000; ++i)
    lines +=
        fmt::format("{{\"prompt\": \"{0}\", \"chosen\": \"yes {0}\", \"rejected\": \"no\"}}\n", i);
  write_file_atomically(path("many.jsonl"), lines);
  for (const bool is_launched : {false, true}) {
    const std::string name = is_launched ? "ranks" : "alone";
    const int signal = is_launched ? SIGTERM : SIGINT;
    std::vector<std::string> args = prefer(name, {"--data", path("many.jsonl").string(),
                                                  "--batch-size", "2", "--eval-batch-size", "1"});
    if (is_launched) args.insert(args.begin(), {"launch", "-n", "2"});
    Child child(path("."), args);
    const double begin = now_seconds();
    while (child.err().find("computing the reference") == std::string::npos) {
      ASSERT_LT(now_seconds() - begin, 120) << child.err();
      ::usleep(2000);
    }
    child.send(signal);
    ASSERT_EQ(child.wait(), 128 + signal) << child.err();
    for (const char* part :
         {"stopping before the first step", "stopped by a signal before the first step"})
      EXPECT_NE(child.err().find(part), std::string::npos) << child.err();
    EXPECT_EQ(child.err().find("reference: 12,000 pairs"), std::string::npos) << child.err();
    EXPECT_FALSE(fs::exists(path(name) / "adapter_model.safetensors"));
    EXPECT_FALSE(fs::exists(path(name) / "log.jsonl"));
  }
  ASSERT_EQ(run(prefer("alone", {"--overwrite"})), 0) << err_;
}

TEST_F(PreferenceTraining, PlansAndProfilesCountBothSequences) {
  std::vector<std::string> args = prefer("none", {"--context", "32", "--json"});
  args[0] = "plan";
  args.insert(args.begin() + 1, "--no-measure");
  ASSERT_EQ(run(args), 0) << err_;
  EXPECT_EQ(json()["tokens_per_step"], 4 * 2 * 32);
  args[0] = "profile";
  args[1] = "--no-advice";
  put_options(args, {"--seconds", "0"});
  ASSERT_EQ(run(args), 0) << err_;
  EXPECT_EQ(json()["tokens_per_step"], 4 * 2 * 32);
  EXPECT_NE(json()["title"].get<std::string>().find("4 x 2 sequences of 32 tokens"),
            std::string::npos)
      << out_;
  std::erase(args, "--data");
  std::erase(args, path("pairs.jsonl").string());
  EXPECT_EQ(run(args), 2) << err_;
}

// The figures of train for its validation file.
TEST_F(PreferenceTraining, EvalScoresPairsAgainstTheBase) {
  std::string lines;
  for (int i = 0; i < 7; ++i)
    lines +=
        fmt::format("{{\"prompt\": \"say {0}\", \"chosen\": \"yes {1}\", \"rejected\": \"no\"}}\n",
                    i, std::string(static_cast<size_t>(i), 'x'));
  const std::string held = path("held.jsonl").string(), base = path("base").string();
  write_file_atomically(held, lines);
  for (const auto& [name, options] : {std::pair<const char*, std::vector<std::string>>{"lora", {}},
                                      {"ipo", {"--dpo-loss", "ipo", "--dpo-beta", "0.5"}},
                                      {"saved", {"--lora-modules-to-save", "wte"}}}) {
    std::vector<std::string> more{"--val-data", held, "--eval-batches", "0", "--json"};
    more.insert(more.end(), options.begin(), options.end());
    ASSERT_EQ(run(prefer(name, more)), 0) << err_;
    const auto reported = json();
    for (std::vector<std::string> args :
         {std::vector<std::string>{"eval", path(name).string(), "--data", held, "--json"},
          {"eval", base, "--adapter", path(name).string(), "--data", held, "--chat-template",
           path("chat.jinja").string(), "--batch-size", "3", "--json"}}) {
      ASSERT_EQ(run(args), 0) << err_;
      EXPECT_NEAR(json()["loss"].get<double>(), reported["val_loss"].get<double>(), 1e-5) << name;
      EXPECT_EQ(json()["pairs"], 7);
      for (const char* figure : kFigures)
        EXPECT_NEAR(json()[figure].get<double>(), series(name, figure, "val_loss").back(), 1e-4)
            << name << " " << figure;
      EXPECT_EQ(json()["reference"], base);
    }
  }
  // Options override the record of the run.
  ASSERT_EQ(run({"eval", path("ipo").string(), "--data", held, "--dpo-beta", "0.25", "--json"}), 0)
      << err_;
  EXPECT_EQ(json()["dpo_loss"], "ipo");
  EXPECT_EQ(json()["dpo_beta"], 0.25);
  EXPECT_EQ(run({"eval", path("ipo").string(), "--data", held, "--dpo-label-smoothing", "0.1"}), 2);
  EXPECT_NE(err_.find("applies to --dpo-loss sigmoid only"), std::string::npos) << err_;
  ASSERT_EQ(run({"eval", path("lora").string(), "--data", held, "--batch-size", "2", "--json"}), 0)
      << err_;
  const auto alone = json();
  ASSERT_EQ(run({"launch", "-n", "2", "eval", path("lora").string(), "--data", held, "--batch-size",
                 "2", "--json"}),
            0)
      << err_;
  EXPECT_EQ(json()["loss"], alone["loss"]);
  EXPECT_EQ(json()["rewards/margins"], alone["rewards/margins"]);
  EXPECT_EQ(run({"eval", base, held, "--chat-template", path("chat.jinja").string()}), 2);
  EXPECT_NE(err_.find("scored against a reference, the base of an adapter"), std::string::npos)
      << err_;
}

TEST_F(PreferenceTraining, BadInputIsRefused) {
  const auto refused = [&](const std::vector<std::string>& args, const char* why, int code) {
    EXPECT_EQ(run(args), code) << why;
    EXPECT_NE(err_.find(why), std::string::npos) << err_;
  };
  refused({"train", "--task", "dpo", "--data", path("pairs.jsonl").string()},
          "--task dpo starts from a trained model", 2);
  refused({"train", "--dpo-beta", "0.2"}, "--dpo-beta is for pairs of answers", 2);
  refused(prefer("a", {"--pack", "documents"}), "--task dpo never pads", 2);
  refused(prefer("a", {"--sampling", "epoch"}), "works with --sampling documents", 2);
  refused(prefer("a", {"--dpo-loss", "ipo", "--dpo-label-smoothing", "0.1"}),
          "applies to --dpo-loss sigmoid only", 2);
  refused(prefer("a", {"--label-smoothing", "0.1"}), "take --dpo-label-smoothing", 2);
  refused(prefer("a", {"--context", "8"}),
          "no pair has answers that differ within the context of 8", 1);
  write_file_atomically(path("bad.jsonl"),
                        "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"b\"}\n");
  refused(prefer("a", {"--data", path("bad.jsonl").string()}),
          "bad.jsonl: line 1: \"chosen\" and \"rejected\" are equal", 1);
  EXPECT_FALSE(fs::exists(path("a")));
  // A run goes on with the pairs that its reference knows.
  ASSERT_EQ(run(prefer("b", {"--max-steps", "4"})), 0) << err_;
  write_file_atomically(path("pairs.jsonl"), read_file(path("pairs.jsonl")) +
                                                 "{\"prompt\": \"a\", \"chosen\": \"b\", "
                                                 "\"rejected\": \"c\"}\n");
  EXPECT_EQ(run({"train", "--resume", path("b").string(), "--max-steps", "6"}), 1) << err_;
}

}  // namespace
}  // namespace brrr::test
