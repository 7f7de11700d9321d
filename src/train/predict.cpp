#include "train/predict.h"

#include <algorithm>
#include <map>

#include "base/host_load.h"
#include "base/threads/parallel.h"
#include "ops/fused.h"
#include "ops/ops.h"
#include "runtime/ranks/division.h"

namespace brrr::train {
namespace {

/// How much longer a kernel takes because other ranks use the processors of this machine.
double crowding(const Session& session, const machine::Link& link) {
  if (!link.is_shared) return 1;
  const auto wanted = static_cast<double>(session.shares().ranks * thread_count());
  return std::max(1.0, wanted / static_cast<double>(machine_processors()));
}

/// The bytes that the rank with the most to send sends while a collective runs.
int64_t most_sent(const Graph& g, NodeId id, int64_t ranks) {
  int64_t most = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) most = std::max(most, sent_by(g, id, rank).bytes);
  return most;
}

template <typename Visit>
void each_collective(const Session& session, Visit visit) {
  for (const Session::ProgramUse& use : session.programs()) {
    if (use.runs == 0) continue;
    const Graph& g = use.program->graph();
    for (NodeId id = 0; id < g.size(); ++id)
      if (!g.is_input(id) && is_collective(g.node(id))) visit(g, id, use.runs);
  }
}

}  // namespace

double PredictedTime::total_ms() const {
  double sum = waited_ms;
  for (double ms : by_class) sum += ms;
  return sum;
}

PredictedTime predict_step(const Session& session, const machine::MachineSpeed& speed,
                           const machine::Link& link) {
  PredictedTime time;
  const double slower = crowding(session, link);
  for (const Session::ProgramUse& use : session.programs()) {
    if (use.runs == 0) continue;
    const Graph& g = use.program->graph();
    for (NodeId id = 0; id < g.size(); ++id) {
      if (g.is_input(id) || use.program->plan().constant[id] || view_offset(g, g.node(id)) ||
          is_collective(g.node(id)))
        continue;
      // A fused node counts to the weightiest of its parts.
      OpClass most = class_of(g.node(id));
      if (most != OpClass::contraction)
        machine::each_part(g, id, [&](const OpDef& op, const Cost&) {
          if (op.op_class == OpClass::normalisation) most = OpClass::normalisation;
        });
      time.by_class[static_cast<size_t>(most)] +=
          1e3 * slower * static_cast<double>(use.runs) * machine::predict_node(g, id, speed);
    }
  }
  if (session.shares().ranks > 1)
    time.waited_ms = 1e3 * overlap_of(session, speed, link).waited_seconds;
  return time;
}

RankTraffic traffic_of(const Session& session) {
  RankTraffic t;
  std::vector<int64_t> sent(static_cast<size_t>(session.shares().ranks));
  each_collective(session, [&](const Graph& g, NodeId id, int64_t runs) {
    t.collectives += runs;
    t.exchanges += runs * sent_by(g, id, 0).exchanges;
    t.mean_bytes += static_cast<double>(runs) * mean_bytes_sent(g, id);
    for (size_t rank = 0; rank < sent.size(); ++rank)
      sent[rank] += runs * sent_by(g, id, static_cast<int64_t>(rank)).bytes;
  });
  t.most_bytes = *std::ranges::max_element(sent);
  t.first_bytes = sent.front();
  return t;
}

Overlap overlap_of(const Session& session, const machine::MachineSpeed& speed,
                   const machine::Link& link) {
  const int64_t ranks = session.shares().ranks;
  const double slower = crowding(session, link);
  Overlap all;
  for (const Session::ProgramUse& use : session.programs()) {
    if (use.runs == 0) continue;
    const Graph& g = use.program->graph();
    std::vector<TimedKernel> kernels;
    std::map<NodeId, int64_t> place;
    for (const Program::Queued& queued : use.program->order()) {
      TimedKernel& k = kernels.emplace_back();
      k.is_asynchronous = queued.is_asynchronous;
      place[queued.node] = std::ssize(kernels) - 1;
      if (queued.awaited != kNoNode) k.awaited = place.at(queued.awaited);
      k.seconds = is_collective(g.node(queued.node))
                      ? link.seconds(ranks, static_cast<double>(most_sent(g, queued.node, ranks)),
                                     static_cast<double>(sent_by(g, queued.node, 0).exchanges))
                      : slower * machine::predict_node(g, queued.node, speed);
    }
    const Overlap once = simulate(kernels);
    for (int64_t i = 0; i < use.runs; ++i) all += once;
  }
  return all;
}

}  // namespace brrr::train
