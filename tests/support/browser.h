#pragma once
// A real browser for the tests of pages: Chromium without a window, driven over a pipe by its
// DevTools protocol. It keeps what the page complained about and what it asked of the network. A
// machine without Chromium skips.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/file.h"
#include "support/temp_folder.h"

extern char** environ;

namespace brrr::test {

/// The path of a Chromium that is installed, or "".
inline std::string find_chromium() {
  const char* path = std::getenv("PATH");
  std::string folders = path != nullptr ? path : "";
  for (size_t begin = 0; begin <= folders.size();) {
    const size_t end = std::min(folders.find(':', begin), folders.size());
    for (const char* name : {"chromium", "chromium-browser", "google-chrome", "chrome"}) {
      const fs::path file = fs::path(folders.substr(begin, end - begin)) / name;
      if (::access(file.c_str(), X_OK) == 0) return file.string();
    }
    begin = end + 1;
  }
  return "";
}

class Browser {
 public:
  using Json = nlohmann::json;

  /// A page of that size in pixels, with the preference for dark or light.
  Browser(const std::string& program, int width, int height, bool dark) {
    int to[2], from[2];
    if (::pipe2(to, O_CLOEXEC) != 0 || ::pipe2(from, O_CLOEXEC) != 0)
      throw std::runtime_error("pipe");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    // The protocol's pipe is at 3 and 4; the ends may have these numbers themselves.
    const int in = ::fcntl(to[0], F_DUPFD, 10), out = ::fcntl(from[1], F_DUPFD, 10);
    posix_spawn_file_actions_adddup2(&actions, in, 3);
    posix_spawn_file_actions_adddup2(&actions, out, 4);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    std::vector<std::string> words{program,
                                   "--headless=new",
                                   "--no-sandbox",
                                   "--disable-gpu",
                                   "--disable-dev-shm-usage",
                                   "--no-first-run",
                                   "--disable-extensions",
                                   "--disable-background-networking",
                                   "--hide-scrollbars",
                                   "--user-data-dir=" + folder_.path().string(),
                                   "--remote-debugging-pipe",
                                   "about:blank"};
    std::vector<char*> argv;
    for (std::string& w : words) argv.push_back(w.data());
    argv.push_back(nullptr);
    if (posix_spawn(&pid_, program.c_str(), &actions, nullptr, argv.data(), environ) != 0)
      pid_ = -1;
    posix_spawn_file_actions_destroy(&actions);
    for (const int fd : {to[0], from[1], in, out}) ::close(fd);
    write_ = to[1];
    read_ = from[0];
    const Json target = call("Target.createTarget", {{"url", "about:blank"}});
    session_ =
        call("Target.attachToTarget", {{"targetId", target.at("targetId")}, {"flatten", true}})
            .at("sessionId");
    for (const char* domain : {"Page.enable", "Runtime.enable", "Network.enable", "Log.enable"})
      call(domain);
    call("Emulation.setDeviceMetricsOverride",
         {{"width", width}, {"height", height}, {"deviceScaleFactor", 1}, {"mobile", width < 600}});
    dark_ = dark;
    print(false);
  }
  Browser(const Browser&) = delete;
  Browser& operator=(const Browser&) = delete;
  ~Browser() {
    ::close(write_);
    ::close(read_);
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }

