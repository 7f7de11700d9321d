// The page of runs in a real browser: drawn, alive, silent, alone. (The page of a run that goes on:
// tests/e2e/live_test.cpp.)

#include "insight/pages/run_page.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/browser.h"
#include "support/temp_folder.h"
#include "train/options.h"

namespace brrr::insight {
namespace {

using Json = nlohmann::json;

class RunPage : public testing::Test {
 protected:
  void SetUp() override {
    program_ = test::find_chromium();
    if (program_.empty()) GTEST_SKIP() << "there is no Chromium on this machine";
  }
  RunRecord run(const std::string& name, double rate, const std::string& options, int count = 400,
                bool measured = true) {
    const fs::path folder = folder_ / name;
    fs::create_directories(folder);
    std::string log;
    for (int i = 1; i <= count; ++i) {
      Json r = {{"step", i},
                {"loss", 4 * std::pow(i, -rate) + 0.1 * std::sin(i)},
                {"lr", 1e-3 * i / count},
                {"grad_norm", i == 100 ? Json() : Json(1 + 1.0 / i)},
                {"step_ms", 20},
                {"tokens_per_second", 35'000 + 1000 * std::cos(i)},
                {"waiting_share", 0.01}};
      if (measured && i % 50 == 0)
        r.update({{"process_bytes", 6e7},
                  {"arena_bytes", 4e7},
                  {"cpu_busy", 0.9},
                  {"cpu_processors", 1.8},
                  {"share_compute", 0.6},
                  {"share_bandwidth", 0.2},
                  {"share_overhead", 0.1},
                  {"share_waiting", 0.01},
                  {"share_other", 0.09}});
      log += r.dump() + "\n";
      if (i % 100 == 0)
        log += Json({{"step", i}, {"val_loss", 4 * std::pow(i, -rate) + 0.2}}).dump() + "\n";
    }
    log += Json({{"step", 210},
                 {"health", "loss_spike"},
                 {"text", "the loss jumped <img src=x onerror=\"document.title='broken'\">"}})
               .dump() +
           "\n";
    write_file_atomically(folder / "log.jsonl", log);
    write_file_atomically(folder / "train_config.json", options);
    return read_run(folder);
  }
  std::string put(const std::vector<RunRecord>& runs) {
    write_file_atomically(folder_ / "page.html", run_page(runs));
    return "file://" + (folder_ / "page.html").string();
  }
  static Json wait_for(test::Browser& browser, const std::string& expression) {
    for (int i = 0; i < 100; ++i)
      if (browser.evaluate(expression) == true) return true;
    return false;
  }
  static void open(test::Browser& browser, const std::string& url) {
    browser.open(url);
    // Drawing waits for the next frame.
    ASSERT_EQ(wait_for(browser, "document.querySelectorAll('svg.plot path.line').length > 3"),
              true);
  }
  static std::string chart(const std::string& title) {
    return "[...document.querySelectorAll('.chart')].find(c => "
           "c.querySelector('h2').textContent === '" +
           title + "')";
  }
  static void expect_silent(const test::Browser& browser, const std::string& url) {
    EXPECT_TRUE(browser.complaints().empty()) << browser.complaints()[0];
    ASSERT_EQ(browser.requests().size(), 1u) << "only the page itself";
    EXPECT_EQ(browser.requests()[0], url);
  }
  test::TempFolder folder_;
  std::string program_;
};

const std::string kPlain = "{\"preset\":\"char-cpu\",\"n_layer\":4,\"optim\":\"adamw\"}";

TEST_F(RunPage, DrawsOneRun) {
  const std::string url = put({run("one", 0.3, kPlain)});
  for (const bool dark : {false, true}) {
    test::Browser browser(program_, 1100, 1400, dark);
    open(browser, url);
    for (const char* title : {"Loss", "Gradient norm", "Learning rate", "Tokens per second",
                              "Waiting for data", "Memory", "Processors busy"})
      // A line of many points, inside its picture, and axes with numbers.
      EXPECT_EQ(
          browser.evaluate("(c => { const p = c.querySelector('path.line:not(.points)'), b = "
                           "p.getBoundingClientRect(), s = p.ownerSVGElement"
                           ".getBoundingClientRect(); return p.getTotalLength() > 100 && b.top"
                           " >= s.top - 2 && b.bottom <= s.bottom && b.right <= s.right + 1 &&"
                           " c.querySelectorAll('text').length >= 4; })(" +
                           chart(title) + ")"),
          true)
          << title;
    EXPECT_EQ(browser.evaluate(chart("Share per regime") + ".querySelectorAll('path.area').length"),
              5);
    EXPECT_EQ(browser.evaluate(chart("Loss") + ".querySelectorAll('path.mark').length"), 1);
    EXPECT_EQ(browser.evaluate(chart("GPU power, W") + ".hidden"), true);
    const std::string back = browser.evaluate("getComputedStyle(document.body).backgroundColor");
    EXPECT_EQ(back == "rgb(255, 255, 255)", !dark) << back;
    expect_silent(browser, url);
  }
}

TEST_F(RunPage, TellsTheValuesUnderThePointer) {
  test::Browser browser(program_, 1100, 1400, false);
  open(browser, put({run("one", 0.3, kPlain)}));
  const Json at = browser.evaluate("(() => { const b = " + chart("Loss") +
                                   ".querySelector('svg').getBoundingClientRect();"
                                   "return {x: b.x + b.width / 2, y: b.y + b.height / 2}; })()");
  const std::string visible = "getComputedStyle(document.getElementById('tip')).visibility";
  EXPECT_EQ(browser.evaluate(visible), "hidden");
  browser.move_mouse(at["x"], at["y"]);
  EXPECT_EQ(browser.evaluate(visible), "visible");
  const std::string tip = browser.evaluate("document.getElementById('tip').textContent");
  EXPECT_TRUE(tip.starts_with("step ")) << tip;
  EXPECT_NE(tip.find("train: "), std::string::npos) << tip;
  browser.move_mouse(3, 3);
  EXPECT_EQ(browser.evaluate(visible), "hidden");
}

TEST_F(RunPage, ComparesRuns) {
  const std::string url =
      put({run("one", 0.3, kPlain), run("two", 0.4, "{\"preset\":\"char-cpu\",\"n_layer\":6}"),
           run("long", 0.35, kPlain, 5000, false)});
  test::Browser browser(program_, 1100, 1400, false);
  open(browser, url);
  // Three trends and three validations; a legend that names all.
  EXPECT_EQ(browser.evaluate(chart("Loss") + ".querySelectorAll('path.line').length"), 6);
  EXPECT_EQ(browser.evaluate("new Set([..." + chart("Loss") +
                             ".querySelectorAll('path.line')].map(p => p.style.stroke)).size"),
            3);
  for (const char* name : {"one: train", "two: train", "long: validation"})
    EXPECT_EQ(browser.evaluate(chart("Loss") + ".textContent.includes('" + name + "')"), true);
  // Figures sort; of the options only those that differ stand there.
  EXPECT_EQ(browser.evaluate("document.querySelector('table').tBodies[0].rows.length"), 3);
  browser.evaluate("document.querySelector('th:nth-child(3) button').click()");
  EXPECT_EQ(browser.evaluate("document.querySelector('table').tBodies[0].rows[0].cells[0]"
                             ".textContent"),
            "long");
  const std::string differ = browser.evaluate(
      "[...document.querySelectorAll('.card')].find(c => c.textContent.startsWith('Options that "
      "differ')).textContent");
  EXPECT_NE(differ.find("n_layer"), std::string::npos) << differ;
  EXPECT_EQ(differ.find("preset"), std::string::npos) << differ;
  EXPECT_EQ(browser.evaluate("[...document.querySelectorAll('.options th, .options td')]"
                             ".every(c => getComputedStyle(c).textAlign === 'left')"),
            true)
      << "heads stand over their cells";
  expect_silent(browser, url);
}

TEST(RunPageText, AFigureSaysWhatItIs) {
  RunRecord ended, going;
  ended.name = "ended";
  ended.tokens_per_second = 1234;
  ended.median_tokens_per_second = 5678;
  ended.val_loss = std::nan("");
  ended.skipped_steps = 7;
  going.name = "going";
  going.median_tokens_per_second = 5678;
  const std::string one = run_page({ended}), other = run_page({going});
  EXPECT_NE(one.find(">1,234<"), std::string::npos);
  EXPECT_EQ(one.find("5,678"), std::string::npos) << "one run, one speed";
  EXPECT_NE(one.find(">NaN<"), std::string::npos);
  EXPECT_NE(one.find(">skipped steps<"), std::string::npos);
  EXPECT_NE(other.find(">median 5,678<"), std::string::npos);
}

TEST_F(RunPage, FitsAPhone) {
  test::Browser browser(program_, 380, 800, true);
  const std::string url = put({run("one", 0.3, kPlain), run("two", 0.4, kPlain)});
  open(browser, url);
  EXPECT_EQ(browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), true)
      << "wide parts scroll by themselves";
  expect_silent(browser, url);
}

TEST_F(RunPage, EscapesWhatRunsSay) {
  const std::string evil = "</script><script>document.title='broken'</script>";
  const std::string url =
      put({run("one", 0.3, Json({{"run_name", evil}, {"optim", evil}}).dump()),
           run("'\"><img src=x onerror=document.title='broken'>", 0.4, kPlain)});
  test::Browser browser(program_, 1100, 1400, false);
  open(browser, url);
  EXPECT_NE(browser.evaluate("document.title"), "broken");
  EXPECT_EQ(browser.evaluate("document.querySelectorAll('img').length"), 0);
  EXPECT_EQ(browser.evaluate("document.body.textContent.includes('the loss jumped <img')"), true);
  expect_silent(browser, url);
}

TEST_F(RunPage, ShowsARunOfWhichLittleIsKnown) {
  const std::string url = put({run("one", 0.3, "broken", 0)});
  test::Browser browser(program_, 1100, 1400, false);
  browser.open(url);
  EXPECT_EQ(wait_for(browser, "document.body.textContent.includes('not recorded')"), true);
  EXPECT_EQ(browser.evaluate("document.body.textContent.includes('What could not be read')"), true);
  EXPECT_EQ(browser.evaluate("document.body.textContent.includes('not measured')"), true);
  expect_silent(browser, url);
}

}  // namespace
}  // namespace brrr::insight
