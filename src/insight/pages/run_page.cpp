#include "insight/pages/run_page.h"

#include <cmath>
#include <span>
#include <string_view>
#include <utility>

#include "base/env.h"
#include "base/human.h"
#include "base/memory.h"
#include "insight/pages/page.h"

namespace brrr {
std::span<const std::pair<std::string_view, std::string_view>> embedded_insight_pages();
}

namespace brrr::insight {
namespace {

using Json = nlohmann::json;

constexpr const char* kNotMeasured =
    "not measured: `brrr train --live` measures it, on a step now and then, where kernels run on "
    "the CPU";

// On top of what every page has. The colours of lines are those of loss.svg.
constexpr const char* kRunStyle = R"(
:root{--c0:#2563eb;--c1:#ea580c;--c2:#059669;--c3:#9333ea;--c4:#db2777;--c5:#64748b}
@media(prefers-color-scheme:dark){:root{--c0:#60a5fa;--c1:#fb923c;--c2:#34d399;--c3:#c084fc;
--c4:#f472b6;--c5:#94a3b8}}
@media print{:root{--c0:#2563eb;--c1:#ea580c;--c2:#059669;--c3:#9333ea;--c4:#db2777;--c5:#64748b}}
#charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:16px}
#charts .card{margin:0;min-width:0}.chart h2{margin:0}
.legend{min-height:22px;font-size:13px;color:var(--faint);font-variant-numeric:tabular-nums}
.legend span{display:inline-flex;align-items:center;gap:6px;margin-right:14px}
.legend i{width:12px;height:4px;border-radius:2px}
svg.plot{display:block;width:100%;height:auto;touch-action:pan-y}
svg.plot text{fill:var(--faint);font-size:12px;font-variant-numeric:tabular-nums}
svg.plot .grid{stroke:var(--line)}
svg.plot .line{fill:none;stroke-width:1.8;stroke-linejoin:round}
svg.plot .faint{stroke-width:1;stroke-opacity:.3}
svg.plot .points{stroke-width:1.4;stroke-dasharray:5 3}
svg.plot .area{fill-opacity:.75}
svg.plot .mark{stroke:var(--overhead);stroke-dasharray:2 3}
svg.plot .hair{stroke:var(--faint)}
#bar{height:6px;border-radius:3px;background:var(--line);margin:12px 0;overflow:hidden}
#progress{height:100%;width:0;background:var(--c0)}
#tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(160px,1fr));gap:8px;margin:0 0 16px}
#tiles div{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:8px 12px;
color:var(--faint);font-size:12.5px}
#tiles b{display:block;color:var(--text);font-size:17px;font-variant-numeric:tabular-nums;
white-space:nowrap}
#status[data-state=lost],#status[data-state=failed]{color:var(--overhead)}
#notes{margin:0;padding-left:20px}
.options th{text-align:left}
td.text{white-space:normal;overflow-wrap:anywhere;text-align:left;max-width:420px}
)";

std::string script() {
  for (const auto& [name, text] : embedded_insight_pages())
    if (name == "run.js") return std::string(text);
  BRRR_CHECK(false, "run.js is not in this build");
  return "";
}

/// JSON for inside a <script>: no "</script>" can stand in it.
std::string embedded_json(const Json& json) {
  std::string out;
  for (const char c : json.dump(-1, ' ', false, Json::error_handler_t::replace))
    out += c == '<' ? std::string("\\u003c") : std::string(1, c);
  return out;
}

std::string figure_cell(const std::optional<double>& value, const std::string& text) {
  return value ? cell(*value, text) : cell(-1, "-");
}

/// A run that has not ended has only its steps to tell.
std::string speed(const RunRecord& r) {
  const auto text = [](double v) { return with_commas(static_cast<int64_t>(v)); };
  if (r.tokens_per_second) return cell(*r.tokens_per_second, text(*r.tokens_per_second));
  const std::optional<double>& median = r.median_tokens_per_second;
  return figure_cell(median, "median " + text(median.value_or(0)));
}

std::string figures(const std::vector<RunRecord>& runs) {
  std::string rows;
  for (const RunRecord& r : runs) {
    const auto loss = [](const std::optional<double>& v) {
      if (v && !std::isfinite(*v)) return cell(1e300, "NaN");  // sorts as the worst
      return figure_cell(v, fmt::format("{:.4f}", v.value_or(0)));
    };
    const auto memory = [](const std::optional<double>& v) {
      return figure_cell(v, memory_text(static_cast<int64_t>(v.value_or(0))));
    };
    rows +=
        "<tr><td>" + html_text(r.name) + "</td><td>" + html_text(r.status) + "</td>" +
        cell(static_cast<double>(r.last_step), with_commas(r.last_step)) + loss(r.train_loss) +
        loss(r.val_loss) +
        figure_cell(r.best_val_loss,
                    fmt::format("{:.4f} at {}", r.best_val_loss.value_or(0), r.best_step)) +
        figure_cell(r.metric_value,
                    fmt::format("{} {:.4f}", r.metric, r.metric_value.value_or(0))) +
        speed(r) +
        figure_cell(r.skipped_steps,
                    with_commas(static_cast<int64_t>(r.skipped_steps.value_or(0)))) +
        figure_cell(r.waiting_share, fmt::format("{:.2f}%", 100 * r.waiting_share.value_or(0))) +
        figure_cell(r.seconds, format_duration(r.seconds.value_or(0))) +
        figure_cell(r.parameters, with_commas(static_cast<int64_t>(r.parameters.value_or(0)))) +
        memory(r.arena_bytes) + memory(r.process_bytes) + "</tr>\n";
  }
  return sorting_table(
      {"run", "status", "steps", "train loss", "val. loss", "best val. loss", "task", "tokens/s",
       "skipped steps", "waiting", "time", "parameters", "arena", "process"},
      rows);
}

std::string options_table(const std::vector<RunRecord>& runs,
                          const std::vector<std::string>& names) {
  std::vector<std::string> heads{"option"};
  for (const RunRecord& r : runs) heads.push_back(r.name);
  std::string rows;
  for (const std::string& name : names) {
    rows += "<tr><td>" + html_text(name) + "</td>";
    for (const RunRecord& r : runs)
      rows += "<td class=\"text\">" + html_text(option_text(r, name)) + "</td>";
    rows += "</tr>\n";
  }
  return "<div class=\"options\">" + sorting_table(heads, rows) + "</div>";
}

std::string all_options(const std::vector<RunRecord>& runs) {
  std::vector<std::string> names;
  for (const auto& [name, value] : runs[0].options.items()) names.push_back(name);
  if (names.empty()) return "";
  return "<details class=\"card\"><summary>All options</summary>" + options_table(runs, names) +
         "</details>\n";
}

std::string remarks(const std::vector<RunRecord>& runs) {
  std::string items;
  for (const RunRecord& r : runs)
    for (const std::string& text : r.remarks)
      items += "<li>" + html_text(r.name + ": " + text) + "</li>";
  return items.empty() ? "" : card("What could not be read", "<ul>" + items + "</ul>");
}

Json page_data(const std::vector<RunRecord>& runs, bool live) {
  Json list = Json::array();
  for (const RunRecord& r : runs) {
    Json run = {{"name", r.name}};
    RunHistory::Place place;
    if (!live) run["news"] = r.history.news(place);
    list.push_back(std::move(run));
  }
  return {{"live", live}, {"regimes", env::as_typed(kNotMeasured)}, {"runs", std::move(list)}};
}

}  // namespace

std::string run_page(const std::vector<RunRecord>& runs, bool live) {
  BRRR_CHECK(!runs.empty() && (!live || runs.size() == 1), "a page of {} runs", runs.size());
  const std::string title = runs.size() == 1 ? runs[0].name : fmt::format("{} runs", runs.size());
  std::string body = "<h1>" + html_text(title) + "</h1>";
  if (runs.size() == 1) {
    std::string line;
    for (const char* name :
         {"preset", "n_layer", "n_head", "n_embd", "context", "batch_size", "optim", "precision"})
      if (const std::string value = option_text(runs[0], name); !value.empty())
        line += fmt::format("{}{} {}", line.empty() ? "" : ", ", name, value);
    body += "<p class=\"faint\">" + html_text(line) + "</p>\n";
  }
  if (live)
    body +=
        "<p id=\"status\" role=\"status\">connecting</p><div id=\"bar\"><div "
        "id=\"progress\"></div></div><div id=\"tiles\"></div>\n";
  else
    body += card("Figures", figures(runs)) + remarks(runs);
  body += card("Health", "<ul id=\"notes\"></ul>") + "<div id=\"charts\"></div>\n";
  if (runs.size() > 1) {
    const std::vector<std::string> names = differing_options(runs);
    body +=
        card("Options that differ", names.empty() ? "<p>None.</p>" : options_table(runs, names));
  }
  body += all_options(runs);
  body += "<div id=\"tip\"></div><script type=\"application/json\" id=\"data\">" +
          embedded_json(page_data(runs, live)) + "</script>";
  return page("brrr: " + title, body, kRunStyle, script());
}

}  // namespace brrr::insight
