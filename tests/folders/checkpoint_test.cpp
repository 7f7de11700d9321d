#include "folders/checkpoint.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include <cstring>
#include <fstream>

#include "base/clock.h"
#include "base/rng.h"
#include "formats/safetensors.h"
#include "support/temp_folder.h"

namespace brrr::io {
namespace {

using test::TempFolder;
using test::user_error_of;

std::vector<float> weights_of(int64_t step, size_t count = 1000) {
  std::vector<float> out(count);
  RngStream rng({.seed = static_cast<uint32_t>(step)}, 0);
  for (float& x : out) x = rng.next_uniform();
  return out;
}

Checkpoint save(const fs::path& run, int64_t step, size_t count = 1000) {
  CheckpointWriter writer(run, step);
  const std::vector<float> weights = weights_of(step, count);
  const TensorView tensors[] = {
      {"a", f32, Shape({static_cast<int64_t>(count)}), std::as_bytes(std::span(weights))},
      {"b", f32, Shape({10}), std::as_bytes(std::span(weights)).first(40)}};
  write_safetensors(writer.path("model.safetensors"), tensors);
  write_file_atomically(writer.path("trainer_state.json"), fmt::format("{{\"step\":{}}}\n", step));
  write_file_atomically(writer.folder() / "vocab.json", "{}");
  return writer.commit();
}

/// What save() wrote for this step is there, bit for bit.
void expect_intact(const Checkpoint& c, size_t count = 1000) {
  EXPECT_NO_THROW(verify(c));
  const SafetensorsFile file(c.folder / "model.safetensors");
  std::vector<float> read(count);
  copy_as_f32(file.get("a"), read);
  EXPECT_EQ(read, weights_of(c.step, count));
}

std::vector<int64_t> steps_in(const fs::path& run) {
  std::vector<int64_t> out;
  for (const Checkpoint& c : list_checkpoints(run)) out.push_back(c.step);
  return out;
}

std::vector<std::string> hidden_in(const fs::path& run) {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(run))
    if (entry.path().filename().string().starts_with(".")) out.push_back(entry.path().filename());
  return out;
}

std::optional<Checkpoint> latest(const fs::path& run) {
  return latest_valid(run, [](const std::string& line) { ADD_FAILURE() << line; });
}

void flip_bit(const fs::path& path, size_t at) {
  std::string bytes = read_file(path);
  bytes.at(at) = static_cast<char>(bytes.at(at) ^ 4);
  FileWriter out(path);
  out.write(bytes);
  out.finish();
}

using Steps = std::vector<int64_t>;

TEST(Checkpoint, CommittedFoldersAreListedByStepAndVerify) {
  TempFolder run;
  for (const int64_t step : {1'500'000, 20, 0, 100}) save(run.path(), step);
  fs::create_directory(run / "checkpoint-");
  fs::create_directory(run / "checkpoint-best");
  fs::create_directory(run / "checkpoint-12x");
  write_file_atomically(run / "checkpoint-000007", "a file, not a folder");
  EXPECT_EQ(steps_in(run.path()), (Steps{0, 20, 100, 1'500'000}));
  EXPECT_TRUE(fs::exists(run / "checkpoint-000020/manifest.json"));
  EXPECT_TRUE(hidden_in(run.path()).empty());
  for (const Checkpoint& c : list_checkpoints(run.path())) expect_intact(c);
  EXPECT_EQ(latest(run.path())->step, 1'500'000);
  EXPECT_USER_ERROR(list_checkpoints(run / "absent"), "cannot list the folder");
}

TEST(Checkpoint, NoneInAFreshRun) {
  TempFolder run;
  EXPECT_TRUE(list_checkpoints(run.path()).empty());
  EXPECT_FALSE(latest(run.path()).has_value());
  EXPECT_TRUE(prune(run.path(), {}).empty());
}

TEST(Checkpoint, AbandonedWriterLeavesNothing) {
  TempFolder run;
  {
    CheckpointWriter writer(run.path(), 5);
    write_file_atomically(writer.path("a"), "x");
    EXPECT_EQ(hidden_in(run.path()).size(), 1u);
  }
  EXPECT_TRUE(fs::is_empty(run.path()));
}

TEST(Checkpoint, APromisedFileMustBeThere) {
  TempFolder run;
  CheckpointWriter writer(run.path(), 5);
  writer.path("model.safetensors");
  EXPECT_THROW(writer.commit(), InternalError);
}

TEST(Checkpoint, SavingAStepAgainReplacesIt) {
  TempFolder run;
  save(run.path(), 10);
  flip_bit(run / "checkpoint-000010/vocab.json", 0);
  const Checkpoint again = save(run.path(), 10);
  expect_intact(again);
  EXPECT_EQ(steps_in(run.path()), Steps{10});
  EXPECT_TRUE(hidden_in(run.path()).empty());
}

TEST(Checkpoint, AFolderOfAnyNameSaysItsStep) {
  TempFolder run;
  const Checkpoint c = save(run.path(), 10);
  EXPECT_EQ(open_checkpoint(c.folder).step, 10);
  EXPECT_EQ(open_checkpoint(c.folder.string() + "/").step, 10);
  fs::rename(c.folder, run / "best");
  EXPECT_EQ(open_checkpoint(run / "best").step, 10);
  fs::rename(run / "best", run / "checkpoint-000011");
  EXPECT_USER_ERROR(open_checkpoint(run / "checkpoint-000011"), "the folder's name says 11");
}

TEST(Checkpoint, LaterStepsAreSetAsideThenDropped) {
  TempFolder run;
  for (const int64_t step : {5, 10, 15, 20}) save(run.path(), step);
  write_file_atomically(run / "replaced-notes", "not ours");
  EXPECT_EQ(set_aside_after(run.path(), 10), (Steps{15, 20}));
  EXPECT_EQ(steps_in(run.path()), (Steps{5, 10}));
  EXPECT_EQ(open_checkpoint(run / "replaced-000020").step, 20);
  save(run.path(), 20);
  EXPECT_EQ(set_aside_after(run.path(), 10), Steps{20}) << "over one of the same name";
  drop_set_aside(run.path());
  EXPECT_EQ(steps_in(run.path()), (Steps{5, 10}));
  EXPECT_FALSE(fs::exists(run / "replaced-000015"));
  EXPECT_TRUE(fs::exists(run / "replaced-notes"));
}

TEST(Checkpoint, VerifyNamesTheDamage) {
  TempFolder run;
  const Checkpoint c = save(run.path(), 10);
  const fs::path model = c.folder / "model.safetensors";
  const std::string whole = read_file(model);

  flip_bit(model, 3000);
  const std::string flipped = user_error_of([&] { verify(c); });
  EXPECT_NE(flipped.find("model.safetensors is damaged: expected CRC-32C '"), std::string::npos)
      << flipped;
  EXPECT_NE(flipped.find("', found '"), std::string::npos) << flipped;

  write_file_atomically(model, whole.substr(0, 2000));
  EXPECT_USER_ERROR(
      verify(c),
      fmt::format("model.safetensors is damaged: expected {} bytes, found 2000", whole.size()));
  fs::remove(model);
  EXPECT_USER_ERROR(verify(c), "model.safetensors is missing from the checkpoint");
  write_file_atomically(model, whole);
  expect_intact(c);

  fs::remove(c.folder / "manifest.json");
  EXPECT_USER_ERROR(verify(c),
                    "checkpoint-000010 is not a complete checkpoint: manifest.json is missing");
}

TEST(Checkpoint, EveryChangedByteOfTheManifestIsNoticedOrHarmless) {
  TempFolder run;
  const Checkpoint c = save(run.path(), 10);
  const fs::path path = c.folder / "manifest.json";
  const std::string whole = read_file(path);
  int noticed = 0;
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string bad = whole;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    std::ofstream(path, std::ios::binary) << bad;  // not synced: hundreds of them
    try {
      verify(c);
      EXPECT_TRUE(std::isspace(static_cast<unsigned char>(whole[i])))
          << "byte " << i << ": " << whole[i];
    } catch (const UserError& e) {
      ++noticed;
      EXPECT_NE(std::string(e.what()).find("manifest.json"), std::string::npos) << e.what();
    }
  }
  EXPECT_GT(noticed, 200);
  fs::rename(c.folder, run / "checkpoint-000011");
  write_file_atomically(run / "checkpoint-000011/manifest.json", whole);
  EXPECT_USER_ERROR(verify(list_checkpoints(run.path()).at(0)),
                    "it is for step 10, but the folder's name says 11");
}

