#include "train/mean_loss.h"

#include <algorithm>

#include "data/loader.h"
#include "train/parts.h"
#include "train/process.h"

namespace brrr::train {

namespace {

/// Batches that hold all tokens.
int64_t batches_of_all(int64_t tokens, const TrainOptions& options) {
  return (tokens - 2) / (options.eval_batch_size * options.context) + 1;
}

}  // namespace

int64_t batches_of_mean_loss(int64_t tokens, const TrainOptions& options, int64_t batches) {
  const int64_t all = batches_of_all(tokens, options);
  return batches == 0 ? all : std::min(batches, all);
}

MeanLoss mean_loss(Session& session, const io::TokenSource& source, const TrainOptions& options,
                   int64_t vocab_size, int64_t batches) {
  io::LoaderOptions l;
  l.batch = options.eval_batch_size;
  l.context = options.context;
  l.seed = static_cast<uint32_t>(options.seed) ^ 0x0e7a1u;
  l.vocab = vocab_size;
  const bool whole = batches == 0 || batches >= batches_of_all(source.tokens(), options);
  l.mode = whole ? io::Sampling::kSequential : io::Sampling::kRandom;
  io::Loader loader(source, l);
  const int64_t count = whole ? loader.batches_per_pass() : batches;
  MeanLoss mean;
  for (int64_t i = 0; i < count && SignalGuard::received() == 0; ++i) {
    const io::Batch& batch = loader.next();
    mean.loss += session.loss_sum(batch_of(batch));
    mean.tokens += batch.real_tokens;
  }
  mean.loss /= static_cast<double>(std::max<int64_t>(1, mean.tokens));
  return mean;
}

}  // namespace brrr::train
