#include "calibration/bit_budget.h"

#include <algorithm>

#include "calibration/output_error.h"

namespace brrr::calibration {
namespace {

/// A form of a layer and what it costs.
struct Choice {
  io::IntegerGrid grid;
  int64_t bytes = 0;
  double error = 0;  // squared, over the outputs
};

int64_t bytes_of(const io::IntegerForm& form) {
  return form.rows *
         (form.words_of_row() * int64_t{sizeof(int32_t)} + form.groups() * int64_t{sizeof(float)});
}

std::vector<Choice> choices_of(const io::ModelFolder& model, const io::LinearLayer& layer,
                               const InputStatistics& inputs) {
  std::vector<float> weight(static_cast<size_t>(layer.outputs * layer.inputs));
  model.read(layer.parameter, weight);
  const std::vector<float> rows = sampled_rows(weight, layer.inputs);
  std::vector<float> back(rows.size());
  std::vector<Choice> choices;
  for (const io::IntegerGrid& grid : grids_for(layer.inputs)) {
    const io::IntegerForm form{std::ssize(rows) / layer.inputs, layer.inputs, grid.bits,
                               grid.group};
    const io::IntegerMatrix q = io::quantize(rows, form);
    io::dequantize(form, q.integers, q.scales, back);
    const double error = output_error(rows, back, inputs.gram, layer.inputs);
    choices.push_back(
        {grid, bytes_of({layer.outputs, layer.inputs, grid.bits, grid.group}), error * error});
  }
  return choices;
}

}  // namespace

std::vector<io::IntegerGrid> grids_for(int64_t inputs) {
  std::vector<io::IntegerGrid> grids;
  for (const int64_t group : {128, 64, 32})
    if (inputs % group == 0) grids.push_back({4, group});
  grids.push_back({8, 0});
  return grids;
}

std::map<std::string, io::IntegerGrid> forms_under_budget(
    const io::ModelFolder& model, const std::vector<io::LinearLayer>& layers,
    Calibrator& calibrator, double bits) {
  std::vector<std::vector<Choice>> choices;
  int64_t elements = 0, bytes = 0;
  for (const io::LinearLayer& layer : layers) {
    choices.push_back(choices_of(model, layer, calibrator.statistics(layer.parameter)));
    elements += layer.outputs * layer.inputs;
    bytes += choices.back().front().bytes;
  }
  const auto bits_of = [&](int64_t b) {
    return 8 * static_cast<double>(b) / static_cast<double>(elements);
  };
  if (bits_of(bytes) > bits)
    user_error(
        "--target-bits {:g}: the smallest forms of the layers take {:.2f} bits a weight, with "
        "their scales",
        bits, bits_of(bytes));
  std::vector<size_t> chosen(layers.size(), 0);
  for (;;) {
    size_t best = layers.size(), to = 0;
    double most = 0;
    for (size_t i = 0; i < layers.size(); ++i) {
      const Choice& now = choices[i][chosen[i]];
      for (size_t c = chosen[i] + 1; c < choices[i].size(); ++c) {
        const Choice& next = choices[i][c];
        const int64_t more = next.bytes - now.bytes;
        const double gain =
            (now.error - next.error) / static_cast<double>(std::max<int64_t>(more, 1));
        if (gain > most && bits_of(bytes + more) <= bits) best = i, to = c, most = gain;
      }
    }
    if (best == layers.size()) break;
    bytes += choices[best][to].bytes - choices[best][chosen[best]].bytes;
    chosen[best] = to;
  }
  std::map<std::string, io::IntegerGrid> forms;
  for (size_t i = 0; i < layers.size(); ++i) forms[layers[i].tensor] = choices[i][chosen[i]].grid;
  return forms;
}

}  // namespace brrr::calibration
