#include "insight/pages/run_page.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>
#include <string_view>
#include <utility>

#include "base/env.h"
#include "base/host_load.h"
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
    "not measured: `brrr train --live` measures it on occasional steps, on the CPU only";

// On top of what every page has. The colours of lines are those of loss.svg.
constexpr const char* kRunStyle = R"(
:root{--c0:#2563eb;--c1:#ea580c;--c2:#059669;--c3:#9333ea;--c4:#db2777;--c5:#64748b}
@media(prefers-color-scheme:dark){:root{--c0:#60a5fa;--c1:#fb923c;--c2:#34d399;--c3:#c084fc;
--c4:#f472b6;--c5:#94a3b8}}
@media print{:root{--c0:#2563eb;--c1:#ea580c;--c2:#059669;--c3:#9333ea;--c4:#db2777;--c5:#64748b}}
#controls{display:flex;flex-wrap:wrap;gap:6px 8px;align-items:center;margin:16px 0 10px;
font-size:13.5px}
#controls button{font:inherit;color:inherit;background:var(--card);border:1px solid var(--line);
border-radius:8px;padding:3px 10px;cursor:pointer;display:inline-flex;align-items:center;gap:6px}
#controls button[aria-pressed=true]{border-color:var(--text)}
#controls button[aria-pressed=false]{color:var(--faint)}
#controls .run[aria-pressed=false] i{opacity:.25}
#controls i{width:12px;height:4px;border-radius:2px}#controls span{flex-basis:0;min-width:18px}
pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:2px 0 14px;max-height:360px;overflow-y:auto;
font:13px/1.5 ui-monospace,monospace}
.card .wide+.wide{margin-top:14px}.card ul.faint{margin:10px 0 0;padding-left:20px;font-size:13px}
#charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:16px}
#ranks{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,250px),1fr));gap:12px}
#ranks .card{margin:0;min-width:0;padding:8px 12px}#ranks h2{font-size:14px}
#ranks p{margin:2px 0;font-size:12.5px}
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
svg.plot .axis{font-size:11.5px}
#notes{margin:0;padding-left:20px}
#texts summary{color:var(--faint);cursor:pointer;font-variant-numeric:tabular-nums}
)";

std::string run_script() {
  for (const auto& [name, text] : embedded_insight_pages())
    if (name == "run.js") return std::string(text);
  BRRR_CHECK(false, "run.js is not in this build");
  return "";
}

/// A figure of a run: its head, and its cell. Columns that no run fills are left out.
struct Figure {
  const char* head;
  std::function<std::optional<double>(const RunRecord&)> value;
  std::function<std::string(const RunRecord&, double)> text;
};

std::string figures_table(const std::vector<RunRecord>& runs, const std::vector<Figure>& figures) {
  std::vector<std::string> heads{"run"}, rows;
  for (const RunRecord& r : runs) rows.push_back("<tr><td>" + html_text(r.name) + "</td>");
  for (const Figure& f : figures) {
    if (std::none_of(runs.begin(), runs.end(), [&](const RunRecord& r) { return f.value(r); }))
      continue;
    heads.emplace_back(f.head);
    for (size_t i = 0; i < runs.size(); ++i) {
      const std::optional<double> value = f.value(runs[i]);
      rows[i] += !value                   ? cell(-1, "-")
                 : !std::isfinite(*value) ? cell(1e300, "NaN")  // sorts as the worst
                                          : cell(*value, f.text(runs[i], *value));
    }
  }
  for (std::string& row : rows) row += "</tr>\n";
  return sorting_table(heads, fmt::format("{}", fmt::join(rows, "")));
}

std::string whole(const RunRecord&, double v) { return with_commas(static_cast<int64_t>(v)); }
std::string loss(const RunRecord&, double v) { return fmt::format("{:.4f}", v); }
std::string memory(const RunRecord&, double v) { return memory_text(static_cast<int64_t>(v)); }

/// Whether it is over, and on what it ran: "finished, on cpu:avx512, 2 threads of AMD EPYC 9B14".
std::string subject(const RunRecord& run) {
  if (run.machine.empty()) return run.status;
  return run.status.empty() ? "on " + run.machine : run.status + ", on " + run.machine;
}

std::string figures(const std::vector<RunRecord>& runs) {
  using R = const RunRecord&;
  std::string text = figures_table(
      runs,
      {{"steps", [](R r) { return static_cast<double>(r.last_step); }, whole},
       {"train loss", [](R r) { return r.train_loss; }, loss},
       {"train loss, smoothed", [](R r) { return r.smoothed_train_loss; }, loss},
       {"val. loss", [](R r) { return r.val_loss; }, loss},
       {"val. tokens",
        [](R r) {
          return r.val_tokens ? std::optional(static_cast<double>(*r.val_tokens)) : std::nullopt;
        },
        whole},
       {"best val. loss", [](R r) { return r.best_val_loss; },
        [](R r, double v) { return fmt::format("{:.4f} at {}", v, r.best_step); }},
       {"task", [](R r) { return r.metric_value; },
        [](R r, double v) { return fmt::format("{} {:.4f}", r.metric, v); }},
       {"median tokens/s", [](R r) { return r.median_tokens_per_second; }, whole},
       {"on average", [](R r) { return r.tokens_per_second; }, whole},
       {"time", [](R r) { return r.seconds; }, [](R, double v) { return format_duration(v); }}});
  text += figures_table(runs, {{"parameters", [](R r) { return r.parameters; }, whole},
                               {"arena", [](R r) { return r.arena_bytes; }, memory},
                               {"process", [](R r) { return r.process_bytes; }, memory},
                               {"waiting for data", [](R r) { return r.waiting_share; },
                                [](R, double v) { return fmt::format("{:.2f}%", 100 * v); }},
                               {"skipped steps", [](R r) { return r.skipped_steps; }, whole}});
  if (runs.size() == 1) return text;
  text += warning(evaluation_note(runs));
  std::string items;
  for (const RunRecord& r : runs) items += "<li>" + html_text(r.name + ": " + subject(r)) + "</li>";
  return text + "<ul class=\"faint\">" + items + "</ul>";
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
  return "<div class=\"texts options\">" + sorting_table(heads, rows) + "</div>";
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
  return {{"live", live},
          {"regimes", env::as_typed(kNotMeasured)},
          {"disturbing", kDisturbingProcessors},
          {"evaluations", evaluation_note(runs)},
          {"runs", std::move(list)}};
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
    if (const auto& parameters = runs[0].parameters; live && parameters)
      line = whole(runs[0], *parameters) + " parameters, " + line;
    for (const std::string& text : {line, subject(runs[0])})
      body += "<p class=\"faint\">" + html_text(text) + "</p>\n";
  }
  body += "<p class=\"warning\" id=\"busy\"></p>\n";
  if (live)
    body +=
        "<p id=\"status\" role=\"status\">connecting</p><div id=\"bar\"><div "
        "id=\"progress\"></div></div><div id=\"tiles\"></div>\n";
  else
    body += card("Figures", figures(runs)) + remarks(runs);
  body += card("Health", "<ul id=\"notes\"></ul>") +
          "<div id=\"controls\"></div><div id=\"charts\"></div>\n<section class=\"card\" "
          "id=\"ranked\" hidden><h2>Ranks: the time of a step</h2><div id=\"ranks\"></div>"
          "</section>\n<section class=\"card\" "
          "id=\"samples\" hidden>"
          "<h2>Sample texts</h2><div id=\"texts\"></div></section>\n";
  if (runs.size() > 1) {
    const std::vector<std::string> names = differing_options(runs);
    body +=
        card("Options that differ", names.empty() ? "<p>None.</p>" : options_table(runs, names));
  }
  body += all_options(runs);
  body +=
      "<div id=\"tip\"></div><script type=\"application/json\" id=\"data\">" +
      embedded_json(page_data(runs, live).dump(-1, ' ', false, Json::error_handler_t::replace)) +
      "</script>";
  return page("brrr: " + title, body, kRunStyle, run_script());
}

}  // namespace brrr::insight
