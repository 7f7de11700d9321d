// Climbed ladders as one page: what those of training steps show of themselves, and the frame.

#include <algorithm>

#include "base/memory.h"
#include "insight/ladder/ladder.h"
#include "insight/pages/page.h"

namespace brrr::insight {
namespace {

constexpr const char* kLadderStyle = R"(
.rungs{display:grid;margin-bottom:18px;grid-template-columns:minmax(110px,250px) 1fr 58px;gap:5px 12px;align-items:center;
font-variant-numeric:tabular-nums;font-size:14px}
.track{position:relative;height:10px;border-radius:5px;background:var(--line);margin:2px 0}
.track i{position:absolute;left:0;top:0;bottom:0;border-radius:5px}
.track b{position:absolute;top:-3px;bottom:-3px;width:2px;background:var(--text)}
.published i{background:var(--faint)}.speed i{background:var(--compute)}.memory i{background:var(--bandwidth)}
@media(max-width:600px){.rungs{grid-template-columns:1fr 58px}.rungs>span:not(.value){grid-column:1/-1}}
.value{font-size:12px;line-height:14px;text-align:right}
.key b{width:2px;height:13px;background:var(--text);display:inline-block}
)";

/// A ratio as a bar under `most`, and where the published one would end.
std::string track(const char* kind, double ratio, std::optional<double> published, double most) {
  std::string mark;
  if (published)
    mark = fmt::format("<b style=\"left:{:.2f}%\" title=\"published {:.2f}x\"></b>",
                       100 * *published / most, *published);
  return fmt::format("<div class=\"track {}\"><i style=\"width:{:.2f}%\"></i>{}</div>", kind,
                     100 * ratio / most, mark);
}

std::string bars(const Ladder& ladder, const std::vector<RungResult>& results) {
  double most = 1;
  for (size_t i = 0; i < results.size(); ++i) {
    if (const auto a = against(results[i], results[0]))
      most = std::max({most, a->speed, a->memory});
    most = std::max(most, ladder.rungs[i].published_speed.value_or(0));
  }
  most *= 1.02;
  std::string rows;
  for (size_t i = 0; i < results.size(); ++i) {
    const auto a = against(results[i], results[0]);
    if (!a) continue;
    const Rung& rung = ladder.rungs[i];
    rows += fmt::format(
        "<span>{}</span><div>{}{}</div><span class=\"value\">{:.2f}x<br>{:.2f}x</span>\n",
        html_text(rung.name), track("speed", a->speed, rung.published_speed, most),
        track("memory", a->memory, rung.published_memory, most), a->speed, a->memory);
  }
  return "<p><span class=\"key\"><i style=\"background:var(--compute)\"></i>speed</span>"
         "<span class=\"key\"><i style=\"background:var(--bandwidth)\"></i>memory</span>"
         "<span class=\"key\"><b></b>published</span></p><div class=\"rungs\">" +
         rows + "</div>";
}

std::string table(const Ladder& ladder, const std::vector<RungResult>& results) {
  const auto optional_cell = [](std::optional<double> value) {
    return value ? cell(*value, fmt::format("{:.2f}x", *value)) : cell(-1, "-");
  };
  const LadderColumns columns = columns_of(ladder);
  std::vector<std::string> heads{"rung", "samples/s", "tokens/s", "speed", "quartiles"};
  if (columns.gain) heads.emplace_back("gain");
  heads.insert(heads.end(), {"memory", "of first", "activations"});
  if (columns.published_speed) heads.emplace_back("publ. speed");
  if (columns.published_memory) heads.emplace_back("publ. memory");
  std::string rows;
  for (size_t i = 0; i < results.size(); ++i) {
    const RungResult& r = results[i];
    const Rung& rung = ladder.rungs[i];
    rows += "<tr><td>" + html_text(rung.name) + "</td>";
    if (r.ms.empty()) {
      rows += fmt::format(
          "<td colspan=\"{}\" data-v=\"-1\" "
          "style=\"white-space:normal;text-align:left\">{}</td></tr>\n",
          heads.size() - 1, html_text(r.failure.empty() ? "not measured" : r.failure));
      continue;
    }
    const auto a = against(r, results[0]), gain = against_before(ladder, results, i);
    const double samples = per_second(r.sequences, r), tokens = per_second(r.tokens, r);
    rows += cell(samples, fmt::format("{:.3g}", samples)) +
            cell(tokens, fmt::format("{:.0f}", tokens)) +
            optional_cell(a ? std::optional(a->speed) : std::nullopt) +
            cell(a ? a->low : -1,
                 a ? quartiles_text({a->speed, a->low, a->high}, r.ms.size(), 2) : "-");
    if (columns.gain) rows += optional_cell(gain ? std::optional(gain->speed) : std::nullopt);
    rows += cell(static_cast<double>(r.arena_bytes), memory_text(r.arena_bytes)) +
            optional_cell(a ? std::optional(a->memory) : std::nullopt) +
            cell(static_cast<double>(r.activation_bytes), memory_text(r.activation_bytes));
    if (columns.published_speed) rows += optional_cell(rung.published_speed);
    if (columns.published_memory) rows += optional_cell(rung.published_memory);
    rows += "</tr>\n";
  }
  return sorting_table(heads, rows);
}

}  // namespace

std::string ladder_section(const Ladder& ladder, const std::vector<RungResult>& results) {
  const std::string& source = ladder.published;
  return card(
      ladder.title,
      bars(ladder, results) + table(ladder, results) +
          (columns_of(ladder).gain ? "<p class=\"faint\">Gain: to the rung before.</p>" : "") +
          (source.empty() ? "" : "<p class=\"faint\">Published: " + html_text(source) + "</p>"));
}

std::string ladder_page(const std::vector<Climbed>& ladders) {
  const bool steps =
      std::any_of(ladders.begin(), ladders.end(), [](const Climbed& c) { return c.of_steps; });
  std::string body =
      fmt::format("<h1>brrr ladder</h1><p class=\"faint\">{}; medians over the rounds{}.</p>",
                  steps ? "Training steps on random tokens, each rung in its own session"
                        : "Measured on this processor",
                  steps ? ", ratios to the first rung" : "");
  for (const Climbed& climbed : ladders) body += warning(climbed.disturbance);
  for (const Climbed& climbed : ladders) body += climbed.section;
  return page("brrr ladder", body, kLadderStyle);
}

}  // namespace brrr::insight
