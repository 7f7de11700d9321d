#include "train/predict.h"

#include "ops/fused.h"
#include "ops/ops.h"

namespace brrr::train {

double PredictedTime::total_ms() const {
  double sum = 0;
  for (double ms : by_class) sum += ms;
  return sum;
}

PredictedTime predict_step(const Session& session, const machine::MachineSpeed& speed) {
  PredictedTime time;
  for (const Session::ProgramUse& use : session.programs()) {
    if (use.runs == 0) continue;
    const Graph& g = use.program->graph();
    for (NodeId id = 0; id < g.size(); ++id) {
      if (g.is_input(id) || use.program->plan().constant[id] || view_offset(g, g.node(id)))
        continue;
      // A fused node counts to the weightiest of its parts.
      OpClass most = class_of(g.node(id));
      if (most != OpClass::contraction)
        machine::each_part(g, id, [&](const OpDef& op, const Cost&) {
          if (op.op_class == OpClass::normalisation) most = OpClass::normalisation;
        });
      time.by_class[static_cast<size_t>(most)] +=
          1e3 * static_cast<double>(use.runs) * machine::predict_node(g, id, speed);
    }
  }
  return time;
}

}  // namespace brrr::train
