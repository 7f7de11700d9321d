#include "insight/profile/profile_page.h"

#include <algorithm>

#include "base/human.h"
#include "insight/pages/page.h"

namespace brrr::insight {
namespace {

// On top of what every page has: the regimes, the bar of the step, the roofline.
constexpr const char* kProfileStyle = R"(
.bar{display:flex;height:22px;border-radius:6px;overflow:hidden;border:1px solid var(--line)}
.bar span{display:block}
.b-compute{background:var(--compute)}.b-bandwidth{background:var(--bandwidth)}
.b-overhead{background:var(--overhead)}.b-reference{background:var(--text)}.b-other{background:var(--faint)}
svg.roof{width:100%;height:auto;display:block}
svg.roof text{fill:var(--faint);font-size:13px;paint-order:stroke;stroke:var(--card);stroke-width:3px}svg.roof .grid{stroke:var(--line)}
svg.roof .ceiling{stroke:var(--text);stroke-width:1.5;stroke-dasharray:6 4;opacity:.6}
svg.roof .k{fill-opacity:.45;stroke-width:1.2;cursor:pointer}
svg.roof .k:hover,svg.roof .k:focus{fill-opacity:.9;outline:none}
svg.roof .compute{fill:var(--compute);stroke:var(--compute)}
svg.roof .bandwidth{fill:var(--bandwidth);stroke:var(--bandwidth)}
svg.roof .overhead{fill:var(--overhead);stroke:var(--overhead)}
svg.roof .reference{fill:var(--text);stroke:var(--text)}
)";

// The words beside a kernel under the pointer.
constexpr const char* kProfileScript = R"(
const tip=document.getElementById('tip');
function show(e){const d=e.target.dataset;tip.textContent='';
 for(const [k,t] of [['b',d.name],['div',d.shape],['div',d.scope],['div',d.figures],['div',d.verdict]])
  if(t){const n=document.createElement(k);n.textContent=t;tip.append(n);}
 const b=e.target.getBoundingClientRect();tip.style.visibility='visible';
 const x=Math.min(b.right+8,innerWidth-tip.offsetWidth-8);
 const y=Math.min(b.bottom+8,innerHeight-tip.offsetHeight-8);
 tip.style.left=Math.max(8,x)+'px';tip.style.top=Math.max(8,y)+'px';}
function hide(){tip.style.visibility='hidden';}
for(const k of document.querySelectorAll('circle.k')){
 k.addEventListener('pointerenter',show);k.addEventListener('focus',show);
 k.addEventListener('pointerleave',hide);k.addEventListener('blur',hide);}
)";

std::string verdict_cell(Bound bound) {
  return fmt::format("<td class=\"v-{0}\">{0}</td>", name_of(bound));
}

std::string table(const std::string& first, const std::string& rows) {
  return sorting_table({first, "calls", "ms", "share", "GFLOP/s", "GB/s", "of ceiling", "verdict"},
                       rows);
}

std::string row(const std::string& name, const Group& g) {
  return "<tr><td>" + html_text(name) + "</td>" +
         cell(static_cast<double>(g.calls), with_commas(g.calls)) + cell(g.ms, number_text(g.ms)) +
         cell(g.share, fmt::format("{:.1f}%", 100 * g.share)) +
         cell(g.gflops(), number_text(g.gflops())) + cell(g.gbytes(), number_text(g.gbytes())) +
         cell(g.ceiling(), fmt::format("{:.0f}%", 100 * g.ceiling())) + verdict_cell(g.bound()) +
         "</tr>\n";
}

std::string group_card(const std::string& title, const std::string& first,
                       const std::vector<Group>& groups) {
  std::string rows;
  for (const Group& g : groups) rows += row(g.name, g);
  return card(title, table(first, rows));
}

