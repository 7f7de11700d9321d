// What a run does with folders: where it writes, what it never overwrites, what it goes on from.

#include <sys/resource.h>

#include <algorithm>

#include "base/clock.h"
#include "e2e/run.h"
#include "folders/checkpoint.h"
#include "folders/model_folder.h"

namespace brrr::test {
namespace {

class RunFolder : public EndToEnd {
 protected:
  /// The smallest run that does everything.
  std::vector<std::string> tiny(const std::string& name, std::vector<std::string> more = {}) const {
    std::vector<std::string> args = small_run(
        name, {"--n-embd", "16", "--context", "16", "--batch-size", "2", "--max-steps", "20",
               "--save-steps", "5", "--eval-steps", "10", "--save-total-limit", "0"});
    put_options(args, more);
    return args;
  }
  std::vector<int64_t> steps_in(const std::string& name) const {
    std::vector<int64_t> steps;
    for (const io::Checkpoint& c : io::list_checkpoints(path(name))) steps.push_back(c.step);
    return steps;
  }
  std::string weights(const std::string& name) const {
    return read_file(path(name) / "model.safetensors");
  }
  bool says(const std::string& part) const { return err_.find(part) != std::string::npos; }
};

using Steps = std::vector<int64_t>;

TEST_F(RunFolder, ACheckpointFolderIsAModelAndAPlaceToGoOnFrom) {
  ASSERT_EQ(run(tiny("run")), 0) << err_;
  EXPECT_EQ(steps_in("run"), (Steps{5, 10, 15, 20})) << "a limit of 0 keeps all";
  const std::string log = loss_series("run"), model = weights("run");
  const std::string ten = (path("run") / "checkpoint-000010").string();
  for (const std::string& name : {ten, ten + "/"}) {
    ASSERT_EQ(run({"generate", "--model", name, "--max-new-tokens", "4"}), 0) << err_;
    ASSERT_EQ(run({"eval", "--model", name, "--text", text_path().string()}), 0) << err_;
  }
  ASSERT_EQ(run(tiny("from", {"--init-from", ten})), 0) << err_;
  fs::copy(ten, path("renamed"));
  ASSERT_EQ(run({"generate", "--model", path("renamed").string(), "--max-new-tokens", "4"}), 0)
      << err_;
  EXPECT_EQ(run({"train", "--resume", path("renamed").string()}), 1);
  EXPECT_TRUE(says("not in a run folder")) << err_;
  fs::copy(path("run"), path("no-model"), fs::copy_options::recursive);
  fs::remove(path("no-model") / "model.safetensors");
  ASSERT_EQ(run({"generate", "--model", path("no-model").string(), "--max-new-tokens", "4"}), 0)
      << err_;

  // What came later is replaced only when there is something to replace it by.
  ASSERT_EQ(run({"train", "--resume", ten}, {"BRRR_FAULT=checkpoint.write=kill"}), 128 + SIGKILL);
  EXPECT_EQ(steps_in("run"), (Steps{5, 10}));
  for (const char* name : {"replaced-000015", "replaced-000020"})
    EXPECT_NO_THROW(io::open_checkpoint(path("run") / name)) << name;
  ASSERT_EQ(run({"train", "--resume", path("run").string()}), 0) << err_;
  EXPECT_EQ(steps_in("run"), (Steps{5, 10, 15, 20}));
  EXPECT_FALSE(fs::exists(path("run") / "replaced-000020"));
  EXPECT_EQ(loss_series("run"), log);
  EXPECT_TRUE(weights("run") == model);

  ASSERT_EQ(run({"train", "--resume", ten + "/"}), 0) << err_;
  EXPECT_TRUE(says("15, 20")) << err_;
  EXPECT_EQ(loss_series("run"), log);
  EXPECT_TRUE(weights("run") == model);
}

// Between setting the first later checkpoint aside and the last.
TEST_F(RunFolder, KilledWhileSettingAsideGoesOnFromALaterStep) {
  ASSERT_EQ(run(tiny("run")), 0) << err_;
  const std::string log = loss_series("run"), model = weights("run");
  ASSERT_EQ(run({"train", "--resume", (path("run") / "checkpoint-000005").string()},
                {"BRRR_FAULT=checkpoint.set_aside=kill"}),
            128 + SIGKILL);
  EXPECT_EQ(steps_in("run"), (Steps{5, 10, 15}));
  ASSERT_EQ(run({"train", "--resume", path("run").string()}), 0) << err_;
  EXPECT_EQ(loss_series("run"), log);
  EXPECT_TRUE(weights("run") == model);
}

TEST_F(RunFolder, ACompleteRunIsLeftAlone) {
  ASSERT_EQ(run(tiny("run")), 0) << err_;
  const std::string record = read_file(path("run") / "train_config.json");
  const std::string log = read_file(path("run") / "log.jsonl");
  const std::string folder = path("run").string();
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{}, {"--max-steps", "20"}, {"--samples", "3"}}) {
    std::vector<std::string> args{"train", "--resume", folder, "--json"};
    put_options(args, more);
    ASSERT_EQ(run(args), 0) << err_;
    EXPECT_TRUE(says("already complete (20 of ")) << err_;
    EXPECT_EQ(std::count(err_.begin(), err_.end(), '\n'), 1) << err_;
    EXPECT_EQ(json()["steps"], 20);
    EXPECT_EQ(read_file(path("run") / "train_config.json"), record);
    EXPECT_EQ(read_file(path("run") / "log.jsonl"), log);
  }
  // Killed after its last checkpoint, it still has its model to write.
  fs::remove(path("run") / "model.safetensors");
  const auto without_end = [](const std::string& text) {
    const std::string cut = text.substr(0, text.find("\"finished\""));
    return cut.substr(0, cut.rfind('\n') + 1);
  };
  write_file_atomically(path("run") / "log.jsonl", without_end(log));
  const std::string series = loss_series("run");
  ASSERT_EQ(run({"train", "--resume", folder}), 0) << err_;
  EXPECT_EQ(loss_series("run"), series) << "the final evaluation stands there once";
  // The last record has the figures of the process that wrote it.
  const std::string again = read_file(path("run") / "log.jsonl");
  EXPECT_EQ(without_end(again), without_end(log));
  EXPECT_EQ(io::read_jsonl(path("run") / "log.jsonl").back()["finished"], true);
  EXPECT_TRUE(fs::exists(path("run") / "model.safetensors"));
}

