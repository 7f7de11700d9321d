#pragma once
// How near the outputs of a quantised file are to those of the original.

#include <string>
#include <vector>

#include "runtime/runnable_session.h"

namespace brrr::cli {

/// One tensor of an output of both files.
struct OutputSimilarity {
  enum class Measure {
    cosine,       // of floats
    equal_share,  // the share of equal elements, of integers and truth values
    form,         // 0: the quantised file gives no such tensor, or another shape or type
  };
  std::string name;
  Measure measure = Measure::cosine;
  double value = 1;
};

/// "cosine", "equal_share", "form"
const char* name_of(OutputSimilarity::Measure measure);

/// Every tensor of `plain` that has elements, against the same of `quantised`. Throws UserError for
/// outputs of floats that are NaN or infinite in one of the two alone.
std::vector<OutputSimilarity> compare_outputs(const PortValues& plain, const PortValues& quantised);

/// 1 where there are none.
double least_similarity(const std::vector<OutputSimilarity>& outputs);

/// A paragraph for a report; "" where there are none.
std::string similarity_text(const std::vector<OutputSimilarity>& outputs);

}  // namespace brrr::cli
