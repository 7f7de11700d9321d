// A training loop of one's own on several ranks: the test starts itself once for each rank, as a
// launcher would.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iterator>

#include "brrr/brrr.h"

namespace {

namespace fs = std::filesystem;
using brrr::Batch;
using brrr::Tensor;

constexpr const char* kOutput = "BRRR_TEST_OUTPUT";  // the folder that ranks write to

brrr::Graph net() {
  brrr::Graph g;
  const auto x = g.input("x", brrr::f32, {8, 96}), y = g.input("y", brrr::f32, {8, 1});
  const auto h = brrr::tanh(brrr::linear(x, 64, "first"));
  g.output("loss", brrr::mean_squared_error(brrr::linear(h, 1, "second"), y));
  return g;
}

Batch batch_of(int64_t number) {
  std::vector<float> x(8 * 96), y(8);
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = std::sin(static_cast<float>(i * 7) + static_cast<float>(number));
  for (size_t i = 0; i < y.size(); ++i) y[i] = x[96 * i] - 0.5f * x[96 * i + 1];
  return {{"x", Tensor::of<float>({8, 96}, x)}, {"y", Tensor::of<float>({8, 1}, y)}};
}

/// The loop as a user writes it: each rank takes every ranks-th batch. `accumulate`: micro-batches
/// of all ranks.
std::string trained(const std::string& zero, int64_t accumulate) {
  brrr::RunOptions options;
  options.more = {{"zero", zero}};
  options.accumulate = accumulate;
  options.max_steps = 4;
  auto run = brrr::Run::from_env(options);
  int64_t next = 0;
  std::string text;
  auto [step, loader] = run.prepare(net(), brrr::AdamW{.lr = 1e-2}, [&]() -> std::optional<Batch> {
    const int64_t number = next++ * run.ranks() + run.rank();
    return batch_of(number);
  });
  std::ostringstream out;
  out << std::setprecision(9);
  for (const auto& batch : loader) out << step(batch).loss << "\n";
  const Tensor own = Tensor::of<float>({2}, {static_cast<float>(run.rank()), 10.0f});
  const Tensor all = run.gather_for_metrics(own, 3);
  for (const float x : all.as<float>()) out << x << " ";
  if (const char* folder = std::getenv(kOutput)) run.save(std::string(folder) + "/zero" + zero);
  return out.str();
}

TEST(RanksOfALoop, Rank) {
  const char* folder = std::getenv(kOutput);
  if (folder == nullptr) GTEST_SKIP() << "started by RanksOfALoop.TrainTogether";
  for (const char* zero : {"0", "2"})
    std::ofstream(fs::path(folder) / (std::string(std::getenv("RANK")) + "_" + zero))
        << trained(zero, 1);
}

std::string content_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(RanksOfALoop, TrainTogether) {
  std::string folder = (fs::temp_directory_path() / "brrr-library-ranks-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string self = fs::read_symlink("/proc/self/exe");
  std::vector<pid_t> children;
  for (const char* rank : {"0", "1"}) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::setenv(kOutput, folder.c_str(), 1);
      ::setenv("RANK", rank, 1);
      ::setenv("LOCAL_RANK", rank, 1);
      ::setenv("WORLD_SIZE", "2", 1);
      ::setenv("LOCAL_WORLD_SIZE", "2", 1);
      ::setenv("BRRR_RUN_ID", folder.substr(folder.size() - 6).c_str(), 1);
      ::execl(self.c_str(), self.c_str(), "--gtest_filter=RanksOfALoop.Rank", nullptr);
      ::_exit(127);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  const fs::path at(folder);
  for (const char* zero : {"0", "2"}) {
    const std::string first = content_of(at / (std::string("0_") + zero));
    EXPECT_EQ(content_of(at / (std::string("1_") + zero)), first);
    EXPECT_EQ(first, content_of(at / "0_0")) << "bits depend on the stage";
    EXPECT_NE(first.find("0 10 1 "), std::string::npos) << first;
    EXPECT_EQ(content_of(at / (std::string("zero") + zero) / "model.safetensors"),
              content_of(at / "zero0" / "model.safetensors"));
  }
  // One process on the same batches: the same losses but for the rounding of the norm.
  std::istringstream alone(trained("0", 2)), together(content_of(at / "0_0"));
  for (int i = 0; i < 4; ++i) {
    double a = 0, b = 1;
    alone >> a;
    together >> b;
    EXPECT_NEAR(a, b, 1e-6);
  }
  fs::remove_all(at);
}

}  // namespace
