#pragma once
// Scaling of channels before quantisation: activations are divided by a factor for each channel and
// the weights that read them are multiplied by it, so that the model computes the same. SmoothQuant
// (Xiao et al. 2022) moves outliers from activations to weights; AWQ (Lin et al. 2023) gives more
// precision to the weights that multiply large activations.

#include <string>
#include <vector>

#include "calibration/input_statistics.h"
#include "folders/quantized/quantized_model.h"

namespace brrr::calibration {

/// Linear layers that read the same channels, and the place where these can be divided by factors:
/// a norm, or a linear layer whose result is multiplied by another value (up and gate of Llama).
struct ScalingPlace {
  std::vector<std::string> readers;  // weights
  /// The parameters of the norm; empty if there is a producer. An RMS norm has no bias.
  std::string norm_weight, norm_bias;
  double norm_offset = 0;  // added to the weight: 1 for Gemma
  std::string producer;    // the weight of the linear layer; empty for a norm
};

/// The places of a model where all readers, and a producer, are among `layers`.
std::vector<ScalingPlace> scaling_places(const models::Model& model,
                                         const std::vector<io::LinearLayer>& layers);

/// SmoothQuant: each channel is divided by max |x|^strength / max |w|^(1 - strength), the largest
/// magnitudes of its activations and of the weights that read it. `strength` in [0, 1]: the share
/// of the magnitude that moves from activations to weights.
io::WeightChanges smoothing(const io::ModelFolder& model, const std::vector<ScalingPlace>& places,
                            const StatisticsOf& statistics, double strength);

/// AWQ: each channel is divided by mean |x|^a, with the a of [0, 1] that gives the least error of
/// the readers' outputs when they are quantised in that form.
io::WeightChanges activation_aware_scaling(const io::ModelFolder& model,
                                           const std::vector<ScalingPlace>& places,
                                           const StatisticsOf& statistics, int64_t bits,
                                           int64_t group);

/// The same statistics of inputs divided by a layer's factors.
InputStatistics divided(const InputStatistics& statistics, std::span<const float> factors);

}  // namespace brrr::calibration
