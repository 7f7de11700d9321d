// The page of climbed ladders in a real browser.

#include <gtest/gtest.h>

#include "insight/ladder/ladder.h"
#include "support/browser.h"
#include "support/hostile_markup.h"

namespace brrr::insight {
namespace {

/// Ladders of training steps with made-up times, and what else there is, measured on small sizes.
const std::vector<Climbed>& climbed() {
  static const std::vector<Climbed> climbs = [] {
    std::vector<Climbed> all;
    for (const Ladder& l : step_ladders()) {
      std::vector<RungResult> results;
      double ms = 100;
      for (const Rung& rung : l.rungs) {
        RungResult& r = results.emplace_back();
        r.name = rung.name;
        r.sequences = 4;
        r.tokens = 2048;
        r.arena_bytes = static_cast<int64_t>(ms * 1e7);
        r.ms = {ms, ms * 1.02, ms * 0.97};
        ms *= 0.9;
      }
      results.back().ms.clear();
      results.back().failure = "needs <b>9.1 GiB</b>";
      all.push_back({"", "", ladder_section(l, results)});
    }
    LadderOptions quick;
    quick.quick = true;
    quick.rounds = 1;
    for (const NamedLadder& l : ladders())
      if (l.name == "fusion" || l.name == "overhead") all.push_back(l.climb(quick));
    return all;
  }();
  return climbs;
}

class LadderPage : public ::testing::Test {
 protected:
  void SetUp() override {
    program_ = test::find_chromium();
    if (program_.empty()) GTEST_SKIP() << "there is no Chromium on this machine";
    write_file_atomically(folder_ / "page.html", ladder_page(climbed()));
    url_ = "file://" + (folder_ / "page.html").string();
  }
  test::TempFolder folder_;
  std::string program_, url_;
};

// What a record of another machine may say.
TEST_F(LadderPage, MarkupIsText) {
  Ladder ladder = step_ladders().front();
  ladder.title = ladder.published = test::kHostileMarkup;
  std::vector<RungResult> results;
  for (Rung& rung : ladder.rungs) {
    rung.name = test::kHostileMarkup;
    RungResult& r = results.emplace_back();
    r.name = r.date = rung.name;
    r.sequences = r.tokens = 4;
    r.ms = {1, 2, 3};
  }
  results.back().ms.clear();
  results.back().failure = test::kHostileMarkup;
  write_file_atomically(folder_ / "page.html",
                        ladder_page({{"", "", ladder_section(ladder, results)}}));
  test::Browser browser(program_, 1000, 1200, false);
  browser.open(url_);
  test::expect_harmless(browser, url_);
}

TEST_F(LadderPage, IsDrawnSilentAndAloneAndSorts) {
  test::Browser browser(program_, 1000, 1200, true);
  browser.open(url_);
  size_t rungs = 0, published = 0;
  for (const Ladder& l : step_ladders()) {
    rungs += l.rungs.size() - 1;
    for (size_t i = 0; i + 1 < l.rungs.size(); ++i)
      published += l.rungs[i].published_speed.has_value() + l.rungs[i].published_memory.has_value();
  }
  EXPECT_EQ(browser.evaluate("document.querySelectorAll('.memory, .speed').length"), 2 * rungs + 3)
      << "and three of the overhead";
  EXPECT_EQ(browser.evaluate("document.querySelectorAll('.track b').length"), published);
  EXPECT_EQ(browser.evaluate("[...document.querySelectorAll('.track')].every(t => {"
                             "const i = t.firstElementChild.getBoundingClientRect(),"
                             "b = t.getBoundingClientRect();"
                             "return i.width > 1 && i.right <= b.right && i.height > 4; })"),
            true);
  EXPECT_EQ(browser.evaluate("document.body.textContent.includes('needs <b>9.1 GiB</b>')"), true);
  // A rung that did not fit has no figures, and stands behind those that have.
  for (const std::string column : {"2", "4", "8"}) {
    browser.evaluate("document.querySelector('table.sorts th:nth-child(" + column +
                     ") button').click()");
    EXPECT_EQ(browser.evaluate("[...document.querySelector('table.sorts').tBodies[0].rows]"
                               ".map(r => +(r.cells[" +
                               column +
                               " - 1]?.dataset.v ?? -1))"
                               ".every((v, i, a) => i == 0 || a[i - 1] >= v)"),
              true)
        << column;
  }
  EXPECT_TRUE(browser.complaints().empty()) << browser.complaints()[0];
  EXPECT_EQ(browser.requests().size(), 1u) << "only the page itself";
}

TEST_F(LadderPage, FitsAPhone) {
  test::expect_whole_tables(program_, url_);
  test::Browser browser(program_, 390, 800, false);
  browser.open(url_);
  EXPECT_EQ(browser.evaluate("[...document.querySelectorAll('.wide')].every(w => w.scrollWidth <= "
                             "w.clientWidth)"),
            true)
      << "nothing scrolls sideways";
  EXPECT_EQ(browser.evaluate("Math.min(...[...document.querySelectorAll('.track')]"
                             ".map(t => t.getBoundingClientRect().width)) > 80"),
            true)
      << "bars have room";
}

TEST(LadderPageText, SaysThatTheMachineWasBusy) {
  RungResult quiet, busy;
  quiet.other_processors = 0.1;
  busy.other_processors = 1.26;
  EXPECT_EQ(disturbance_text("fusion", {quiet, quiet}), "");
  const std::string text = disturbance_text("fusion", {quiet, busy});
  EXPECT_TRUE(text.starts_with("fusion: other programs used up to 1.3 CPUs while 1 of 2 rungs "))
      << text;
  EXPECT_EQ(ladder_page({{"", "", "", true, ""}}).find("class=\"warning\""), std::string::npos);
  EXPECT_NE(ladder_page({{"", "", "", true, text}}).find(text), std::string::npos);
}

TEST_F(LadderPage, IsDarkOrLightOrOnPaper) {
  for (const bool dark : {false, true}) {
    test::Browser browser(program_, 1000, 1200, dark);
    browser.open(url_);
    test::expect_readable(browser, dark);
  }
}

}  // namespace
}  // namespace brrr::insight
