#include "calibration/observed_model.h"

#include "passes/passes.h"

namespace brrr::calibration {

LoweredGraph ObservedModel::lower(const GraphRequest& request) const {
  GraphRequest inner = request;
  inner.wanted = wanted_of_model();
  LoweredGraph lowered = model_->lower(inner);
  // Values of graphs before the last are handed on to it, because they are wanted.
  if (!lowered.to_read.empty() || !lowered.to_bind.empty()) return lowered;
  observe(lowered.graph);
  lowered.graph = drop_dead(with_outputs(std::move(lowered.graph), request.wanted));
  return lowered;
}

std::vector<std::string> ObservedModel::wanted_of_model() const {
  std::vector<std::string> names;
  for (const Port& port : model_->outputs()) names.push_back(port.name);
  return names;
}

void ObservedModel::declare(const std::string& name) {
  Port port = port_of(name, {DType::f32, {}});
  port.has_shape = false;
  outputs_.push_back(std::move(port));
}

}  // namespace brrr::calibration
