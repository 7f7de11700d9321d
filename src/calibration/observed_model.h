#pragma once
// A model that is run for numbers computed from values inside it, instead of for its outputs.

#include <memory>
#include <string>
#include <vector>

#include "infer/room.h"
#include "runtime/runnable.h"
#include "runtime/runnable_session.h"

namespace brrr::calibration {

/// The inputs of calibration: one run of the model each.
using CalibrationRuns = std::vector<PortValues>;

/// A Runnable with the inputs of another. Its outputs are added to the last graph of each run.
class ObservedModel : public Runnable {
 public:
  explicit ObservedModel(std::shared_ptr<const Runnable> model) : model_(std::move(model)) {}

  const std::vector<Port>& inputs() const override { return model_->inputs(); }
  const std::vector<Port>& outputs() const override { return outputs_; }
  std::shared_ptr<const WeightSource> weights() const override { return model_->weights(); }
  std::string summary() const override { return model_->summary(); }
  uint64_t file_bytes() const override { return model_->file_bytes(); }
  LoweredGraph lower(const GraphRequest& request) const override;

 protected:
  const Runnable& model() const { return *model_; }
  /// The names that the model is asked for: its outputs.
  virtual std::vector<std::string> wanted_of_model() const;
  /// Adds outputs to a graph that has those of wanted_of_model().
  virtual void observe(Graph& graph) const = 0;
  /// Declares an output, whose shape may be any.
  void declare(const std::string& name);

 private:
  std::shared_ptr<const Runnable> model_;
  std::vector<Port> outputs_;
};

}  // namespace brrr::calibration
