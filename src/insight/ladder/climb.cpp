#include "insight/ladder/climb.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <optional>

#include "base/errors.h"
#include "base/file.h"
#include "base/host_load.h"
#include "formats/json_file.h"

namespace brrr::insight {
namespace {

using io::Json;

Json record_of(const RungResult& r) {
  Json row{{"name", r.name},
           {"sequences", r.sequences},
           {"tokens", r.tokens},
           {"ms", r.ms},
           {"arena_bytes", r.arena_bytes},
           {"activation_bytes", r.activation_bytes},
           {"state_bytes", r.state_bytes}};
  if (!r.figures.empty()) row["figures"] = r.figures;
  if (!r.notes.empty()) row["notes"] = r.notes;
  if (r.other_processors > 0) row["other_processors"] = r.other_processors;
  if (!r.date.empty()) row["date"] = r.date;
  return row;
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  if (::localtime_r(&now, &parts) == nullptr) return "";
  return fmt::format("{:04}-{:02}-{:02}", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday);
}

bool positive(const std::vector<double>& values) {
  return !values.empty() && std::all_of(values.begin(), values.end(),
                                        [](double x) { return std::isfinite(x) && x > 0; });
}

/// A whole number that is not negative, or nothing.
std::optional<int64_t> count_of(const Json& value) {
  const auto number = value.get<double>();  // throws where it is none
  if (!value.is_number_integer() || number < 0 || number > 9e18) return std::nullopt;
  return value.get<int64_t>();
}

/// Nothing where the figures of the row cannot be.
std::optional<RungResult> read_row(const Json& row, const IsSound& is_sound) {
  RungResult r;
  row.at("name").get_to(r.name);
  bool counts = true;
  for (const auto& [key, field] : {std::pair{"sequences", &RungResult::sequences},
                                   {"tokens", &RungResult::tokens},
                                   {"arena_bytes", &RungResult::arena_bytes},
                                   {"activation_bytes", &RungResult::activation_bytes},
                                   {"state_bytes", &RungResult::state_bytes}}) {
    const std::optional<int64_t> count = count_of(row.at(key));
    counts = counts && count;
    r.*field = count.value_or(0);
  }
  row.at("ms").get_to(r.ms);
  if (row.contains("figures")) row.at("figures").get_to(r.figures);
  if (row.contains("notes")) row.at("notes").get_to(r.notes);
  if (row.contains("other_processors")) row.at("other_processors").get_to(r.other_processors);
  if (row.contains("date")) row.at("date").get_to(r.date);
  if (!counts || !positive(r.ms) || !is_sound(r)) return std::nullopt;
  return r;
}

/// The whole record, of all ladders.
Json read_record(const std::filesystem::path& path) {
  std::error_code ignored;
  if (path.empty() || !std::filesystem::exists(path, ignored)) return Json::object();
  Json all = io::parse_json(read_file(path), path.string());
  if (!all.is_object())
    user_error("{}: expected an object of ladders; got {}", path.string(), io::describe(all));
  return all;
}

/// `afresh`: without what the record holds of other ladders.
void keep(const std::filesystem::path& path, bool afresh, const std::string& key,
          const std::vector<RungResult>& results) {
  if (path.empty()) return;
  Json all = afresh ? Json::object() : read_record(path);
  Json& rows = all[key] = Json::array();
  for (const RungResult& r : results)
    if (r.failure.empty()) rows.push_back(record_of(r));
  write_file_atomically(path, all.dump(1) + "\n");
}

/// What an earlier climb of the same ladder has measured. Returns how many rungs have figures that
/// cannot be: they count as not measured.
int recall(const std::filesystem::path& path, const std::string& key, const IsSound& is_sound,
           std::vector<RungResult>& results) {
  const auto refuse = [](const std::string& reason) {
    user_error(
        "{}; use --again to measure again and replace it, or another --output-dir to keep it",
        reason);
  };
  int unsound = 0;
  try {
    const Json all = read_record(path);
    if (!all.contains(key)) return 0;
    for (const Json& row : all.at(key)) {
      const std::string name = row.at("name").get<std::string>();
      const auto at = std::find_if(results.begin(), results.end(),
                                   [&](const RungResult& r) { return r.name == name; });
      if (at == results.end()) continue;
      if (auto r = read_row(row, is_sound))
        *at = std::move(*r);
      else
        ++unsound;
    }
  } catch (const UserError& e) {
    refuse(e.what());
  } catch (const Json::exception& e) {
    refuse(fmt::format("{} is not a record of a ladder: {}", path.string(), e.what()));
  }
  return unsound;
}

/// "3 of 6 rungs of precision were measured before (2026-11-22) and stand in ..."; "" for none.
std::string recalled_line(const std::string& name, const std::filesystem::path& path,
                          const std::vector<RungResult>& results) {
  size_t recalled = 0;
  std::string first, last;
  for (const RungResult& r : results) {
    if (r.ms.empty()) continue;
    ++recalled;
    if (r.date.empty()) continue;
    if (first.empty() || r.date < first) first = r.date;
    last = std::max(last, r.date);
  }
  if (recalled == 0) return "";
  const std::string when = first == last ? first : first + " to " + last;
  return fmt::format(
      "{} of {} rungs of {} were measured before{} and are in {}; use --again to measure them "
      "again",
      recalled, results.size(), name, when.empty() ? "" : " (" + when + ")", path.string());
}

/// Why the record cannot be read, if it cannot.
std::optional<std::string> damage_of(const std::filesystem::path& path) {
  try {
    read_record(path);
    return std::nullopt;
  } catch (const UserError& e) {
    return e.what();
  }
}

}  // namespace

std::vector<RungResult> climb(const std::string& name, const std::string& of_ladder,
                              const std::vector<std::string>& rungs, const LadderOptions& options,
                              const Visit& visit, const IsSound& is_sound) {
  const std::string key =
      options.version.empty() ? of_ladder : fmt::format("{}, brrr {}", of_ladder, options.version);
  const auto say = [&](const std::string& line) {
    if (options.say && !line.empty()) options.say(line);
  };
  std::vector<RungResult> results;
  for (const std::string& rung : rungs) results.emplace_back().name = rung;
  std::filesystem::path record = options.record;
  bool afresh = false;
  if (!options.again) {
    if (const int unsound = recall(record, key, is_sound, results); unsound > 0)
      say(fmt::format("{}: {} of {} rungs of {} have impossible figures; measuring them again",
                      record.string(), unsound, results.size(), name));
    say(recalled_line(name, record, results));
  } else if (const auto damage = damage_of(record)) {
    say(*damage + "; it is replaced");
    afresh = true;
  }
  int64_t done = 0;
  for (int round = 1; round <= options.rounds; ++round)
    for (size_t i = 0; i < results.size(); ++i) {
      RungResult& r = results[i];
      if (options.stop && options.stop()) throw ClimbStopped{};
      if (options.progress) options.progress(done++);
      if (!r.failure.empty() || r.ms.size() >= static_cast<size_t>(round)) continue;
      try {
        HostLoad load;
        visit(i, r);
        r.other_processors =
            std::max(r.other_processors, load.read().other_processors(machine_processors()));
        r.date = today();
      } catch (const UserError& e) {
        if (e.code() != ExitCode::kNoMemory) throw;
        r.failure = e.what();
      }
      try {
        keep(record, afresh, key, results);
        afresh = false;
      } catch (const UserError& e) {  // what is measured is worth more than its record
        say(fmt::format("{}; continuing without saving it", e.what()));
        record.clear();
      }
    }
  if (options.progress) options.progress(done);
  return results;
}

bool has_positive(const RungResult& r, const std::string& name) {
  const auto at = r.figures.find(name);
  return at != r.figures.end() && at->second.size() == r.ms.size() && positive(at->second);
}

std::string disturbance_text(const std::string& ladder, const std::vector<RungResult>& results) {
  double most = 0;
  size_t disturbed = 0;
  for (const RungResult& r : results) {
    most = std::max(most, r.other_processors);
    disturbed += r.other_processors > kDisturbingProcessors ? 1 : 0;
  }
  if (disturbed == 0) return "";
  return fmt::format(
      "{}: other programs used up to {:.1f} CPUs while {} of {} rungs were measured: ratios may be "
      "wrong; use --again to measure again",
      ladder, most, disturbed, results.size());
}

const std::vector<double>& figure_of(const RungResult& r, const std::string& name) {
  const auto at = r.figures.find(name);
  if (at == r.figures.end() || at->second.empty())
    user_error("the record of the rung '{}' lacks the figure '{}': use --again to measure it again",
               r.name, name);
  return at->second;
}

}  // namespace brrr::insight
