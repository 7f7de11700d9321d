// Ladders: every rung compiles and runs, what was measured is kept, what does not fit says so.
#include "insight/ladder/ladder.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "base/file.h"
#include "base/memory.h"
#include "base/threads/parallel.h"
#include "insight/profile/timed_step.h"
#include "support/long_proof.h"
#include "support/temp_folder.h"

namespace brrr::insight {
namespace {

// A model on which a step takes no time.
const KeyValues kTiny{{"n-layer", "6"},  {"n-head", "2"},      {"n-embd", "64"},
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
    set_thread_count(threads);
    ms.push_back(climb(ladder("precision"), options_with(folder / "ladder.json"))[0].ms);
  }
  set_thread_count(before);
  EXPECT_NE(ms[1], ms[0]);
  EXPECT_EQ(ms[2], ms[0]);
}

// Nor of another version of the program, or with a pass left out, by whatever way.
TEST(Ladders, FiguresOfAnotherProgramAreOthers) {
  const test::TempFolder folder;
  LadderOptions o = options_with(folder / "ladder.json");
  const auto figures = [&] { return climb(ladder("batch"), o)[0].ms; };
  o.version = "1.0";
  const auto first = figures();
  o.version = "1.1";
  EXPECT_NE(figures(), first);
  o.version = "1.0";
  EXPECT_EQ(figures(), first);
  ASSERT_EQ(::setenv("BRRR_DISABLE_PASS", "schedule", 1), 0);
  const auto without = figures();
  ::unsetenv("BRRR_DISABLE_PASS");
  EXPECT_NE(without, first);
  EXPECT_EQ(figures(), first);
  o.options.emplace_back("memory-limit", "1GiB");
  EXPECT_EQ(figures(), first) << "changes no step";
  const auto record = nlohmann::json::parse(read_file(o.record));
  EXPECT_EQ(record.size(), 3u);
  for (const auto& [key, rows] : record.items())
    EXPECT_NE(key.find(", brrr 1."), std::string::npos) << key;
}

TEST(Ladders, WhatIsRecalledIsSaidWithItsDate) {
  const test::TempFolder folder;
  LadderOptions o = options_with(folder / "ladder.json");
  std::vector<std::string> lines;
  o.say = [&](const std::string& line) { lines.push_back(line); };
  climb(ladder("precision"), o);
  EXPECT_TRUE(lines.empty()) << lines[0];
  auto record = nlohmann::json::parse(read_file(o.record));
  auto& rows = record.begin().value();
  ASSERT_EQ(rows.size(), 6u);
  EXPECT_EQ(rows[0]["date"].get<std::string>().size(), 10u);
  for (size_t i = 0; i < rows.size(); ++i) rows[i]["date"] = i == 2 ? "2026-01-02" : "2026-01-30";
  rows.erase(5);
  write_file_atomically(o.record, record.dump());
  climb(ladder("precision"), o);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0], fmt::format("5 of 6 rungs of precision were measured before (2026-01-02 to "
                                  "2026-01-30) and are in {}; use --again to measure them again",
                                  o.record.string()));
}

TEST(Ladders, FiguresThatCannotBeAreMeasuredAnew) {
  const test::TempFolder folder;
  LadderOptions o = options_with(folder / "ladder.json");
  std::vector<std::string> lines;
  o.say = [&](const std::string& line) { lines.push_back(line); };
  const auto first = climb(ladder("precision"), o);
  const std::string good = read_file(o.record);
  for (const auto& [key, value] : {std::pair<const char*, Json>{"ms", {-1.0}},
                                   {"ms", {0}},
                                   {"ms", Json::array()},
                                   {"sequences", 0},
                                   {"tokens", 0},
                                   {"arena_bytes", -1},
                                   {"state_bytes", 1.5},
                                   {"activation_bytes", 1e300},
                                   {"arena_bytes", 0}}) {
    Json record = Json::parse(good);
    record.begin().value()[3][key] = value;
    write_file_atomically(o.record, record.dump());
    lines.clear();
    const auto results = climb(ladder("precision"), o);
    for (size_t i = 0; i < results.size(); ++i) {
      ASSERT_EQ(results[i].ms.size(), 1u) << key;
      EXPECT_GT(results[i].ms[0], 0) << key;
      if (i == 3)
        EXPECT_NE(results[i].ms, first[i].ms) << key;
      else
        EXPECT_EQ(results[i].ms, first[i].ms) << key;
      EXPECT_EQ(results[i].arena_bytes, first[i].arena_bytes) << key;
    }
    ASSERT_EQ(lines.size(), 2u) << key;
    EXPECT_NE(lines[0].find("1 of 6 rungs of precision have impossible figures"), std::string::npos)
        << lines[0];
  }
}

TEST(Ladders, AStoppedClimbGoesOnWhereItWas) {
  const test::TempFolder folder;
  LadderOptions o = options_with(folder / "ladder.json");
  int asked = 0;
  o.stop = [&] { return ++asked > 4; };
  EXPECT_THROW(climb(ladder("precision"), o), ClimbStopped);
  const auto kept = nlohmann::json::parse(read_file(o.record));
  const auto& rows = kept.begin().value();
  ASSERT_EQ(rows.size(), 6u);
  o.stop = nullptr;
  const auto results = climb(ladder("precision"), o);
  for (size_t i = 0; i < 4; ++i)
    EXPECT_EQ(results[i].ms, rows[i]["ms"].get<std::vector<double>>()) << i;
  for (const RungResult& r : results) EXPECT_EQ(r.ms.size(), 1u) << r.name;
}

