#pragma once
// The BERT family behind the seam: bert, roberta, xlm-roberta, distilbert and mpnet as one
// architecture. Weights of Linear layers are [out, in], as in Hugging Face's files.

#include "models/bert/bert_config.h"
#include "models/model.h"

namespace brrr::models {

/// The architecture "bert", as all_models.cpp lists it.
const Architecture& bert();

/// Throws UserError where the configuration is out of range.
ModelPtr bert_model(const BertConfig& config);

}  // namespace brrr::models
