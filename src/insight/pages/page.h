#pragma once
// Pages that stand alone: one file, light and dark, for a screen, a phone or paper. A page loads
// nothing: script, style and pictures stand in it. Tables sort by their heads.

#include <string>
#include <vector>

namespace brrr::insight {

/// Text for inside HTML, attributes included.
std::string html_text(const std::string& text);

/// JSON for inside a <script>: no "</script>" can stand in it.
std::string embedded_json(const std::string& json);

/// A section with a heading; `body` is HTML.
std::string card(const std::string& title, const std::string& body);

/// A cell that sorts by `value` and shows `text`.
std::string cell(double value, const std::string& text);

/// A table that sorts. `rows`: "<tr>...</tr>"; the first column is a name. Where the screen is
/// narrow each row becomes a block that names its values.
std::string sorting_table(const std::vector<std::string>& heads, const std::string& rows);

/// What a reader should know before any figure, in a box with a sign; "" for no text.
std::string warning(const std::string& text);

/// A picture for inside a page: an <img> whose source is the SVG itself.
std::string picture(const std::string& svg, const std::string& description);

/// For what a picture is drawn. Text keeps its size, so a phone gets a picture of its own.
enum class PictureWidth { desk, phone };
/// One picture, as SVG, for both; empty where there is none.
struct Pictures {
  std::string desk, phone;
};
/// Both as HTML, of which the browser shows the one that fits its window.
std::string fitting(const Pictures& html);

/// The whole file. `style` and `script` come on top of what every page has.
std::string page(const std::string& title, const std::string& body, const std::string& style = "",
                 const std::string& script = "");

}  // namespace brrr::insight
