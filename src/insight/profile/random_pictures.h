#pragma once
// Pictures and classes that mean nothing, for what measures steps.

#include <cstdint>

#include "data/batch_source.h"
#include "models/model.h"

namespace brrr::insight {

/// Makes "pixels" [rows, C, H, W], normal with mean 0 and variance about 1, and "targets" [rows]
/// below `classes`, as a function of the index.
void fill_random_pictures(const models::PictureSizes& picture, int64_t rows, int64_t classes,
                          int64_t index, io::Batch& batch);

}  // namespace brrr::insight