/// The step as one bar: the regimes of its kernels, and what no kernel took.
std::string step_bar(const Profile& p) {
  std::array<double, kBounds> bounds{};
  double all = 0;
  for (const Group& g : p.by_class)
    for (size_t i = 0; i < kBounds; ++i) {
      bounds[i] += g.bound_ms[i];
      all += g.bound_ms[i];
    }
  std::string bar, keys;
  const auto part = [&](const std::string& style, const std::string& name, double ms) {
    if (p.timed_ms <= 0 || ms <= 0) return;
    const double percent = 100 * ms / p.timed_ms;
    bar += fmt::format("<span class=\"b-{}\" style=\"width:{:.3f}%\"></span>", style, percent);
    keys += fmt::format("<span class=\"key\"><i class=\"b-{}\"></i>{} {} ({:.1f}%)</span>", style,
                        name, duration_text(1e-3 * ms), percent);
  };
  for (size_t i = 0; i < kBounds; ++i) {
    const std::string name(name_of(static_cast<Bound>(i)));
    part(name, phrase_of(static_cast<Bound>(i)), all > 0 ? p.kernels_ms * bounds[i] / all : 0);
  }
  part("other", "between kernels", p.between_ms);
  part("other", "preparing or awaiting the batch", p.batch_ms);
  part("other", "choosing the token", p.sampling_ms);
  part("other", "inputs, results", p.rest_ms);
  return "<div class=\"bar\">" + bar + "</div>" + keys;
}

std::string advice_list(const std::vector<Advice>& advice) {
  if (advice.empty()) return "<p>No option that was looked at would gain more than 1%.</p>";
  std::string items;
  for (size_t i = 0; i < advice.size() && i < 3; ++i)
    items += fmt::format(
        "<li><b>{:.0f}% less time: {}</b><br>{} ({} &rarr; {}{})</li>", 100 * advice[i].gain(),
        html_text(advice[i].option), html_text(advice[i].text), duration_text(1e-3 * advice[i].ms),
        duration_text(1e-3 * advice[i].predicted_ms), advice[i].tried ? ", tried" : "");
  return "<ol>" + items + "</ol>";
}

std::string anatomy_table(const Profile& p) {
  std::string rows;
  const auto percent = [](double share, int digits) {
    return cell(share, fmt::format("{:.{}f}%", 100 * share, digits));
  };
  for (const ClassShares& c : p.anatomy)
    rows += "<tr><td>" + html_text(c.name) + "</td>" + percent(c.flops, 2) + percent(c.time, 1) +
            percent(c.published_flops, 2) + percent(c.published_time, 1) + "</tr>";
  return sorting_table({"class", "FLOPs here", "time here", "FLOPs published", "time published"},
                       rows) +
         "<p class=\"faint\">Published: BERT-large on a V100, Ivanov et al., "
         "2021. Attention as one kernel is a contraction, its softmax included.</p>";
}

}  // namespace

std::string profile_page(const Profile& p, const Pictures& memory) {
  std::string body = "<h1>" + html_text(p.title) + "</h1>";
  body += fmt::format(
      "<p class=\"faint\">{}; a step takes {} ({}&ndash;{}){}; profiling overhead: "
      "{:.1f}%</p>\n",
      html_text(p.place()), duration_text(1e-3 * p.step.median), duration_text(1e-3 * p.step.low),
      duration_text(1e-3 * p.step.high),
      p.tokens > 0 && p.step.median > 0
          ? fmt::format(", {} {}",
                        with_commas(static_cast<int64_t>(1e3 * static_cast<double>(p.tokens) /
                                                         p.step.median)),
                        p.rate_unit())
          : "",
      100 * p.overhead);
  body += warning(p.warning());
  if (p.advised) body += card("What would help most", advice_list(p.advice));
  body += card("Where the time goes", step_bar(p));
  body += card("Roofline: every kernel under what this machine was measured to reach",
               fitting({roofline_picture(p), roofline_picture(p, PictureWidth::phone)}) +
                   "<p class=\"faint\">Area: share of the time. Green: compute-bound, "
                   "amber: bandwidth-bound, pink: overhead-bound. Kernels without arithmetic stand "
                   "at the left edge.</p>");
  std::string kinds;
  for (const Group& g : p.by_kind) {
    const KernelProfile& k = p.kernels[g.example];
    kinds += row(fmt::format("{} {} ({})", k.name, k.shape, k.kernel), g);
  }
  body += card("Kernels", table("kernel", kinds));
  body += group_card("By class of operation", "class", p.by_class);
  if (p.by_phase.size() > 1) body += group_card("By pass", "pass", p.by_phase);
  body += group_card("By scope of the model", "scope", p.by_scope);
  if (p.mode == Mode::training && !p.sees_pictures)
    body += card("FLOPs against time: the BERT analysis", anatomy_table(p));
  if (!memory.desk.empty())
    body += card("Memory over the step", fitting({picture(memory.desk, "memory over the step"),
                                                  picture(memory.phone, "memory over the step")}));
  body += "<div id=\"tip\" role=\"status\"></div>";
  return page("brrr profile: " + p.title, body, kProfileStyle, kProfileScript);
}

}  // namespace brrr::insight
