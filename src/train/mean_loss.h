#pragma once
// The loss of a session's model on a stream of tokens.

#include <cstdint>

#include "data/token_source.h"
#include "train/options.h"
#include "train/session.h"

namespace brrr::train {

struct MeanLoss {
  double loss = 0;  // per token
  int64_t tokens = 0;
};

/// The batches that mean_loss() reads of a source of `tokens` tokens.
int64_t batches_of_mean_loss(int64_t tokens, const TrainOptions& options, int64_t batches);

/// Over `batches` batches of random windows, the same every time; over all tokens in order when
/// `batches` is 0 or enough for them. A signal (SignalGuard) ends it early: then it is half of one.
MeanLoss mean_loss(Session& session, const io::TokenSource& source, const TrainOptions& options,
                   int64_t vocab_size, int64_t batches);

}  // namespace brrr::train
