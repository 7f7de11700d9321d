// The page of runs in a real browser: drawn, alive, silent, alone. (The page of a run that goes on:
// tests/e2e/live_test.cpp.)

#include "insight/pages/run_page.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <thread>

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
                {"seconds", 0.5 * i},
                {"tokens", 700 * i},
                {"tokens_per_second", 35'000 + 1000 * std::cos(i)},
                {"waiting_share", 0.01}};
      if (measured && i % 50 == 0)
        r.update({{"process_bytes", 6e7},
                  {"arena_bytes", 4e7},
                  {"cpu_busy", 0.9},
                  {"cpu_processors", 1.8},
                  {"cpu_other_processors", name == "two" ? 1.2 : 0.1},
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
    for (int i = 0; i < 400; ++i) {
      if (browser.evaluate(expression) == true) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
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
    EXPECT_EQ(
        browser.evaluate(chart("What bounds a step") + ".querySelectorAll('path.area').length"), 5);
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
  EXPECT_EQ(browser.tip(), "");
  const std::string tip = browser.tip_over(chart("Loss") + ".querySelector('svg')");
  EXPECT_TRUE(tip.starts_with("step ")) << tip;
  EXPECT_NE(tip.find("train, smoothed: "), std::string::npos) << tip;
  browser.move_mouse(3, 3);
  EXPECT_EQ(browser.tip(), "");
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
  browser.evaluate("document.querySelector('th:nth-child(2) button').click()");
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

// One line for each set of tokens, and none from one to the other.
TEST_F(RunPage, ValidationOnOtherTokensIsAnotherLine) {
  RunRecord one = run("one", 0.3, kPlain), two = run("two", 0.3, kPlain);
  one.history.evaluation(410, 2, "ab", 640);
  one.history.evaluation(420, 2, "ab", 640);
  one.val_set = "ab", one.val_tokens = 640;
  test::Browser browser(program_, 1100, 1400, false);
  open(browser, put({one}));
  EXPECT_EQ(browser.evaluate(chart("Loss") + ".querySelectorAll('path.points').length"), 2);
  EXPECT_EQ(browser.evaluate(chart("Loss") + ".textContent.includes('validation on 640 tokens')"),
            true);
  EXPECT_EQ(browser.evaluate(chart("Loss") + ".textContent.includes('train, smoothed')"), true);
  open(browser, put({one, two}));
  EXPECT_EQ(browser.evaluate(chart("Loss") + ".textContent.includes('cannot be compared')"), true);
  EXPECT_EQ(browser.evaluate("[...document.querySelectorAll('.warning')].some(w => "
                             "w.textContent.includes('one on 640 tokens'))"),
            true);
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
  for (const char* part :
       {">median tokens/s<", ">5,678<", ">on average<", ">1,234<", ">NaN<", ">skipped steps<"})
    EXPECT_NE(one.find(part), std::string::npos) << part;
  EXPECT_NE(other.find(">5,678<"), std::string::npos);
  EXPECT_EQ(other.find(">on average<"), std::string::npos) << "no run says it: no column";
}

TEST(RunPageText, SaysWhatWasTrainedOnWhatAndWhatItWrites) {
  RunRecord run;
  run.name = "one";
  run.status = "finished";
  run.machine = "cpu:avx512, 2 threads of <b>Some</b> Processor";
  run.parameters = 3'270'000;
  run.history.sample(2000, "First <i>line</i>.\nSecond line.");
  const std::string page = run_page({run});
  for (const char* part :
       {"finished, on cpu:avx512, 2 threads of &lt;b&gt;Some&lt;/b&gt; Processor", ">3,270,000<",
        "Sample texts",
        R"("samples":[{"step":2000,"text":"First \u003ci>line\u003c/i>.\nSecond line."}])"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
}

TEST_F(RunPage, SamplesStandByTheirStepsAndTheNewestIsOpen) {
  RunRecord one = run("one", 0.3, kPlain);
  one.history.sample(100, "first <b>text</b>");
  one.history.sample(100, "second");
  one.history.sample(200, "third");
  test::Browser browser(program_, 1100, 1400, false);
  open(browser, put({one}));
  const std::string texts =
      "[...document.querySelectorAll('#texts details')].map(d => d.open + ' ' "
      "+ d.textContent).join('|')";
  EXPECT_TRUE(wait_for(browser, "document.querySelectorAll('#texts details').length === 2"));
  EXPECT_EQ(browser.evaluate(texts),
            "true after step 200third|false after step 100first <b>text</b>second");
  // A live page gets them one after the other; what the reader opened stays open.
  browser.evaluate("document.querySelectorAll('#texts details')[1].open = true");
  browser.evaluate("merge(runs[0], {samples: [{step: 300, text: 'fourth'}]}); draw()");
  EXPECT_TRUE(wait_for(browser, "document.querySelectorAll('#texts details').length === 3"));
  EXPECT_EQ(browser.evaluate(texts),
            "true after step 300fourth|false after step 200third|"
            "true after step 100first <b>text</b>second");
  EXPECT_TRUE(browser.complaints().empty());
}

TEST_F(RunPage, RunsCanBeHiddenAndTheAxisChosen) {
  test::Browser browser(program_, 1100, 1400, false);
  const std::string url = put({run("one", 0.3, kPlain), run("two", 0.4, kPlain, 200)});
  open(browser, url);
  const std::string lines = chart("Loss") + ".querySelectorAll('path.line').length";
  const auto press = [&](const std::string& text) {
    browser.evaluate(
        "[...document.querySelectorAll('#controls button')].find(b => b.textContent "
        "=== '" +
        text + "').click()");
  };
  const auto axis_says = [&](const std::string& text) {
    return wait_for(browser,
                    "[...document.querySelectorAll('.chart:not([hidden]) svg.plot')]"
                    ".filter(s => s.style.display !== 'none').every(s => "
                    "[...s.querySelectorAll('text.axis')].some(t => t.textContent === '" +
                        text + "'))");
  };
  EXPECT_EQ(axis_says("steps"), true);
  EXPECT_EQ(browser.evaluate(chart("Loss") + ".textContent.includes('nats')"), true);
  EXPECT_EQ(browser.evaluate(lines), 4);
  press("one");
  EXPECT_EQ(wait_for(browser, lines + " === 2"), true);
  EXPECT_EQ(browser.evaluate(chart("Loss") + ".textContent.includes('one: train')"), false);
  press("one");
  EXPECT_EQ(wait_for(browser, lines + " === 4"), true);
  press("time");
  EXPECT_EQ(axis_says("minutes"), true);
  press("tokens");
  EXPECT_EQ(axis_says("thousand tokens"), true);
  // The shorter run ends where half of the longer one's tokens are.
  EXPECT_EQ(browser.evaluate("(lines => Math.max(...lines[1].x) / Math.max(...lines[0].x))("
                             "drawn[1].drawn)"),
            0.5);
  const std::string tip = browser.tip_over(chart("Loss") + ".querySelector('svg')", 0.25);
  EXPECT_NE(tip.find("thousand tokens"), std::string::npos) << tip;
  EXPECT_NE(tip.find("one: train"), std::string::npos) << tip;
  EXPECT_NE(tip.find("two: train"), std::string::npos) << tip;
  EXPECT_EQ(browser.evaluate("document.getElementById('busy').textContent"),
            "two: other programs used 1.2 CPUs: alone on its machine this run is faster "
            "than its figures say. ");
  expect_silent(browser, url);
}

TEST_F(RunPage, EachRankHasASmallChartOnOneScale) {
  run("ranked", 0.3, "{}", 60);
  std::string log = read_file(folder_ / "ranked" / "log.jsonl");
  for (int step = 20; step <= 60; step += 20)
    log += Json({{"step", step},
                 {"rank_step_ms", {132, 132, 132}},
                 {"rank_waited_ms", {32, 31, 2}},
                 {"rank_sent_bytes", {2048, 2048, 2048}},
                 {"rank_process_bytes", {6 << 20, 5 << 20, 7 << 20}}})
               .dump() +
           "\n";
  write_file_atomically(folder_ / "ranked" / "log.jsonl", log);
  test::Browser browser(program_, 1100, 1400, false);
  open(browser, put({read_run(folder_ / "ranked")}));
  EXPECT_EQ(browser.evaluate("document.querySelectorAll('#ranks section').length"), 3);
  EXPECT_EQ(browser.evaluate("document.querySelectorAll('#ranks path.area').length"), 6);
  EXPECT_EQ(browser.evaluate("document.getElementById('ranked').hidden"), false);
  const std::string third =
      browser.evaluate("document.querySelectorAll('#ranks section')[2].textContent");
  for (const char* part : {"rank 2", "computes 130 ms", "waits for others 2 ms",
                           "process 7.00 MiB, sends 2.00 KiB a step"})
    EXPECT_NE(third.find(part), std::string::npos) << third;
  const Json heights = browser.evaluate(
      "[...document.querySelectorAll('#ranks section')].map((s) => "
      "Math.round(Math.max(...[...s.querySelectorAll('path.area')].map((p) => "
      "p.getBBox().y + p.getBBox().height))))");
  EXPECT_EQ(heights[0], heights[2]);
  // A run of one process has no such charts.
  open(browser, put({run("alone", 0.3, "{}", 60)}));
  EXPECT_EQ(browser.evaluate("document.getElementById('ranked').hidden"), true);
}

TEST_F(RunPage, TablesFitADeskAndAPhone) {
  test::expect_whole_tables(program_, put({run("one", 0.3, kPlain), run("two", 0.4, kPlain)}));
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
