// A climbed ladder as a table for people and as one object for programs.

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/human.h"
#include "base/memory.h"
#include "insight/ladder/ladder.h"

namespace brrr::insight {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string ratio(std::optional<double> value) {
  return value ? fmt::format("{:.2f}x", *value) : std::string("-");
}

}  // namespace

std::optional<Against> against(const RungResult& r, const RungResult& first) {
  if (r.ms.empty() || first.ms.empty()) return std::nullopt;
  const Timing mine = timing_of(r), theirs = timing_of(first);
  const double scale = static_cast<double>(r.sequences) / static_cast<double>(first.sequences);
  return Against{scale * theirs.median / mine.median, scale * theirs.median / mine.high,
                 scale * theirs.median / mine.low,
                 static_cast<double>(r.arena_bytes) /
                     static_cast<double>(std::max<int64_t>(first.arena_bytes, 1))};
}

double per_second(int64_t count, const RungResult& r) {
  return 1e3 * static_cast<double>(count) / timing_of(r).median;
}

std::optional<Against> against_before(const Ladder& ladder, const std::vector<RungResult>& results,
                                      size_t i) {
  if (ladder.cumulative)
    for (size_t before = i; before-- > 0;)
      if (const auto a = against(results[i], results[before])) return a;
  return std::nullopt;
}

std::string quartiles_text(const Timing& t, size_t rounds, int digits) {
  return rounds < 2 ? "-" : fmt::format("{:.{}f}-{:.{}f}", t.low, digits, t.high, digits);
}

LadderColumns columns_of(const Ladder& ladder) {
  const auto& rungs = ladder.rungs;
  return {
      ladder.cumulative,
      std::any_of(rungs.begin(), rungs.end(), [](const Rung& r) { return r.published_speed; }),
      std::any_of(rungs.begin(), rungs.end(), [](const Rung& r) { return r.published_memory; })};
}

std::string ladder_table(const Ladder& ladder, const std::vector<RungResult>& results) {
  const LadderColumns columns = columns_of(ladder);
  const auto only = [](bool has, int width, const std::string& text) {
    return has ? fmt::format(" {:>{}}", text, width) : std::string();
  };
  const auto line = [&](const std::string& name, const std::string& measured,
                        const std::string& gain, const std::string& memory,
                        const std::string& speed_there, const std::string& memory_there) {
    return fmt::format("{:<34} {}{} {}{}{}\n", name, measured, only(columns.gain, 7, gain), memory,
                       only(columns.published_speed, 10, speed_there),
                       only(columns.published_memory, 10, memory_there));
  };
  std::string out =
      ladder.title + "\n" +
      line("rung",
           fmt::format("{:>10} {:>8} {:>7} {:>13}", "samples/s", "tok/s", "speed", "quartiles"),
           "gain", fmt::format("{:>10} {:>7} {:>11}", "memory", "of it", "activations"),
           "publ.speed", "publ.mem.");
  const RungResult& first = results.front();
  for (size_t i = 0; i < results.size(); ++i) {
    const RungResult& r = results[i];
    if (r.ms.empty()) {
      out += fmt::format("{:<34} {}\n", r.name, r.failure.empty() ? "not measured" : r.failure);
      continue;
    }
    const std::optional<Against> a = against(r, first);
    const auto gain = against_before(ladder, results, i);
    out += line(r.name,
                fmt::format("{:>10.3f} {:>8.0f} {:>7} {:>13}", per_second(r.sequences, r),
                            per_second(r.tokens, r), a ? ratio(a->speed) : "-",
                            a ? quartiles_text({a->speed, a->low, a->high}, r.ms.size(), 2) : "-"),
                gain ? ratio(gain->speed) : "-",
                fmt::format("{:>10} {:>7} {:>11}", memory_text(r.arena_bytes),
                            a ? ratio(a->memory) : "-", memory_text(r.activation_bytes)),
                ratio(ladder.rungs[i].published_speed), ratio(ladder.rungs[i].published_memory));
  }
  if (!ladder.published.empty()) out += fmt::format("published: {}\n", ladder.published);
  return out;
}

std::string ladder_json(const Ladder& ladder, const std::vector<RungResult>& results) {
  OrderedJson rows = OrderedJson::array();
  for (size_t i = 0; i < results.size(); ++i) {
    const RungResult& r = results[i];
    OrderedJson row{{"name", r.name}};
    if (r.ms.empty()) {
      row["failure"] = r.failure;
    } else {
      row.update({{"samples_per_second", per_second(r.sequences, r)},
                  {"tokens_per_second", per_second(r.tokens, r)},
                  {"ms", timing_of(r).median},
                  {"ms_quartiles", {timing_of(r).low, timing_of(r).high}},
                  {"rounds", r.ms.size()},
                  {"arena_bytes", r.arena_bytes},
                  {"activation_bytes", r.activation_bytes},
                  {"state_bytes", r.state_bytes}});
      if (const auto a = against(r, results.front())) {
        row["speed"] = a->speed;
        row["memory"] = a->memory;
      }
      if (const auto gain = against_before(ladder, results, i)) row["gain"] = gain->speed;
    }
    const Rung& rung = ladder.rungs[i];
    if (rung.published_speed) row["published_speed"] = *rung.published_speed;
    if (rung.published_memory) row["published_memory"] = *rung.published_memory;
    rows.push_back(std::move(row));
  }
  return OrderedJson{{"ladder", ladder.name}, {"title", ladder.title}, {"rungs", rows}}.dump();
}

}  // namespace brrr::insight
