#include "runtime/timeline.h"

#include <algorithm>

#include "base/clock.h"

namespace brrr {

TimelineWriter::TimelineWriter(Timeline& timeline, const Program& program)
    : timeline_(timeline),
      run_{&program, now_seconds(), 0, timeline.records.size(), 0},
      first_(clock_ticks()),
      last_(first_) {}

void TimelineWriter::ended(NodeId node) {
  // Another core's counter may be a little behind.
  const uint64_t now = std::max(clock_ticks(), last_);
  timeline_.records.push_back(
      {node, static_cast<double>(last_ - first_), static_cast<double>(now - last_)});
  last_ = now;
}

void TimelineWriter::finish() {
  const auto ticks = static_cast<double>(std::max(clock_ticks(), last_) - first_);
  run_.seconds = now_seconds() - run_.start;
  run_.last = timeline_.records.size();
  const double seconds = run_.seconds / std::max(ticks, 1.0);  // of a tick
  for (size_t i = run_.first; i < run_.last; ++i) {
    TimelineRecord& record = timeline_.records[i];
    const double end = run_.start + seconds * (record.start + record.seconds);
    record.start = run_.start + seconds * record.start;
    record.seconds = end - record.start;  // exactly: the next one starts at this end
  }
  timeline_.runs.push_back(run_);
}

void TimelineWriter::finish(std::span<const NodeId> nodes, std::span<const double> passed) {
  const double all = passed.back();
  run_.seconds = std::max(now_seconds() - run_.start, all);
  const double first = run_.start + (run_.seconds - all);  // all before is getting it to start
  double end = first;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const double start = end;
    end = std::max(start, first + passed[i + 1]);
    timeline_.records.push_back({nodes[i], start, end - start});
  }
  run_.last = timeline_.records.size();
  timeline_.runs.push_back(run_);
}

}  // namespace brrr
