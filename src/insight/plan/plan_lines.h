#pragma once
// The lines of a plan's report: headings, and rows of bytes with bars for their shares.

#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "base/memory.h"

namespace brrr::insight {

class Report {
 public:
  static constexpr int kNameWidth = 34;

  explicit Report(bool colour) : colour_(colour) {}
  void heading(const std::string& text) {
    out_ += colour_ ? fmt::format("\n\x1b[1m{}\x1b[0m\n", text) : fmt::format("\n{}\n", text);
  }
  void line(const std::string& text) {
    out_.append(text, 0, text.find_last_not_of(' ') + 1).append("\n");
  }
  /// A row of bytes with a bar for its share of `whole`.
  void bytes(const std::string& name, int64_t amount, int64_t whole) {
    const double share = whole > 0 ? static_cast<double>(amount) / static_cast<double>(whole) : 0;
    constexpr int kBar = 24;
    const auto filled = static_cast<int>(share * kBar + 0.5);
    std::string bar;
    for (int i = 0; i < filled; ++i) bar += "█";
    line(fmt::format("  {:<{}} {:>11} {:>6.1f}%  {}", name, kNameWidth, memory_text(amount),
                     100 * share, bar));
  }
  void total(const std::string& name, int64_t amount, const std::string& more = "") {
    const std::string text =
        fmt::format("  {:<{}} {:>11}  {}", name, kNameWidth, memory_text(amount), more);
    line(colour_ ? "\x1b[1m" + text + "\x1b[0m" : text);
  }
  std::string take() { return std::move(out_); }

 private:
  bool colour_;
  std::string out_;
};

}  // namespace brrr::insight
