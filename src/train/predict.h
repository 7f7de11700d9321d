#pragma once
// The time of a step before it runs: its kernels at the rates of this machine and, on several
// ranks, what they exchange at the rate of a link.

#include <array>

#include "machine/link.h"
#include "machine/speed.h"
#include "runtime/ranks/overlap.h"
#include "train/session.h"

namespace brrr::train {

struct PredictedTime {
  std::array<double, 7> by_class{};  // ms of a step, by OpClass
  double waited_ms = 0;              // for what other ranks send, beside the kernels
  double total_ms() const;
};
/// `link` connects the ranks of the session. A shared one is this machine's memory: then its ranks
/// share its processors, too.
PredictedTime predict_step(const Session& session, const machine::MachineSpeed& speed,
                           const machine::Link& link = machine::usual_shared_memory());

/// What the ranks of a session exchange in a step, by its collectives; the counts and losses that
/// they also tell each other are a few bytes.
struct RankTraffic {
  int64_t collectives = 0, exchanges = 0;  // of one rank
  double mean_bytes = 0;                   // that a rank sends, as a mean over the ranks
  int64_t most_bytes = 0;                  // by the rank that sends most
  int64_t first_bytes = 0;                 // by rank 0
};
RankTraffic traffic_of(const Session& session);

/// A step of the session: programs in their order, collectives on the link.
Overlap overlap_of(const Session& session, const machine::MachineSpeed& speed,
                   const machine::Link& link);

}  // namespace brrr::train
