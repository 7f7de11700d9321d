#pragma once
// Bits and groups for each layer of a model under a budget of bytes.

#include <map>
#include <string>
#include <vector>

#include "calibration/calibrator.h"

namespace brrr::calibration {

/// What a weight may be stored as, the fewest bytes first: 4 bits in groups of 128, 64 and 32, and
/// 8 bits with a scale for each output. Groups divide `inputs`.
std::vector<io::IntegerGrid> grids_for(int64_t inputs);

/// Forms of the layers, by their tensors, that take at most `bits` bits a weight with their scales.
/// Begins with the smallest and spends what is left where the outputs' squared error on the
/// calibration text, over the outputs, falls most for each byte. Throws UserError where the
/// smallest forms take more.
std::map<std::string, io::IntegerGrid> forms_under_budget(
    const io::ModelFolder& model, const std::vector<io::LinearLayer>& layers,
    Calibrator& calibrator, double bits);

}  // namespace brrr::calibration
