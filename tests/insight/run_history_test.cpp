#include "insight/pages/run_history.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "support/long_proof.h"

namespace brrr::insight {
namespace {

using Json = nlohmann::json;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// What a page has after one message: as run.js does it.
void merge(Json& page, const Json& news) {
  if (news.is_null()) return;
  for (const auto& [name, values] : news["columns"].items()) {
    Json& mine = page[name];
    if (mine.is_null()) mine = Json::array();
    Json kept = Json::array();
    for (size_t i = 0; i < news["from"].get<size_t>(); ++i) kept.push_back(mine[i]);
    for (const Json& v : values) kept.push_back(v);
    mine = std::move(kept);
  }
}

TEST(Columns, AReaderWhoAsksAtAnyTimeHasWhatALateOneGets) {
  for (const int every : {1, 7, 1000, 5000}) {
    Columns columns({"step", "loss"});
    Columns::Place place;
    Json page = Json::object();
    for (int i = 1; i <= test::rounds(20'000, 5'000); ++i) {
      columns.add({static_cast<double>(i), i % 10 == 0 ? kNan : 1000.0 / i});
      if (i % every == 0) merge(page, columns.news(place));
    }
    merge(page, columns.news(place));
    EXPECT_TRUE(columns.news(place).is_null()) << "nothing is new";
    Columns::Place late;
    Json all = Json::object();
    merge(all, columns.news(late));
    EXPECT_EQ(page, all) << "every " << every;
    EXPECT_LT(columns.rows(), Columns::kMost);
    EXPECT_GE(columns.rows(), Columns::kMost / 4);
  }
}

TEST(Columns, RowsThatBecomeOneAreMeans) {
  Columns columns({"step", "a", "b"});
  const size_t n = 4 * Columns::kMost;
  for (size_t i = 0; i < n; ++i)
    columns.add({static_cast<double>(i + 1), static_cast<double>(i), i % 2 == 0 ? 5 : kNan});
  const size_t wide = n / columns.rows();
  EXPECT_GE(wide, 4u);
  for (size_t r = 0; r < columns.rows(); ++r) {
    const auto last = static_cast<double>((r + 1) * wide);
    ASSERT_EQ(columns.column(0)[r], last);
    ASSERT_DOUBLE_EQ(columns.column(1)[r], last - 0.5 - static_cast<double>(wide) / 2);
    ASSERT_EQ(columns.column(2)[r], 5);
  }
}

TEST(Columns, WhatIsNotFiniteIsAGap) {
  Columns columns({"step", "loss"});
  columns.add({1, kNan});
  columns.add({2, std::numeric_limits<double>::infinity()});
  columns.add({3, 0.123456789});
  columns.add({123456789, 2});
  Columns::Place place;
  const Json news = columns.news(place);
  EXPECT_EQ(news["columns"]["loss"].dump(), "[null,null,0.123457,2.0]");
  EXPECT_EQ(news["columns"]["step"].dump(), "[1,2,3,123456789]");
}

TEST(RunHistory, TheLogTellsWhatTheRunTold) {
  RunHistory live, read;
  for (int64_t step = 1; step <= 5; ++step) {
    train::StepRecord r;
    r.step = step;
    r.loss = 3.0 / static_cast<double>(step);
    r.grad_norm = step == 3 ? kNan : 1;
    r.learning_rate = 1e-3;
    r.seconds = 0.5;
    r.waited = 0.125;
    r.tokens = 100;
    r.tokens_so_far = 100 * step;
    r.seconds_so_far = 0.75 * static_cast<double>(step);
    r.arena_bytes = 1 << 20;
    Json record = {{"step", step},
                   {"seconds", 0.75 * static_cast<double>(step)},
                   {"tokens", 100 * step},
                   {"loss", r.loss},
                   {"lr", 1e-3},
                   {"step_ms", 500.0},
                   {"waiting_share", 0.25},
                   {"tokens_per_second", 200.0},
                   {"grad_norm", step == 3 ? Json() : Json(1.0)}};
    if (step == 2) {
      r.host = HostReading{0.5, 1.5, -1, 1 << 22};
      record.update({{"process_bytes", 1 << 22},
                     {"arena_bytes", 1 << 20},
                     {"cpu_busy", 0.5},
                     {"cpu_processors", 1.5},
                     {"cpu_other_processors", r.host->other_processors(machine_processors())}});
    }
    if (step == 4) {
      r.regimes = train::RegimeShares{0.5, 0.25, 0.125, 0.0625, 0.0625};
      record.update({{"share_compute", 0.5},
                     {"share_bandwidth", 0.25},
                     {"share_overhead", 0.125},
                     {"share_waiting", 0.0625},
                     {"share_other", 0.0625}});
    }
    live.add(r);
    read.add_logged(record);
  }
  live.evaluation(5, 0.75, "ab", 640);
  read.add_logged({{"step", 5}, {"val_loss", 0.75}, {"val_set", "ab"}, {"val_tokens", 640}});
  live.note(5, "loss_spike", "the loss jumped");
  read.add_logged({{"step", 5}, {"health", "loss_spike"}, {"text", "the loss jumped"}});
  read.add_logged({{"step", 5}, {"finished", true}, {"tokens_per_second", 1e9}});
  RunHistory::Place a, b;
  const Json told = live.news(a);
  EXPECT_EQ(told.dump(), read.news(b).dump());  // as text: a gap is not equal to itself
  EXPECT_EQ(told["tables"].size(), 4u) << told;
  EXPECT_EQ(told["notes"].size(), 1u);
  EXPECT_TRUE(live.news(a).empty());
}

// A page draws a line for each set of tokens: what came first keeps its number.
TEST(RunHistory, EvaluationsOnOtherTokensAreAnotherSet) {
  RunHistory h;
  h.add_logged({{"step", 1}, {"val_loss", 3.0}, {"val_set", "a"}, {"val_tokens", 640}});
  h.add_logged({{"step", 2}, {"val_loss", 2.0}, {"val_set", "b"}, {"val_tokens", 64}});
  h.add_logged({{"step", 3}, {"val_loss", 2.5}, {"val_set", "a"}, {"val_tokens", 640}});
  // An older version: no names, and other tokens for the last evaluation.
  h.add_logged({{"step", 4}, {"val_loss", 2.25}});
  h.add_logged({{"step", 4}, {"final_val_loss", 2.125}, {"val_tokens", 1280}});
  RunHistory::Place place;
  const Json news = h.news(place);
  EXPECT_EQ(news["tables"]["evaluations"]["columns"]["set"].dump(), "[0,1,0,2,3]");
  EXPECT_EQ(news["sets"].dump(),
            R"([{"name":"a","tokens":640},{"name":"b","tokens":64},{"name":"","tokens":0},)"
            R"({"name":"final","tokens":1280}])");
  EXPECT_TRUE(h.news(place).empty());
}

TEST(Columns, RowsOfTwoGroupsHaveNoMean) {
  Columns columns({"step", "set", "loss"}, 2, true);
  const size_t n = 4 * Columns::kMost;
  const size_t change = n / 2 + 1;  // in the middle of a pair
  for (size_t i = 0; i < n; ++i)
    columns.add({static_cast<double>(i), i < change ? 0.0 : 1.0, i < change ? 3.0 : 7.0});
  EXPECT_LT(columns.rows(), Columns::kMost);
  for (size_t i = 0; i < columns.rows(); ++i)
    ASSERT_EQ(columns.column("loss")[i], columns.column("set")[i] == 0 ? 3 : 7) << i;
}

TEST(RunHistory, AResumedRunSaysWhatItChanged) {
  RunHistory h;
  h.add_logged(Json::parse(R"({"step":7,"changed":[{"option":"learning-rate","before":"0.001",)"
                           R"("now":"0.0001"},3,{"option":5}]})"));
  ASSERT_EQ(h.notes().size(), 1u);
  EXPECT_EQ(h.notes()[0].step, 7);
  EXPECT_TRUE(h.notes()[0].text.starts_with(
      "options changed on resume: --learning-rate 0.0001 (was 0.001)"))
      << h.notes()[0].text;
}

TEST(RunHistory, NonsenseInALogIsLeftOut) {
  RunHistory h;
  for (const char* text :
       {"{}", "{\"loss\":1}", "{\"step\":\"x\",\"loss\":1}", "{\"step\":1e300,\"loss\":1}",
        "{\"step\":1,\"loss\":\"big\"}", "{\"step\":1,\"loss\":{}}", "{\"step\":1,\"text\":\"t\"}",
        "{\"step\":null,\"val_loss\":2}"})
    h.add_logged(Json::parse(text));
  RunHistory::Place place;
  EXPECT_TRUE(h.news(place).empty()) << h.news(place);
  h.add_logged(Json::parse("{\"step\":1,\"health\":3,\"text\":[1]}"));
  EXPECT_EQ(h.notes().size(), 1u);
}

TEST(RunHistory, NotesAreLimited) {
  RunHistory h;
  RunHistory::Place early, late;
  for (int i = 0; i < 10'000; ++i) {
    h.note(i, "loss_spike", "text");
    if (i == 150) {
      EXPECT_EQ(h.news(early)["notes"].size(), 151u);
    }
  }
  EXPECT_EQ(h.notes().size(), RunHistory::kMostNotes);
  EXPECT_EQ(h.notes().front().step, 0) << "the first ones";
  EXPECT_EQ(h.notes().back().step, 9'999) << "and the newest";
  EXPECT_EQ(h.news(late)["notes"].size(), RunHistory::kMostNotes);
  const Json rest = h.news(early)["notes"];
  EXPECT_EQ(rest.size(), RunHistory::kMostNotes / 2) << "nothing twice";
  EXPECT_EQ(rest[0]["step"], 9'900);
  EXPECT_TRUE(h.news(early).empty());
}

TEST(RunHistory, RanksAreReadAsTheyAreLogged) {
  RunHistory live, logged;
  std::vector<train::RankStep> means{{0.132, 0.032, 2048, 6e6}, {0.132, 0.002, 1024, 0}};
  live.ranks(20, means);
  logged.add_logged({{"step", 20},
                     {"rank_step_ms", {132, 132}},
                     {"rank_waited_ms", {32, 2}},
                     {"rank_sent_bytes", {2048, 1024}},
                     {"rank_process_bytes", {6e6, 0}}});
  RunHistory::Place place, other;
  const Json news = live.news(place);
  EXPECT_EQ(news.dump(), logged.news(other).dump());  // as text, in which NaN is null
  const Json& columns = news["tables"]["rank 1"]["columns"];
  EXPECT_EQ(columns["compute_ms"][0], 130);
  EXPECT_EQ(columns["waited_ms"][0], 2);
  EXPECT_TRUE(columns["process_bytes"][0].is_null() ||
              std::isnan(columns["process_bytes"][0].get<double>()));
  EXPECT_TRUE(live.news(place).empty());
  live.ranks(40, means);
  EXPECT_EQ(live.news(place)["tables"]["rank 0"]["from"], 1);
  // What another program wrote is left out.
  logged.add_logged({{"step", 60}, {"rank_step_ms", "many"}, {"rank_sent_bytes", {1, 2, 3}}});
  EXPECT_EQ(logged.rank_tables().size(), 2u);
}

}  // namespace
}  // namespace brrr::insight
