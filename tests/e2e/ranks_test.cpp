// Runs on several ranks, as processes: the files of one rank, bit for bit, whatever the number of
// ranks, the stage of ZeRO and the transport; killed and resumed by another number of ranks.

#include "e2e/run.h"
#include "folders/checkpoint.h"
#include "support/picture_folder.h"

namespace brrr::test {
namespace {

using Arguments = std::vector<std::string>;

class Ranks : public EndToEnd {
 protected:
  static Arguments launched(int ranks, const Arguments& command) {
    Arguments args{"launch", "-n", std::to_string(ranks)};
    args.insert(args.end(), command.begin(), command.end());
    return args;
  }
  Arguments model(const std::string& name, const Arguments& more = {}) const {
    Arguments args =
        small_run(name, {"--n-embd", "64", "--batch-size", "8", "--max-steps", "12", "--eval-steps",
                         "6", "--dropout", "0.1", "--deterministic-ranks", "4"});
    put_options(args, more);
    return args;
  }
  std::string file(const std::string& run, const std::string& name) const {
    return read_file(path(run) / name);
  }
  void expect_same_files(const std::string& a, const std::string& b, int64_t step = 12) {
    const std::string state = fmt::format("checkpoint-{:06}/optimizer.safetensors", step);
    EXPECT_TRUE(file(a, "model.safetensors") == file(b, "model.safetensors")) << "other weights";
    EXPECT_TRUE(file(a, state) == file(b, state)) << "other states of the optimizer";
    EXPECT_EQ(loss_series(a), loss_series(b));
  }
};

TEST_F(Ranks, WriteTheFilesOfOneRank) {
  ASSERT_EQ(run(model("one")), 0) << err_;
  struct Way {
    const char* name;
    int ranks;
    Arguments options;
  };
  for (const Way& way : {Way{"two", 2, {}}, Way{"four", 4, {"--zero", "1"}},
                         Way{"divided", 2, {"--zero", "3", "--no-overlap"}}}) {
    SCOPED_TRACE(way.name);
    ASSERT_EQ(run(launched(way.ranks, model(way.name, way.options))), 0) << err_;
    expect_same_files("one", way.name);
  }
}

TEST_F(Ranks, TheOptionRanksStartsThem) {
  ASSERT_EQ(run(model("one")), 0) << err_;
  ASSERT_EQ(run(model("two", {"--ranks", "2", "--zero", "2"})), 0) << err_;
  expect_same_files("one", "two");
}

TEST_F(Ranks, AKilledRunIsResumedByAnotherNumberOfRanks) {
  const Arguments longer{"--max-steps", "200", "--save-steps", "10", "--eval-steps", "50"};
  ASSERT_EQ(run(model("whole", longer)), 0) << err_;
  {
    Child child(folder_.path(), launched(4, model("killed", longer)));
    const auto saved = [&] {
      return fs::exists(path("killed")) && !io::list_checkpoints(path("killed")).empty();
    };
    for (int i = 0; i < 6000 && child.is_running() && !saved(); ++i) ::usleep(10000);
    ASSERT_TRUE(saved()) << child.err();
    child.send(SIGINT);
    const int code = child.wait();
    EXPECT_TRUE(code == 130 || code == 0) << child.err();  // 0: it was done before
  }
  ASSERT_EQ(run(launched(2, {"train", "--resume", path("killed").string(), "--zero", "2"})), 0)
      << err_;
  expect_same_files("whole", "killed", 200);
}

// Rank 0 verifies the checkpoints, once for all ranks.
TEST_F(Ranks, ADamagedCheckpointIsNamedOnce) {
  const Arguments longer{"--max-steps", "12", "--save-steps", "6"};
  ASSERT_EQ(run(model("whole", longer)), 0) << err_;
  ASSERT_EQ(run(model("hit", longer)), 0) << err_;
  const auto damage = [&](const fs::path& file) {
    std::string bytes = read_file(file);
    bytes[bytes.size() / 2] ^= 1;
    write_file_atomically(file, bytes);
  };
  const auto checkpoints = io::list_checkpoints(path("hit"));
  ASSERT_EQ(checkpoints.size(), 2u);
  const Arguments resume = launched(2, {"train", "--resume", path("hit").string()});
  const std::string last = (checkpoints[1].folder / "optimizer.safetensors").string();
  damage(last);
  ASSERT_EQ(run(resume), 0) << err_;
  EXPECT_NE(err_.find("passed over: " + last + " is damaged"), std::string::npos) << err_;
  EXPECT_EQ(err_.find("is damaged"), err_.rfind("is damaged")) << err_;
  expect_same_files("whole", "hit");
  for (const io::Checkpoint& checkpoint : io::list_checkpoints(path("hit")))
    damage(checkpoint.folder / "model.safetensors");
  EXPECT_EQ(run(resume), 1) << err_;
  EXPECT_NE(err_.find("has no checkpoint that can be used"), std::string::npos) << err_;
}

TEST_F(Ranks, PicturesKeepTheStatisticsOfTheFirstSlot) {
  write_picture_folder(path("pictures"), 20);
  const auto pictures = [&](const std::string& name, Arguments more) {
    put_options(more, {"--max-steps", "6", "--save-steps", "6", "--deterministic-ranks", "2"});
    return small_picture_run(name, more);
  };
  ASSERT_EQ(run(pictures("one", {})), 0) << err_;
  ASSERT_EQ(run(launched(2, pictures("two", {"--zero", "1"}))), 0) << err_;
  expect_same_files("one", "two", 6);
}

TEST_F(Ranks, TheLogHasTheStepsOfAllRanks) {
  ASSERT_EQ(run(launched(3, model("three", {"--deterministic-ranks", "0", "--batch-size", "9"}))),
            0)
      << err_;
  std::vector<nlohmann::json> records;
  for (const nlohmann::json& record : io::read_jsonl(path("three") / "log.jsonl"))
    if (record.contains("rank_step_ms")) records.push_back(record);
  ASSERT_FALSE(records.empty());
  EXPECT_EQ(records.back()["step"], 12);
  for (const char* name : {"rank_step_ms", "rank_sent_bytes", "rank_process_bytes"}) {
    ASSERT_EQ(records.back()[name].size(), 3u);
    for (const nlohmann::json& value : records.back()[name]) EXPECT_GT(value, 0) << name;
  }
  for (size_t rank = 0; rank < 3; ++rank)
    EXPECT_LE(records.back()["rank_waited_ms"][rank], records.back()["rank_step_ms"][rank]);
  ASSERT_EQ(run({"report", path("three").string(), "--json"}), 0) << err_;
  EXPECT_TRUE(json()["runs"][0]["curves"].contains("rank 2")) << out_;
}

// Every rank writes a part of each file: one that ends in the middle leaves what was there.
TEST_F(Ranks, ARankThatEndsWhileItWritesLeavesTheOldCheckpoint) {
  const Arguments saving{"--max-steps", "12", "--save-steps", "4", "--zero", "2"};
  // A checkpoint has two such files: the third belongs to the second checkpoint.
  ASSERT_NE(run(launched(2, model("killed", saving)), {"BRRR_FAULT=safetensors.write@1=kill:3"}),
            0);
  const auto left = io::list_checkpoints(path("killed"));
  ASSERT_EQ(left.size(), 1u) << err_;
  EXPECT_EQ(left[0].step, 4);
  io::verify(left[0]);
  ASSERT_EQ(run(launched(4, {"train", "--resume", path("killed").string()})), 0) << err_;
  ASSERT_EQ(run(model("whole", saving)), 0) << err_;
  expect_same_files("whole", "killed");
  // A disk that is full for one rank is an error of all, which rank 0 tells.
  EXPECT_EQ(run(launched(2, model("full", saving)), {"BRRR_FAULT=safetensors.write@1=enospc"}), 1);
  EXPECT_NE(err_.find("No space left on device"), std::string::npos) << err_;
  EXPECT_TRUE(io::list_checkpoints(path("full")).empty());
}

// Where ranks do not see the files of rank 0, it gathers what they hold.
TEST_F(Ranks, RanksWithoutACommonFileSystemGiveTheSameFiles) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a process other mounts";
  ASSERT_EQ(run(model("one", {"--zero", "2"})), 0) << err_;
  const Arguments command = model("two", {"--zero", "2"});
  const auto place = [&](const char* number) {
    return Arguments{std::string("RANK=") + number, "WORLD_SIZE=2",
                     std::string("LOCAL_RANK=") + number, "LOCAL_WORLD_SIZE=2",
                     "BRRR_RUN_ID=apart" + std::to_string(::getpid())};
  };
  std::string words;
  for (const std::string& word : place("1")) words += " " + word;
  words += " '" BRRR_BINARY "'";
  for (const std::string& word : command) words += " '" + word + "'";
  fs::create_directories(path("two"));
  fs::create_directories(path("rank0"));
  Child first(path("rank0"), command, place("0"));
  const std::string apart =
      fmt::format("unshare -m sh -c \"mount -t tmpfs none '{}' && exec env{}\" >/dev/null 2>'{}'",
                  path("two").string(), words, path("rank1.err").string());
  EXPECT_EQ(std::system(apart.c_str()), 0) << read_file(path("rank1.err"));
  EXPECT_EQ(first.wait(), 0) << first.err();
  expect_same_files("one", "two");
}

TEST_F(Ranks, WhatDiffersBetweenRanksIsNamed) {
  struct Difference {
    const char *rate, *isa;  // of rank 1
    const char* words;
  };
  for (const Difference& d :
       {Difference{"0.002", "sse4", "rank 1 has --learning-rate 0.002, rank 0 has 0.001"},
        Difference{"0.001", "portable", "rank 1 has other kernels than rank 0: cpu:portable"}}) {
    const auto rank = [&](const std::string& number, const char* rate, const char* isa) {
      const fs::path folder = path("rank" + number);
      fs::create_directories(folder);
      return std::make_unique<Child>(
          folder, model("run", {"--learning-rate", rate}),
          Arguments{"RANK=" + number, "WORLD_SIZE=2", "LOCAL_RANK=" + number, "LOCAL_WORLD_SIZE=2",
                    std::string("BRRR_ISA=") + isa,
                    fmt::format("BRRR_RUN_ID={}-{}", d.isa, ::getpid())});
    };
    const auto first = rank("0", "0.001", "sse4"), second = rank("1", d.rate, d.isa);
    EXPECT_EQ(first->wait(), 2);
    EXPECT_EQ(second->wait(), 2);
    EXPECT_NE(first->err().find(d.words), std::string::npos) << first->err();
  }
}

TEST_F(Ranks, NumbersThatDoNotDivideAreRefused) {
  struct Case {
    Arguments options;
    const char* words;
  };
  for (const Case& c :
       {Case{{"--ranks", "3"}, "cannot be divided among 3 ranks"},
        Case{{"--ranks", "8"}, "cannot be divided among 8 ranks"},
        Case{{"--deterministic-ranks", "3"}, "expected a power of two"},
        Case{{"--ranks", "16", "--deterministic-ranks", "16"}, "8 rows of a step"},
        Case{{"--zero", "4"}, "zero"}, Case{{"--ranks", "2", "--device", "cuda"}, "runs on CPUs"},
        Case{{"--ranks", "2", "--comm", "nccl"}, "NCCL connects GPUs"}}) {
    EXPECT_EQ(run(model("refused", c.options)), 2) << err_;
    EXPECT_NE(err_.find(c.words), std::string::npos) << err_;
  }
}

}  // namespace
}  // namespace brrr::test