  /// Opens the page and waits until it is loaded.
  void open(const std::string& url) {
    loaded_ = false;
    call("Page.navigate", {{"url", url}});
    while (!loaded_) handle(receive());
  }
  /// The value of an expression of the page's script.
  Json evaluate(const std::string& expression) {
    const Json r = call("Runtime.evaluate", {{"expression", expression}, {"returnByValue", true}});
    if (r.contains("exceptionDetails"))
      throw std::runtime_error(expression + ": " + r["exceptionDetails"].dump());
    return r.at("result").value("value", Json());
  }
  void move_mouse(double x, double y) {
    call("Input.dispatchMouseEvent", {{"type", "mouseMoved"}, {"x", x}, {"y", y}});
  }
  /// What the tip beside the pointer says when it is over that share of an element (an expression
  /// of the page's script); "" while the tip is hidden.
  std::string tip_over(const std::string& element, double across = 0.5) {
    const Json at = evaluate("(() => { const b = " + element +
                             ".getBoundingClientRect(); return {x: b.x + b.width * " +
                             std::to_string(across) + ", y: b.y + b.height / 2}; })()");
    move_mouse(at["x"], at["y"]);
    return tip();
  }
  std::string tip() {
    return evaluate(
        "(t => getComputedStyle(t).visibility === 'visible' ? t.textContent : '')("
        "document.getElementById('tip'))");
  }
  void click(double x, double y) {
    for (const char* type : {"mousePressed", "mouseReleased"})
      call("Input.dispatchMouseEvent",
           {{"type", type}, {"x", x}, {"y", y}, {"button", "left"}, {"clickCount", 1}});
  }
  /// As a printer would show it.
  void print(bool on_paper) {
    call(
        "Emulation.setEmulatedMedia",
        {{"media", on_paper ? "print" : "screen"},
         {"features",
          Json::array({{{"name", "prefers-color-scheme"}, {"value", dark_ ? "dark" : "light"}}})}});
  }
  /// PNG, as base64.
  std::string screenshot(bool whole_page) {
    return call("Page.captureScreenshot",
                {{"format", "png"}, {"captureBeyondViewport", whole_page}})
        .at("data");
  }

  /// What scripts threw and what was written to the console as an error.
  const std::vector<std::string>& complaints() const { return complaints_; }
  /// Addresses that were asked for, data: left out.
  const std::vector<std::string>& requests() const { return requests_; }

 private:
  static constexpr int kPatience = 60'000;  // ms for any answer

  Json call(const std::string& method, const Json& params = Json::object()) {
    Json message = {{"id", ++last_id_}, {"method", method}, {"params", params}};
    if (!session_.empty()) message["sessionId"] = session_;
    const std::string text = message.dump() + '\0';
    if (::write(write_, text.data(), text.size()) != static_cast<ssize_t>(text.size()))
      throw std::runtime_error("the browser is gone");
    for (;;) {
      const Json answer = receive();
      if (answer.value("id", -1) != last_id_) {
        handle(answer);
        continue;
      }
      if (answer.contains("error")) throw std::runtime_error(method + answer["error"].dump());
      return answer.at("result");
    }
  }

  Json receive() {
    size_t end = 0;
    while ((end = buffer_.find('\0')) == std::string::npos) {
      pollfd waiting{read_, POLLIN, 0};
      if (::poll(&waiting, 1, kPatience) <= 0) throw std::runtime_error("the browser is silent");
      char chunk[65536];
      const ssize_t n = ::read(read_, chunk, sizeof chunk);
      if (n <= 0) throw std::runtime_error("the browser is gone");
      buffer_.append(chunk, static_cast<size_t>(n));
    }
    const Json message = Json::parse(buffer_.substr(0, end));
    buffer_.erase(0, end + 1);
    return message;
  }

  void handle(const Json& event) {
    const std::string method = event.value("method", "");
    if (method == "Page.loadEventFired") loaded_ = true;
    if (method == "Runtime.exceptionThrown") complaints_.push_back(event["params"].dump());
    if (method == "Runtime.consoleAPICalled" && event["params"].value("type", "") == "error")
      complaints_.push_back(event["params"].dump());
    if (method == "Log.entryAdded" && event["params"]["entry"].value("level", "") == "error")
      complaints_.push_back(event["params"].dump());
    if (method == "Network.requestWillBeSent") {
      const std::string url = event["params"]["request"]["url"];
      if (!url.starts_with("data:")) requests_.push_back(url);
    }
  }

