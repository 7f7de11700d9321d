#pragma once
// The time of a step before it runs: the sum of its nodes' times at the rates of this machine.

#include <array>

#include "machine/speed.h"
#include "train/session.h"

namespace brrr::train {

struct PredictedTime {
  std::array<double, 7> by_class{};  // ms of a step, by OpClass
  double total_ms() const;
};
PredictedTime predict_step(const Session& session, const machine::MachineSpeed& speed);

}  // namespace brrr::train
