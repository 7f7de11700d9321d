// brrr bench inference: sentences per second of a text encoder, here and in other runtimes.

#include <algorithm>

#include "base/file.h"
#include "base/tell.h"
#include "cli/bench/bench_options.h"
#include "cli/commands.h"
#include "formats/json_file.h"
#include "insight/bench/bench_inference.h"
#include "insight/machine/machine.h"
#include "machine/process.h"

namespace brrr::cli {
namespace {

std::vector<int64_t> numbers_of(const std::vector<std::string>& given, const char* option,
                                int64_t most, const std::vector<int64_t>& fallback) {
  std::vector<int64_t> list;
  for (const std::string& text : given) {
    const int64_t value = positive(text, option, most);
    if (std::ranges::find(list, value) == list.end()) list.push_back(value);
  }
  return list.empty() ? fallback : list;
}

insight::InferenceOptions inference_options(const BenchOptions& o) {
  if (!o.preset.empty())
    usage_error("--preset: bench inference takes --model FOLDER, or random weights without it");
  if (o.device != "auto" && o.device != "cpu")
    usage_error("--device {}: bench inference times the CPU alone; leave --device out", o.device);
  constexpr int64_t kLongest = 1 << 24;
  using Numbers = std::vector<int64_t>;
  return {.model = o.model,
          .precisions = inference_precisions(o.precisions),
          .batches = numbers_of(o.batches, "batch-size", kLargestBatch,
                                o.quick ? Numbers{1, 16, 64} : Numbers{1, 8, 16, 32, 64}),
          .lengths = numbers_of(o.lengths, "length", kLongest,
                                o.quick ? Numbers{64} : Numbers{16, 64, 256}),
          .has_default_lengths = o.lengths.empty(),
          .text = o.text,
          .sentences = o.sentences,
          .quick = o.quick,
          .peers = o.peers,
          .peer_timeout_seconds = o.peer_timeout,
          .stop = [] { return machine::SignalGuard::received() != 0; }};
}

}  // namespace

std::vector<Precision> inference_precisions(const std::vector<std::string>& given) {
  std::vector<Precision> list;
  for (const std::string& text : given) {
    try {
      const Precision precision = parse_precision(text, PrecisionUse::inference);
      if (std::ranges::find(list, precision) == list.end()) list.push_back(precision);
    } catch (const UserError& e) {
      usage_error("--precision: {}", e.what());
    }
  }
  return list;
}

int bench_inference_main(const BenchOptions& o) {
  const insight::InferenceOptions options = inference_options(o);
  check_place(o.html);
  const machine::SignalGuard guard(
      "stopping after this measurement; press Ctrl-C again to stop at once");
  insight::InferenceReport report;
  try {
    report = insight::bench_inference(options);
  } catch (const insight::InferenceStopped&) {
    tell("stopped; nothing was measured\n");
    return 128 + machine::SignalGuard::received();
  }
  const std::string warning =
      insight::busy_warning(report.other_processors, "timings are unreliable");
  if (!warning.empty()) tell("{}\n", warning);
  if (!o.html.empty()) write_named_file(o.html, insight::inference_page(report));
  write_output(o.json ? io::json_line(insight::inference_json(report)) + "\n"
                      : insight::inference_table(report));
  return machine::SignalGuard::received() != 0 ? 128 + machine::SignalGuard::received() : 0;
}

}  // namespace brrr::cli