  TempFolder folder_;
  pid_t pid_ = -1;
  int write_ = -1, read_ = -1, last_id_ = 0;
  std::string session_, buffer_;
  bool loaded_ = false, dark_ = false;
  std::vector<std::string> complaints_, requests_;
};

/// The ground is light or dark as it is preferred, white on paper, and text stands out from it.
inline void expect_readable(Browser& browser, bool dark) {
  const std::string contrast =
      "(() => { const light = c => { const [r, g, b] = c.match(/[\\d.]+/g).map(x => {"
      "x = x / 255; return x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4; });"
      "return 0.2126 * r + 0.7152 * g + 0.0722 * b; };"
      "const ground = light(getComputedStyle(document.body).backgroundColor);"
      "let least = 99; for (const e of document.querySelectorAll('h1, h2, p, td, th button, li')) {"
      "const text = light(getComputedStyle(e).color);"
      "least = Math.min(least, (Math.max(text, ground) + 0.05) / (Math.min(text, ground) + 0.05)); "
      "}"
      "return least; })()";
  const auto ground = [&] {
    return browser.evaluate("getComputedStyle(document.body).backgroundColor").get<std::string>();
  };
  EXPECT_EQ(ground() == "rgb(255, 255, 255)", !dark) << ground();
  EXPECT_GE(browser.evaluate(contrast).get<double>(), 4.5) << "WCAG's contrast";
  browser.print(true);
  EXPECT_EQ(ground(), "rgb(255, 255, 255)");
  EXPECT_GE(browser.evaluate(contrast).get<double>(), 4.5) << "on paper";
  // A card that is cut in two cannot be read; a table that scrolls would be cut off.
  EXPECT_EQ(browser.evaluate("[...document.querySelectorAll('.wide')].every("
                             "e => getComputedStyle(e).overflowX === 'visible')"),
            true);
  browser.print(false);
}

/// No table of a page is cut off or scrolls sideways, on a desk or a phone, and neither does the
/// page.
inline void expect_whole_tables(const std::string& program, const std::string& url) {
  for (const int width : {1280, 390}) {
    Browser browser(program, width, 800, false);
    browser.open(url);
    EXPECT_EQ(browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), true)
        << width;
    // The inside of a box, and of a cell that holds a word which does not break.
    const std::string wide = browser.evaluate(
        "[...document.querySelectorAll('table')].filter(t => t.offsetWidth > 0 && "
        "(t.offsetWidth > t.parentElement.clientWidth + 1 || "
        "[...t.querySelectorAll('td')].some(c => c.scrollWidth > c.clientWidth + "
        "1))).map(t => t.textContent.slice(0, 60)).join('; ')");
    EXPECT_EQ(wide, "") << width;
    EXPECT_EQ(browser.evaluate("document.querySelectorAll('table').length > 0"), true);
  }
}

/// In a window of a phone's width: of the pictures that `selector` finds one is shown, as wide as
/// the window at most; its words are large enough to be read, inside it, and none covers another.
inline void expect_phone_picture(Browser& browser, const std::string& selector) {
  const std::string shown =
      "[...document.querySelectorAll('" + selector + "')].filter(s => s.getClientRects().length)";
  ASSERT_EQ(browser.evaluate(shown + ".length"), 1) << selector;
  EXPECT_EQ(browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), true);
  const std::string faults = browser.evaluate(
      "(s => { const p = s.getBoundingClientRect(), faults = [],"
      " boxes = [...s.querySelectorAll('text')].map(t => [t.textContent, "
      "t.getBoundingClientRect()]), scale = p.width / s.viewBox.baseVal.width;"
      "for (const t of s.querySelectorAll('text'))"
      " if (parseFloat(getComputedStyle(t).fontSize) * scale < 11) faults.push('too small: ' + "
      "t.textContent);"
      "if (p.left < 0 || p.right > innerWidth) faults.push('the picture is cut off');"
      "for (const [text, b] of boxes) {"
      " if (b.left < p.left - 1 || b.right > p.right + 1 || b.bottom > p.bottom + 1)"
      "  faults.push('outside: ' + text);"
      " for (const [other, c] of boxes) if (other < text &&"
      "  Math.min(b.right, c.right) - Math.max(b.left, c.left) > 2 &&"
      "  Math.min(b.bottom, c.bottom) - Math.max(b.top, c.top) > 4)"
      "   faults.push(text + ' covers ' + other); }"
      "return faults.join('; '); })(" +
      shown + "[0])");
  EXPECT_EQ(faults, "") << selector;
}

}  // namespace brrr::test