TEST_F(RunFolder, ResumeKeepsWhatWasRecorded) {
  ASSERT_EQ(run(tiny("run")), 0) << err_;
  const std::string folder = path("run").string();
  ASSERT_EQ(run({"train", "--resume", folder, "--max-steps", "25"}), 0) << err_;
  EXPECT_FALSE(says(": sample")) << "--samples 0 was recorded";
  EXPECT_TRUE(says("on 1 thread\n")) << "--threads 1 was recorded: " << err_;
  ASSERT_EQ(run({"train", "--resume", folder, "--max-steps", "26", "--samples", "1"}), 0) << err_;
  EXPECT_TRUE(says("step 26: sample\n")) << err_;

  EXPECT_EQ(run({"train", "--resume", folder, "--output-dir", path("other").string()}), 2);
  EXPECT_TRUE(says("another folder")) << err_;
  EXPECT_FALSE(fs::exists(path("other")));

  const std::string record = read_file(path("run") / "train_config.json");
  const fs::path last = path("run") / "checkpoint-000026";
  io::CheckpointWriter broken(path("run"), 26);  // sound, and of another optimizer
  for (const auto& file : fs::directory_iterator(last))
    if (file.path().filename() != "manifest.json")
      fs::copy(file.path(), broken.path(file.path().filename().string()));
  fs::copy(last / "model.safetensors", broken.folder() / "optimizer.safetensors",
           fs::copy_options::overwrite_existing);
  broken.commit();
  EXPECT_EQ(run({"train", "--resume", folder, "--max-steps", "30"}), 1);
  EXPECT_EQ(read_file(path("run") / "train_config.json"), record);
}

