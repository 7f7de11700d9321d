// Bits that do not depend on ranks, over 200 steps: models of four kinds at 1, 2, 4 and 8 ranks and
// every stage of ZeRO, with the precision, the overlap and the transport rotated.

#include <chrono>
#include <cstdlib>

#include "e2e/encoder_runs.h"
#include "support/long_proof.h"
#include "support/models_folder.h"
#include "support/picture_folder.h"

namespace brrr::test {
namespace {

/// How the ranks of a run work together.
struct RankWay {
  int ranks = 1;
  int zero = 0;
  const char* precision = "fp32";
  bool overlap = true;
  bool mpi = false;

  std::string name() const {
    return fmt::format("{}-ranks-zero-{}-{}{}{}", ranks, zero, precision,
                       overlap ? "" : "-no-overlap", mpi ? "-mpi" : "");
  }
};

/// Pairs every number of ranks with every ZeRO stage. Precision, overlap and transport alternate,
/// so that each of their values occurs with each number of ranks and each stage; `turn` shifts the
/// pattern.
std::vector<RankWay> ways(int turn) {
  std::vector<RankWay> all;
  for (int n = 0; n < 4; ++n)
    for (int zero = 0; zero < 4; ++zero) {
      const int place = n + zero + turn;
      all.push_back({1 << n, zero, place % 2 == 0 ? "fp32" : "bf16", (place / 2 + n) % 2 == 0,
                     n > 0 && (n + zero / 2 + turn) % 2 == 0});
    }
  return all;
}

class LongRankBits : public EncoderRuns {
 protected:
  void SetUp() override {
    EncoderRuns::SetUp();
    if (!IsSkipped() && !is_long()) GTEST_SKIP() << "takes minutes: ./brrr test --long";
  }

  /// Runs a training command in the folder of its name; mpirun starts the ranks of MPI.
  int train(const RankWay& way, Options command) {
    put_options(command, {"--precision", way.precision, "--zero", std::to_string(way.zero)});
    if (!way.overlap) command.push_back("--no-overlap");
    if (way.mpi && has_mpirun()) {
      std::string line = fmt::format("mpirun --allow-run-as-root --oversubscribe -n {} '{}'",
                                     way.ranks, BRRR_BINARY);
      put_options(command, {"--comm", "mpi"});
      for (const std::string& word : command) line += " '" + word + "'";
      line += fmt::format(" </dev/null >/dev/null 2>'{}'", path("mpi.err").string());
      const int status = std::system(line.c_str());
      err_ = read_file(path("mpi.err"));
      return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
    }
    if (way.ranks > 1) {
      put_options(command, {"--comm", "shm"});
      command.insert(command.begin(), {"launch", "-n", std::to_string(way.ranks)});
    }
    return run(command);
  }
  static bool has_mpirun() {
    static const bool is_there = std::system("mpirun --version >/dev/null 2>&1") == 0;
    return is_there;
  }

  void expect_same_files(const std::string& a, const std::string& b, int steps) {
    const std::string state = fmt::format("checkpoint-{:06}/optimizer.safetensors", steps);
    for (const std::string& name : {std::string("model.safetensors"), state})
      EXPECT_TRUE(read_file(path(a) / name) == read_file(path(b) / name)) << name << " differs";
    EXPECT_NE(loss_series(a), "");
    EXPECT_EQ(loss_series(a), loss_series(b));
  }

  /// Compares `chosen` ways with one process of the same precision. `command(NAME)`: a run.
  template <typename Command>
  void expect_same_bits(const Command& command, const std::vector<RankWay>& chosen, int steps) {
    const auto options = [&](const std::string& name) {
      Options args = command(name);
      const std::string last = std::to_string(steps);
      put_options(args, {"--max-steps", last, "--save-steps", last, "--eval-steps", last,
                         "--logging-steps", "1", "--deterministic-ranks", "8"});
      return args;
    };
    for (const char* precision : {"fp32", "bf16"}) {
      ASSERT_EQ(train({1, 0, precision}, options(precision)), 0) << err_;
    }
    for (const RankWay& way : chosen) {
      SCOPED_TRACE(way.name());
      const auto begun = std::chrono::steady_clock::now();
      ASSERT_EQ(train(way, options(way.name())), 0) << err_;
      expect_same_files(way.precision, way.name(), steps);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
      fmt::print("{}: {:.1f} s\n", way.name(), took.count());
      std::fflush(stdout);
      fs::remove_all(path(way.name()));
    }
  }
};

TEST_F(LongRankBits, Gpt2) {
  expect_same_bits(
      [&](const std::string& name) {
        return small_run(name, {"--n-layer", "2", "--batch-size", "8", "--context", "16"});
      },
      ways(0), 200);
}

TEST_F(LongRankBits, Llama) {
  expect_same_bits(
      [&](const std::string& name) {
        return small_run(name, {"--preset", "llama-char", "--n-layer", "2", "--batch-size", "8",
                                "--context", "16", "--dropout", "0"});
      },
      ways(1), 200);
}

TEST_F(LongRankBits, BertFineTuning) {
  make_base();
  expect_same_bits(
      [&](const std::string& name) { return fine_tuning(name, "classify", "classes.tsv"); },
      ways(2), 200);
}

// A published model of 22 million parameters is slower: fewer steps.
TEST_F(LongRankBits, MiniLmFineTuning) {
  const fs::path model = models_folder() / "minilm";
  if (!fs::exists(model / "model.safetensors")) GTEST_SKIP() << "no MiniLM";
  expect_same_bits(
      [&](const std::string& name) {
        return fine_tuning(name, "classify", "classes.tsv", {"--init-from", model.string()});
      },
      {{2, 1, "fp32", true, true}, {4, 2, "bf16", true, false}, {8, 3, "fp32", false, false}}, 10);
}

TEST_F(LongRankBits, ResNet20) {
  write_picture_folder(path("pictures"), 40);
  expect_same_bits(
      [&](const std::string& name) {
        return small_picture_run(name, {"--depth", "20", "--batch-size", "16"});
      },
      ways(3), 200);
}

// Without --deterministic-ranks the bits are those of the number of ranks, each time the same.
TEST_F(LongRankBits, APlainRunIsRepeatable) {
  for (const RankWay& way :
       {RankWay{2, 0, "bf16", true, true}, RankWay{3, 1, "fp32", true, false},
        RankWay{4, 2, "fp32", false, true}, RankWay{4, 3, "bf16", true, false}}) {
    SCOPED_TRACE(way.name());
    for (const char* name : {"first", "second"}) {
      const Options plain = small_run(name, {"--batch-size", "12", "--max-steps", "200",
                                             "--save-steps", "200", "--eval-steps", "200"});
      ASSERT_EQ(train(way, plain), 0) << err_;
    }
    expect_same_files("first", "second", 200);
    for (const char* name : {"first", "second"}) fs::remove_all(path(name));
  }
}

}  // namespace
}  // namespace brrr::test
