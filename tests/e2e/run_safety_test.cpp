// Run folders that come from somebody else or are damaged: what they may do to a run, and what a
// run may do to the files of others.

#include <sys/wait.h>

#include <algorithm>
#include <functional>
#include <set>

#include "base/rng.h"
#include "e2e/run.h"
#include "folders/checkpoint.h"
#include "folders/model_folder.h"
#include "support/long_proof.h"
#include "train/trainer.h"

namespace brrr::test {
namespace {

const std::string kDeep(100'000, '[');

class RunSafety : public EndToEnd {
 protected:
  std::vector<std::string> tiny(const std::string& name, std::vector<std::string> more = {}) const {
    std::vector<std::string> args = small_run(
        name, {"--n-embd", "16", "--context", "16", "--batch-size", "2", "--max-steps", "10",
               "--save-steps", "5", "--eval-steps", "5", "--save-total-limit", "0"});
    put_options(args, more);
    return args;
  }
  std::string at(const std::string& name) const { return path(name).string(); }
  bool says(const std::string& part) const { return err_.find(part) != std::string::npos; }
  static void put(const fs::path& file, const std::string& text) { write_cache_file(file, text); }

  /// The checkpoint of step 10 with `change` made to its files, under a manifest that is sound.
  void forge(const std::string& name, const std::function<void(const fs::path&)>& change) {
    const fs::path from = path(name) / "checkpoint-000010";
    io::CheckpointWriter writer(path(name), 10);
    for (const auto& file : fs::directory_iterator(from))
      if (file.path().filename() != "manifest.json")
        fs::copy(file.path(), writer.folder() / file.path().filename());
    change(writer.folder());
    writer.commit();
  }
};

// A sound manifest says only that the files are those that were meant.
TEST_F(RunSafety, AHostileNewestCheckpointIsPassedOver) {
  ASSERT_EQ(run(tiny("run")), 0) << err_;
  fs::copy(path("run") / "checkpoint-000010", path("kept"));
  train::TrainOptions options;
  options.resume = at("run");
  const auto resumes_at = [&] { return train::find_resume_point(options).checkpoint.filename(); };
  const auto replaced = [](const char* file, const std::string& from, const std::string& to) {
    return [=](const fs::path& folder) {
      std::string text = read_file(folder / file);
      const size_t at = text.find(from);
      ASSERT_NE(at, std::string::npos) << from;
      put(folder / file, text.replace(at, from.size(), to));
    };
  };
  const auto wrong = [](const char* file, const std::string& text) {
    return [=](const fs::path& folder) { put(folder / file, text); };
  };
  const auto gone = [](const char* file) {
    return [=](const fs::path& folder) { fs::remove(folder / file); };
  };
  for (const auto& change : std::vector<std::function<void(const fs::path&)>>{
           wrong("trainer_state.json", kDeep), wrong("train_config.json", kDeep),
           wrong("config.json", kDeep), wrong("tokenizer.json", kDeep),
           wrong("trainer_state.json", "[]"), wrong("train_config.json", "3"),
           replaced("trainer_state.json", "\"step\": 10", "\"step\": 1e300"),
           replaced("trainer_state.json", "\"step\": 10", "\"step\": 9"),
           replaced("trainer_state.json", "\"evaluated\": 10", "\"evaluated\": \"x\""),
           replaced("config.json", "\"n_embd\": 16", "\"n_embd\": 99999999999999"),
           wrong("optimizer.safetensors", "x"), wrong("model.safetensors", ""),
           gone("trainer_state.json"), gone("model.safetensors"), gone("tokenizer.json")}) {
    forge("run", change);
    EXPECT_EQ(resumes_at(), "checkpoint-000005");
    fs::remove_all(path("run") / "checkpoint-000010");
    fs::copy(path("kept"), path("run") / "checkpoint-000010");
  }
  EXPECT_EQ(resumes_at(), "checkpoint-000010") << "nothing else stands in its way";

  forge("run", wrong("train_config.json", kDeep));
  put(path("run") / "checkpoint-000010/manifest.json", kDeep);
  ASSERT_EQ(run({"train", "--resume", at("run")}), 0) << err_;
  EXPECT_TRUE(says("warning: passed over: ") && says("nested more than 256")) << err_;
  EXPECT_TRUE(says("resumed at step 5")) << err_;
  EXPECT_NO_THROW(io::open_checkpoint(path("run") / "checkpoint-000010")) << "written again";
}

TEST_F(RunSafety, DeepJsonIsAnErrorInEveryFile) {
  ASSERT_EQ(run(tiny("run")), 0) << err_;
  fs::create_directory(path("plain"));
  for (const char* name : {"model.safetensors", "config.json", "tokenizer.json"})
    fs::copy(path("run") / name, path("plain") / name);
  const auto refuses = [&](const std::string& file, std::vector<std::string> args) {
    put(path(file), kDeep);
    EXPECT_EQ(run(args), 1) << file << err_;
    EXPECT_TRUE(says("nested more than 256") && says(path(file).filename())) << file << err_;
  };
  refuses("run/checksums.json", {"generate", "--model", at("run")});
  refuses("run/checkpoint-000010/manifest.json",
          {"generate", "--model", at("run/checkpoint-000010")});
  refuses("plain/tokenizer.json", {"generate", "--model", at("plain")});
  fs::remove(path("plain") / "tokenizer.json");
  refuses("plain/char.json", {"generate", "--model", at("plain")});
  refuses("plain/config.json", {"generate", "--model", at("plain")});
  fs::create_directory(path("ladder"));
  refuses("ladder/ladder.json", {"ladder", "fusion", "--quick", "--output-dir", at("ladder")});
  put(path("run") / "log.jsonl", kDeep + "\n" + read_file(path("run") / "log.jsonl"));
  ASSERT_EQ(run({"report", at("run")}), 0) << err_;
  EXPECT_TRUE(says("log.jsonl: line 1") && says("nested more than 256")) << err_;
}

TEST_F(RunSafety, LinksInTheFolderLeadNowhere) {
  ASSERT_EQ(run(tiny("real")), 0) << err_;
  fs::create_directory_symlink(path("real"), path("run"));  // the folder itself may be one
  const std::vector<std::string> files{"report.html",      "config.json",    "model.safetensors",
                                       "loss.svg",         "checksums.json", "tokenizer.json",
                                       "train_config.json"};
  fs::create_directory(path("mine"));
  for (const std::string& name : files) {
    const fs::path file = path("real") / name, mine = path("mine") / name;
    put(mine, fs::exists(file) ? read_file(file) : "mine");  // it is read through the link
    fs::remove(file);
    fs::create_symlink(mine, file);
  }
  fs::create_directory_symlink(path("mine"), path("real") / "checkpoint-000015");
  std::vector<std::string> before;
  for (const std::string& name : files) before.push_back(read_file(path("mine") / name));
  ASSERT_EQ(run({"generate", "--model", at("run"), "--max-new-tokens", "2"}), 0) << err_;
  ASSERT_EQ(run({"train", "--resume", at("run"), "--max-steps", "15"}), 0) << err_;
  ASSERT_EQ(run({"report", at("run")}), 0) << err_;
  for (size_t i = 0; i < files.size(); ++i) {
    EXPECT_EQ(read_file(path("mine") / files[i]), before[i]) << files[i];
    EXPECT_FALSE(fs::is_symlink(path("real") / files[i])) << files[i];
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(path("mine")), {}), std::ssize(files));

  // What is appended to cannot be replaced.
  const fs::path log = path("real") / "log.jsonl";
  fs::rename(log, path("mine") / "log.jsonl");
  fs::create_symlink(path("mine") / "log.jsonl", log);
  const std::string text = read_file(log);
  EXPECT_EQ(run({"train", "--resume", at("run"), "--max-steps", "20"}), 1);
  EXPECT_TRUE(says("log.jsonl: it is a link")) << err_;
  EXPECT_EQ(read_file(path("mine") / "log.jsonl"), text);
  fs::remove(log);
  fs::remove_all(path("real") / "tensorboard");
  fs::create_directory_symlink(path("mine"), path("real") / "tensorboard");
  EXPECT_EQ(
      run({"train", "--resume", at("run"), "--max-steps", "20", "--report-to", "tensorboard"}), 1);
  EXPECT_TRUE(says("tensorboard: it is a link")) << err_;
  EXPECT_EQ(std::distance(fs::directory_iterator(path("mine")), {}), std::ssize(files) + 1);
}

TEST_F(RunSafety, FoldersOfOthersStay) {
  const auto notes = [&](const std::string& folder) {
    create_folder(path(folder));
    put(path(folder) / "notes.txt", "mine");
  };
  const std::vector<std::string> theirs{"run/replaced-7", "run/.checkpoint-000005.tmp-7",
                                        "run/.checkpoint-000005.deleted-7"};
  for (const std::string& folder : theirs) notes(folder);
  ASSERT_EQ(run(tiny("run")), 0) << err_;
  notes("run/tensorboard");
  notes("run/checkpoint-000099");
  put(path("run") / "generation_config.json", "{\"temperature\": 9}");
  ASSERT_EQ(run(tiny("run", {"--overwrite", "--save-total-limit", "1"})), 0) << err_;
  EXPECT_FALSE(fs::exists(path("run") / "generation_config.json")) << "of the run before";
  std::vector<std::string> all = theirs;
  all.insert(all.end(), {"run/tensorboard", "run/checkpoint-000099"});
  for (const std::string& folder : all)
    EXPECT_TRUE(fs::exists(path(folder) / "notes.txt")) << folder;

  notes("shards/.tokenizer");
  const std::vector<std::string> prepare{
      "data",        "prepare", "--text",       text_path().string(),
      "--tokenizer", "char",    "--output-dir", at("shards")};
  EXPECT_EQ(run(prepare), 1);
  EXPECT_TRUE(says(".tokenizer, which is in the way")) << err_;
  EXPECT_TRUE(fs::exists(path("shards/.tokenizer/notes.txt")));
  fs::remove_all(path("shards/.tokenizer"));
  EXPECT_EQ(run(prepare), 0) << err_;
  EXPECT_FALSE(fs::exists(path("shards/.tokenizer")));
}

TEST_F(RunSafety, WhatAKilledProcessLeftGoesAtTheNextStart) {
  ASSERT_EQ(run(tiny("run")), 0) << err_;
  const pid_t dead = ::fork();
  if (dead == 0) ::_exit(0);
  ::waitpid(dead, nullptr, 0);
  const fs::path left = path("run") / fmt::format(".brrr-tmp-{}-log.jsonl", dead);
  put(left, "half");
  put(path("run") / ".brrr-tmp-notes", "mine");
  ASSERT_EQ(run({"train", "--resume", at("run"), "--max-steps", "11"}), 0) << err_;
  EXPECT_FALSE(fs::exists(left));
  EXPECT_TRUE(fs::exists(path("run") / ".brrr-tmp-notes"));
  // Killed in the middle of a file, a run does leave one.
  EXPECT_EQ(run({"train", "--resume", at("run"), "--max-steps", "12"},
                {"BRRR_FAULT=safetensors.write=kill"}),
            128 + SIGKILL);
  ASSERT_EQ(run({"train", "--resume", at("run"), "--max-steps", "12"}), 0) << err_;
  for (const auto& file : fs::recursive_directory_iterator(path("run")))
    if (const std::string name = file.path().filename(); name != ".brrr-tmp-notes") {
      EXPECT_FALSE(name.starts_with(".")) << name;
    }
}

// A flipped bit in any file that a model is read from is noticed. What the sums do not cover has no
// effect on the model.
TEST_F(RunSafety, EveryFlippedBitOfAModelIsNoticed) {
  ASSERT_EQ(run(tiny("run")), 0) << err_;
  for (const std::string& name : {std::string("run"), std::string("run/checkpoint-000010")}) {
    ASSERT_NO_THROW(io::open_model(path(name)));
    RngStream random({.seed = 5}, 0);
    for (const auto& entry : fs::directory_iterator(path(name))) {
      if (!entry.is_regular_file()) continue;
      const std::string file = entry.path().filename().string();
      // The logs and the options of a run are no part of its model.
      const std::set<std::string> apart{"log.jsonl", "loss.svg", "train_config.json"};
      if (name == "run" && apart.contains(file)) continue;
      const bool is_sums = file == "checksums.json" || file == "manifest.json";
      const std::string whole = read_file(entry.path());
      for (int i = 0; i < rounds(2000, 40); ++i) {
        const size_t byte = random.next_below(whole.size());
        std::string bad = whole;
        bad[byte] = static_cast<char>(bad[byte] ^ (1 << random.next_below(8)));
        put(entry.path(), bad);
        const bool is_space = whole[byte] == ' ' || whole[byte] == '\n';
        if (is_sums && is_space) continue;  // it may become another space
        EXPECT_THROW(io::open_model(path(name)), UserError) << name << "/" << file << ": " << byte;
      }
      put(entry.path(), whole);
    }
    EXPECT_NO_THROW(io::open_model(path(name)));
  }
}

// The tokenizer of a run is used without its model, too.
TEST_F(RunSafety, ATokenizerIsVerifiedByItself) {
  ASSERT_EQ(run(tiny("run")), 0) << err_;
  for (const std::string& folder : {std::string("run"), std::string("run/checkpoint-000010")}) {
    const std::vector<std::string> prepare{
        "data",     "prepare",      "--text",     text_path().string(), "--tokenizer",
        at(folder), "--output-dir", at("shards"), "--overwrite"};
    EXPECT_EQ(run(prepare), 0) << err_;
    const fs::path file = path(folder) / "tokenizer.json";
    put(file, read_file(file) + " ");
    EXPECT_EQ(run(prepare), 1);
    EXPECT_TRUE(says(file.string()) && says("is damaged")) << err_;
  }
}

TEST_F(RunSafety, AnEditIsAcceptedWhenTheUserSaysSo) {
  ASSERT_EQ(run(tiny("run")), 0) << err_;
  for (const std::string& folder : {std::string("run"), std::string("run/checkpoint-000010")}) {
    const std::vector<std::string> verb{"generate", "--model", at(folder), "--max-new-tokens", "2"};
    const fs::path config = path(folder) / "config.json";
    put(config, read_file(config) + "\n");
    EXPECT_EQ(run(verb), 1);
    const std::string sums = folder == "run" ? "checksums.json" : "manifest.json";
    EXPECT_TRUE(says(config.string()) && says("changed on purpose") && says("delete " + sums))
        << err_;
    fs::remove(path(folder) / sums);
    EXPECT_EQ(run(verb), 0) << err_;
  }
}

TEST_F(RunSafety, AnErrorIsALineThatCanBeRead) {
  fs::create_directory(path("model"));
  put(path("model") / "model.safetensors", "");
  put(path("model") / "config.json",
      "{\"model_type\": \"" + std::string(1 << 20, 'x') + "\\u001b[31m\"}");
  EXPECT_EQ(run({"generate", "--model", at("model")}), 1);
  EXPECT_LT(err_.size(), 5000u);
  EXPECT_EQ(run({"generate", "--model", "a\x1b[31m\nb" + std::string(100'000, 'y')}), 1);
  EXPECT_LT(err_.size(), 5000u);
  EXPECT_TRUE(says("a\\x1b[31m\\x0ab")) << err_;
  EXPECT_EQ(std::count(err_.begin(), err_.end(), '\n'), 1);
  EXPECT_EQ(run({std::string(1 << 16, 'z')}), 2);
  EXPECT_LT(err_.size(), 5000u);
}

TEST_F(RunSafety, PickledWeightsAreRefusedWithTheWayOut) {
  ASSERT_EQ(run(tiny("run", {"--max-steps", "1"})), 0) << err_;
  fs::create_directory(path("theirs"));
  for (const char* name : {"config.json", "tokenizer.json"})
    fs::copy(path("run") / name, path("theirs") / name);
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    put(path("theirs") / name, "x");
    EXPECT_EQ(run({"generate", "--model", at("theirs")}), 1);
    EXPECT_TRUE(says("pickle") && says("python3 -c") && says("save_file")) << err_;
  }
}

}  // namespace
}  // namespace brrr::test
