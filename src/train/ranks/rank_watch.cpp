#include "train/ranks/rank_watch.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/human.h"

namespace brrr::train {
namespace {

// A straggler computes at least kSlower times as long as the others and makes them wait for at
// least kLeastShare of a step.
constexpr double kSlower = 1.15, kLeastShare = 0.05;

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

}  // namespace

RankWatch::RankWatch(std::vector<std::string> hosts)
    : hosts_(std::move(hosts)), named_(hosts_.size()) {}

void RankWatch::Sum::add(std::span<const RankStep> readings) {
  ranks.resize(readings.size());
  for (size_t i = 0; i < readings.size(); ++i) {
    ranks[i].seconds += readings[i].seconds;
    ranks[i].waited_seconds += readings[i].waited_seconds;
    ranks[i].bytes_sent += readings[i].bytes_sent;
    // Memory is not summed: the newest reading counts.
    if (readings[i].process_bytes > 0) ranks[i].process_bytes = readings[i].process_bytes;
  }
  ++steps;
}

std::vector<RankStep> RankWatch::Sum::means() const {
  std::vector<RankStep> means = ranks;
  for (RankStep& rank : means)
    for (double* sum : {&rank.seconds, &rank.waited_seconds, &rank.bytes_sent})
      *sum /= static_cast<double>(steps);
  return means;
}

std::optional<std::string> RankWatch::add(std::span<const RankStep> ranks) {
  BRRR_CHECK(ranks.size() == hosts_.size(), "{} readings of {} ranks", ranks.size(), hosts_.size());
  since_taken_.add(ranks);
  if (++steps_ == 1) return std::nullopt;  // warm-up
  block_.add(ranks);
  const std::vector<RankStep> means = block_.means();
  const double seconds = means[0].seconds * static_cast<double>(block_.steps);
  if (block_.steps < kBlockSteps || seconds < kBlockSeconds) return std::nullopt;
  block_ = {};
  return look_at_block(means);
}

std::vector<RankStep> RankWatch::take_means() {
  if (since_taken_.steps == 0) return {};
  const Sum sum = std::exchange(since_taken_, {});
  return sum.means();
}

// One slow block may be caused by other work on the machine, so a straggler has to be the slowest
// rank in two blocks in a row.
std::optional<std::string> RankWatch::look_at_block(const std::vector<RankStep>& means) {
  const auto by_time = [](const RankStep& a, const RankStep& b) {
    return a.computed_seconds() < b.computed_seconds();
  };
  const auto slowest =
      static_cast<size_t>(std::ranges::max_element(means, by_time) - means.begin());
  std::vector<double> computed, waited;
  for (size_t i = 0; i < means.size(); ++i) {
    if (i == slowest) continue;
    computed.push_back(means[i].computed_seconds());
    waited.push_back(means[i].waited_seconds);
  }
  if (computed.empty()) return std::nullopt;
  const RankStep& rank = means[slowest];
  const double usual = median_of(computed), step = rank.seconds;
  // The others also wait for data to arrive, so the cost is at most the additional computing time.
  const double cost = std::min(median_of(waited), rank.computed_seconds() - usual);
  const bool is_slow = rank.computed_seconds() > kSlower * usual && cost > kLeastShare * step;
  const int before = std::exchange(last_slowest_, is_slow ? static_cast<int>(slowest) : -1);
  if (!is_slow || before != last_slowest_ || named_[slowest]) return std::nullopt;
  named_[slowest] = true;
  return fmt::format(
      "rank {} ({}) is {:.1f}x slower than the median of the others: it computes for {} of each "
      "step and they for {}, so that they wait {:.0f}% of each step for it",
      slowest, hosts_[slowest], rank.computed_seconds() / usual,
      duration_text(rank.computed_seconds()), duration_text(usual), 100 * cost / step);
}

}  // namespace brrr::train
