// Ladders, profiles and what training says of its numbers, of the program itself.

#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/run_program.h"

namespace brrr {
namespace {

TEST_F(CommandLine, LaddersAreOneObjectAndKeepWhatTheyMeasured) {
  const std::string quick = "--quick --rounds 1 --output-dir lad --html page.html --json";
  const Outcome o = run("ladder overhead fusion " + quick);
  EXPECT_EQ(o.code, 0) << o.err;
  const auto json = nlohmann::json::parse(o.out);
  ASSERT_EQ(json["ladders"].size(), 2u);
  EXPECT_EQ(json["ladders"][0]["ladder"], "overhead");
  EXPECT_EQ(json["ladders"][1]["ladder"], "fusion");
  EXPECT_TRUE(read_file(folder_ / "page.html").starts_with("<!doctype html>"));
  EXPECT_EQ(run("ladder overhead fusion " + quick).out, o.out) << "nothing is measured twice";
  // Another climb leaves the figures of this one alone.
  const auto again = nlohmann::json::parse(run("ladder overhead --again " + quick).out);
  EXPECT_NE(again["ladders"][0], json["ladders"][0]);
  EXPECT_EQ(nlohmann::json::parse(run("ladder fusion " + quick).out)["ladders"][0],
            json["ladders"][1]);
}

TEST_F(CommandLine, LaddersRefuseWhatCancelsTheirRungs) {
  expect_one_line(run("ladder batch --batch-size 4"), 2,
                  "--batch-size: the rungs of the ladder batch differ in it");
  expect_one_line(run("ladder gpt2 --no-torch-compile"), 2, "--torch-compile: the rungs");
  expect_one_line(run("ladder gpt2 --dtype fp32"), 2, "--dtype: the rungs of the ladder gpt2");
  expect_one_line(run("ladder overhead memory --optim sgd"), 2, "the ladder memory");
  expect_one_line(run("ladder --precision bf16"), 2, "the ladder gpt2");
  expect_one_line(run("ladder batch --fit"), 2, "--fit does not apply to a ladder");
  write_file_atomically(folder_ / "run.toml", "n_layer = 2\nbatch_size = 3\n");
  expect_one_line(run("ladder batch --config run.toml"), 2,
                  "run.toml:2: batch_size: the rungs of the ladder batch");
  // Those that time no training step look at none of its options.
  for (const char* option :
       {"--precision bf16", "--n-layer 3", "--text x", "--device cpu", "--config run.toml"})
    expect_one_line(run(fmt::format("ladder fusion overhead {}", option)), 2,
                    "has no effect on fusion, overhead");
  EXPECT_FALSE(fs::exists(folder_ / "ladder"));
}

TEST_F(CommandLine, TheInferenceLadderComparesNumberFormats) {
  const std::string small = "--rounds 1 --quick --threads 1 --output-dir lad --json";
  const Outcome speeds = run("ladder inference --n-layer 1 --n-embd 128 --n-head 2 " + small);
  ASSERT_EQ(speeds.code, 0) << speeds.err;
  const auto random = nlohmann::json::parse(speeds.out)["ladders"][0];
  ASSERT_EQ(random["rungs"].size(), 5u);
  EXPECT_FALSE(random["rungs"][3].contains("loss")) << "random weights lose nothing";
  EXPECT_EQ(run("ladder inference --n-layer 1 --n-embd 128 --n-head 2 " + small).out, speeds.out)
      << "nothing is measured twice";

  std::string text;
  for (int i = 0; i < 400; ++i) text += fmt::format("line {} of a text, {}\n", i, i * i);
  write_file_atomically(folder_ / "text", text);
  ASSERT_EQ(run("train --preset llama-char --text text --tokenizer byte --n-layer 1 --n-embd 128 "
                "--n-head 2 --num-key-value-heads 2 --intermediate-size 160 --context 32 "
                "--batch-size 2 --max-steps 2 --threads 1 --output-dir trained --json")
                .code,
            0);
  const Outcome o = run("ladder --model trained --text text --html page.html " + small);
  ASSERT_EQ(o.code, 0) << o.err;
  const auto ladder = nlohmann::json::parse(o.out)["ladders"][0];
  EXPECT_EQ(ladder["ladder"], "inference");
  const std::vector<std::string> formats{"fp32", "bf16", "int8-weight-only", "int8", "int4"};
  ASSERT_EQ(ladder["rungs"].size(), formats.size());
  for (size_t i = 0; i < formats.size(); ++i) {
    const auto& rung = ladder["rungs"][i];
    EXPECT_EQ(rung["name"], formats[i]);
    EXPECT_GT(rung["ms_per_token"], 0);
    EXPECT_GT(rung["prompt_tokens_per_second"], 0);
    EXPECT_GT(rung["bandwidth_fraction"], 0);
    EXPECT_GT(rung["loss"], 0);
    EXPECT_LE(rung["same_token"], 1);
    if (i == 0) continue;
    EXPECT_GT(rung["kl_divergence"], 0) << formats[i];
    EXPECT_LT(rung["weight_bytes"], ladder["rungs"][0]["weight_bytes"]) << formats[i];
  }
  EXPECT_EQ(ladder["rungs"][0]["kl_divergence"], 0);
  EXPECT_EQ(ladder["verdicts"].size(), 4u);
  EXPECT_TRUE(read_file(folder_ / "page.html").starts_with("<!doctype html>"));

  // A quantised folder has its own format beside those of floats.
  ASSERT_EQ(run("quantize trained --no-measure --output integers").code, 0);
  const Outcome own = run("ladder --model integers --text text " + small);
  ASSERT_EQ(own.code, 0) << own.err;
  const auto rungs = nlohmann::json::parse(own.out)["ladders"][0]["rungs"];
  ASSERT_EQ(rungs.size(), 3u);
  EXPECT_EQ(rungs[2]["name"], "int8");

  expect_one_line(run("ladder gpt2 --model trained"), 2, "--model applies to the ladder inference");
  expect_one_line(run("ladder --model trained --n-layer 2"), 2,
                  "--n-layer has no effect on inference with --model");
  expect_one_line(run("ladder inference --text text"), 2,
                  "--text has no effect on inference without --model");
  expect_one_line(run("ladder inference --batch-size 2"), 2, "has no effect on inference;");
  expect_one_line(run("ladder inference --preset bert-mini"), 1, "does not predict next tokens");
  write_file_atomically(folder_ / "short", "ab\n");
  expect_one_line(run("ladder --model trained --text short"), 1, "expected at least 64");
  expect_one_line(run("ladder inference --quick --context 8"), 1, "a context of at least 16");
}

// A ladder's record is found by the contents of the option file, and reused results are reported.
TEST_F(CommandLine, LaddersKeepWhatAFileSays) {
  const std::string command =
      "ladder batch batch --quick --rounds 1 --n-embd 32 --n-head 1 --context 16 --threads 1 "
      "--config run.toml --output-dir lad --json";
  write_file_atomically(folder_ / "run.toml", "n_layer = 1\nlog_interval = 7\n");
  const Outcome first = run(command);
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(first.err.find("measured before"), std::string::npos) << first.err;
  EXPECT_EQ(nlohmann::json::parse(first.out)["ladders"].size(), 1u) << "named twice, climbed once";
  const Outcome same = run(command);
  EXPECT_EQ(same.out, first.out);
  EXPECT_NE(same.err.find("13 of 13 rungs of batch were measured before (2"), std::string::npos)
      << same.err;
  EXPECT_NE(same.err.find("are in lad/ladder.json; use --again to measure them again\n"),
            std::string::npos)
      << same.err;
  write_file_atomically(folder_ / "run.toml", "n_layer = 3\n");
  const Outcome other = run(command);
  EXPECT_EQ(other.err.find("measured before"), std::string::npos) << other.err;
  EXPECT_NE(other.out, first.out);
}

TEST_F(CommandLine, AStoppedLadderSaysHowToGoOn) {
  const Outcome o = run("ladder overhead --rounds 500 --threads 1 --output-dir lad", "",
                        "timeout --preserve-status -s INT 2.5");
  EXPECT_EQ(o.code, 130) << o.err;
  EXPECT_EQ(o.out, "");
  EXPECT_TRUE(o.err.ends_with(
      "stopped; measurements so far are in lad/ladder.json; to continue, run the same command\n"))
      << o.err;
  const auto kept = nlohmann::json::parse(read_file(folder_ / "lad/ladder.json"));
  EXPECT_GE(kept.begin().value()[0]["ms"].size(), 1u);
}

TEST_F(CommandLine, AProfileIsOneObject) {
  for (const char* mode : {"", "--inference", "--generate"}) {
    const Outcome o = run(fmt::format(
        "profile {} --n-layer 1 --n-embd 16 --n-head 2 --context 32 --batch-size 1 --seconds 0 "
        "--no-advice --json --trace trace.json --html page.html",
        mode));
    EXPECT_EQ(o.code, 0) << o.err;
    EXPECT_GT(nlohmann::json::parse(o.out)["step_ms"], 0);
    EXPECT_FALSE(nlohmann::json::parse(read_file(folder_ / "trace.json"))["traceEvents"].empty());
    EXPECT_TRUE(read_file(folder_ / "page.html").starts_with("<!doctype html>"));
  }
}

TEST_F(CommandLine, AProfileSaysWhatItsModeLeavesOut) {
  const std::string tiny =
      "--n-layer 1 --n-embd 16 --n-head 2 --context 32 --seconds 0 --no-advice ";
  Outcome o = run("profile --generate " + tiny + "--batch-size 8 --optim lion --threads 1");
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.err.find("note: no effect on what is timed: --batch-size, --optim\n"),
            std::string::npos)
      << o.err;
  o = run("profile --inference " + tiny + "--batch-size 2");
  EXPECT_EQ(o.err.find("note:"), std::string::npos) << o.err;
  o = run("profile " + tiny + "--batch-size 2 --optim lion");
  EXPECT_EQ(o.err.find("note:"), std::string::npos) << o.err;
  o = run("profile " + tiny + "--output-dir x --live");
  EXPECT_NE(o.err.find("note: no effect on what is timed: --output-dir, --live"), std::string::npos)
      << o.err;
  expect_one_line(run("profile --prompt 3"), 2, "--generate");
  expect_one_line(run("profile --trace a --html a"), 2, "two files");
}

/// Products of 8 bits are emulated here, or there are none: not the same.
TEST_F(CommandLine, TrainingIn8BitsSaysWhatItIs) {
  write_file_atomically(folder_ / "text", std::string(2000, 'a'));
  const std::string train =
      "train --text text --precision fp8 --n-layer 1 --n-head 1 --max-steps 1 --eval-steps 0 "
      "--save-steps 0 --samples 0 --overwrite --output-dir r ";
  Outcome o = run(train + "--n-embd 16 --context 16 --batch-size 2");
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.err.find("--precision fp8 is emulated"), std::string::npos) << o.err;
  o = run(train + "--n-embd 20 --context 15 --batch-size 1");
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.err.find("--precision fp8 runs as --precision bf16 here"), std::string::npos)
      << o.err;
}

}  // namespace
}  // namespace brrr
