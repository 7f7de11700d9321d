#include "cli/quantize/onnx_calibration.h"

#include <algorithm>
#include <map>

#include "base/errors.h"
#include "calibration/value_ranges.h"
#include "cli/runnable_option.h"
#include "machine/device.h"

namespace brrr::cli {
namespace {

/// The words of --input for each run.
std::vector<std::vector<std::string>> words_of_runs(const std::vector<std::string>& given) {
  std::map<std::string, std::vector<std::string>> by_name;
  for (const std::string& word : given) by_name[word.substr(0, word.find('='))].push_back(word);
  size_t runs = 1;
  std::string longest;
  for (const auto& [name, words] : by_name) {
    if (words.size() <= runs) continue;
    runs = words.size();
    longest = name;
  }
  std::vector<std::vector<std::string>> all(runs);
  for (const auto& [name, words] : by_name) {
    if (words.size() != 1 && words.size() != runs)
      usage_error(
          "--input {} is given {} times and --input {} {} times; expected a file for each run, or "
          "one for all of them",
          name, words.size(), longest, runs);
    for (size_t i = 0; i < runs; ++i) all[i].push_back(words[words.size() == 1 ? 0 : i]);
  }
  return all;
}

}  // namespace

std::vector<MadeInputs> onnx_inputs(const Runnable& runnable, const QuantizeOptions& o) {
  std::vector<MadeInputs> all;
  RunnableArguments how;
  how.sizes = o.sizes;
  using Words = std::vector<std::string>;
  const std::vector<Words> runs =
      is_static(o) ? words_of_runs(o.inputs) : std::vector<Words>{o.inputs};
  for (const Words& words : runs) {
    how.inputs = words;
    // Only the first is told about: the others lack the same inputs.
    all.push_back(all.empty() ? inputs_of(runnable, how)
                              : make_inputs(runnable, read_inputs(words), read_sizes(o.sizes)));
  }
  say_made_up(all.front());
  return all;
}

io::ActivationRanges activation_ranges(const std::shared_ptr<const Runnable>& runnable,
                                       const std::vector<io::OnnxWeight>& chosen,
                                       const std::vector<MadeInputs>& inputs,
                                       const QuantizeOptions& o) {
  const std::vector<std::string> values = io::quantizable_activations(chosen);
  if (values.empty())
    user_error(
        "{}: no MatMul, Gemm or Conv of the main graph reads a chosen f32 weight, so that there is "
        "no activation to quantise; use --method weight-only",
        o.model);
  calibration::RangeOptions how;
  how.method = o.range == "percentile" ? calibration::RangeMethod::percentile
               : o.range == "entropy"  ? calibration::RangeMethod::entropy
                                       : calibration::RangeMethod::minmax;
  how.percentile = o.percentile;
  calibration::CalibrationRuns runs;
  for (const MadeInputs& run : inputs) runs.push_back(run.values);
  const infer::Memory memory{machine::memory_budget("cpu", o.memory_limit), "smaller inputs"};
  io::ActivationRanges ranges;
  for (const auto& [name, range] : calibration::gather_ranges(runnable, values, runs, how, memory))
    ranges[name] = {range.low, range.high};
  return ranges;
}

}  // namespace brrr::cli
