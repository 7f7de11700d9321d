#include "insight/climb.h"

#include <algorithm>
#include <optional>

#include "base/errors.h"
#include "base/file.h"
#include "io/json_file.h"

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
  return row;
}

void read_row(const Json& row, RungResult& r) {
  row.at("sequences").get_to(r.sequences);
  row.at("tokens").get_to(r.tokens);
  row.at("ms").get_to(r.ms);
  row.at("arena_bytes").get_to(r.arena_bytes);
  row.at("activation_bytes").get_to(r.activation_bytes);
  row.at("state_bytes").get_to(r.state_bytes);
  if (row.contains("figures")) row.at("figures").get_to(r.figures);
  if (row.contains("notes")) row.at("notes").get_to(r.notes);
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

/// What an earlier climb of the same ladder has measured.
void recall(const std::filesystem::path& path, const std::string& key,
            std::vector<RungResult>& results) {
  const auto refuse = [](const std::string& reason) {
    user_error("{}; --again measures anew and replaces it, another --output-dir leaves it", reason);
  };
  try {
    const Json all = read_record(path);
    if (!all.contains(key)) return;
    for (const Json& row : all.at(key))
      for (RungResult& r : results)
        if (r.name == row.at("name").get<std::string>()) read_row(row, r);
  } catch (const UserError& e) {
    refuse(e.what());
  } catch (const Json::exception& e) {
    refuse(fmt::format("{} is no record of a ladder: {}", path.string(), e.what()));
  }
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

std::vector<RungResult> climb(const std::string& key, const std::vector<std::string>& rungs,
                              const LadderOptions& options, const Visit& visit) {
  std::vector<RungResult> results;
  for (const std::string& name : rungs) results.emplace_back().name = name;
  std::filesystem::path record = options.record;
  bool afresh = false;
  if (!options.again) {
    recall(record, key, results);
  } else if (const auto damage = damage_of(record)) {
    if (options.say) options.say(*damage + "; it is replaced");
    afresh = true;
  }
  int64_t done = 0;
  for (int round = 1; round <= options.rounds; ++round)
    for (size_t i = 0; i < results.size(); ++i) {
      RungResult& r = results[i];
      if (options.progress) options.progress(done++);
      if (!r.failure.empty() || r.ms.size() >= static_cast<size_t>(round)) continue;
      try {
        visit(i, r);
      } catch (const UserError& e) {
        if (e.code() != ExitCode::kNoMemory) throw;
        r.failure = e.what();
      }
      try {
        keep(record, afresh, key, results);
        afresh = false;
      } catch (const UserError& e) {  // what is measured is worth more than its record
        if (options.say) options.say(fmt::format("{}; going on without keeping it", e.what()));
        record.clear();
      }
    }
  if (options.progress) options.progress(done);
  return results;
}

const std::vector<double>& figure_of(const RungResult& r, const std::string& name) {
  const auto at = r.figures.find(name);
  if (at == r.figures.end() || at->second.empty())
    user_error("the record of the rung '{}' has no figure '{}': measure it with --again", r.name,
               name);
  return at->second;
}

}  // namespace brrr::insight
