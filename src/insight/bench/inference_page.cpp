// What `brrr bench inference` measured as one page: curves over batch size and length, what sorting
// gains, the runtimes side by side, and every row.

#include <algorithm>
#include <cmath>
#include <map>

#include "formats/svg_plot.h"
#include "insight/bench/bench_inference.h"
#include "insight/machine/machine.h"
#include "insight/pages/page.h"

namespace brrr::insight {
namespace {

constexpr const char* kInferenceStyle = R"(
.bars{display:grid;grid-template-columns:minmax(110px,300px) 1fr 84px;gap:5px 12px;align-items:center;
font-variant-numeric:tabular-nums;font-size:14px}
.bars div{height:12px;border-radius:6px;background:var(--line)}
.bars i{display:block;height:12px;border-radius:6px;background:var(--faint)}
.bars .own i{background:var(--compute)}
.bars b{font-weight:400;text-align:right}
@media(max-width:600px){.bars{grid-template-columns:1fr 84px}.bars>span{grid-column:1/-1}}
)";

constexpr size_t kColours = 6;    // of a plot
constexpr double kWideRatio = 6;  // from here on an axis of times is logarithmic

using Rows = std::vector<InferenceRow>;

std::string padding(const InferenceRow& row) {
  return fmt::format("{:.0f}%", 100.0 * static_cast<double>(row.padded_tokens - row.real_tokens) /
                                    static_cast<double>(row.real_tokens));
}

/// The curves of a plot by their labels, in the order in which they come.
class Curves {
 public:
  void add(const std::string& label, int64_t x, double y) {
    auto at = std::ranges::find(series_, label, &io::Series::label);
    if (at == series_.end()) {
      io::Series series;
      series.label = label;
      // Without markers a second curve of the same colour is told apart.
      series.style = series_.size() < kColours ? io::LineStyle::markers : io::LineStyle::line;
      series.colour = static_cast<int>(series_.size() % kColours);
      series_.push_back(std::move(series));
      at = series_.end() - 1;
    }
    at->x.push_back(static_cast<double>(x));
    at->y.push_back(y);
  }
  /// Whether there is nothing to draw: a curve needs two points.
  bool empty() const {
    return std::ranges::none_of(series_, [](const io::Series& s) { return s.x.size() > 1; });
  }

  std::string html(const std::string& title, const std::string& x_label,
                   const std::string& y_label) const {
    io::Plot plot;
    plot.title = title;
    plot.x_label = x_label;
    plot.y_label = y_label;
    plot.series = series_;
    double low = INFINITY, high = 0;
    for (io::Series& s : plot.series) {
      sort_by_x(s);
      for (const double y : s.y) low = std::min(low, y), high = std::max(high, y);
    }
    plot.log_y = low > 0 && high > kWideRatio * low;
    const std::string desk = picture(io::svg_plot(plot), title);
    plot.width = 420;
    plot.height = 420;
    return fitting({desk, picture(io::svg_plot(plot), title)});
  }

 private:
  static void sort_by_x(io::Series& s) {
    std::vector<std::pair<double, double>> points;
    for (size_t i = 0; i < s.x.size(); ++i) points.emplace_back(s.x[i], s.y[i]);
    std::ranges::sort(points);
    for (size_t i = 0; i < points.size(); ++i) std::tie(s.x[i], s.y[i]) = points[i];
  }

