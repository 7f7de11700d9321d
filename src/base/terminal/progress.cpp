#include "base/terminal/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include "base/env.h"
#include "base/human.h"
#include "base/tell.h"

namespace brrr {
namespace {

constexpr double kRedrawSeconds = 0.1;
constexpr int kShortestBar = 8, kLongestBar = 40;

constexpr const char* kReset = "\x1b[0m";
constexpr const char* kDim = "\x1b[2m";
constexpr const char* kBold = "\x1b[1m";
constexpr const char* kAccent = "\x1b[36m";
constexpr const char* kGood = "\x1b[32m";

/// What the bar itself is worth: see Piece.
constexpr int kBarWorth = 50;

/// A piece of the line: plain text to measure, colour to wrap it in, and how dear it is: the
/// cheapest are left out first when the terminal is narrow. The bar is one of them: a percentage
/// says as much, and time and speed say more.
struct Piece {
  std::string text;
  const char* colour;
  int worth;
};

bool detect_terminal(std::FILE* out) {
  const int fd = ::fileno(out);
  return fd >= 0 && ::isatty(fd) == 1 && env::get("TERM").value_or("dumb") != "dumb";
}

std::string loss_text(double loss) { return fmt::format("loss {:.4f}", loss); }

std::string rate_text(double tokens_per_second, const std::string& unit) {
  if (!std::isfinite(tokens_per_second)) return "? " + unit;
  return fmt::format("{} {}", with_commas(std::llround(std::clamp(tokens_per_second, -1e15, 1e15))),
                     unit);
}

std::string waiting_text(double share) { return fmt::format("wait {:.1f}%", 100 * share); }

}  // namespace

Progress::Progress(ProgressOptions options)
    : options_(std::move(options)),
      terminal_(options_.is_terminal.value_or(detect_terminal(options_.out) &&
                                              !(options_.out == stderr && has_tell_sink()))),
      colour_(options_.colour.value_or(!env::get("NO_COLOR").has_value())),
      done_(options_.start),
      begin_(options_.now()),
      left_(options_.total, options_.now),
      last_draw_(-std::numeric_limits<double>::infinity()),
      last_plain_(begin_) {}

Progress::~Progress() {
  if (drawn_) print("\n");
}

void Progress::note(int64_t done, const StepFigures& figures) {
  done_ = done;
  figures_ = figures;
  left_.note(done);
}

void Progress::update(int64_t done, const StepFigures& figures) {
  note(done, figures);
  if (finished_) return;
  const double now = options_.now();
  if (terminal_) {
    if (now - last_draw_ >= kRedrawSeconds) draw();
  } else if (options_.plain_interval_seconds > 0 &&
             now - last_plain_ >= options_.plain_interval_seconds) {
    print(plain_line() + "\n");
    last_plain_ = now;
  }
}

void Progress::log(int64_t done, const StepFigures& figures) {
  if (finished_ || (terminal_ && !options_.lines)) return update(done, figures);
  note(done, figures);
  if (terminal_) {
    message(plain_line());
    if (!drawn_) draw();
    return;
  }
  print(plain_line() + "\n");
  last_plain_ = options_.now();
}

void Progress::message(std::string_view line) {
  std::string text = drawn_ ? "\r\x1b[K" : "";
  text.append(line) += '\n';
  print(text);
  if (drawn_) draw();
}

void Progress::finish() {
  if (finished_) return;
  if (terminal_ && left_.is_begun()) {
    draw();
    print("\n");
    drawn_ = false;
  }
  finished_ = true;
}

std::optional<double> Progress::units_per_second() const {
  if (const auto rate = left_.units_per_second()) return rate;
  if (const double now = options_.now(); done_ > options_.start && now > begin_)
    return static_cast<double>(done_ - options_.start) / (now - begin_);
  return std::nullopt;
}

int Progress::width() const {
  if (options_.width) return *options_.width;
  if (const auto columns = env::get("COLUMNS")) {
    const int value = std::atoi(columns->c_str());
    if (value > 0) return value;
  }
  struct winsize size {};
  if (::ioctl(::fileno(options_.out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    return size.ws_col;
  return 80;
}

std::string Progress::plain_line() const {
  std::string line = options_.label + " ";
  if (options_.bytes) {
    line += format_bytes(static_cast<double>(done_));
    if (options_.total > 0) line += " / " + format_bytes(static_cast<double>(options_.total));
  } else {
    line += std::to_string(done_);
    if (options_.total > 0) line += "/" + std::to_string(options_.total);
  }
  const auto add = [&](const std::string& text) { line += " | " + text; };
  const StepFigures& f = figures_;
  if (f.loss) add(loss_text(*f.loss));
  if (f.learning_rate) add(fmt::format("lr {:.1e}", *f.learning_rate));
  if (f.grad_norm) add(fmt::format("norm {:.2f}", *f.grad_norm));
  if (f.step_ms) add(duration_text(1e-3 * *f.step_ms));
  if (f.tokens_per_second) add(rate_text(*f.tokens_per_second, options_.rate_unit));
  if (f.waiting_share) add(waiting_text(*f.waiting_share));
  if (const auto rate = units_per_second(); options_.bytes && rate) add(format_bytes(*rate) + "/s");
  if (const auto left = left_.seconds()) add("eta " + format_duration(*left));
  return line;
}

std::string Progress::bar_line() const {
  const bool known = options_.total > 0;
  const double share =
      known ? std::clamp(static_cast<double>(done_) / static_cast<double>(options_.total), 0.0, 1.0)
            : 0;
  std::vector<Piece> pieces;
  // 99.9% is not 100%: the count rounds down.
  if (known) pieces.push_back({fmt::format("{:3}%", static_cast<int>(share * 100)), kBold, 60});
  if (options_.bytes) {
    std::string text = format_bytes(static_cast<double>(done_));
    if (known) text += " / " + format_bytes(static_cast<double>(options_.total));
    pieces.push_back({text, "", 90});
    if (const auto rate = units_per_second())
      pieces.push_back({format_bytes(*rate) + "/s", kDim, 75});
  } else {
    pieces.push_back({known ? fmt::format("{:>{}}/{}", done_, std::to_string(options_.total).size(),
                                          options_.total)
                            : std::to_string(done_),
                      "", 90});
  }
  if (figures_.loss) pieces.push_back({loss_text(*figures_.loss), kAccent, 70});
  if (figures_.tokens_per_second)
    pieces.push_back({rate_text(*figures_.tokens_per_second, options_.rate_unit), kDim, 75});
  if (figures_.waiting_share) pieces.push_back({waiting_text(*figures_.waiting_share), kDim, 30});
  if (const auto left = left_.seconds())
    pieces.push_back({"eta " + format_duration(*left), "", 80});
  pieces.push_back({format_duration(options_.now() - begin_), kDim, 40});

  // One column stays free: a full last column makes some terminals wrap.
  const int room = width() - 1;
  const int label = static_cast<int>(options_.label.size());
  bool bar = known;
  const auto used = [&] {
    int columns = label + (bar ? 1 + kShortestBar : 0);
    for (const Piece& p : pieces) columns += 2 + static_cast<int>(p.text.size());
    return columns;
  };
  while (used() > room && (bar || pieces.size() > 1)) {
    const auto cheapest =
        std::min_element(pieces.begin(), pieces.end(),
                         [](const Piece& a, const Piece& b) { return a.worth < b.worth; });
    if (bar && cheapest->worth > kBarWorth)
      bar = false;
    else
      pieces.erase(cheapest);
  }

  const auto paint = [&](const std::string& text, const char* colour) {
    return colour_ && *colour != '\0' ? colour + text + kReset : text;
  };
  if (!bar) {
    std::string line = options_.label;
    for (const Piece& p : pieces) line += "  " + p.text;
    return line.substr(0, static_cast<size_t>(std::max(0, room)));
  }
  const int columns = std::min(kLongestBar, kShortestBar + room - used());
  const int halves = static_cast<int>(share * columns * 2);
  std::string filled, rest;
  for (int i = 0; i < halves / 2; ++i) filled += "━";
  if (halves % 2 == 1) filled += "╸";
  for (int i = (halves + 1) / 2; i < columns; ++i) rest += colour_ ? "━" : "─";
  std::string line = paint(options_.label, kBold) + " ";
  line += paint(filled, share >= 1 ? kGood : kAccent) + paint(rest, kDim);
  for (const Piece& p : pieces) line += "  " + paint(p.text, p.colour);
  return line;
}

void Progress::draw() {
  print("\r" + bar_line() + "\x1b[K");
  drawn_ = true;
  last_draw_ = options_.now();
}

void Progress::print(std::string_view text) {
  if (options_.out == stderr) return tell_text(text);
  std::fwrite(text.data(), 1, text.size(), options_.out);
  std::fflush(options_.out);
}

}  // namespace brrr
