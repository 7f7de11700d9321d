#pragma once
// Where the time of a step goes: every kernel of a workload, timed over several steps, with what it
// did and the regime that it is in; the same by class of operation, pass, layer; and what the
// kernels did not take, by name. Steps with the clocks on and off alternate, so what timing itself
// costs is measured in every run.

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/threads/work_spans.h"
#include "insight/machine/timing.h"
#include "insight/profile/verdict.h"
#include "insight/profile/workload.h"

namespace brrr::insight {

/// One node of one program.
struct KernelProfile {
  size_t program = 0;  // into Profile::programs
  NodeId node = kNoNode;
  std::string name;    // "layer_norm+add", "copy of a state"
  std::string kernel;  // of the backend's list: "gemm_vector"
  std::string scope;   // "backward:h.3.attn"
  std::string layer;   // "h.3"
  std::string phase, shape;
  OpClass op_class = OpClass::elementwise;
  int64_t calls = 1;            // a step
  double ms = 0;                // of a step: the mean over the middle half of the steps
  double flops = 0, bytes = 0;  // of a step
  Verdict verdict;              // of one call
  double seconds() const { return 1e-3 * ms / static_cast<double>(calls); }  // of one call
  double ceiling() const { return verdict.fraction(seconds()); }
};

/// Kernels that belong together.
struct Group {
  std::string name;
  int64_t kernels = 0, calls = 0;
  double ms = 0, share = 0;  // of the kernels' time
  double flops = 0, bytes = 0, ceiling_ms = 0;
  std::array<double, kBounds> bound_ms{};  // by the verdicts of the kernels
  size_t example = 0;                      // its slowest kernel
  Bound bound() const;                     // of most of its time
  double gflops() const { return ms > 0 ? 1e-6 * flops / ms : 0; }
  double gbytes() const { return ms > 0 ? 1e-6 * bytes / ms : 0; }
  double ceiling() const { return ms > 0 ? ceiling_ms / ms : 0; }
  /// All but names and the number of kernels.
  void operator+=(const Group& other);
};

/// The classes of the BERT analysis (Ivanov et al., 2021, table 1), their shares of FLOPs and time.
struct ClassShares {
  std::string name;
  double flops = 0, time = 0;                      // here, forward and backward
  double published_flops = 0, published_time = 0;  // BERT-large on a V100
};

/// What would help, see advice.h.
struct Advice {
  std::string cause;                // "compile", "match_attention", "dataloader": for programs
  std::string text;                 // what is wrong, with figures
  std::string option;               // what to type, or to leave out
  double ms = 0, predicted_ms = 0;  // of a step of as many tokens
  KeyValues change;                 // the options as they should be
  bool tried = false;               // predicted_ms from steps that ran, not from a forecast
  double gain() const { return ms > 0 ? 1 - predicted_ms / ms : 0; }
};

/// One step as it ran, for the trace.
struct TracedStep {
  struct Slice {
    size_t kernel = 0;  // into Profile::kernels
    double start = 0, seconds = 0;
  };
  struct Run {
    size_t program = 0;  // into Profile::programs
    double start = 0, seconds = 0;
    std::vector<Slice> slices;
  };
  StepClock clock;
  std::vector<Run> runs;
};

/// What a rank exchanges with the others in a step.
struct RankExchange {
  int64_t ranks = 1, rank = 0;
  double bytes_sent = 0;
  double busy_ms = 0;    // of the thread that exchanges, waiting for others included
  double waited_ms = 0;  // of the step, for that thread
  double hidden() const { return busy_ms > 0 ? std::max(0.0, 1 - waited_ms / busy_ms) : 1; }
  double bytes_per_second() const { return busy_ms > 0 ? 1e3 * bytes_sent / busy_ms : 0; }
};

struct Profile {
  Mode mode = Mode::training;
  std::string title, backend;
  int threads = 1;
  int64_t tokens = 0;  // of a step; of a model for pictures: pictures
  bool sees_pictures = false;
  /// "tokens/s" or "images/s"
  std::string_view rate_unit() const { return sees_pictures ? "images/s" : "tokens/s"; }
  double compile_ms = 0;
  MemoryForecast memory;
  std::vector<std::string> programs;
  std::vector<KernelProfile> kernels;  // in the order in which they run
  std::vector<Group> by_kind;          // the same op on the same shapes; the slowest first
  std::vector<Group> by_class, by_phase, by_scope;
  std::vector<ClassShares> anatomy;  // of a training step

  bool advised = false;
  std::vector<Advice> advice;  // the most gain first

  Timing step;  // clocks off, in ms
  // Means over the middle half of the steps, in ms.
  double timed_ms = 0;    // clocks on; the sum of these parts:
  double kernels_ms = 0;  // in kernels
  double between_ms = 0;  // from a kernel's end to the next one's start; on a device in all, a run
                          // but for its kernels
  double batch_ms = 0;    // preparing the batch, or waiting for it
  double sampling_ms = 0;
  double rest_ms = 0;            // filling inputs, reading the loss
  int64_t steps = 0;             // timed
  double evaluation_ms = 0;      // one whole evaluation, which is no part of a step
  int64_t evaluation_every = 0;  // steps; 0: only at the end
  /// The share by which the clocks slow a step down: on the host the looks at the counter times
  /// what one look takes, on a device, whose looks have no known cost, measured.
  double overhead = 0;
  double other_processors = 0;  // processors' worth of time that other work had meanwhile
  Workload::Batches batches;
  std::optional<RankExchange> exchange;  // of a run on several ranks
  Ceilings ceilings;
  /// "cpu:avx2 on 2 threads", "cuda:sm_90 on cuda:0 (NVIDIA H200)"
  std::string place() const;
  /// Whether other work makes the figures uncertain.
  bool is_disturbed() const;
  /// What is to be said then, or "".
  std::string warning() const;

  // For the trace: three more steps, an evaluation, and what each thread did meanwhile.
  std::vector<TracedStep> traced;
  std::vector<WorkSpan> spans;
};

/// Runs the workload (allocated) for `seconds`, at least 5 steps timed and 5 not.
Profile profile(Workload& workload, const Ceilings& ceilings, double seconds,
                const std::function<void(const std::string& line)>& say = {});

/// Tables for people.
std::string report(const Profile& profile, bool colour);
/// One object with everything that report() shows, and every kernel.
std::string report_json(const Profile& profile);
/// Chrome's trace format, for Perfetto or chrome://tracing: one track for each thread, with
/// strictly nested slices. On the first: step > program > scopes > kernel > the thread's own share
/// of it, and the evaluation; on the others their shares of kernels, or the batches that they made.
std::string chrome_trace(const Profile& profile);
/// "1,234.5", "0.012": three or four digits.
std::string number_text(double value);

}  // namespace brrr::insight