TEST(Checkpoint, LatestValidSkipsDamagedOnesWithALineEach) {
  TempFolder run;
  for (const int64_t step : {1, 2, 3}) save(run.path(), step);
  flip_bit(run / "checkpoint-000003/model.safetensors", 500);
  fs::remove(run / "checkpoint-000002/trainer_state.json");
  std::vector<std::string> lines;
  const auto found =
      latest_valid(run.path(), [&](const std::string& line) { lines.push_back(line); });
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->step, 1);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_NE(lines[0].find("checkpoint-000003/model.safetensors is damaged"), std::string::npos);
  EXPECT_NE(lines[1].find("checkpoint-000002/trainer_state.json is missing"), std::string::npos);
}

TEST(CheckpointPrune, KeepsTheLastAndTheNamedOnes) {
  TempFolder run;
  for (int64_t step = 1; step <= 6; ++step) save(run.path(), step);
  EXPECT_EQ(prune(run.path(), {.keep_last = 2, .also_keep = {3}, .just_written = 6}),
            (Steps{1, 2, 4}));
  EXPECT_EQ(steps_in(run.path()), (Steps{3, 5, 6}));
  EXPECT_TRUE(hidden_in(run.path()).empty());
  EXPECT_TRUE(prune(run.path(), {.keep_last = 3}).empty());
}

