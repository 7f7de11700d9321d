#include "insight/profile_page.h"

#include <algorithm>

#include "base/human.h"

namespace brrr::insight {
namespace {

constexpr const char* kStyle = R"(
:root{color-scheme:light dark;--back:#fff;--card:#f8fafc;--text:#0f172a;--faint:#64748b;
--line:#e2e8f0;--compute:#15803d;--bandwidth:#b45309;--overhead:#be185d}
@media(prefers-color-scheme:dark){:root{--back:#0b1018;--card:#0f1622;--text:#e8edf6;
--faint:#93a1b8;--line:#232c3d;--compute:#4ade80;--bandwidth:#fbbf24;--overhead:#f472b6}}
@media print{:root{--back:#fff;--card:#fff;--text:#000;--faint:#444;--line:#bbb;
--compute:#15803d;--bandwidth:#b45309;--overhead:#be185d}.card{break-inside:avoid}#tip{display:none}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1080px;padding:20px 16px 48px;background:var(--back);color:var(--text);
font:15px/1.5 ui-sans-serif,system-ui,-apple-system,'Segoe UI',Roboto,Arial,sans-serif}
h1{font-size:21px;margin:0 0 2px}h2{font-size:16px;margin:0 0 10px}
p{margin:4px 0}.faint{color:var(--faint)}ol{margin:0;padding-left:22px}li{margin:6px 0}
.card{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:14px 16px;
margin:16px 0}.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:13.5px}
th,td{padding:4px 8px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line)}
th:first-child,td:first-child{text-align:left;white-space:normal;min-width:150px}
th button{all:unset;cursor:pointer;color:var(--faint);font-weight:600}
th button:focus-visible{outline:2px solid var(--text)}
th[aria-sort=ascending] button::after{content:" \2191"}
th[aria-sort=descending] button::after{content:" \2193"}
.bar{display:flex;height:22px;border-radius:6px;overflow:hidden;border:1px solid var(--line)}
.bar span{display:block}
.key{display:inline-flex;align-items:center;gap:6px;margin:8px 16px 0 0}
.key i{width:11px;height:11px;border-radius:3px;display:inline-block}
.b-compute{background:var(--compute)}.b-bandwidth{background:var(--bandwidth)}
.b-overhead{background:var(--overhead)}.b-other{background:var(--faint)}
.v-compute{color:var(--compute)}.v-bandwidth{color:var(--bandwidth)}.v-overhead{color:var(--overhead)}
svg.roof{width:100%;height:auto;min-width:560px;display:block}
svg.roof text{fill:var(--faint);font-size:13px}svg.roof .grid{stroke:var(--line)}
svg.roof .ceiling{stroke:var(--text);stroke-width:1.5;stroke-dasharray:6 4;opacity:.6}
svg.roof .k{fill-opacity:.45;stroke-width:1.2;cursor:pointer}
svg.roof .k:hover,svg.roof .k:focus{fill-opacity:.9;outline:none}
svg.roof .compute{fill:var(--compute);stroke:var(--compute)}
svg.roof .bandwidth{fill:var(--bandwidth);stroke:var(--bandwidth)}
svg.roof .overhead{fill:var(--overhead);stroke:var(--overhead)}
#tip{position:fixed;z-index:2;max-width:min(420px,92vw);padding:8px 12px;border-radius:8px;
background:var(--text);color:var(--back);font-size:13px;pointer-events:none;visibility:hidden}
img{width:100%;height:auto}
)";

// Sorting of tables by their heads, and the words beside a kernel under the pointer.
constexpr const char* kScript = R"(
'use strict';
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
for(const table of document.querySelectorAll('table.sorts')){
 const heads=[...table.tHead.rows[0].cells];
 heads.forEach((head,i)=>head.firstElementChild.addEventListener('click',()=>{
  const down=head.getAttribute('aria-sort')!=='descending'&&i>0||head.getAttribute('aria-sort')==='ascending';
  heads.forEach(h=>h.removeAttribute('aria-sort'));
  head.setAttribute('aria-sort',down?'descending':'ascending');
  const key=r=>{const c=r.cells[i];return c.dataset.v===undefined?c.textContent:+c.dataset.v;};
  const rows=[...table.tBodies[0].rows].sort((a,b)=>{const x=key(a),y=key(b);
   return (x<y?-1:x>y?1:0)*(down?-1:1);});
  table.tBodies[0].append(...rows);}));}
)";

std::string encoded(const std::string& svg) {
  std::string out = "data:image/svg+xml,";
  for (const char c : svg) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '.' || c == '-' || c == '/' || c == ':' || c == '=' || c == ',';
    out += plain ? std::string(1, c) : fmt::format("%{:02x}", byte);
  }
  return out;
}

std::string cell(double value, const std::string& text) {
  return fmt::format("<td data-v=\"{:.9g}\">{}</td>", value, text);
}

std::string verdict_cell(Bound bound) {
  return fmt::format("<td class=\"v-{0}\">{0}</td>", name_of(bound));
}

