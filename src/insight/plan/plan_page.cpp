// The plan of a run as one page.
#include <algorithm>

#include "base/human.h"
#include "base/memory.h"
#include "insight/pages/page.h"
#include "insight/plan/plan_parts.h"

namespace brrr::insight {
namespace {

// On top of what every page has: the picture takes the colours of its card, shares are bars.
constexpr const char* kPlanStyle = R"(
.memory svg{width:100%;height:auto;display:block}
.memory svg .bg{fill:none;stroke:none}
.memory svg .hair{stroke:var(--text);stroke-width:1}
.bar{display:inline-block;min-width:120px;padding:0 4px;border-radius:3px;text-align:right;
background:linear-gradient(var(--share),var(--share)) left/var(--w) 100% no-repeat}
:root{--share:#bbf7d0}
@media(prefers-color-scheme:dark){:root{--share:#14532d}}
@media print{:root{--share:#bbf7d0}}
@media screen and (max-width:640px){.bar{min-width:70px}}
h3{font-size:14px;margin:14px 0 4px}
.halves{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr));gap:0 28px}
.halves>div{min-width:0}
)";

// The kernel under the pointer, and what memory holds while it runs.
constexpr const char* kPlanScript = R"(
const tip=document.getElementById('tip'),data=JSON.parse(document.getElementById('data').textContent);
for(const svg of document.querySelectorAll('.memory svg')){
const hair=document.createElementNS('http://www.w3.org/2000/svg','line');
const left=+svg.dataset.left,right=+svg.dataset.right,width=svg.viewBox.baseVal.width;
hair.setAttribute('class','hair');hair.setAttribute('y1',svg.dataset.top);hair.setAttribute('y2',svg.dataset.bottom);
hair.style.visibility='hidden';svg.append(hair);
function hide(){tip.style.visibility=hair.style.visibility='hidden';}
svg.addEventListener('pointerleave',hide);
svg.addEventListener('pointermove',e=>{
 const box=svg.getBoundingClientRect(),x=(e.clientX-box.left)/box.width*width;
 const share=(x-left)/(right-left);
 if(share<0||share>=1)return hide();
 const i=Math.floor(share*data.moments.length),m=data.moments[i];
 const middle=left+(i+.5)/data.moments.length*(right-left);
 hair.setAttribute('x1',middle);hair.setAttribute('x2',middle);
 const rows=[`kernel ${m.kernel} of ${data.count}, ${m.what}`];
 if(m.scope)rows.push('at '+m.scope);
 rows.push('in use: '+m.all);
 data.bands.forEach((name,b)=>{if(m.bytes[b]!=='0 B')rows.push(`${name}: ${m.bytes[b]}`);});
 tip.replaceChildren(...rows.map((text,r)=>Object.assign(document.createElement(r?'div':'b'),{textContent:text})));
 tip.style.visibility=hair.style.visibility='visible';
 tip.style.left=Math.max(8,Math.min(e.clientX+14,innerWidth-tip.offsetWidth-8))+'px';
 tip.style.top=Math.max(8,Math.min(e.clientY+14,innerHeight-tip.offsetHeight-8))+'px';});}
)";

std::string text_cell(const std::string& text) {
  return "<td class=\"text\">" + html_text(text) + "</td>";
}

std::string bytes_row(const std::string& name, int64_t bytes, int64_t whole) {
  const double share = whole > 0 ? static_cast<double>(bytes) / static_cast<double>(whole) : 0;
  return fmt::format(
      "<tr><td>{}</td>{}<td data-v=\"{:.6f}\"><span class=\"bar\" style=\"--w:{:.2f}%\">{:.1f}%"
      "</span></td></tr>\n",
      html_text(name), cell(static_cast<double>(bytes), memory_text(bytes)), share, 100 * share,
      100 * share);
}

std::string bytes_table(const std::string& head, const std::vector<NamedBytes>& list,
                        int64_t whole) {
  std::string rows;
  for (const NamedBytes& b : list)
    rows +=
        bytes_row(b.count > 1 ? fmt::format("{} ({})", b.name, b.count) : b.name, b.bytes, whole);
  return sorting_table({head, "bytes", "share"}, rows);
}

std::string memory_cards(const RunPlan& p) {
  const int64_t arena = p.plan.arena.total(), process = p.plan.process.resident();
  std::vector<NamedBytes> parts = process_rows(p);
  parts.insert(parts.begin(), {"arena", Holds::temporaries, arena});
  std::string text =
      card("Where the memory goes",
           "<div class=\"halves\"><div><h3>The arena at the fullest moment: " + memory_text(arena) +
               ", exact</h3>" + bytes_table("in the arena", memory_rows(p), arena) +
               "</div><div><h3>The process: " + memory_text(process) + ", a forecast</h3>" +
               bytes_table("in the process", parts, process) + "</div></div><p class=\"faint\">" +
               html_text(peak_text(p)) + "</p>");
  if (p.saved_bytes > 0)
    text +=
        card("Kept from forward to backward: " + memory_text(p.saved_bytes),
             "<div class=\"halves\"><div>" +
                 bytes_table("by op (tensors)", p.saved_by_op, p.saved_bytes) + "</div><div>" +
                 bytes_table("by layer (tensors)", alike_as_one(p.saved_by_layer), p.saved_bytes) +
                 "</div></div>");
  return text;
}

std::string work_card(const RunPlan& p) {
  std::vector<std::string> heads{"FLOPs per token", "forward", "backward", "optimizer"};
  if (p.time) heads.emplace_back("predicted");
  std::string rows;
  for (const auto& [flops, ms] : work_rows(p)) {
    rows += "<tr><td>" + html_text(flops.name) + "</td>";
    for (const double f : {flops.forward, flops.backward, flops.optimizer})
      rows += cell(f, flops_text(f));
    if (p.time) rows += cell(ms, duration_text(1e-3 * ms));
    rows += "</tr>\n";
  }
  return card("Work", sorting_table(heads, rows) + "<p class=\"faint\">" +
                          html_text(predicted_text(p)) + "</p>");
}

std::string kernels_card(const RunPlan& p) {
  const KernelPlan& k = *p.kernels;
  const bool is_timed = !k.rates.empty();
  std::vector<std::string> heads{"kernel", "pass", "launches", "GFLOP", "GB", "GB again"};
  if (is_timed) heads.emplace_back("ms");
  std::string rows;
  for (const PlannedKernel& w : k.kernels) {
    rows += "<tr><td>" + html_text(w.kernel) + "</td><td>" + html_text(w.phase) + "</td>" +
            cell(static_cast<double>(w.launches), with_commas(w.launches)) +
            cell(w.flops, fmt::format("{:.1f}", 1e-9 * w.flops)) +
            cell(w.bytes, fmt::format("{:.3f}", 1e-9 * w.bytes)) +
            cell(w.bytes_again, fmt::format("{:.3f}", 1e-9 * w.bytes_again));
    if (is_timed) rows += cell(w.ms, fmt::format("{:.3f}", w.ms));
    rows += "</tr>\n";
  }
  const std::string time = is_timed ? kernels_text(p) + "; predicted, not measured: " + k.rates
                                    : "the machine's rates are unknown";
  return card("Kernels of a step",
              sorting_table(heads, rows) + "<p class=\"faint\">" + html_text(time) + "</p>");
}

std::string rules_card(const RunPlan& p) {
  std::string rows;
  for (const Rule& rule : p.rules)
    rows += "<tr><td>" + html_text(rule.rule) + "</td>" + text_cell(rule.source_says) +
            text_cell(rule.here) + "</tr>\n";
  return card(
      "Rules of thumb, and this run",
      "<div class=\"texts\">" + sorting_table({"rule", "as published", "here"}, rows) + "</div>");
}

}  // namespace

std::string memory_page(const RunPlan& p) {
  const std::string whole = title(p);
  const size_t end = whole.find('\n');
  std::string body = "<h1>" + html_text(whole.substr(0, end)) + "</h1><p class=\"faint\">" +
                     html_text(whole.substr(end + 1)) + "</p>\n";
  body += warning(disturbance_text(p));
  body += "<section class=\"card memory\">" +
          fitting({memory_picture(p), memory_picture(p, PictureWidth::phone)}) + "</section>\n";
  body += memory_cards(p) + work_card(p);
  if (p.kernels) body += kernels_card(p);
  body += rules_card(p);
  std::string use = use_title(p);
  use[0] = 'T';
  body += card(use, "<p>" + html_text(use_text(p)) + "</p>");
  body += "<div id=\"tip\" role=\"status\"></div><script type=\"application/json\" id=\"data\">" +
          embedded_json(picture_moments(p)) + "</script>";
  return page("brrr plan: " + whole.substr(0, whole.find(':')), body, kPlanStyle, kPlanScript);
}

}  // namespace brrr::insight
