#pragma once
// Batches of random tokens, pictures and targets, for what measures steps: what a step computes
// does not depend on their values.

#include <cstdint>

#include "data/batch_source.h"
#include "models/model.h"
#include "train/options.h"

namespace brrr::insight {

/// Makes "pixels" [rows, C, H, W], normal with mean 0 and variance about 1, and "targets" [rows]
/// below `classes`, as a function of the index.
void fill_random_pictures(const models::PictureSizes& picture, int64_t rows, int64_t classes,
                          int64_t index, io::Batch& batch);

/// Makes what the loss of the run's task reads, for full rows: layout.batch pictures, or rows whose
/// sequences have options.context tokens each. `layout`: train::loader_options() for the model. The
/// values are a function of the index.
void fill_random_batch(const train::TrainOptions& options, const models::Model& model,
                       const io::BatchOptions& layout, int64_t index, io::Batch& batch);

}  // namespace brrr::insight
