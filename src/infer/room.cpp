#include "infer/room.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "machine/process_forecast.h"
#include "runtime/parameters.h"

namespace brrr::infer {

Room::Room(const Backend& backend, Memory memory)
    : memory_(std::move(memory)), on_device_(backend.memory_bytes > 0) {
  if (has_limit()) now_ = resident_memory();
}

void Room::set_limit(Engine& engine, const Graph& next, int64_t more) {
  std::vector<const Graph*> graphs = engine.graphs();
  graphs.push_back(&next);
  set_limit_beside(engine, graphs, more);
}

void Room::measure(Engine& engine, int64_t more) {
  now_ = resident_memory();
  set_limit_beside(engine, engine.graphs(), more);
}

void Room::set_limit_beside(Engine& engine, const std::vector<const Graph*>& graphs, int64_t more) {
  if (!has_limit()) return;
  if (!on_device_)
    beside_ =
        machine::forecast_running(graphs, machine::ProcessKind::inference, now_, false).overhead() +
        more;
  engine.set_limit(std::max<int64_t>(1, memory_.limit.bytes - beside_));
}

// Nothing of the temporary region is resident while parameters are loaded.
int64_t Room::most_at_once(const Engine& engine) const {
  const MemoryForecast f = engine.forecast();
  return f.total() - f.temporary_bytes +
         std::max(f.temporary_bytes, on_device_ ? 0 : loading_bytes(engine));
}

bool Room::fits(const Engine& engine) const {
  return !has_limit() || most_at_once(engine) <= engine.limit();
}

void Room::check(const Engine& engine) const {
  if (fits(engine) || memory_.is_only_planned) return;
  const MemoryForecast f = engine.forecast();
  const int64_t kept = f.total() - f.temporary_bytes;
  const int64_t needed = most_at_once(engine) + beside_;
  const std::string more =
      memory_.limit.source == "--memory-limit"
          ? fmt::format("--memory-limit {}", memory_at_least(needed + machine::kVariesBetweenRuns))
          : fmt::format("a machine or control group with {} for it", memory_text(needed));
  const std::string less = memory_.advice.empty() ? "" : memory_.advice + ", or ";
  throw UserError(fmt::format("the model does not fit in memory: it needs {} ({} of it weights and "
                              "caches), and {} is {}. Use {}{}",
                              memory_text(needed), memory_text(kept), memory_.limit.source,
                              memory_text(memory_.limit.bytes), less, more),
                  ExitCode::kNoMemory);
}

void Room::refuse(const std::string& why) const {
  throw UserError(
      fmt::format("{}; {} is {}, of which the process takes {} besides its programs. Use {}", why,
                  memory_.limit.source, memory_text(memory_.limit.bytes), memory_text(beside_),
                  memory_.advice),
      ExitCode::kNoMemory);
}

}  // namespace brrr::infer