TEST(CheckpointPrune, NeverTheNewestValidNorTheOneJustWritten) {
  TempFolder run;
  for (int64_t step = 1; step <= 4; ++step) save(run.path(), step);
  flip_bit(run / "checkpoint-000004/model.safetensors", 600);
  flip_bit(run / "checkpoint-000003/model.safetensors", 600);
  EXPECT_EQ(prune(run.path(), {.keep_last = 1}), (Steps{1, 3}));
  EXPECT_EQ(steps_in(run.path()), (Steps{2, 4}));
  // All damaged: nothing is removed.
  flip_bit(run / "checkpoint-000002/model.safetensors", 600);
  EXPECT_TRUE(prune(run.path(), {.keep_last = 1}).empty());
  // A run that went on from an older step.
  save(run.path(), 1);
  EXPECT_EQ(prune(run.path(), {.keep_last = 1, .just_written = 1}), Steps{2});
  EXPECT_EQ(latest_valid(run.path(), nullptr)->step, 1);
}

TEST(CheckpointPrune, RemovesDeadTemporariesButNotALiveOne) {
  TempFolder run;
  save(run.path(), 1);
  fs::create_directory(run / ".checkpoint-000009.tmp-1");  // a process that lives, but not ours
  fs::rename(save(run.path(), 8).folder, run / ".checkpoint-000008.deleted-77");
  fs::rename(save(run.path(), 7).folder, run / ".checkpoint-000007.tmp-1");
  CheckpointWriter live(run.path(), 2);
  prune(run.path(), {});
  ASSERT_EQ(hidden_in(run.path()).size(), 1u);
  EXPECT_EQ(run.path() / hidden_in(run.path())[0], live.folder());
  write_file_atomically(live.path("a"), "x");
  live.commit();
  EXPECT_EQ(steps_in(run.path()), (Steps{1, 2}));
}

// Names alone are no mark: what Brrr did not make stays, and so does what a link points to.
TEST(CheckpointOthers, TheirFoldersStay) {
  TempFolder run, elsewhere;
  write_file_atomically(elsewhere / "notes.txt", "mine");
  const std::string theirs[] = {"replaced-7",
                                "replaced-000007",
                                "checkpoint-000003",
                                "checkpoint-500",
                                ".checkpoint-000002.tmp-1",
                                ".checkpoint-000002.deleted-1",
                                ".checkpoint-notes.tmp-1",
                                fmt::format(".checkpoint-000004.deleted-{}", ::getpid())};
  for (const std::string& name : theirs) {
    create_folder(run / name);
    write_file_atomically(run / name / "notes.txt", "mine");
  }
  fs::create_directory_symlink(elsewhere.path(), run / "replaced-9");
  fs::create_directory_symlink(elsewhere.path(), run / "checkpoint-000001");
  for (const int64_t step : {4, 5, 6, 7}) save(run.path(), step);
  EXPECT_EQ(set_aside_after(run.path(), 6), Steps{7});
  EXPECT_EQ(open_checkpoint(run / "replaced-000007-2").step, 7);
  drop_set_aside(run.path());
  EXPECT_FALSE(fs::exists(run / "replaced-000007-2"));
  EXPECT_EQ(prune(run.path(), {.keep_last = 1, .just_written = 6}), (Steps{4, 5}));
  remove_all_checkpoints(run.path());
  EXPECT_FALSE(fs::exists(run / "checkpoint-000006"));
  for (const std::string& name : theirs) EXPECT_TRUE(fs::exists(run / name / "notes.txt")) << name;
  EXPECT_TRUE(fs::exists(elsewhere / "notes.txt"));
  EXPECT_TRUE(fs::is_symlink(run / "replaced-9") && fs::is_symlink(run / "checkpoint-000001"));

  // A checkpoint needs the name: theirs gets another one.
  for (const int64_t step : {1, 3}) expect_intact(save(run.path(), step));
  EXPECT_EQ(read_file(run / "replaced-000003/notes.txt"), "mine");
  EXPECT_TRUE(fs::is_symlink(run / "replaced-000001"));
  drop_set_aside(run.path());
  EXPECT_EQ(read_file(run / "replaced-000003/notes.txt"), "mine");
  EXPECT_EQ(read_file(elsewhere / "notes.txt"), "mine");

  create_folder(run / fmt::format(".checkpoint-000009.tmp-{}", ::getpid()));
  write_file_atomically(run / fmt::format(".checkpoint-000009.tmp-{}/a", ::getpid()), "mine");
  EXPECT_USER_ERROR(save(run.path(), 9), "which is in the way");
}

