#include "backend/cuda/autotune.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <utility>

#include "base/errors.h"

namespace brrr::cuda {
namespace {

constexpr std::string_view kHead = "brrr autotune 3";

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

// A line is "key<tab>way<tab>times".
std::map<std::string, Autotune::Choice> Autotune::read_lines(const fs::path& file) {
  std::map<std::string, Choice> chosen;
  std::error_code error;
  if (file.empty() || !fs::is_regular_file(file, error)) return chosen;
  std::istringstream lines;
  try {
    lines.str(read_file(file));
  } catch (const UserError&) {
    return chosen;
  }
  std::string line;
  if (!std::getline(lines, line) || line != kHead) return chosen;
  while (std::getline(lines, line)) {
    const size_t way = line.find('\t');
    if (way == std::string::npos || way == 0) continue;
    const size_t times = line.find('\t', way + 1);
    if (times == std::string::npos || times == way + 1) continue;
    chosen[line.substr(0, way)] = {line.substr(way + 1, times - way - 1), line.substr(times + 1)};
  }
  return chosen;
}

Autotune::Autotune(fs::path file) : file_(std::move(file)), chosen_(read_lines(file_)) {}

std::optional<size_t> Autotune::remembered(const std::string& key,
                                           const std::vector<std::string>& ways) const {
  const auto at = chosen_.find(key);
  if (at == chosen_.end()) return std::nullopt;
  const auto way = std::find(ways.begin(), ways.end(), at->second.way);
  if (way == ways.end()) return std::nullopt;
  return static_cast<size_t>(way - ways.begin());
}

size_t Autotune::choose(const std::string& key, const std::vector<std::string>& ways,
                        const Measure& measure) {
  BRRR_CHECK(!ways.empty(), "nothing to choose from for {}", key);
  if (const auto way = remembered(key, ways)) return *way;
  size_t best = 0;
  std::string times;
  if (ways.size() > 1) {
    ++measured_;
    std::vector<std::vector<double>> ms(ways.size());
    for (size_t i = 0; i < ways.size(); ++i) ms[i].push_back(measure(i));
    double first = ms[0][0];
    for (const auto& m : ms) first = std::min(first, m[0]);
    for (int round = 1; round < kRounds; ++round)
      for (size_t i = 0; i < ways.size(); ++i)
        if (ms[i][0] <= kHopeless * first && std::isfinite(ms[i][0])) ms[i].push_back(measure(i));
    std::vector<double> typical;
    for (const auto& m : ms) typical.push_back(median(m));
    for (size_t i = 1; i < ways.size(); ++i)
      if (typical[i] < typical[best] * (best == 0 ? 1 - kLeastGain : 1)) best = i;
    if (!std::isfinite(typical[best])) best = 0;
    for (double t : typical) times += fmt::format("{}{:.4g}", times.empty() ? "" : " ", t);
  }
  chosen_[key] = {ways[best], times};
  is_saved_ = false;
  return best;
}

void Autotune::save() {
  if (file_.empty() || std::exchange(is_saved_, true)) return;
  // Others may have written since.
  for (const auto& [theirs, chosen] : read_lines(file_)) chosen_.emplace(theirs, chosen);
  std::string text = std::string(kHead) + "\n";
  for (const auto& [k, chosen] : chosen_)
    text += k + '\t' + chosen.way + '\t' + chosen.times + '\n';
  try {
    create_folder(file_.parent_path());
    write_cache_file(file_, text);
  } catch (const UserError&) {  // it is measured again the next time
  }
}

}  // namespace brrr::cuda
