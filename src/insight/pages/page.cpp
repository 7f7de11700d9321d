#include "insight/pages/page.h"

#include <fmt/format.h>

namespace brrr::insight {
namespace {

constexpr const char* kPageStyle = R"(
:root{color-scheme:light dark;--back:#fff;--card:#f8fafc;--text:#0f172a;--faint:#64748b;
--line:#e2e8f0;--compute:#15803d;--bandwidth:#b45309;--overhead:#be185d}
@media(prefers-color-scheme:dark){:root{--back:#0b1018;--card:#0f1622;--text:#e8edf6;
--faint:#93a1b8;--line:#232c3d;--compute:#4ade80;--bandwidth:#fbbf24;--overhead:#f472b6}}
@media print{:root{--back:#fff;--card:#fff;--text:#000;--faint:#444;--line:#bbb;
--compute:#15803d;--bandwidth:#b45309;--overhead:#be185d}tr,img,svg,.rungs{break-inside:avoid}
h2{break-after:avoid}*{print-color-adjust:exact;-webkit-print-color-adjust:exact}
.wide{overflow-x:visible!important}table{font-size:10px!important}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1180px;padding:20px 16px 48px;background:var(--back);color:var(--text);
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
img{width:100%;height:auto}
.key{display:inline-flex;align-items:center;gap:6px;margin:4px 16px 4px 0;font-size:13px}
.key i{width:11px;height:11px;border-radius:3px;display:inline-block}
.v-compute{color:var(--compute)}.v-bandwidth{color:var(--bandwidth)}.v-overhead{color:var(--overhead)}.v-reference{color:var(--text)}
td.text{white-space:normal;overflow-wrap:anywhere;text-align:left;max-width:420px}
.texts th{text-align:left}
.warning{border:1px solid var(--bandwidth);border-left-width:5px;border-radius:8px;
padding:8px 12px;margin:12px 0}.warning:empty{display:none}
.warning::before{content:"\26a0\fe0e\00a0 ";color:var(--bandwidth);font-weight:700}
.phone{display:none}
@media screen and (max-width:640px){
.desk{display:none}.phone{display:block}
.card{padding:12px}
table.sorts,table.sorts thead,table.sorts tbody{display:block}
table.sorts thead tr{display:flex;flex-wrap:wrap;gap:2px 14px;padding-bottom:6px;
border-bottom:1px solid var(--line)}
table.sorts th{border:0;padding:0;min-width:0!important}
table.sorts tbody tr{display:grid;grid-template-columns:1fr 1fr;gap:1px 20px;padding:6px 0;
border-bottom:1px solid var(--line)}
table.sorts td{display:flex;justify-content:space-between;gap:8px;border:0;padding:0;
white-space:normal;min-width:0;max-width:none;overflow-wrap:break-word}
table.sorts td::before{content:attr(data-h);color:var(--faint);text-align:left;min-width:0}
table.sorts td:first-child{grid-column:1/-1;font-weight:600}
table.sorts td:first-child::before,table.sorts td[colspan]::before{content:none}
table.sorts td[colspan],table.sorts td.text{grid-column:1/-1}}
#tip{position:fixed;z-index:2;max-width:min(420px,92vw);padding:8px 12px;border-radius:8px;
background:var(--text);color:var(--back);font-size:13px;pointer-events:none;visibility:hidden;
font-variant-numeric:tabular-nums}
@media print{#tip{display:none}}
)";

// Sorting of tables by their heads.
constexpr const char* kPageScript = R"(
'use strict';
for(const table of document.querySelectorAll('table.sorts')){
 const heads=[...table.tHead.rows[0].cells];
 for(const row of table.tBodies[0].rows)[...row.cells].forEach((c,i)=>c.dataset.h=heads[i].textContent);
 heads.forEach((head,i)=>head.firstElementChild.addEventListener('click',()=>{
  const down=head.getAttribute('aria-sort')!=='descending'&&i>0||head.getAttribute('aria-sort')==='ascending';
  heads.forEach(h=>h.removeAttribute('aria-sort'));
  head.setAttribute('aria-sort',down?'descending':'ascending');
  const key=r=>{const c=r.cells[i];  // a row may end with one wide cell
   return c===undefined?-Infinity:c.dataset.v===undefined?c.textContent:+c.dataset.v;};
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
      out += static_cast<unsigned char>(c) < 0x20 && c != '\n' ? ' ' : c;
  return out;
}

std::string embedded_json(const std::string& json) {
  std::string out;
  for (const char c : json) out += c == '<' ? std::string("\\u003c") : std::string(1, c);
  return out;
}

std::string card(const std::string& title, const std::string& body) {
  return fmt::format("<section class=\"card\"><h2>{}</h2>{}</section>\n", html_text(title), body);
}

std::string cell(double value, const std::string& text) {
  return fmt::format("<td data-v=\"{:.9g}\">{}</td>", value, html_text(text));
}

std::string sorting_table(const std::vector<std::string>& heads, const std::string& rows) {
  std::string head;
  for (const std::string& name : heads)
    head += fmt::format("<th><button>{}</button></th>", html_text(name));
  return fmt::format(
      "<div class=\"wide\"><table class=\"sorts\"><thead><tr>{}</tr></thead><tbody>{}</tbody>"
      "</table></div>",
      head, rows);
}

std::string warning(const std::string& text) {
  return text.empty() ? "" : "<p class=\"warning\">" + html_text(text) + "</p>\n";
}

std::string picture(const std::string& svg, const std::string& description) {
  return fmt::format("<img alt=\"{}\" src=\"{}\">", html_text(description), encoded(svg));
}

std::string fitting(const Pictures& html) {
  return "<div class=\"desk\">" + html.desk + "</div><div class=\"phone\">" + html.phone + "</div>";
}

std::string page(const std::string& title, const std::string& body, const std::string& style,
                 const std::string& script) {
  return fmt::format(
      "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\"><link rel=\"icon\" href=\"data:,\"><title>{}"
      "</title><style>{}{}</style></head><body>\n{}\n<script>{}{}</script></body></html>\n",
      html_text(title), kPageStyle, style, body, kPageScript, script);
}

}  // namespace brrr::insight
