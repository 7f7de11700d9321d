#pragma once
// The tensors of a state dict, from whose names and shapes the configuration of a net follows.

#include <string>

#include "base/errors.h"
#include "base/weight_source.h"
#include "models/task.h"

namespace brrr::models {

class StateDictTensors {
 public:
  explicit StateDictTensors(const WeightSource& tensors) : tensors_(tensors) {}

  bool has(const std::string& name) const { return tensors_.find(name) != nullptr; }
  /// Throws UserError for a tensor that is missing or has another number of axes.
  const Shape& shape(const std::string& name, int rank) const {
    const TensorView* const tensor = tensors_.find(name);
    if (tensor == nullptr) user_error("{}: the tensor {} is missing", what(), name);
    if (tensor->shape.rank() != rank)
      user_error("{}: the tensor {} must have {} axes; the file has {}", what(), name, rank,
                 tensor->shape.str());
    return tensor->shape;
  }
  std::string what() const { return tensors_.what(); }
  /// Classes with numbers for names where there is a classifier of this name, [classes, C].
  Task task(const std::string& classifier) const {
    Task task{.head = Head::embedding};
    if (!has(classifier)) return task;
    task.head = Head::classes;
    for (int64_t i = 0; i < shape(classifier, 2).size(0); ++i)
      task.labels.push_back(fmt::format("LABEL_{}", i));
    return task;
  }

 private:
  const WeightSource& tensors_;
};

}  // namespace brrr::models
