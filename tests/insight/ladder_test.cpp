// Ladders: every rung compiles and runs, what was measured is kept, what does not fit says so.
#include "insight/ladder.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "base/file.h"
#include "base/parallel.h"
#include "io/temp_folder.h"

namespace brrr::insight {
namespace {

// A model on which a step takes no time.
const KeyValues kTiny{{"n-layer", "4"},  {"n-head", "2"},      {"n-embd", "64"},
                      {"context", "32"}, {"vocab-size", "37"}, {"threads", "1"}};

LadderOptions options_with(const std::filesystem::path& record = {}) {
  LadderOptions o;
  o.rounds = 1;
  o.memory_limit = int64_t{1} << 30;
  o.options = kTiny;
  o.record = record;
  return o;
}

const Ladder& ladder(const std::string& name) {
  for (const Ladder& l : step_ladders())
    if (l.name == name) return l;
  throw std::out_of_range(name);
}

TEST(Ladders, EveryRungOfEveryLadderRuns) {
  for (const Ladder& l : step_ladders()) {
    const auto results = climb(l, options_with());
    ASSERT_EQ(results.size(), l.rungs.size());
    for (const RungResult& r : results) {
      EXPECT_EQ(r.failure, "") << l.name << ": " << r.name;
      ASSERT_EQ(r.ms.size(), 1u) << l.name << ": " << r.name;
      EXPECT_GT(r.ms[0], 0);
      EXPECT_GT(r.arena_bytes, r.state_bytes);
      EXPECT_EQ(r.tokens, r.sequences * 32);
    }
    const auto json = nlohmann::json::parse(ladder_json(l, results));
    EXPECT_EQ(json["rungs"].size(), l.rungs.size());
    EXPECT_EQ(json["rungs"][0]["speed"], 1.0);
    EXPECT_EQ(json["rungs"][0]["rounds"], 1);
    EXPECT_EQ(json["rungs"][0]["ms_quartiles"],
              (std::vector<double>{results[0].ms[0], results[0].ms[0]}));
    const std::string table = ladder_table(l, results);
    const std::string page = ladder_section(l, results);
    for (const Rung& rung : l.rungs) {
      EXPECT_NE(table.find(rung.name), std::string::npos);
      EXPECT_NE(page.find("<span>" + rung.name + "</span>"), std::string::npos);
    }
  }
}

TEST(Ladders, RungsAreWhatTheySay) {
  const auto results = climb(ladder("memory"), options_with());
  std::map<std::string, RungResult> by_name;
  for (const RungResult& r : results) by_name[r.name] = r;
  const RungResult& plain = by_name.at("plain");
  EXPECT_EQ(plain.sequences, 4);
  EXPECT_EQ(by_name.at("accumulation 4 x 1").sequences, 4);
  EXPECT_LT(by_name.at("accumulation 4 x 1").activation_bytes, plain.activation_bytes / 2);
  EXPECT_LT(by_name.at("checkpointing (blocks)").activation_bytes, plain.activation_bytes);
  EXPECT_LE(by_name.at("auto, 25% of the activations").activation_bytes,
            plain.activation_bytes / 4);
  EXPECT_LT(by_name.at("bf16").activation_bytes, plain.activation_bytes);
  EXPECT_LT(by_name.at("adamw_8bit").state_bytes, by_name.at("sgd with momentum").state_bytes);
  EXPECT_LT(by_name.at("sgd with momentum").state_bytes, plain.state_bytes);
  EXPECT_LT(by_name.at("adafactor").state_bytes, by_name.at("lion").state_bytes);
}

TEST(Ladders, WhatWasMeasuredIsKept) {
  const test::TempFolder folder;
  const auto record = folder / "ladder.json";
  LadderOptions o = options_with(record);
  const auto first = climb(ladder("precision"), o);
  const auto again = climb(ladder("precision"), o);
  for (size_t i = 0; i < first.size(); ++i) EXPECT_EQ(again[i].ms, first[i].ms);
  o.rounds = 2;  // one more on top
  const auto more = climb(ladder("precision"), o);
  for (size_t i = 0; i < first.size(); ++i) {
    ASSERT_EQ(more[i].ms.size(), 2u);
    EXPECT_EQ(more[i].ms[0], first[i].ms[0]);
  }
  o.options.emplace_back("batch-size", "2");  // another ladder
  const auto other = climb(ladder("precision"), o);
  EXPECT_EQ(other[0].sequences, 2);
  EXPECT_NE(other[0].ms[0], first[0].ms[0]);
}

TEST(Ladders, FiguresOfAnotherTeamAreOthers) {
  const test::TempFolder folder;
  const int before = thread_count();
  std::vector<std::vector<double>> ms;
  for (const int threads : {1, 2, 1}) {
    omp_set_num_threads(threads);
    ms.push_back(climb(ladder("precision"), options_with(folder / "ladder.json"))[0].ms);
  }
  omp_set_num_threads(before);
  EXPECT_NE(ms[1], ms[0]);
  EXPECT_EQ(ms[2], ms[0]);
}

TEST(Ladders, AgainMeasuresOnlyWhatIsClimbedAgain) {
  const test::TempFolder folder;
  LadderOptions o = options_with(folder / "ladder.json");
  const auto kept = climb(ladder("precision"), o), old = climb(ladder("batch"), o);
  o.again = true;
  const auto fresh = climb(ladder("batch"), o);
  EXPECT_NE(fresh[0].ms, old[0].ms);
  EXPECT_EQ(fresh[0].ms.size(), 1u);
  o.again = false;
  EXPECT_EQ(climb(ladder("batch"), o)[0].ms, fresh[0].ms);
  EXPECT_EQ(climb(ladder("precision"), o)[0].ms, kept[0].ms);
}

// A disk that is full, or gone, costs the record and not the figures.
TEST(Ladders, WhatCannotBeKeptIsSaidOnceAndMeasured) {
  const test::TempFolder folder;
  LadderOptions o = options_with(folder / "absent" / "ladder.json");
  std::vector<std::string> lines;
  o.say = [&](const std::string& line) { lines.push_back(line); };
  const auto results = climb(ladder("precision"), o);
  for (const RungResult& r : results) EXPECT_EQ(r.ms.size(), 1u) << r.name;
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("ladder.json"), std::string::npos) << lines[0];
  EXPECT_NE(lines[0].find("going on without keeping it"), std::string::npos) << lines[0];
}

TEST(Ladders, ADamagedRecordIsNamedAndAgainReplacesIt) {
  const test::TempFolder folder;
  const auto record = folder / "ladder.json";
  LadderOptions o = options_with(record);
  o.memory_limit = 0;  // measures nothing
  climb(ladder("precision"), o);
  const auto kept = nlohmann::json::parse(read_file(record));
  ASSERT_EQ(kept.size(), 1u);
  const std::string key = kept.begin().key();
  for (const std::string& text :
       {std::string("{"), std::string("[]"), nlohmann::json{{key, 3}}.dump(),
        nlohmann::json{{key, {{{"name", "bf16"}, {"ms", "x"}}}}}.dump()}) {
    write_file_atomically(record, text);
    for (const char* part : {"ladder.json", "--again", "--output-dir"})
      EXPECT_USER_ERROR(climb(ladder("precision"), o), part);
    EXPECT_EQ(read_file(record), text);
    o.again = true;
    climb(ladder("precision"), o);
    o.again = false;
    EXPECT_EQ(nlohmann::json::parse(read_file(record)), kept) << text;
  }
}

TEST(Ladders, ARecordThatIsReplacedUnreadIsSaidOnce) {
  const test::TempFolder folder;
  LadderOptions o = options_with(folder / "ladder.json");
  std::vector<std::string> lines;
  o.say = [&](const std::string& line) { lines.push_back(line); };
  o.again = true;
  write_file_atomically(o.record, "{\"precision");
  const auto first = climb(ladder("precision"), o);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("ladder.json"), std::string::npos) << lines[0];
  EXPECT_NE(lines[0].find("it is replaced"), std::string::npos) << lines[0];
  o.options.emplace_back("batch-size", "2");
  climb(ladder("precision"), o);
  EXPECT_EQ(lines.size(), 1u);
  o.options.pop_back();
  o.again = false;
  EXPECT_EQ(climb(ladder("precision"), o)[0].ms, first[0].ms) << "the next one leaves it";
}

