#include <algorithm>
#include <map>

#include "base/encoding/ascii.h"
#include "base/errors.h"
#include "base/human.h"
#include "data/images/picture_stores.h"

namespace brrr::io {
namespace {

constexpr const char* kPictureEndings[] = {".jpg", ".jpeg", ".png", ".webp",
                                           ".ppm", ".pgm",  ".pnm"};

std::string lower_ending(const fs::path& path) {
  std::string ending = path.extension().string();
  for (char& c : ending)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return ending;
}

bool is_hidden_picture(const fs::path& path) { return path.filename().string().starts_with('.'); }

[[noreturn]] void unreadable(const fs::path& folder, const std::error_code& error) {
  user_error("cannot list {}: {}", folder.string(), error.message());
}

/// Throws UserError for a link to something outside the folder `top`.
void check_link(const fs::path& top, const fs::path& path) {
  std::error_code error;
  if (!fs::is_symlink(fs::symlink_status(path, error))) return;
  const fs::path target = fs::weakly_canonical(path, error),
                 inside = target.lexically_relative(fs::weakly_canonical(top, error));
  if (inside.empty() || *inside.begin() == "..")
    user_error("{} is a link out of {}, to {}; expected pictures within the folder", path.string(),
               top.string(), target.string());
}

struct FoundFiles {
  std::vector<PictureFiles::File> pictures;
  int64_t others = 0;      // files that are no pictures by their endings
  int64_t dead_links = 0;  // symbolic links whose target does not exist
  std::string dead_link;   // one of them
};

bool is_dead_link(const fs::path& path) {
  std::error_code error;
  return fs::is_symlink(fs::symlink_status(path, error)) && !fs::exists(path, error);
}

/// The pictures beneath a folder, paths relative to `top`. Links to folders are not followed, so
/// that a circle of them ends.
void find_pictures(const fs::path& top, const fs::path& folder, FoundFiles& found) {
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  if (error) unreadable(folder, error);
  for (const fs::directory_iterator end; entries != end; entries.increment(error)) {
    if (error) unreadable(folder, error);
    const fs::path path = entries->path();
    if (is_hidden_picture(path)) continue;
    check_link(top, path);
    if (is_dead_link(path)) {
      if (found.dead_links++ == 0) found.dead_link = path.string();
      continue;
    }
    std::error_code ignored;
    if (entries->is_directory(ignored)) {
      if (!entries->is_symlink(ignored)) find_pictures(top, path, found);
      continue;
    }
    if (!has_picture_ending(path) || !entries->is_regular_file(ignored)) {
      ++found.others;
      continue;
    }
    found.pictures.push_back({path.lexically_relative(top).string(), entries->file_size(ignored)});
  }
  if (error) unreadable(folder, error);
}

std::vector<fs::path> class_folders_of(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> folders;
  fs::directory_iterator entries(folder, error);
  if (error) unreadable(folder, error);
  for (const fs::directory_iterator end; entries != end; entries.increment(error)) {
    if (error) unreadable(folder, error);
    std::error_code ignored;
    if (is_hidden_picture(entries->path())) continue;
    if (is_dead_link(entries->path()))
      user_error("{} is a link whose target is missing; remove it, or restore the target",
                 entries->path().string());
    if (entries->is_directory(ignored)) folders.push_back(entries->path());
  }
  if (error) unreadable(folder, error);
  std::sort(folders.begin(), folders.end());
  return folders;
}

/// How many pictures have the name of another one but for its ending.
int64_t same_but_for_ending(const std::vector<PictureFiles::File>& files, std::string& example) {
  std::map<std::string, std::string> stems;
  int64_t same = 0;
  for (const PictureFiles::File& file : files) {
    const std::string stem = fs::path(file.path).replace_extension().string();
    const auto [at, is_new] = stems.emplace(stem, file.path);
    if (is_new) continue;
    if (same++ == 0) example = at->second + " and " + file.path;
  }
  return same;
}

}  // namespace

bool has_picture_ending(const fs::path& path) {
  const std::string ending = lower_ending(path);
  return std::ranges::find(kPictureEndings, ending) != std::end(kPictureEndings);
}

std::string empty_classes_note(const std::string& what, const std::vector<std::string>& empty) {
  if (empty.empty()) return "";
  return fmt::format(
      "{}: the class '{}' has no pictures{}", what, empty[0],
      empty.size() == 1 ? std::string() : fmt::format(", nor have {} more", empty.size() - 1));
}

std::string PictureFiles::identity(size_t i) const {
  return fmt::format("{} {}", files_[i].path, files_[i].bytes);
}

bool has_class_folders(const fs::path& folder) {
  try {
    for (const fs::path& inside : class_folders_of(folder)) {
      std::error_code error;
      fs::recursive_directory_iterator entries(inside, error);
      constexpr int kMostLooked = 1000;
      int looked = 0;
      for (const fs::recursive_directory_iterator end; !error && entries != end;
           entries.increment(error)) {
        if (has_picture_ending(entries->path()) && !is_hidden_picture(entries->path())) return true;
        if (++looked == kMostLooked) break;
      }
    }
  } catch (const UserError&) {
  }
  return false;
}

ImageSet open_class_folders(const fs::path& folder, const ImageSetOptions& options) {
  const std::string what = folder.string();
  std::vector<fs::path> folders;
  for (const fs::path& path : class_folders_of(folder)) {
    check_link(folder, path);
    folders.push_back(path);
  }
  if (folders.empty())
    user_error("{} holds no folders; expected a folder of pictures for each class", what);
  FoundFiles all;
  std::vector<std::string> names, empty;
  std::vector<size_t> ends;  // of each class, in all.pictures
  for (const fs::path& path : folders) {
    const size_t before = all.pictures.size();
    find_pictures(folder, path, all);
    std::sort(all.pictures.begin() + static_cast<std::ptrdiff_t>(before), all.pictures.end(),
              [](const auto& a, const auto& b) { return a.path < b.path; });
    names.push_back(path.filename().string());
    ends.push_back(all.pictures.size());
    if (all.pictures.size() == before) empty.push_back(names.back());
  }
  if (all.pictures.empty())
    user_error("{}: its folders hold no pictures (.jpg, .jpeg, .png, .webp, .ppm, .pgm, .pnm)",
               what);
  const ClassNames classes(what, options.classes, names);
  std::vector<ImageSet::Item> items;
  for (size_t c = 0; c < names.size(); ++c)
    for (size_t i = c == 0 ? 0 : ends[c - 1]; i < ends[c]; ++i)
      items.push_back({i, classes.label(names[c])});
  std::vector<std::string> notes;
  if (!empty.empty()) notes.push_back(empty_classes_note(what, empty));
  if (all.dead_links > 0)
    notes.push_back(fmt::format("{}: left out {} whose target is missing, such as {}", what,
                                counted(all.dead_links, "link"), all.dead_link));
  if (all.others > 0)
    notes.push_back(fmt::format("{}: {} left out, because of other endings than those of pictures",
                                what, counted(all.others, "file")));
  std::string example;
  if (const int64_t same = same_but_for_ending(all.pictures, example); same > 0)
    notes.push_back(fmt::format(
        "{}: {} the name of another one but for the ending ({}); all are "
        "read",
        what, same == 1 ? "1 picture has" : counted(same, "picture") + " have", example));
  ImageSet set(what, classes.names(), std::move(items),
               std::make_shared<PictureFiles>(folder, std::move(all.pictures)));
  set.notes = std::move(notes);
  return set;
}

ClassNames::ClassNames(const std::string& what, const std::vector<std::string>& given,
                       std::vector<std::string> found) {
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  if (!given.empty()) {
    for (const std::string& name : found)
      if (std::ranges::find(given, name) == given.end())
        user_error("{}: '{}' is not among the {} classes, which begin with '{}'", what, name,
                   given.size(), given[0]);
    names_ = given;
    return;
  }
  if (found.size() < 2)
    user_error("{} has the class '{}' alone; expected two classes or more", what,
               found.empty() ? "" : found[0]);
  names_ = std::move(found);
}

int32_t ClassNames::label(std::string_view name) const {
  const auto at = std::ranges::find(names_, name);
  BRRR_CHECK(at != names_.end(), "class {}", name);
  return static_cast<int32_t>(at - names_.begin());
}

}  // namespace brrr::io
