#include "train/tasks/task_loss.h"

#include "train/dataset.h"
#include "train/options/preference_options.h"
#include "train/parts.h"

namespace brrr::train {

TaskLoss::TaskLoss(const TrainOptions& options, const models::Model& model)
    : options_(options),
      model_(model),
      is_flat_(trains_flat(options, model)),
      compares_(traits_of(options).data == TaskData::preferences) {}

int64_t TaskLoss::longest(int64_t rows) const {
  return is_flat_ ? rows * row_tokens(options_) : options_.context;
}

models::FlatBinding TaskLoss::binding(int64_t rows, int64_t length) const {
  return {length, rows * sequences_per_row(options_), std::nullopt, options_.context};
}

Graph TaskLoss::training(int64_t rows, int64_t length) const {
  if (compares_) return model_.preference_loss(binding(rows, length), preference_loss_of(options_));
  return is_flat_ ? model_.flat_loss(binding(rows, length)) : model_.loss(rows, length);
}

Graph TaskLoss::evaluation(int64_t rows, int64_t length) const {
  if (compares_) return model_.preference_loss(binding(rows, length), preference_loss_of(options_));
  return is_flat_ ? model_.flat_scored(binding(rows, length)) : model_.scored(rows, length);
}

std::vector<std::string> TaskLoss::figures() const {
  return compares_ ? models::preference_figures() : std::vector<std::string>();
}

}  // namespace brrr::train
