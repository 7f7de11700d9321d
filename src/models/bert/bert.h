#pragma once
// The graphs of the BERT family (Devlin et al. 2018): learnt positions, norms behind the residual
// sums, every token sees all of its text. RoBERTa (Liu et al. 2019), DistilBERT (Sanh et al. 2019)
// and MPNet (Song et al. 2020) differ in names, heads and, for MPNet, a learnt bias of the scores
// by distance. Parameters carry Hugging Face's names.

#include <memory>
#include <optional>

#include "models/bert/bert_config.h"
#include "models/encoder.h"

namespace brrr::models {

/// Declares the parameters in `g`; the config outlives the net. `rng_key` as in
/// EncoderModel::build.
std::unique_ptr<EncoderNet> bert_net(Graph& g, const BertConfig& config,
                                     std::optional<Value> rng_key);

}  // namespace brrr::models
