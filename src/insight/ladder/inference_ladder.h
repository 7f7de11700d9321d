#pragma once
// The number formats of a model that only runs: how fast each of them decodes a token and reads a
// prompt, how many bytes its weights take and, for a trained model, how much its predictions
// differ from those in fp32.

#include <optional>
#include <string>
#include <vector>

#include "infer/token_comparison.h"
#include "insight/ladder/ladder.h"

namespace brrr::insight {

NamedLadder inference_ladder();

/// One number format as it was measured.
struct InferenceRung {
  std::string name;     // "int8-weight-only"
  std::string failure;  // why there are no figures; "": there are
  Timing ms;            // of a decoded token
  size_t rounds = 0;
  std::optional<Against> against_first = {};  // of decoding and of the weights' bytes
  double prompt_per_second = 0;               // tokens of a prompt
  int64_t weight_bytes = 0;
  double bandwidth_fraction = 0;  // bytes that a token reads over its time and the read bandwidth
  std::optional<infer::TokenComparison> cost = {};  // against fp32; nothing: not compared
  std::string not_compared = {};                    // why not, where there is a model with a text
};

struct InferenceAdvice {
  std::vector<std::string> lines;  // "int8: 2.31x as fast as fp32, ..."
  std::string use;                 // the last line: "use int8: ..."
};
/// The loss may be so many percent above that of fp32, as in `brrr quantize`.
inline constexpr double kAcceptedLossIncrease = 1;
/// `rows`: fp32 first.
InferenceAdvice advise_inference(const std::vector<InferenceRung>& rows);

/// An inference ladder as it was climbed.
struct InferenceFigures {
  std::string title, conditions;  // what was measured, and how
  std::vector<InferenceRung> rows;
};
std::string inference_table(const InferenceFigures& figures);
std::string inference_json(const InferenceFigures& figures);
std::string inference_section(const InferenceFigures& figures);

}  // namespace brrr::insight