  std::vector<io::Series> series_;
};

/// Time over batch size, each runtime with the order that it should have.
std::string over_batch(const Rows& rows) {
  std::string body;
  for (const Precision precision : precisions_of(rows)) {
    Curves best, orders;
    for (const InferenceRow& row : rows) {
      if (row.length != 0 || row.precision != precision || !row.agrees) continue;
      const bool is_best = row.is_ours() ? row.order == TextOrder::packed && !row.is_sorted
                                         : row.order == TextOrder::sorted;
      if (is_best)
        best.add(row.runtime + (row.is_ours() ? ", packed" : ", sorted"), row.batch, row.ms.median);
      if (row.is_ours()) orders.add("brrr, " + row.order_text(), row.batch, row.ms.median);
    }
    if (!best.empty())
      body +=
          best.html(fmt::format("Milliseconds per sentence, {}", precision), "batch size", "ms");
    if (!orders.empty())
      body +=
          orders.html(fmt::format("Our orders of the texts, {}", precision), "batch size", "ms");
  }
  return body;
}

std::string over_length(const Rows& rows) {
  std::string body;
  for (const Precision precision : precisions_of(rows)) {
    Curves curves;
    for (const InferenceRow& row : rows)
      if (row.length > 0 && row.precision == precision && row.agrees)
        curves.add(row.runtime + (row.is_ours() ? ", " + row.order_text() : ""), row.length,
                   row.ms.median);
    if (!curves.empty())
      body += curves.html(fmt::format("Milliseconds per text of one length, {}", precision),
                          "tokens", "ms");
  }
  return body;
}

/// The time of random order over that of sorted order.
std::string gain_of_sorting(const Rows& rows) {
  std::string body;
  for (const Precision precision : precisions_of(rows)) {
    std::map<std::tuple<std::string, bool, int64_t>, double> random;
    const auto key = [](const InferenceRow& row) {
      return std::tuple(row.runtime, row.order == TextOrder::packed, row.batch);
    };
    for (const InferenceRow& row : rows)
      if (row.length == 0 && row.precision == precision && !row.is_sorted)
        random[key(row)] = row.ms.median;
    Curves curves;
    for (const InferenceRow& row : rows) {
      if (row.length != 0 || row.precision != precision || !row.is_sorted || !row.agrees) continue;
      if (const auto at = random.find(key(row)); at != random.end())
        curves.add(row.runtime + (!row.is_ours()                   ? ""
                                  : row.order == TextOrder::packed ? ", packed"
                                                                   : ", padded"),
                   row.batch, at->second / row.ms.median);
    }
    if (!curves.empty())
      body += curves.html(fmt::format("Time of random order over sorted order, {}", precision),
                          "batch size", "ratio");
  }
  return body;
}

/// The batch size at which runtimes are compared by bars.
int64_t shown_batch(const Rows& rows) {
  int64_t batch = 0;
  for (const InferenceRow& row : rows) {
    if (row.length != 0) continue;
    if (row.batch == 32) return 32;
    batch = std::max(batch, row.batch);
  }
  return batch;
}

std::string side_by_side(const Rows& rows) {
  const int64_t batch = shown_batch(rows);
  std::vector<const InferenceRow*> shown;
  double most = 0;
  for (const InferenceRow& row : rows) {
    if (row.length != 0 || row.batch != batch || !row.agrees) continue;
    shown.push_back(&row);
    most = std::max(most, row.sentences_per_second());
  }
  std::ranges::stable_sort(shown, std::greater<>(), &InferenceRow::sentences_per_second);
  std::string bars;
  for (const InferenceRow* row : shown)
    bars += fmt::format(
        "<span>{}</span><div class=\"{}\"><i style=\"width:{:.2f}%\"></i></div><b>{:.1f}/s</b>\n",
        html_text(fmt::format("{} {}, {}", row->runtime, row->precision, row->order_text())),
        row->is_ours() ? "own" : "peer", 100 * row->sentences_per_second() / most,
        row->sentences_per_second());
  return fmt::format("<p class=\"faint\">Sentences per second in batches of {}.</p>", batch) +
         "<div class=\"bars\">" + bars + "</div>";
}

std::string rows_table(const InferenceReport& report) {
  std::string rows;
  for (const InferenceRow& row : report.rows) {
    const InferenceRow* peer = best_peer(report, row);
    const double ratio = peer != nullptr && row.agrees ? peer->ms.median / row.ms.median : -1;
    rows += "<tr><td>" + html_text(row.runtime) + "</td><td>" +
            std::string(name_of(row.precision)) + "</td>" +
            cell(static_cast<double>(row.batch), std::to_string(row.batch)) + "<td>" +
            row.order_text() + "</td>" +
            cell(static_cast<double>(row.length),
                 row.length == 0 ? "mixed" : std::to_string(row.length)) +
            cell(row.ms.median, fmt::format("{:.3f}", row.ms.median)) +
            cell(row.ms.low, fmt::format("{:.3f}-{:.3f}", row.ms.low, row.ms.high)) +
            cell(row.sentences_per_second(), fmt::format("{:.1f}", row.sentences_per_second())) +
            cell(static_cast<double>(row.padded_tokens) / static_cast<double>(row.real_tokens),
                 padding(row)) +
            cell(ratio, !row.agrees ? "differs"
                        : ratio < 0 ? "-"
                                    : fmt::format("{:.2f}x", ratio)) +
            cell(row.max_difference, fmt::format("{:.1e}", row.max_difference)) + "</tr>\n";
  }
  return sorting_table({"runtime", "precision", "batch", "order", "tokens", "ms per sentence",
                        "quartiles", "sentences/s", "padding", "best peer", "difference"},
                       rows);
}

std::string findings_table(const InferenceReport& report) {
  std::string rows;
  for (const Finding& f : report.findings)
    rows += "<tr><td>" + html_text(f.published.empty() ? "-" : f.published) +
            "</td><td class=\"text\">" + html_text(f.here) + "</td></tr>\n";
  return "<div class=\"wide\"><table "
         "class=\"texts\"><thead><tr><th>published</th><th>here</th></tr>"
         "</thead><tbody>" +
         rows + "</tbody></table></div>";
}

void add_card(std::string& body, const std::string& title, const std::string& content) {
  if (!content.empty()) body += card(title, content);
}

}  // namespace

std::string inference_page(const InferenceReport& report) {
  std::string versions;
  for (const auto& [name, version] : report.versions) versions += ", " + name + " " + version;
  std::string body =
      "<h1>Inference: " + html_text(report.model) + "</h1><p class=\"faint\">" +
      html_text(fmt::format("{}; {}{}. Medians of {}; the encoder "
                            "and its pooling are timed, without the tokenizer "
                            "(sentence-transformers: with it).",
                            report.subtitle, report.processor, versions, repeats_text(report))) +
      "</p>";
  body += warning(busy_warning(report.other_processors, "timings are unreliable"));
  for (const std::string& note : report.notes)
    body += "<p class=\"faint\">" + html_text("Note: " + note + ".") + "</p>";
  add_card(body, "Runtimes side by side", side_by_side(report.rows));
  add_card(body, "Over batch size", over_batch(report.rows));
  add_card(body, "What sorting gains", gain_of_sorting(report.rows));
  add_card(body, "Over length", over_length(report.rows));
  add_card(body, "Published findings, and here", findings_table(report));
  add_card(body, "All rows", rows_table(report));
  return page("Inference: " + report.model, body, kInferenceStyle);
}

}  // namespace brrr::insight
