// The page of a plan in a real browser: drawn, alive, silent, alone.

#include <gtest/gtest.h>

#include "insight/plan/plan.h"
#include "support/browser.h"
#include "support/hostile_markup.h"
#include "train/trainer.h"

namespace brrr::insight {
namespace {

RunPlan sample_plan() {
  const train::TrainOptions o = train::resolve({{"n-layer", "4"}, {"batch-size", "4"}});
  train::FitContext context;
  context.model = train::model_of(o, 65);
  context.speed = machine::MachineSpeed{2e11, 0, 0, 3e10, 2e11, 1 << 20, "for a test"};
  std::unique_ptr<train::Session> session;
  const train::Plan plan = train::plan_of(o, context, &session);
  RunPlan p = analyse(plan, context.model, *session, context.speed);
  add_kernels(p, *session);
  return p;
}

class PlanPage : public ::testing::Test {
 protected:
  void SetUp() override {
    program_ = test::find_chromium();
    if (program_.empty()) GTEST_SKIP() << "there is no Chromium on this machine";
    put(sample_plan());
  }
  void put(const RunPlan& plan) {
    write_file_atomically(folder_ / "page.html", memory_page(plan));
    url_ = "file://" + (folder_ / "page.html").string();
  }
  test::TempFolder folder_;
  std::string program_, url_;
};

TEST_F(PlanPage, TellsWhatIsInMemoryUnderThePointer) {
  test::Browser browser(program_, 1280, 900, false);
  browser.open(url_);
  EXPECT_EQ(browser.tip(), "");
  const std::string tip = browser.tip_over("document.querySelector('.desk svg circle')");
  const Peak peak = sample_plan().peak;
  for (const std::string& part : {fmt::format("kernel {} of {}", peak.step, peak.steps), peak.op,
                                  std::string("in use: "), std::string("saved activations: ")})
    EXPECT_NE(tip.find(part), std::string::npos) << part << ": " << tip;
  browser.move_mouse(3, 3);
  EXPECT_EQ(browser.tip(), "");
  EXPECT_TRUE(browser.complaints().empty()) << browser.complaints()[0];
  EXPECT_EQ(browser.requests().size(), 1u) << "only the page itself";
}

TEST_F(PlanPage, SortsItsTables) {
  test::Browser browser(program_, 1280, 900, false);
  browser.open(url_);
  EXPECT_EQ(browser.evaluate("document.querySelectorAll('table.sorts').length"), 7)
      << "arena, process, by op, by layer, work, kernels, rules";
  for (int table = 0; table < 6; ++table) {
    const std::string t = fmt::format("document.querySelectorAll('table.sorts')[{}]", table);
    browser.evaluate(t + ".querySelector('th:last-child button').click()");
    EXPECT_EQ(browser.evaluate("[..." + t +
                               ".tBodies[0].rows].map(r => +r.cells[r.cells.length - "
                               "1].dataset.v).every((v, i, a) => i == 0 || a[i - 1] >= v)"),
              true)
        << table;
  }
}

TEST_F(PlanPage, TablesFitADeskAndAPhone) { test::expect_whole_tables(program_, url_); }

TEST_F(PlanPage, ThePictureFitsAPhone) {
  for (const bool dark : {false, true}) {
    test::Browser browser(program_, 390, 800, dark);
    browser.open(url_);
    test::expect_phone_picture(browser, ".memory svg");
    const std::string tip = browser.tip_over("document.querySelector('.phone svg circle')");
    EXPECT_NE(tip.find("in use: "), std::string::npos) << tip;
  }
}

TEST_F(PlanPage, IsDarkOrLightOrOnPaper) {
  for (const bool dark : {false, true}) {
    test::Browser browser(program_, 1280, 900, dark);
    browser.open(url_);
    test::expect_readable(browser, dark);
  }
}

TEST_F(PlanPage, MarkupIsText) {
  RunPlan p = sample_plan();
  p.plan.options.preset = p.backend = p.peak.op = p.peak.scope = test::kHostileMarkup;
  for (Moment& m : p.moments) m.op = m.scope = test::kHostileMarkup;
  for (auto* list : {&p.saved_by_op, &p.saved_by_layer, &p.states})
    for (NamedBytes& b : *list) b.name = test::kHostileMarkup;
  for (PlannedKernel& k : p.kernels->kernels) k.kernel = test::kHostileMarkup;
  put(p);
  test::Browser browser(program_, 1280, 900, false);
  browser.open(url_);
  test::expect_harmless(browser, url_);
}

TEST(PlanPageText, SaysThatTheMachineWasBusy) {
  RunPlan p = sample_plan();
  EXPECT_EQ(memory_page(p).find("class=\"warning\""), std::string::npos);
  p.speed->other_processors = 1.26;
  EXPECT_NE(memory_page(p).find("other programs used 1.3 CPUs while this machine was measured"),
            std::string::npos);
}

}  // namespace
}  // namespace brrr::insight
