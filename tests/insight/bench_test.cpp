// The benchmarks run, on small sizes, and say what they promise: their figures are not judged here.
#include "insight/bench/bench.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "support/temp_folder.h"

namespace brrr::insight {
namespace {

using Json = nlohmann::json;

// The rows of `brrr bench ARGUMENTS --json`, each with all the keys.
Json rows_of(const std::string& arguments, const std::vector<std::string>& keys) {
  const test::TempFolder folder;
  const std::string out = (folder / "out").string();
  const std::string command = fmt::format(
      "OMP_NUM_THREADS=2 '{}' bench {} --seconds 0 --json >'{}'", BRRR_BINARY, arguments, out);
  const int status = std::system(command.c_str());
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << command;
  const Json object = Json::parse(read_file(out));
  EXPECT_EQ(object.size(), 1u);
  const Json rows = object.at("results");
  EXPECT_FALSE(rows.empty()) << command;
  for (const Json& row : rows)
    for (const std::string& key : keys) EXPECT_TRUE(row.contains(key)) << key << " in " << row;
  return rows;
}

TEST(Bench, Matmul) {
  const Json rows = rows_of("matmul --shape 33x65x17 --dtype f32",
                            {"m", "n", "k", "dtype", "kernel", "tflops", "peak_fraction"});
  for (const Json& row : rows) {
    EXPECT_EQ(row["m"], 33);
    EXPECT_EQ(row["k"], 65);
    EXPECT_EQ(row["n"], 17);
    EXPECT_GT(row["tflops"].get<double>(), 0);
  }
  EXPECT_GE(rows.size(), 2u) << "our own and oneDNN's";
}

TEST(Bench, Fusion) {
  const Json rows = rows_of("fusion --elements 5000", {"n", "fused_ms", "unfused_ms"});
  EXPECT_EQ(rows.front()["n"], 1);
  for (const Json& row : rows) EXPECT_EQ(row.contains("over_one"), row["name"] == "x*a");
}

TEST(SlowBench, Optimizer) {
  const Json rows = rows_of("optimizer --elements 2400000",
                            {"optim", "bf16_copies", "parameters", "ms", "stream_ms"});
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i]["bf16_copies"], i % 2 == 1);
}

TEST(Bench, Attention) {
  const Json rows =
      rows_of("attention --length 48", {"t", "naive_ms", "flash_ms", "naive_bytes", "flash_bytes"});
  for (const Json& row : rows) EXPECT_EQ(row["t"], 48);
}

TEST(Bench, Overhead) {
  EXPECT_GT(rows_of("overhead", {"node_us", "ops_per_second"})[0]["node_us"].get<double>(), 0);
}

TEST(Bench, EveryOpHasAKernelForEveryDtypeThatItAccepts) {
  OpsOptions options;
  options.elements = 2048;
  options.seconds_per_row = 0;
  const std::vector<OpRow> rows = bench_ops(options);
  EXPECT_GT(rows.size(), 700u);
  for (const OpRow& row : rows)
    EXPECT_EQ(row.kernel.find("reference"), std::string::npos) << row.op << " of " << row.dtype;
}

TEST(Bench, OpsOfTheGivenNamesAndDtypes) {
  const Json rows = rows_of("ops --op cumsum --dtype i64 --elements 4096",
                            {"op", "dtype", "kernel", "ns_per_element", "share_of_copy"});
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["op"], "cumsum of rows");
  EXPECT_EQ(rows[0]["elements"], 4096);
  EXPECT_GT(rows[0]["ns_per_element"].get<double>(), 0);
}

TEST(Bench, Step) {
  const Json rows = rows_of(
      "step --preset char-cpu --batch-size 2 --context 16 --precision fp32 --precision bf16 "
      "--steps 20",
      {"preset", "precision", "batch", "context", "tokens_per_second", "mfu", "ms", "classes"});
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["batch"], 2);
  EXPECT_GT(rows[0]["tokens_per_second"].get<double>(), 0);
  // Twenty steps on one batch, the first included: a loss near that of chance, which falls, and in
  // both precisions about the same.
  const auto f32 = rows[0]["losses"].get<std::vector<double>>(),
             bf16 = rows[1]["losses"].get<std::vector<double>>();
  ASSERT_EQ(f32.size(), 20u);
  ASSERT_EQ(bf16.size(), 20u);
  EXPECT_NEAR(f32[0], std::log(65.0), 0.1);
  EXPECT_LT(f32.back(), f32.front());
  for (size_t i = 0; i < f32.size(); ++i) EXPECT_NEAR(bf16[i], f32[i], 0.02 * f32[i]) << i;
}

TEST(Bench, Decode) {
  const Json rows = rows_of("decode --preset char-cpu --prompt 5 --precision fp32 --precision bf16",
                            {"preset", "tokens_per_second", "ms", "bandwidth_fraction"});
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["bytes"].get<int64_t>(), 2 * rows[1]["bytes"].get<int64_t>());
}

TEST(Bench, DecodeKeepsToTheContext) {
  EXPECT_THROW(bench_decode({{"char-cpu", Precision::fp32, 60}}, 0), UserError);
}

TEST(Bench, DecodeReadsItsPrecision) {
  EXPECT_EQ(bench_decode({{"char-cpu", Precision::fp16, 5}}, 0)[0].precision, Precision::fp16);
}

}  // namespace
}  // namespace brrr::insight
