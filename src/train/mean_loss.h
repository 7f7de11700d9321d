#pragma once
// How good a session's model is on data that it does not learn from: its loss, and what its task is
// judged by.

#include <cstdint>

#include "train/dataset.h"
#include "train/options.h"
#include "train/session.h"
#include "train/tasks/score.h"

namespace brrr::train {

/// The batches that evaluate() reads: `batches`, or as many as hold all the validation data when it
/// is 0 or more than that.
int64_t evaluation_batches(const Dataset& data, const TrainOptions& options, int64_t batches);

/// How evaluate() reads the validation data in order, for this model.
io::LoaderOptions evaluation_options(const TrainOptions& options, const models::Model& model);

/// Over `batches` batches of random windows, the same every time; over all data in order when
/// `batches` is 0 or enough for them, and always for a task. A signal (machine::SignalGuard) stops
/// it early; the loss is then that of the batches evaluated so far. With a communicator the batches
/// are divided among its ranks, all of which get the whole score.
Score evaluate(Session& session, const models::Model& model, const Dataset& data,
               const TrainOptions& options, int64_t batches, Communicator* communicator = nullptr);

/// The same for a causal language model on tokens.
Score mean_loss(Session& session, const models::Model& model, const io::TokenSource& source,
                const TrainOptions& options, int64_t batches);

}  // namespace brrr::train
