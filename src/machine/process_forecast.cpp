#include "machine/process_forecast.h"

#include <algorithm>

#include "backend/cpu/products/packing.h"
#include "base/threads/parallel.h"
#include "runtime/program.h"

namespace brrr::machine {
namespace {

constexpr int64_t kCodeBytes = int64_t{2432} << 10;  // kernels, checkpoints, plots: run later

}  // namespace

int64_t ProcessForecast::needed() const { return std::max(peak_before, overhead() + arena); }

ProcessForecast forecast_running(std::span<const Graph* const> programs, const ResidentMemory& now,
                                 bool on_device) {
  ProcessForecast f;
  f.program = now.needed();
  f.peak_before = now.peak - now.inputs;
  cpu::Packing packing;
  for (const Graph* graph : programs) {
    f.program += static_cast<int64_t>(graph->size()) * Program::kNodeBytes;
    packing += cpu::packing_of(*graph);
  }
  if (!on_device) f.packing = packing.bytes();
  f.threads = (thread_count() + 1) * kThreadBytes;
  f.code = kCodeBytes;
  return f;
}

}  // namespace brrr::machine