std::string table(const std::string& first, const std::string& rows) {
  std::string head;
  for (const std::string& name : {first, std::string("calls"), std::string("ms"),
                                  std::string("share"), std::string("GFLOP/s"), std::string("GB/s"),
                                  std::string("of ceiling"), std::string("verdict")})
    head += fmt::format("<th><button>{}</button></th>", name);
  return fmt::format(
      "<div class=\"wide\"><table class=\"sorts\"><thead><tr>{}</tr></thead><tbody>{}</tbody>"
      "</table></div>",
      head, rows);
}

std::string row(const std::string& name, const Group& g) {
  return "<tr><td>" + html_text(name) + "</td>" +
         cell(static_cast<double>(g.calls), with_commas(g.calls)) + cell(g.ms, number_text(g.ms)) +
         cell(g.share, fmt::format("{:.1f}%", 100 * g.share)) +
         cell(g.gflops(), number_text(g.gflops())) + cell(g.gbytes(), number_text(g.gbytes())) +
         cell(g.ceiling(), fmt::format("{:.0f}%", 100 * g.ceiling())) + verdict_cell(g.bound()) +
         "</tr>\n";
}

std::string card(const std::string& title, const std::string& body) {
  return fmt::format("<section class=\"card\"><h2>{}</h2>{}</section>\n", html_text(title), body);
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
    keys += fmt::format("<span class=\"key\"><i class=\"b-{}\"></i>{} {} ms ({:.1f}%)</span>",
                        style, name, number_text(ms), percent);
  };
  for (size_t i = 0; i < kBounds; ++i) {
    const std::string name(name_of(static_cast<Bound>(i)));
    part(name, name + "-bound", all > 0 ? p.kernels_ms * bounds[i] / all : 0);
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
    items +=
        fmt::format("<li><b>{:.0f}% less time: {}</b><br>{} ({} &rarr; {} ms)</li>",
                    100 * advice[i].gain(), html_text(advice[i].option), html_text(advice[i].text),
                    number_text(advice[i].ms), number_text(advice[i].predicted_ms));
  return "<ol>" + items + "</ol>";
}

std::string anatomy_table(const Profile& p) {
  std::string rows;
  const auto percent = [](double share, int digits) {
    return fmt::format("<td>{:.{}f}%</td>", 100 * share, digits);
  };
  for (const ClassShares& c : p.anatomy)
    rows += "<tr><td>" + html_text(c.name) + "</td>" + percent(c.flops, 2) + percent(c.time, 1) +
            percent(c.published_flops, 2) + percent(c.published_time, 1) + "</tr>";
  return "<div class=\"wide\"><table><thead><tr><th></th><th>FLOPs here</th><th>time here</th>"
         "<th>FLOPs published</th><th>time published</th></tr></thead><tbody>" +
         rows +
         "</tbody></table></div><p class=\"faint\">Published: BERT-large on a V100, Ivanov et al., "
         "2021. Attention as one kernel is a contraction, its softmax included.</p>";
}

}  // namespace

std::string html_text(const std::string& text) {
  std::string out;
  for (const char c : text)
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else if (c == '\'')
      out += "&#39;";
    else
      out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  return out;
}

std::string profile_page(const Profile& p, const std::string& memory_svg) {
  std::string page =
      "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\"><link rel=\"icon\" href=\"data:,\"><title>" +
      html_text("brrr profile: " + p.title) + "</title><style>" + kStyle +
      "</style></head><body>\n<h1>" + html_text(p.title) + "</h1>";
  page += fmt::format(
      "<p class=\"faint\">{} on {} threads; a step takes {} ms ({}&ndash;{}){}; timing it costs "
      "{:.1f}%</p>\n",
      html_text(p.backend), p.threads, number_text(p.step.median), number_text(p.step.low),
      number_text(p.step.high),
      p.tokens > 0 && p.step.median > 0
          ? fmt::format(", {} tokens/s", with_commas(static_cast<int64_t>(
                                             1e3 * static_cast<double>(p.tokens) / p.step.median)))
          : "",
      100 * p.timing_cost);
  if (p.advised) page += card("What would help most", advice_list(p.advice));
  page += card("Where the time goes", step_bar(p));
  page += card("Roofline: every kernel under what this machine was measured to reach",
               "<div class=\"wide\">" + roofline_picture(p) +
                   "</div><p class=\"faint\">Area: share of the time. Green: compute-bound, "
                   "amber: bandwidth-bound, pink: overhead-bound. Kernels without arithmetic stand "
                   "at the left edge.</p>");
  std::string kinds;
  for (const Group& g : p.by_kind) {
    const KernelProfile& k = p.kernels[g.example];
    kinds += row(fmt::format("{} {} ({})", k.name, k.shape, k.kernel), g);
  }
  page += card("Kernels", table("kernel", kinds));
  page += group_card("By class of operation", "class", p.by_class);
  if (p.by_phase.size() > 1) page += group_card("By pass", "pass", p.by_phase);
  page += group_card("By scope of the model", "scope", p.by_scope);
  if (p.mode == Mode::training)
    page += card("FLOPs against time: the BERT analysis", anatomy_table(p));
  if (!memory_svg.empty())
    page += card("Memory over the step",
                 "<img alt=\"memory over the step\" src=\"" + encoded(memory_svg) + "\">");
  page += "<div id=\"tip\" role=\"status\"></div>\n<script>";
  page += kScript;
  page += "</script></body></html>\n";
  return page;
}

}  // namespace brrr::insight
