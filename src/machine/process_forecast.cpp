#include "machine/process_forecast.h"

#include <algorithm>

#include "backend/cpu/products/packing.h"
#include "base/threads/parallel.h"
#include "runtime/program.h"

namespace brrr::machine {
namespace {

/// The share of its own file that the program brings in by the end of a run, however much of it is
/// resident at an earlier time, so that a program that grows needs no other forecast. Nine kinds of
/// training runs: 0.69 to 0.71, and 0.66 to 0.72 with the state of the page cache, by which the
/// system decides how many pages a page fault maps.
constexpr double kProgramShare = 0.72;
/// Pages of libraries (libstdc++, libm) that are brought in later.
constexpr int64_t kLibraryBytes = int64_t{256} << 10;

int64_t later_code(const ResidentMemory& now) {
  const double program = kProgramShare * static_cast<double>(now.program_mapped);
  return kLibraryBytes + std::max<int64_t>(0, static_cast<int64_t>(program) - now.program);
}

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
  f.code = later_code(now);
  return f;
}

}  // namespace brrr::machine
