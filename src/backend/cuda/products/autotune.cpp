#include "backend/cuda/products/autotune.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <utility>

#include "base/errors.h"

namespace brrr::cuda {
namespace {

constexpr std::string_view kHead = "brrr autotune 4";

/// What the rounds of a way took, in milliseconds.
class Rounds {
 public:
  void add(double ms) { ms_.insert(std::upper_bound(ms_.begin(), ms_.end(), ms), ms); }
  double least() const { return ms_.front(); }
  double median() const { return ms_[ms_.size() / 2]; }
  /// Between the fastest round and the slowest; of four rounds one slow one does not count.
  double spread() const { return ms_[ms_.size() - 1 - ms_.size() / 4] - ms_.front(); }
  bool runs() const { return std::isfinite(median()); }

 private:
  std::vector<double> ms_;  // ascending
};

/// Whether `a` takes less than `b` by more than the least gain, and by more than either scatters.
bool is_faster(const Rounds& a, const Rounds& b) {
  if (!a.runs() || !b.runs()) return a.runs();
  return b.median() - a.median() >
         std::max({Autotune::kLeastGain * b.median(), a.spread(), b.spread()});
}

/// Whether it would be, if it did not scatter so: more rounds may tell.
bool is_doubtful(const Rounds& a, const Rounds& b) {
  return a.runs() && b.runs() && !is_faster(a, b) &&
         b.median() - a.median() > Autotune::kLeastGain * b.median();
}

/// The first way that runs; the first of all where none does.
size_t default_of(const std::vector<Rounds>& ways) {
  const auto at =
      std::find_if(ways.begin(), ways.end(), [](const Rounds& way) { return way.runs(); });
  return at == ways.end() ? 0 : static_cast<size_t>(at - ways.begin());
}

/// The default, unless others are faster; of those the first that the fastest does not beat.
size_t best_of(const std::vector<Rounds>& ways) {
  const size_t first = default_of(ways);
  std::vector<size_t> faster;
  for (size_t i = first + 1; i < ways.size(); ++i)
    if (is_faster(ways[i], ways[first])) faster.push_back(i);
  if (faster.empty()) return first;
  const auto fastest = std::min_element(faster.begin(), faster.end(), [&](size_t a, size_t b) {
    return ways[a].median() < ways[b].median();
  });
  return *std::find_if(faster.begin(), faster.end(),
                       [&](size_t i) { return !is_faster(ways[*fastest], ways[i]); });
}

std::vector<Rounds> measure_rounds(size_t count, const Autotune::Measure& measure) {
  std::vector<Rounds> ways(count);
  std::vector<bool> goes_on(count, true);
  for (int round = 1; round <= Autotune::kMostRounds; ++round) {
    for (size_t i = 0; i < count; ++i)
      if (goes_on[i]) ways[i].add(measure(i));
    if (round <= Autotune::kRoundsOfHopeless) {
      double best = ways[0].least();
      for (const Rounds& way : ways) best = std::min(best, way.least());
      for (size_t i = 0; i < count; ++i)
        goes_on[i] = ways[i].runs() && (round < Autotune::kRoundsOfHopeless ||
                                        ways[i].least() <= Autotune::kHopeless * best);
    }
    if (round < Autotune::kRounds) continue;
    const Rounds &chosen = ways[best_of(ways)], &usual = ways[default_of(ways)];
    // Where many ways take the same time, one of them may look faster for a while.
    bool doubtful =
        &chosen != &usual && chosen.median() > (1 - Autotune::kSureGain) * usual.median();
    for (size_t i = 0; i < count; ++i)
      doubtful = doubtful || (goes_on[i] && is_doubtful(ways[i], chosen));
    if (!doubtful) break;
  }
  return ways;
}

}  // namespace

// A line is "key<tab>way<tab>times<tab>spreads".
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
    std::vector<std::string> fields(1);
    for (const char c : line)
      if (c == '\t')
        fields.emplace_back();
      else
        fields.back() += c;
    if (fields.size() != 4 || fields[0].empty() || fields[1].empty()) continue;
    chosen[fields[0]] = {fields[1], fields[2], fields[3]};
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
  Choice choice;
  if (ways.size() > 1) {
    ++measured_;
    const std::vector<Rounds> rounds = measure_rounds(ways.size(), measure);
    best = best_of(rounds);
    for (const Rounds& way : rounds) {
      const char* apart = choice.times.empty() ? "" : " ";
      choice.times += fmt::format("{}{:.4g}", apart, way.median());
      choice.spreads +=
          way.runs() ? fmt::format("{}{:.2g}", apart, way.spread()) : fmt::format("{}-", apart);
    }
  }
  choice.way = ways[best];
  chosen_[key] = std::move(choice);
  is_saved_ = false;
  return best;
}

void Autotune::save() {
  if (file_.empty() || std::exchange(is_saved_, true)) return;
  // Others may have written since.
  for (const auto& [theirs, chosen] : read_lines(file_)) chosen_.emplace(theirs, chosen);
  std::string text = std::string(kHead) + "\n";
  for (const auto& [k, chosen] : chosen_)
    text += fmt::format("{}\t{}\t{}\t{}\n", k, chosen.way, chosen.times, chosen.spreads);
  try {
    create_folder(file_.parent_path());
    write_cache_file(file_, text);
  } catch (const UserError&) {  // it is measured again the next time
  }
}

}  // namespace brrr::cuda