TEST(Ladders, OptionsThatRungsSetAreRefused) {
  const auto check = [](const char* name, const std::string& key, const char* value) {
    LadderOptions o;
    o.options = {{key, value}};
    check_options(ladder(name), o, {"--" + key});
  };
  const auto expect_refused = [&](const char* name, const char* key, const char* value) {
    EXPECT_USER_ERROR(check(name, key, value),
                      fmt::format("--{}: the rungs of the ladder {} differ in it", key, name));
  };
  expect_refused("batch", "batch-size", "4");
  expect_refused("batch", "per_device_train_batch_size", "4");
  expect_refused("gpt2", "precision", "fp32");
  expect_refused("gpt2", "bf16", "true");
  expect_refused("gpt2", "torch-compile", "false");
  expect_refused("gpt2", "vocab-size", "65");
  expect_refused("gpt2", "disable-pass", "match_attention");
  expect_refused("memory", "optim", "sgd");
  expect_refused("memory-medium", "optimizer", "sgd");
  expect_refused("memory", "gradient-checkpointing", "true");
  expect_refused("memory", "activation-memory", "2GiB");
  expect_refused("precision", "dtype", "fp32");
  expect_refused("precision", "param-dtype", "fp32");
  check("batch", "optim", "sgd");
  check("precision", "batch-size", "2");
  check("memory", "disable-pass", "fuse");
  // Before hours of the other rungs.
  EXPECT_USER_ERROR(check("memory", "param-dtype", "bf16"), "ladder memory, rung 'adafactor': ");
}

TEST(Ladders, AreNotMadeOfWhatMeansNothing) {
  const auto table_of = [](const Ladder& l, size_t rounds) {
    std::vector<RungResult> results;
    for (const Rung& rung : l.rungs) {
      RungResult& r = results.emplace_back();
      r.name = rung.name;
      r.sequences = r.tokens = 4;
      r.arena_bytes = 100;
      r.ms.assign(rounds, 2.0);
    }
    EXPECT_NE(ladder_section(l, results).find("of first"), std::string::npos);
    return ladder_table(l, results);
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  const std::string gpt2 = table_of(ladder("gpt2"), 2), batch = table_of(ladder("batch"), 1),
                    memory = table_of(ladder("memory"), 2);
  EXPECT_TRUE(has(gpt2, " gain ") && has(gpt2, "publ.speed")) << gpt2;
  EXPECT_FALSE(has(gpt2, "publ.mem.")) << gpt2;
  EXPECT_TRUE(has(memory, "publ.speed") && has(memory, "publ.mem.")) << memory;
  EXPECT_FALSE(has(memory, " gain ")) << memory;
  EXPECT_FALSE(has(batch, "publ") || has(batch, "gain")) << batch;
  EXPECT_TRUE(has(gpt2, "1.00-1.00")) << gpt2;
  EXPECT_FALSE(has(batch, "1.00-1.00")) << "one round has no quartiles\n" << batch;
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
  EXPECT_NE(lines[0].find("continuing without saving it"), std::string::npos) << lines[0];
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

TEST(LongLadders, TheOneOfFormatsClimbs) {
  if (!test::is_long()) GTEST_SKIP() << "trains for a minute; ./brrr test --long runs it";
  for (const NamedLadder& l : ladders())
    if (l.name == "precision") return expect_climbs(l);
  FAIL() << "there is none";
}

TEST(LongLadders, ATrainingWithoutFiguresIsDoneAnew) {
  if (!test::is_long()) GTEST_SKIP() << "trains for half a minute; ./brrr test --long runs it";
  const test::TempFolder folder;
  LadderOptions o = options_with(folder / "ladder.json");
  o.quick = true;
  const NamedLadder& l = ladders().back();
  ASSERT_EQ(l.name, "precision");
  const std::string first = l.climb(o).json;
  auto record = nlohmann::json::parse(read_file(o.record));
  for (auto& [key, rows] : record.items())
    for (auto& row : rows)
      if (row["name"] == "bf16" || row["name"] == "fp32, seed 1") row.erase("figures");
  write_file_atomically(o.record, record.dump());
  const Climbed again = l.climb(o);
  EXPECT_EQ(again.json, first) << "the same training, the same figures";
  EXPECT_EQ(again.table.find("nan"), std::string::npos) << again.table;
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

// What the program has already counts, not only what the arena adds.
TEST(Ladders, TheLimitIsOfTheProcess) {
  LadderOptions o = options_with();
  const KeyValues first =
      train::overlaid(train::overlaid(ladder("batch").options, kTiny), {{"batch-size", "1"}});
  const int64_t arena = TimedStep(train::resolve(first)).session().forecast().total();
  o.memory_limit = arena + resident_memory().needed() / 2;
  EXPECT_NE(climb(ladder("batch"), o)[0].failure.find("more than"), std::string::npos);
  o.memory_limit += 2 * resident_memory().needed();
  EXPECT_EQ(climb(ladder("batch"), o)[0].failure, "");
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
