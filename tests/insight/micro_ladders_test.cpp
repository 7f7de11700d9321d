// Where a chain of multiplications begins to cost, and what is kept of the small experiments.
#include "insight/ladder/micro_ladders.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "backend/cpu/isa.h"
#include "base/file.h"
#include "support/temp_folder.h"

namespace brrr::insight {
namespace {

const std::vector<int64_t> kCounts{1, 2, 4, 8, 16, 32, 64, 128};

/// Times of a machine on which a pass over memory takes `pass`, a multiplication `each`.
std::vector<double> times(double pass, double each) {
  std::vector<double> ms;
  for (const int64_t n : kCounts) ms.push_back(std::max(pass, each * static_cast<double>(n)));
  return ms;
}

TEST(Crossing, IsWhereArithmeticTakesAsLongAsThePass) {
  EXPECT_NEAR(crossing(kCounts, times(10, 0.5)).value_or(0), 20, 1e-9);
  EXPECT_NEAR(crossing(kCounts, times(10, 10)).value_or(0), 1, 1e-9);
  EXPECT_NEAR(crossing(kCounts, times(10, 0.15)).value_or(0), 10 / (9.2 / 64), 1e-9)
      << "between the last two rungs";
}

TEST(Crossing, IsNowhereWhileMemoryIsTheLimit) {
  EXPECT_FALSE(crossing(kCounts, times(10, 0.05)));
  std::vector<double> noisy = times(10, 0);
  noisy.back() = 10.1;
  EXPECT_FALSE(crossing(kCounts, noisy)) << "noise is no arithmetic";
  noisy.back() = 9.9;
  EXPECT_FALSE(crossing(kCounts, noisy));
  EXPECT_FALSE(crossing({}, {}));
}

LadderOptions quick(const std::filesystem::path& record) {
  LadderOptions o;
  o.quick = true;
  o.rounds = 2;
  o.record = record;
  return o;
}

/// The counts and figures of each rung of the ladder of fusion.
void expect_every_count(const nlohmann::json& j) {
  ASSERT_EQ(j["rungs"].size(), kCounts.size());
  for (size_t i = 0; i < kCounts.size(); ++i) {
    const auto& row = j["rungs"][i];
    EXPECT_EQ(row["n"], kCounts[i]);
    const double elements = j["elements"], ms = row["fused_ms"];
    EXPECT_NEAR(row["ns_per_element"], 1e6 * ms / elements, 1e-9 * ms);
    EXPECT_NEAR(row["gigabytes_per_second"].get<double>(), 8e-6 * elements / ms, 1e-9 * elements);
    EXPECT_NEAR(row["tflops"].get<double>(), static_cast<double>(kCounts[i]) * elements * 1e-9 / ms,
                1e-9);
    EXPECT_GT(row["unfused_ms"], 0);
    EXPECT_EQ(row["rounds"], 2);
    EXPECT_LE(row["fused_ms_quartiles"][0], ms);
    EXPECT_GE(row["fused_ms_quartiles"][1], ms);
    EXPECT_NEAR(row["to_one"].get<double>(), ms / j["rungs"][0]["fused_ms"].get<double>(), 1e-9);
    EXPECT_NEAR(row["gain"].get<double>(), row["unfused_ms"].get<double>() / ms, 1e-9);
  }
}

TEST(SlowMicroLadders, SayWhatTheyPromiseAndKeepIt) {
  const test::TempFolder folder;
  for (const NamedLadder& l : {fusion_ladder(), overhead_ladder()}) {
    const Climbed first = l.climb(quick(folder / "ladder.json"));
    const Climbed again = l.climb(quick(folder / "ladder.json"));
    EXPECT_EQ(first.json, again.json) << "nothing is measured twice";
    EXPECT_EQ(first.section, again.section);
    EXPECT_NE(first.table.find("published"), std::string::npos) << first.table;
    if (l.name == "fusion") expect_every_count(nlohmann::json::parse(first.json));
  }
}

TEST(MicroLadders, FiguresOfAnotherInstructionSetAreOthers) {
  if (cpu::best_isa() == cpu::Isa::kPortable) GTEST_SKIP() << "one instruction set only";
  const test::TempFolder folder;
  LadderOptions o = quick(folder / "ladder.json");
  o.rounds = 1;
  std::vector<std::string> json;
  for (const cpu::Isa isa : {cpu::best_isa(), cpu::Isa::kPortable, cpu::best_isa()}) {
    cpu::limit_isa(isa);
    json.push_back(overhead_ladder().climb(o).json);
  }
  EXPECT_NE(json[1], json[0]);
  EXPECT_EQ(json[2], json[0]);
}

TEST(MicroLadders, QuickFiguresAreOthers) {
  const test::TempFolder folder;
  LadderOptions o = quick(folder / "ladder.json");
  o.rounds = 1;
  const std::string first = overhead_ladder().climb(o).json;
  o.quick = false;
  EXPECT_NE(overhead_ladder().climb(o).json, first);
  o.quick = true;
  EXPECT_EQ(overhead_ladder().climb(o).json, first);
}

TEST(MicroLadders, ARecordThatLacksAFigureIsMeasuredAnew) {
  const test::TempFolder folder;
  LadderOptions o = quick(folder / "ladder.json");
  o.rounds = 1;
  for (const NamedLadder& l : {fusion_ladder(), overhead_ladder()}) {
    const std::string first = l.climb(o).json;
    auto kept = nlohmann::json::parse(read_file(folder / "ladder.json"));
    for (auto& [key, rows] : kept.items()) {
      EXPECT_NE(key.find(fmt::format(" on cpu:{}, ", cpu::isa_name(cpu::best_isa()))),
                std::string::npos)
          << key;
      for (auto& row : rows) row.erase("figures");
    }
    write_file_atomically(folder / "ladder.json", kept.dump());
    EXPECT_NE(l.climb(o).json, first);
  }
}

TEST(MicroLadders, APageOfThemSpeaksOfNoTrainingStep) {
  LadderOptions o = quick({});
  o.rounds = 1;
  const Climbed overhead = overhead_ladder().climb(o);
  EXPECT_EQ(ladder_page({overhead}).find("Training steps"), std::string::npos);
  EXPECT_NE(ladder_page({overhead, {"", "", "<p>steps</p>"}}).find("Training steps"),
            std::string::npos);
  // One round has no quartiles: a dash stands behind the microseconds.
  const size_t row = overhead.table.find("called for each");
  EXPECT_NE(overhead.table.substr(row, overhead.table.find('\n', row) - row).find("  - "),
            std::string::npos)
      << overhead.table;
}

TEST(MicroLadders, OverheadComparesWithThePublishedFigures) {
  const auto j = nlohmann::json::parse(overhead_ladder().climb(quick({})).json);
  ASSERT_EQ(j["rungs"].size(), 5u);
  EXPECT_EQ(j["rungs"][3]["ops_per_second"].get<double>(), 280e3);
  EXPECT_EQ(j["rungs"][4]["ops_per_second"].get<double>(), 32e6);
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(j["rungs"][i]["published"].get<bool>());
    EXPECT_LE(j["rungs"][i]["us_quartiles"][0], j["rungs"][i]["us"]);
    EXPECT_GE(j["rungs"][i]["us_quartiles"][1], j["rungs"][i]["us"]);
  }
  EXPECT_FALSE(j["rungs"][3].contains("us_quartiles"));
  EXPECT_GT(j["flops_per_second"].get<double>(), 1e8);
#if !defined(BRRR_SANITIZED)
  // Fewer of the machine's steps for each op: the reason for compiling at all.
  EXPECT_LT(j["rungs"][2]["us"].get<double>(), j["rungs"][1]["us"].get<double>());
#endif
}

}  // namespace
}  // namespace brrr::insight