void expect_climbs(const NamedLadder& l) {
  LadderOptions o = options_with();
  o.quick = true;
  int64_t visited = 0;
  o.progress = [&](int64_t done) {
    EXPECT_GE(done, visited) << l.name;
    visited = done;
  };
  const Climbed c = l.climb(o);
  EXPECT_EQ(visited, l.visits(o)) << l.name;
  EXPECT_EQ(nlohmann::json::parse(c.json).at("ladder"), l.name);
  EXPECT_FALSE(c.table.empty());
  EXPECT_NE(c.section.find("<table"), std::string::npos);
}

TEST(Ladders, EveryNameClimbsAndCountsItsVisits) {
  std::set<std::string> names;
  for (const NamedLadder& l : ladders()) {
    EXPECT_TRUE(names.insert(l.name).second) << l.name;
    EXPECT_FALSE(l.summary.empty());
    EXPECT_EQ(l.by_default, l.name != "memory-medium");
    // Those of training steps are climbed by the tests above, the one that trains by the next.
    if (l.name == "fusion" || l.name == "overhead") expect_climbs(l);
  }
}

TEST(SlowLadders, TheOneOfFormatsClimbs) {
  for (const NamedLadder& l : ladders())
    if (l.name == "precision") return expect_climbs(l);
  FAIL() << "there is none";
}

