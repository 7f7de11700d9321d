#pragma once
// The report of `brrr quantize`: what it did to the weights, and what that costs and gains here.

#include <optional>
#include <string>
#include <vector>

#include "calibration/calibrator.h"
#include "cli/quantize/measure.h"
#include "cli/quantize/quantize_options.h"

namespace brrr::cli {

struct QuantizeReport {
  const io::ModelFolder& model;
  const io::QuantizedModel& made;
  std::vector<io::LinearLayer> kept;                    // layers that --keep names
  std::optional<QuantizeMeasurements> measurements;     // nothing: --no-measure
  double most_increase = 0;                             // --max-loss-increase, percent
  const calibration::Calibrator* calibrator = nullptr;  // null: nothing was calibrated

  /// Whether the loss increases by more than --max-loss-increase.
  bool loses_too_much() const;
  /// What the user should know before the model is used: one line each.
  std::vector<std::string> warnings() const;
};

std::string report_text(const QuantizeReport& report);
/// The same numbers on one line. `written`: the folder, or "" where nothing is written.
std::string report_json(const QuantizeReport& report, const std::string& written);

/// Prints a report on stdout and its warnings on stderr. Throws UserError if the model loses too
/// much to be written.
void publish_report(const QuantizeOptions& options, const std::string& report,
                    const std::vector<std::string>& warnings, bool is_written);

}  // namespace brrr::cli
