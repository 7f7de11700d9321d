#include <algorithm>
#include <fstream>
#include <set>

#include "base/errors.h"
#include "base/human.h"
#include "data/images/picture_stores.h"

namespace brrr::io {
namespace {

constexpr uint64_t kLargestList = uint64_t{1} << 30;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

std::string_view without_mark(std::string_view text) {
  return text.starts_with(kByteOrderMark) ? text.substr(kByteOrderMark.size()) : text;
}

/// Throws UserError, saying which form was wanted.
[[noreturn]] void refuse_line(const std::string& where, std::string_view line) {
  constexpr size_t kShown = 60;
  const std::string advice =
      line.find('\t') == std::string_view::npos && line.find(',') < line.size()
          ? "; commas do not separate here: put tabs in their place"
          : "";
  user_error("{}: expected the path of a picture, a tab and its class; got '{}'{}", where,
             line.substr(0, kShown), advice);
}

struct ListLine {
  std::string_view path, label;
};

/// Refuses paths that lead out of the folder by their text.
void check_relative(const std::string& where, const fs::path& path) {
  if (path.is_absolute())
    user_error("{}: '{}' is an absolute path; expected one relative to the list's folder", where,
               path.string());
  for (const fs::path& part : path)
    if (part == "..") user_error("{}: '{}' leaves the list's folder", where, path.string());
}

/// Refuses paths that lead out of the folder by a link. `inside` remembers folders that do not.
void check_links(const std::string& where, const fs::path& folder, const fs::path& path,
                 std::set<std::string>& inside) {
  std::error_code error;
  const fs::path file = folder / path;
  const bool is_link = fs::is_symlink(file, error);
  if (!is_link && inside.contains(path.parent_path().string())) return;
  const fs::path top = fs::weakly_canonical(folder, error);
  const fs::path real = fs::weakly_canonical(is_link ? file : file.parent_path(), error);
  const auto [end, rest] = std::mismatch(top.begin(), top.end(), real.begin(), real.end());
  static_cast<void>(rest);
  if (error || end != top.end())
    user_error("{}: '{}' leaves the list's folder by a link", where, path.string());
  if (!is_link) inside.insert(path.parent_path().string());
}

}  // namespace

bool is_picture_list(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return false;
  std::ifstream file(path, std::ios::binary);
  std::string line(4096, '\0');
  file.read(line.data(), static_cast<std::streamsize>(line.size()));
  line.resize(static_cast<size_t>(std::max<std::streamsize>(0, file.gcount())));
  line = without_mark(std::string_view(line).substr(0, line.find('\n')));
  const size_t tab = line.find('\t');
  return tab != std::string::npos && has_picture_ending(line.substr(0, tab));
}

ImageSet open_picture_list(const fs::path& path, const ImageSetOptions& options) {
  const std::string content = read_file(path, kLargestList), what = path.string();
  const std::string_view text = without_mark(content);
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::vector<PictureFiles::File> files;
  std::vector<std::string> labels;
  std::set<std::string> inside;
  int64_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const std::string where = fmt::format("{}: line {}", what, number);
    const size_t tab = line.find('\t');
    if (tab == std::string_view::npos || tab == 0 || tab + 1 == line.size() ||
        line.find('\t', tab + 1) != std::string_view::npos)
      refuse_line(where, line);
    const fs::path picture(line.substr(0, tab));
    check_relative(where, picture);
    check_links(where, folder, picture, inside);
    std::error_code error;
    const uint64_t bytes = fs::file_size(folder / picture, error);
    if (error && number == 1 && !has_picture_ending(picture))
      user_error("{}: '{}' is no picture; a list has no header: remove the line", where,
                 picture.string());
    if (error) user_error("{}: '{}': {}", where, picture.string(), error.message());
    files.push_back({picture.string(), bytes});
    labels.emplace_back(line.substr(tab + 1));
  }
  if (files.empty())
    user_error("{} lists no pictures; expected lines of a path, a tab and a class", what);
  const ClassNames classes(what, options.classes, labels);
  std::vector<ImageSet::Item> items;
  for (size_t i = 0; i < files.size(); ++i) items.push_back({i, classes.label(labels[i])});
  return {what, classes.names(), std::move(items),
          std::make_shared<PictureFiles>(folder, std::move(files))};
}

}  // namespace brrr::io
