#pragma once
// The BPE model inside a tokenizer.

#include "text/bpe/tokenizer_bpe.h"
#include "text/text_pipeline.h"

namespace brrr::test {

inline const io::BpeModel& bpe_model(const io::Tokenizer& tokenizer) {
  const auto& pipeline = dynamic_cast<const io::TextPipeline&>(tokenizer);
  return dynamic_cast<const io::BpeEncoder&>(pipeline.model()).model();
}

}  // namespace brrr::test
