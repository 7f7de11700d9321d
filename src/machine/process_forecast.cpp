#include "machine/process_forecast.h"

#include <algorithm>

#include "backend/cpu/products/packing.h"
#include "base/threads/parallel.h"
#include "runtime/program.h"

namespace brrr::machine {
namespace {

/// The share of its own file that the program brings in by the end of a run, so that a program that
/// grows needs no other forecast, and pages that are resident already do not count twice. Nine
/// kinds of training runs: 0.69 to 0.71, and 0.66 to 0.72 with the state of the page cache, by
/// which the system decides how many pages a page fault maps. Inference (ONNX files, text,
/// embeddings): 0.61 to 0.67.
constexpr double kTrainingShare = 0.72, kInferenceShare = 0.67;
/// The most of it that a run brings in after its programs were compiled: kernels, checkpoints,
/// plots. Measured: up to 4.2 MiB. Where Brrr is a small part of a large file (tests, sanitized
/// builds, programs that link the library), this is the closer bound.
constexpr int64_t kMostLaterBytes = int64_t{4608} << 10;
/// Pages of libraries (libstdc++, libm) that are brought in later.
constexpr int64_t kLibraryBytes = int64_t{256} << 10;

int64_t later_code(ProcessKind kind, const ResidentMemory& now) {
  const double share = kind == ProcessKind::training ? kTrainingShare : kInferenceShare;
  const auto program = static_cast<int64_t>(share * static_cast<double>(now.program_mapped));
  return kLibraryBytes + std::clamp<int64_t>(program - now.program, 0, kMostLaterBytes);
}

}  // namespace

int64_t ProcessForecast::needed() const { return std::max(peak_before, overhead() + arena); }

ProcessForecast forecast_running(std::span<const Graph* const> programs, ProcessKind kind,
                                 const ResidentMemory& now, bool on_device) {
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
  f.code = later_code(kind, now);
  return f;
}

}  // namespace brrr::machine