TEST(Ladders, ACumulativeOneSaysWhatEachRungGains) {
  const Ladder& l = ladder("gpt2");
  ASSERT_TRUE(l.cumulative);
  std::vector<RungResult> results;
  double ms = 64;
  for (const Rung& rung : l.rungs) {
    RungResult& r = results.emplace_back();
    r.name = rung.name;
    r.sequences = 4;
    r.arena_bytes = 100;
    r.ms = {ms};
    ms /= 2;
  }
  EXPECT_FALSE(against_before(l, results, 0));
  EXPECT_DOUBLE_EQ(against_before(l, results, 3)->speed, 2);
  EXPECT_DOUBLE_EQ(against(results[3], results[0])->speed, 8);
  results[2].ms.clear();  // did not fit
  EXPECT_DOUBLE_EQ(against_before(l, results, 3)->speed, 4);
  EXPECT_FALSE(against_before(ladder("memory"), results, 3));
}

TEST(Ladders, TheFusedOptimizerIsTheLastRungOfGpt2) {
  const Ladder& l = ladder("gpt2");
  EXPECT_EQ(l.rungs.back().name, "fused optimizer");
  EXPECT_TRUE(l.rungs[l.rungs.size() - 2].name.starts_with("padded vocabulary"));
  EXPECT_NE(std::find(l.options.begin(), l.options.end(),
                      std::pair<std::string, std::string>("fused-optimizer", "false")),
            l.options.end());
}

TEST(Ladders, RungsThatDoNotFitSaySo) {
  LadderOptions o = options_with();
  o.memory_limit = 100'000;
  const auto results = climb(ladder("memory"), o);
  EXPECT_NE(results[0].failure.find("needs"), std::string::npos);
  EXPECT_TRUE(results[0].ms.empty());
  EXPECT_NE(ladder_table(ladder("memory"), results).find("needs"), std::string::npos);
}

}  // namespace
}  // namespace brrr::insight