TEST_F(RunFolder, FilesOfOthersAreNotReplaced) {
  fs::create_directory(path("hf"));
  write_file_atomically(path("hf") / "config.json", "{}");
  write_file_atomically(path("hf") / "notes.txt", "mine");
  EXPECT_EQ(run(tiny("hf")), 1);
  EXPECT_TRUE(says("already holds config.json")) << err_;
  EXPECT_FALSE(says("data:")) << "it is known before the data is read: " << err_;
  write_file_atomically(path("hf") / "vocab.json", "{}");
  write_file_atomically(path("hf") / "merges.txt", "");
  ASSERT_EQ(run(tiny("hf", {"--overwrite"})), 0) << err_;
  EXPECT_EQ(io::open_model(path("hf")).tokenizer->kind(), "char") << "no old tokenizer is left";
  EXPECT_EQ(read_file(path("hf") / "notes.txt"), "mine");

  for (const std::string& name :
       {std::string("text.txt"), std::string("text.txt/below"), std::string(300, 'x')}) {
    EXPECT_EQ(run(tiny(name)), 1);
    EXPECT_EQ(std::count(err_.begin(), err_.end(), '\n'), 1) << err_;
    EXPECT_TRUE(says("cannot write the run to")) << err_;
  }

  fs::create_directory(path("dead"));
  write_file_atomically(path("dead") / "train_config.json", "{}");
  EXPECT_EQ(run(tiny("dead")), 1);
  EXPECT_TRUE(says("--overwrite") && !says("--resume")) << err_;
  EXPECT_EQ(run({"train", "--resume", path("dead").string()}), 1);
  EXPECT_TRUE(says("--overwrite")) << err_;

  EXPECT_EQ(run({"data", "train-tokenizer", "--kind", "char", "--text", text_path().string(),
                 "--output-dir", path("hf").string()}),
            0)
      << err_;
  EXPECT_EQ(run({"data", "train-tokenizer", "--vocab-size", "260", "--text", text_path().string(),
                 "--output-dir", path("hf").string()}),
            1);
  EXPECT_TRUE(says("tokenizer.json")) << err_;
}

TEST_F(RunFolder, OneProcessAtATimeAndSignals) {
  ::setenv("BRRR_FAULT", "checkpoint.write=pause:2500", 1);
  Child child(path("."), tiny("run", {"--max-steps", "1000000", "--save-steps", "0"}));
  ::unsetenv("BRRR_FAULT");
  const double begin = now_seconds();
  while (!fs::exists(path("run") / "log.jsonl") ||
         fs::file_size(path("run") / "log.jsonl") < 2000) {
    ASSERT_LT(now_seconds() - begin, 60);
    ::usleep(2000);
  }
  fs::create_directory(path("two"));
  for (const std::vector<std::string>& args : {tiny("run"), tiny("run", {"--overwrite"})}) {
    Child second(path("two"), args);
    EXPECT_EQ(second.wait(), 1);
    EXPECT_NE(second.err().find("another process"), std::string::npos) << second.err();
  }
  child.send(SIGHUP);
  while (child.err().find("saving after this step") == std::string::npos) {
    ASSERT_LT(now_seconds() - begin, 60);
    ::usleep(2000);
  }
  child.send(SIGTERM);
  child.send(SIGTERM);
  EXPECT_EQ(child.wait(), 128 + SIGHUP) << child.err();
  EXPECT_EQ(steps_in("run").size(), 1u);
}