TEST(CheckpointOthers, AHostileManifestIsPassedOver) {
  TempFolder run;
  save(run.path(), 1);
  const fs::path path = save(run.path(), 2).folder / "manifest.json";
  const std::string whole = read_file(path);
  const auto with = [&](const std::string& from, const std::string& to) {
    const size_t at = whole.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return std::string(whole).replace(at, from.size(), to);
  };
  for (const std::string& text :
       {std::string(), std::string("{}"), std::string("[]"), std::string("null"),
        std::string(100'000, '['), std::string(100'000, '[') + std::string(100'000, ']'),
        "{\"format\":" + std::string(100'000, '['), std::string("\xff\xfe"),
        with("\"step\": 2", "\"step\": 1e300"),
        with("\"step\": 2", "\"step\": 99999999999999999999"),
        with("\"version\": 1", "\"version\": {}"),
        with("\"files\": {", "\"files\": {\"..\": 1,")}) {
    write_cache_file(path, text);
    std::vector<std::string> lines;
    const auto found =
        latest_valid(run.path(), [&](const std::string& line) { lines.push_back(line); });
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->step, 1) << text.substr(0, 100);
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_LT(lines[0].size(), 500u);
  }
}

/// Runs `body` in a child process; its wait status.
template <typename Body>
int in_child(Body&& body) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    int code = 0;
    try {
      body();
    } catch (const std::exception& e) {
      std::fprintf(stderr, "%s\n", e.what());
      code = 1;
    }
    ::_exit(code);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return status;
}

class CheckpointFault : public testing::TestWithParam<const char*> {};

TEST_P(CheckpointFault, KilledThereTheNewestValidIsIntact) {
  TempFolder run;
  for (const int64_t step : {100, 200}) save(run.path(), step);
  const std::string point = GetParam();
  const int status = in_child([&] {
    ::setenv("BRRR_FAULT", (point + "=kill").c_str(), 1);
    save(run.path(), 300);
    prune(run.path(), {.keep_last = 1, .just_written = 300});
  });
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "the point was never reached";
  const auto newest = latest(run.path());  // a damaged folder called checkpoint-* fails the test
  ASSERT_TRUE(newest.has_value());
  EXPECT_EQ(newest->step, point == "checkpoint.prune" ? 300 : 200);
  for (const Checkpoint& c : list_checkpoints(run.path())) expect_intact(c);
  EXPECT_EQ(hidden_in(run.path()).size(), 1u);
  save(run.path(), 300);
  prune(run.path(), {.keep_last = 1});
  EXPECT_EQ(steps_in(run.path()), Steps{300});
  EXPECT_TRUE(hidden_in(run.path()).empty());
}

TEST_P(CheckpointFault, AFullDiskThereIsAnErrorAndNothingElse) {
  TempFolder run;
  save(run.path(), 100);
  save(run.path(), 200);
  ::setenv("BRRR_FAULT", (std::string(GetParam()) + "=enospc").c_str(), 1);
  const std::string message = user_error_of([&] {
    save(run.path(), 300);
    prune(run.path(), {.keep_last = 1, .just_written = 300});
  });
  ::unsetenv("BRRR_FAULT");
  EXPECT_NE(message.find("No space left on device; free some space"), std::string::npos) << message;
  for (const Checkpoint& c : list_checkpoints(run.path())) expect_intact(c);
  EXPECT_GE(latest(run.path())->step, 200);
}

INSTANTIATE_TEST_SUITE_P(Points, CheckpointFault,
                         testing::Values("safetensors.write", "checkpoint.write",
                                         "checkpoint.manifest", "checkpoint.rename",
                                         "checkpoint.prune"),
                         [](const auto& p) {
                           std::string name = p.param;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

// A process that saves and prunes without pause is killed at a random moment, again and again.
// Whatever it had announced as saved must be there, and nothing that looks like a checkpoint may be
// damaged.
TEST(CheckpointKill, RandomMoments) {
  // A kill loses nothing that the system has, so memory is as good as a disk here, and much faster.
  TempFolder run(::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : fs::temp_directory_path());
  RngStream rng({.seed = 11}, 0);
  constexpr size_t kCount = 50'000;
  int64_t announced = 0;
  save(run.path(), announced, kCount);
  const Stopwatch watch;
  save(run.path(), announced, kCount);
  const auto span_us =
      static_cast<uint64_t>(3e6 * watch.seconds()) + 5000;  // a few saves of this disk
  int seen_hidden = 0;
  for (int trial = 0; trial < 60; ++trial) {
    int channel[2];
    ASSERT_EQ(::pipe(channel), 0);
    const int64_t first = latest(run.path())->step + 1;
    const pid_t pid = ::fork();
    if (pid == 0) {
      for (int64_t step = first;; ++step) {
        save(run.path(), step, kCount);
        if (::write(channel[1], &step, sizeof(step)) != sizeof(step)) ::_exit(1);
        prune(run.path(), {.keep_last = 2, .just_written = step});
      }
    }
    ::close(channel[1]);
    ::usleep(static_cast<useconds_t>(rng.next_below(span_us)));
    ::kill(pid, SIGKILL);
    int status = 0;
    ::waitpid(pid, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the saving process ended by itself";
    int64_t step = 0;
    while (::read(channel[0], &step, sizeof(step)) == sizeof(step)) announced = step;
    ::close(channel[0]);
    seen_hidden += !hidden_in(run.path()).empty();
    for (const Checkpoint& c : list_checkpoints(run.path())) expect_intact(c, kCount);
    ASSERT_TRUE(latest(run.path()).has_value());
    EXPECT_GE(latest(run.path())->step, announced);
  }
  EXPECT_GT(announced, 0);
  EXPECT_GT(seen_hidden, 5) << "the kills never hit a save";
}

TEST(CheckpointDisk, ReadOnlyFolder) {
  TempFolder run;
  save(run.path(), 1);
  fs::permissions(run.path(), fs::perms(0555));
  const int status = in_child([&] {
    if (::geteuid() == 0 && ::setuid(65534) != 0) ::_exit(77);
    try {
      save(run.path(), 2);
    } catch (const UserError& e) {
      const std::string message = e.what();
      const bool clear = message.find("cannot save a checkpoint in " + run.path().string()) == 0 &&
                         message.find("choose a place you may write to") != std::string::npos;
      ::_exit(clear ? 42 : 43);
    }
  });
  fs::permissions(run.path(), fs::perms(0755));
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "runs as root and cannot give up its rights";
  EXPECT_EQ(WEXITSTATUS(status), 42);
  EXPECT_EQ(latest(run.path())->step, 1);
}

TEST(CheckpointDisk, ReallyFull) {
  TempFolder run;
  // The mount lives in the child's own mount namespace and goes with it.
  const int status = in_child([&] {
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("brrr", run.path().c_str(), "tmpfs", 0, "size=1m") != 0)
      ::_exit(77);
    save(run.path(), 1, 100'000);  // 400 kB
    save(run.path(), 2, 100'000);
    std::string message;
    try {
      save(run.path(), 3, 100'000);
    } catch (const UserError& e) {
      message = e.what();
    }
    const bool clear =
        message.find("model.safetensors") != std::string::npos &&
        message.find("No space left on device; free some space") != std::string::npos;
    const bool intact =
        latest_valid(run.path(), nullptr)->step == 2 && hidden_in(run.path()).empty();
    prune(run.path(), {.keep_last = 1});
    save(run.path(), 3, 100'000);
    const bool goes_on = latest_valid(run.path(), nullptr)->step == 3;
    ::_exit(clear && intact && goes_on ? 42 : 43);
  });
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "cannot mount a small file system here";
  EXPECT_EQ(WEXITSTATUS(status), 42);
}

}  // namespace
}  // namespace brrr::io
