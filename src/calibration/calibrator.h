#pragma once
// Calibrated quantisation of a model: gathers activation statistics once, chooses the integers of
// each layer (GPTQ, clipping) and the scaling of channels (SmoothQuant, AWQ), and compares the
// output errors with those of rounding to nearest.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "calibration/calibration_text.h"
#include "calibration/channel_scaling.h"
#include "calibration/gptq.h"
#include "folders/quantized/quantized_model.h"

namespace brrr::calibration {

/// The relative RMS error of a layer's outputs on calibration rows, for a sample of its outputs.
struct LayerErrors {
  double nearest = 0;  // each weight rounded to the nearest integer
  double chosen = 0;
};

class Calibrator {
 public:
  /// `model` outlives this.
  Calibrator(const io::ModelFolder& model, std::vector<io::LinearLayer> layers,
             CalibrationText text, infer::Memory memory = {});

  /// The rows that a weight multiplies. Gathers those of some layers at once, in their order, so
  /// that the statistics of a large model need not all lie in memory. Valid until the next call.
  const InputStatistics& statistics(const std::string& weight);

  /// The channels that can be divided by factors.
  std::vector<ScalingPlace> places() const;
  io::WeightChanges smoothing(double strength);
  io::WeightChanges activation_aware_scaling(int64_t bits, int64_t group);

  /// Makes quantisers for weights to which `changes` were applied. The calibrator outlives them.
  io::LayerQuantizer gptq(const GptqOptions& options, io::WeightChanges changes = {});
  /// Clips the range of each group where that changes the outputs less (quantize_clipped).
  io::LayerQuantizer clipping(io::WeightChanges changes = {});
  /// Rounds each weight to the nearest integer; only the change of the outputs is measured.
  io::LayerQuantizer nearest(io::WeightChanges changes = {});

  /// Returns the errors of the layers quantised so far, by the names of their weights.
  const std::map<std::string, LayerErrors>& errors() const { return errors_; }
  const CalibrationText& text() const { return text_; }

 private:
  using Choose = std::function<io::IntegerMatrix(
      std::span<const float> weight, const io::IntegerForm& form, const InputStatistics& inputs)>;
  io::LayerQuantizer measured(Choose choose, io::WeightChanges changes);
  void gather_from(const std::string& weight);

  const io::ModelFolder& model_;
  std::vector<io::LinearLayer> layers_;
  CalibrationText text_;
  infer::Memory memory_;
  StatisticsByWeight gathered_;
  std::map<std::string, LayerErrors> errors_;
};

/// Quantises a weight, trying for each group the ranges of 0.6 to 1 times its largest magnitude and
/// keeping the one that changes the layer's outputs least. `gram`: [columns, columns].
io::IntegerMatrix quantize_clipped(std::span<const float> weight, const io::IntegerForm& form,
                                   std::span<const float> gram);

}  // namespace brrr::calibration
