#pragma once
// What a run learns from, and the model that it begins with.

#include <functional>
#include <optional>
#include <string>

#include "train/dataset.h"
#include "train/trainer.h"

namespace brrr::train {

struct PreparedRun {
  std::optional<io::ModelFolder> start_from;  // --init-from
  std::string chat_template;                  // chat_template.jinja; "": none
  std::string generation_config;              // of the model that the run goes on from; "": none
  Dataset dataset;
};

/// Reads the data, and with --init-from the model, whose shape the options adopt. `resume`: the run
/// that goes on. `say` gets lines for people. Throws UserError.
PreparedRun prepare_run(TrainOptions& options, const std::optional<ResumePoint>& resume,
                        const std::function<void(const std::string&)>& say);

/// How --init-from is opened for pictures of such classes: with its own head where that is for the
/// same classes.
io::OpenOptions open_for_pictures(const TaskPictures& pictures, const models::Model& known);
/// The model that the options describe for such data, untrained.
models::ModelPtr new_model(const TrainOptions& options, const Dataset& dataset);
/// The same model with what the options say of its loss.
models::ModelPtr with_loss_of(const TrainOptions& options, models::ModelPtr model);

}  // namespace brrr::train
