// The page of a profile in a real browser: drawn, alive, silent, alone.

#include <gtest/gtest.h>

#include <fstream>

#include "base/env.h"
#include "insight/profile/profile_page.h"
#include "insight/profile_sample.h"
#include "support/browser.h"
#include "support/hostile_markup.h"

namespace brrr::insight {
namespace {

class ProfilePage : public ::testing::Test {
 protected:
  void SetUp() override {
    program_ = test::find_chromium();
    if (program_.empty()) GTEST_SKIP() << "there is no Chromium on this machine";
    write_file_atomically(folder_ / "page.html",
                          profile_page(advised_profile(), sample_memory_pictures()));
    url_ = "file://" + (folder_ / "page.html").string();
  }
  test::TempFolder folder_;
  std::string program_, url_;
};

TEST_F(ProfilePage, IsDrawnAndSilentAndAlone) {
  for (const bool dark : {false, true}) {
    test::Browser browser(program_, 1100, 1400, dark);
    browser.open(url_);
    const auto kernels = static_cast<int>(sample_profile().kernels.size());
    EXPECT_EQ(browser.evaluate("document.querySelectorAll('.desk circle.k').length"), kernels);
    EXPECT_EQ(browser.evaluate("document.querySelectorAll('.desk svg.roof .ceiling').length > 2"),
              true);
    // Inside the picture, and visible.
    EXPECT_EQ(browser.evaluate("[...document.querySelectorAll('.desk circle.k')].every(c => {"
                               "const b = c.getBoundingClientRect(),"
                               "p = c.ownerSVGElement.getBoundingClientRect();"
                               "return b.width > 2 && b.left > p.left && b.right < p.right + 1"
                               "&& b.top > p.top - 30 && b.bottom < p.bottom; })"),
              true);
    EXPECT_EQ(browser.evaluate("document.querySelector('img').naturalWidth > 100"), true);
    const std::string back = browser.evaluate("getComputedStyle(document.body).backgroundColor");
    EXPECT_EQ(back == "rgb(255, 255, 255)", !dark) << back;
    EXPECT_TRUE(browser.complaints().empty()) << browser.complaints()[0];
    ASSERT_EQ(browser.requests().size(), 1u) << "only the page itself";
    EXPECT_EQ(browser.requests()[0], url_);
  }
}

// What a model's folder and the options of somebody else may say.
TEST_F(ProfilePage, MarkupIsText) {
  Profile p = advised_profile();
  p.title = p.backend = test::kHostileMarkup;
  for (KernelProfile& k : p.kernels) k.name = k.shape = k.scope = k.phase = test::kHostileMarkup;
  for (auto* groups : {&p.by_kind, &p.by_class, &p.by_phase, &p.by_scope})
    for (Group& g : *groups) g.name = test::kHostileMarkup;
  for (Advice& a : p.advice) a.option = a.text = test::kHostileMarkup;
  write_file_atomically(folder_ / "page.html", profile_page(p, sample_memory_pictures()));
  test::Browser browser(program_, 1100, 1400, false);
  browser.open(url_);
  test::expect_harmless(browser, url_);
}

TEST_F(ProfilePage, TellsAboutTheKernelUnderThePointer) {
  test::Browser browser(program_, 1100, 1400, false);
  browser.open(url_);
  EXPECT_EQ(browser.tip(), "");
  const std::string tip =
      browser.tip_over("[...document.querySelectorAll('.desk circle.k')].at(-1)");
  EXPECT_NE(tip.find("-bound"), std::string::npos) << tip;
  EXPECT_NE(tip.find("s a step"), std::string::npos) << tip;
  browser.move_mouse(3, 3);
  EXPECT_EQ(browser.tip(), "");
}

TEST_F(ProfilePage, SortsItsTables) {
  test::Browser browser(program_, 1100, 1400, false);
  browser.open(url_);
  const std::string values =
      "[...document.querySelector('table.sorts').tBodies[0].rows].map(r => +r.cells[2].dataset.v)";
  const auto is_sorted = [&](const char* order) {
    return browser.evaluate(values + ".every((v, i, a) => i == 0 || a[i - 1] " + order + " v)");
  };
  const std::string head = "document.querySelector('table.sorts th:nth-child(3) button')";
  browser.evaluate(head + ".click()");
  EXPECT_EQ(is_sorted(">="), true);
  browser.evaluate(head + ".click()");
  EXPECT_EQ(is_sorted("<="), true);
  EXPECT_EQ(browser.evaluate("document.querySelector('table.sorts th[aria-sort]').ariaSort"),
            "ascending");
}

TEST_F(ProfilePage, TablesFitADeskAndAPhone) { test::expect_whole_tables(program_, url_); }

// The words of a picture are as large as those of the page, and none is cut off or covers another,
// however slow the kernels are: they decide where the slopes enter the picture.
TEST_F(ProfilePage, PicturesFitAPhone) {
  for (const double slower : {1, 30, 1000}) {
    Profile p = advised_profile();
    for (KernelProfile& k : p.kernels) k.ms *= slower;
    write_file_atomically(folder_ / "page.html", profile_page(p, sample_memory_pictures()));
    test::Browser browser(program_, 390, 800, slower > 1);
    browser.open(url_);
    test::expect_phone_picture(browser, "svg.roof");
    EXPECT_EQ(browser.evaluate("[...document.querySelectorAll('.phone img')].every(i => "
                               "i.naturalWidth <= 340 && i.getBoundingClientRect().right <= 390)"),
              true);
  }
}

TEST(ProfilePageText, SaysThatTheMachineWasBusy) {
  Profile p = sample_profile();
  p.other_processors = 0;
  p.step = {10, 9, 10};
  EXPECT_EQ(profile_page(p, {}).find("class=\"warning\""), std::string::npos);
  p.other_processors = 1.26;
  EXPECT_NE(profile_page(p, {}).find("other programs used 1.3 CPUs"), std::string::npos);
}

TEST_F(ProfilePage, IsDarkOrLightOrOnPaper) {
  for (const bool dark : {false, true}) {
    test::Browser browser(program_, 1100, 1400, dark);
    browser.open(url_);
    test::expect_readable(browser, dark);
  }
}

TEST_F(ProfilePage, EscapesWhatIsShown) {
  Profile p = sample_profile();
  p.title = "<script>document.title = 'broken'</script>";
  p.kernels[0].name = "\"><img src=x onerror=\"document.title = 'broken'\">";
  p.kernels[0].scope = "'&<b>";
  write_file_atomically(folder_ / "page.html", profile_page(p, {}));
  test::Browser browser(program_, 1100, 1400, false);
  browser.open(url_);
  EXPECT_NE(browser.evaluate("document.title"), "broken");
  EXPECT_EQ(browser.evaluate("document.querySelectorAll('img').length"), 0);
  EXPECT_TRUE(browser.complaints().empty());
}

}  // namespace
}  // namespace brrr::insight
