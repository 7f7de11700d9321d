// The only file that includes toml++, which is slow to compile.
#define TOML_HEADER_ONLY 1
#define TOML_ENABLE_FORMATTERS 0
// Some malformed files ('[#') break an assertion of the library: that is an error in the file.
namespace brrr::train {
struct BrokenToml {};
[[noreturn]] inline void fail_toml() { throw BrokenToml{}; }
}  // namespace brrr::train
#define TOML_ASSERT(condition) ((condition) ? void() : brrr::train::fail_toml())
#include <toml++/toml.h>

#include <map>

#include "base/file.h"
#include "train/options.h"

namespace brrr::train {
namespace {

std::string as_text(const toml::node& node, const std::string& where) {
  if (const auto* v = node.as_string()) return v->get();
  if (const auto* v = node.as_integer()) return std::to_string(v->get());
  if (const auto* v = node.as_floating_point()) return show_real(v->get());
  if (const auto* v = node.as_boolean()) return v->get() ? "true" : "false";
  usage_error("{}: expected a string, a number, true or false, or a list of them", where);
}

using Places = std::map<std::string, std::string>;  // an option -> where the file set it

/// Two spellings of one option in a file: one of them would be passed over without a word.
void note_place(const std::string& option, const std::string& name, const std::string& where,
                Places& places) {
  const auto [place, is_new] = places.emplace(option, where);
  if (!is_new)
    usage_error("{}: {}: the option {} is also set at {}; keep one of the two", where, name, option,
                place->second);
}

void flatten(const toml::table& table, const std::string& path, int depth, Places& places,
             std::vector<FileSetting>& settings) {
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    const std::string where = fmt::format("{}:{}", path, node.source().begin.line);
    if (const auto* inner = node.as_table()) {
      if (depth > 0)
        usage_error("{}: [{}]: tables inside tables have no meaning here", where, name);
      flatten(*inner, path, depth + 1, places, settings);
      continue;
    }
    const auto& row = train_option_table().find(name, where + ": ");
    note_place(row.name, name, where, places);
    if (const auto* items = node.as_array()) {
      if (row.kind != OptionKind::kList)
        usage_error("{}: {}: expected one value; got a list", where, name);
      if (items->empty()) settings.push_back({name, "", where});
      for (const auto& item : *items) settings.push_back({name, as_text(item, where), where});
    } else {
      settings.push_back({name, as_text(node, where), where});
    }
  }
}

}  // namespace

std::vector<FileSetting> read_toml(const std::string& path) {
  std::string text;
  try {
    text = read_file(path);
  } catch (const UserError& e) {
    throw UserError(fmt::format("--config: {}", e.what()), ExitCode::kUsage);
  }
  std::vector<FileSetting> settings;
  Places places;
  try {
    flatten(toml::parse(text, path), path, 0, places, settings);
  } catch (const toml::parse_error& e) {
    usage_error("{}:{}: not valid TOML: {}", path, e.source().begin.line, e.description());
  } catch (const BrokenToml&) {
    usage_error("{}: not valid TOML", path);
  }
  return settings;
}

}  // namespace brrr::train
