#include "train/options/option_layer.h"

#include <optional>
#include <utility>

#include "base/human.h"
#include "train/options/foreign_names.h"

namespace brrr::train {
namespace {

/// Calls in_our_names() and prefixes its errors with `where`.
std::optional<KeyValues> named_as_ours(const std::string& option, const std::string& value,
                                       const std::string& where) {
  try {
    return in_our_names(option, value);
  } catch (const UserError& e) {
    throw UserError(where + ": " + e.what(), ExitCode::kUsage);
  }
}

const std::string& option_set_by(const OptionInfo& row) {
  return row.stands_for.empty() ? row.name : row.stands_for;
}

/// Returns the name of the field that an option sets. Settings of one field may contradict each
/// other. activation-memory also sets the policy: it asks for rematerialize=auto.
std::string field_of(const OptionInfo& row) {
  const std::string& name = option_set_by(row);
  return name == "activation-memory" ? "rematerialize" : name;
}

}  // namespace

OptionLayer::OptionLayer(TrainOptions& options, Source source, std::set<std::string>* given)
    : options_(options), below_(options), source_(source), given_(given) {}

void append_in_our_names(std::vector<PlacedOption>& all, const PlacedOption& option) {
  const auto& row = train_option_table().find(option.key, option.unknown_where);
  const std::optional<KeyValues> ours = named_as_ours(row.name, option.value, option.where);
  if (!ours) return all.push_back(option);
  for (const auto& [key, value] : *ours)
    append_in_our_names(all, {key, value, option.where, option.unknown_where,
                              option.typed.empty() ? option.value : option.typed});
}

void OptionLayer::set(const PlacedOption& option) {
  const auto& table = train_option_table();
  const std::string &value = option.value, &where = option.where;
  const Row& row = table.find(option.key, option.unknown_where);
  if (given_ != nullptr && row.kind == OptionKind::kText && value.empty())
    usage_error("{}: expected a value; got an empty one", where);
  const Setting now{&row, value, where, option.typed.empty() ? value : option.typed};
  if (source_ != Source::preset) refuse_contradiction(now);
  if (row.clear && lists_.insert(row.name).second) row.clear(options_);
  const bool is_empty_list = row.clear && value.empty() && source_ != Source::command_line;
  if (!is_empty_list) table.set(options_, row, value, where);
  if (given_ != nullptr) given_->insert(option_set_by(row));
  settings_.emplace(field_of(row), now);
}

void OptionLayer::refuse_contradiction(const Setting& now) const {
  const auto [begin, end] = settings_.equal_range(field_of(*now.row));
  for (auto at = begin; at != end; ++at) {
    const Setting& before = at->second;
    const bool is_same_option = before.row == now.row;
    if (is_same_option && source_ == Source::file && before.where != now.where)
      usage_error("{}: the option {} is also set at {}; keep one of the two", now.where,
                  now.row->name, before.where);
    if (is_same_option && now.row->kind == OptionKind::kList) continue;  // its items add up
    if (depends_on_order(before, now))
      usage_error("{} and {} contradict each other; keep one of the two", shown(before),
                  shown(now));
  }
}

bool OptionLayer::depends_on_order(const Setting& a, const Setting& b) const {
  const auto after = [&](const Setting& first,
                         const Setting& second) -> std::optional<TrainOptions> {
    TrainOptions options = below_;
    try {
      first.row->set(options, first.value);
      second.row->set(options, second.value);
    } catch (const UserError&) {
      return std::nullopt;
    }
    return options;
  };
  const auto as_given = after(a, b);
  return as_given && as_given != after(b, a);  // what is refused as it stands has its own message
}

std::string OptionLayer::shown(const Setting& setting) const {
  if (source_ == Source::file) return fmt::format("{} = {}", setting.where, setting.typed);
  const bool is_bare = setting.row->kind == OptionKind::kFlag && setting.typed == "true";
  return is_bare ? setting.where : setting.where + " " + shell_word(setting.typed);
}

KeyValues overlaid(KeyValues under, const KeyValues& over) {
  const auto& table = train_option_table();
  std::set<std::string> replaced;
  for (const auto& [key, value] : over)
    if (const auto& row = table.find(key); row.kind != OptionKind::kList)
      replaced.insert(field_of(row));
  std::erase_if(under, [&](const auto& entry) {
    return replaced.contains(field_of(table.find(entry.first)));
  });
  under.insert(under.end(), over.begin(), over.end());
  return under;
}

}  // namespace brrr::train