TEST_F(RunFolder, ASecondSignalLaterEndsAtOnce) {
  Child child(path("."), tiny("run", {"--max-steps", "1000000", "--save-steps", "0"}),
              {"BRRR_FAULT=checkpoint.write=pause:1800000"});
  const double begin = now_seconds();
  while (!fs::exists(path("run") / "log.jsonl") ||
         fs::file_size(path("run") / "log.jsonl") < 2000) {
    ASSERT_LT(now_seconds() - begin, 60);
    ::usleep(2000);
  }
  child.send(SIGINT);
  ::usleep(1'200'000);
  child.send(SIGINT);
  EXPECT_EQ(child.wait(), 128 + SIGINT);  // without waiting for the half hour that saving takes
  EXPECT_TRUE(steps_in("run").empty());
}

TEST_F(RunFolder, ALimitOnTheSizeOfFilesIsOneLine) {
  rlimit old{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  const rlimit low{16384, old.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &low);
  Child child(path("."), tiny("run"));
  ::setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_EQ(child.wait(), 1) << child.err();
  EXPECT_NE(child.err().find("ulimit -f"), std::string::npos) << child.err();
}

TEST_F(RunFolder, TextWithoutANewline) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += "word" + std::to_string(i * i % 89) + " ";
  write_file_atomically(path("line.txt"), text);
  ASSERT_EQ(run(tiny("run", {"--text", path("line.txt").string(), "--samples", "1"})), 0) << err_;
  EXPECT_TRUE(says("step 20: sample\n")) << err_;
  EXPECT_EQ(json()["steps"], 20);
  ASSERT_EQ(run({"generate", "--model", path("run").string(), "--max-new-tokens", "4"}), 0) << err_;
  EXPECT_EQ(run({"generate", "--model", path("run").string(), "--prompt", "\xe2\x82\xac"}), 1);
}

TEST_F(RunFolder, AModelToStartFromBringsItsShape) {
  ASSERT_EQ(run(tiny("run")), 0) << err_;
  const std::vector<std::string> from{"train",
                                      "--text",
                                      text_path().string(),
                                      "--init-from",
                                      path("run").string(),
                                      "--output-dir",
                                      path("next").string(),
                                      "--max-steps",
                                      "2",
                                      "--samples",
                                      "0",
                                      "--json"};
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> args = from;
    put_options(args, more);
    return run(args);
  };
  for (const std::vector<std::string>& more : {std::vector<std::string>{"--n-layer", "3"},
                                               {"--n-embd", "32"},
                                               {"--n-head", "4"},
                                               {"--vocab-size", "500"},
                                               {"--bias"},
                                               {"--tokenizer", "byte"},
                                               {"--tokenizer", "bpe:300"},
                                               {"--context", "17"}}) {
    EXPECT_EQ(with(more), 2) << more[0] << err_;
    EXPECT_TRUE(says(more[0])) << err_;
  }
  EXPECT_EQ(with({"--n-layer", "1", "--tokenizer", path("run").string()}), 0) << err_;
  const auto record = nlohmann::json::parse(read_file(path("next") / "train_config.json"));
  EXPECT_EQ(record["n_embd"], 16) << "the record is of the model";
  EXPECT_EQ(record["context"], 16);
  EXPECT_EQ(run(tiny("v", {"--vocab-size", "1"})), 2);
  EXPECT_TRUE(says("leave it out")) << err_;
}

TEST_F(RunFolder, NamesOfAnyKind) {
  ASSERT_EQ(run(tiny("a run/")), 0) << err_;
  EXPECT_TRUE(says("--model '" + path("a run").string() + "'")) << err_;
  EXPECT_FALSE(says("run//")) << err_;
  ASSERT_EQ(run(tiny("caf\xe9")), 0) << err_;
  EXPECT_EQ(json()["steps"], 20);
  ASSERT_EQ(
      run({"eval", "--model", path("caf\xe9").string(), "--text", text_path().string(), "--json"}),
      0)
      << err_;
  EXPECT_TRUE(json().contains("loss"));
}

}  // namespace
}  // namespace brrr::test
