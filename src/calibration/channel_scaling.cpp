#include "calibration/channel_scaling.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <set>

#include "calibration/output_error.h"
#include "folders/weights.h"
#include "ops/ops.h"

namespace brrr::calibration {
namespace {

constexpr float kLeast = 1e-5f;  // magnitude of a channel that counts as used
constexpr int64_t kSteps = 20;   // exponents of AWQ between 0 and 1

/// Finds the scaling places of a graph.
class PlaceFinder {
 public:
  PlaceFinder(const Graph& graph, const std::set<std::string>& chosen)
      : graph_(graph), chosen_(chosen), readers_(graph.size()) {
    for (NodeId id = 0; id < graph.size(); ++id)
      for (const ValueId& v : graph.node(id).operands) readers_[v.node].push_back(id);
    for (const Output& o : graph.outputs()) outputs_.insert(o.value.node);
  }

  std::vector<ScalingPlace> run() const {
    std::vector<ScalingPlace> places;
    for (NodeId id = 0; id < graph_.size(); ++id) {
      std::optional<ScalingPlace> place = after_norm(id);
      if (!place) place = after_factor(id);
      if (!place) continue;
      const std::optional<std::vector<std::string>> readers = readers_of({id, 0});
      if (!readers || readers->empty()) continue;
      place->readers = *readers;
      places.push_back(std::move(*place));
    }
    return places;
  }

 private:
  std::string parameter(ValueId v) const {
    const bool is_one = graph_.is_input(v.node) && graph_.role(v.node) == Role::parameter;
    return is_one ? graph_.input_name(v.node) : "";
  }

  std::optional<ScalingPlace> after_norm(NodeId id) const {
    const Node& node = graph_.node(id);
    const bool is_layer_norm = is(node, Op::layer_norm);
    if (!is_layer_norm && !is(node, Op::rms_norm)) return std::nullopt;
    ScalingPlace place;
    ValueId weight = node.operands[1];
    if (const Node& sum = graph_.node(weight.node); is(sum, Op::add)) {
      const Node& number = graph_.node(sum.operands[1].node);
      if (!is(number, Op::full) || graph_.type(sum.operands[1]).shape.rank() != 0)
        return std::nullopt;
      place.norm_offset = full_value(number);
      weight = sum.operands[0];
    }
    place.norm_weight = parameter(weight);
    if (place.norm_weight.empty()) return std::nullopt;
    if (is_layer_norm) {
      place.norm_bias = parameter(node.operands[2]);
      if (place.norm_bias.empty()) return std::nullopt;
    }
    // A weight that several norms share cannot be divided for one of them.
    if (readers_[weight.node].size() != 1) return std::nullopt;
    return place;
  }

  /// A factor that a product with a chosen weight gives, and nothing else reads.
  std::optional<ScalingPlace> after_factor(NodeId id) const {
    const Node& node = graph_.node(id);
    if (!is(node, Op::mul)) return std::nullopt;
    for (const size_t i : {size_t{1}, size_t{0}}) {
      const ValueId factor = behind_reshapes(graph_, node.operands[i]);
      const std::optional<ProductForm> form = product_form(graph_.node(factor.node));
      if (!form || form->has_bias || form->transpose_a || !form->transpose_b) continue;
      const std::string weight = parameter(graph_.node(factor.node).operands[1]);
      if (!chosen_.contains(weight) || !is_read_once(factor, id)) continue;
      // The factor's channels are those of the product: neither is broadcast along them.
      const Shape &x = graph_.type(node.operands[i]).shape, &y = graph_.type({id, 0}).shape;
      if (!(x == y)) continue;
      ScalingPlace place;
      place.producer = weight;
      return place;
    }
    return std::nullopt;
  }

  /// Whether a value reaches one node alone, through reshapes.
  bool is_read_once(ValueId v, NodeId reader) const {
    if (outputs_.contains(v.node) || readers_[v.node].size() != 1) return false;
    const NodeId next = readers_[v.node][0];
    if (next == reader) return true;
    return is(graph_.node(next), Op::reshape) && is_read_once({next, 0}, reader);
  }

  /// The chosen weights that multiply a value; nothing where anything else reads it.
  std::optional<std::vector<std::string>> readers_of(ValueId v) const {
    if (outputs_.contains(v.node)) return std::nullopt;
    std::vector<std::string> weights;
    for (const NodeId id : readers_[v.node]) {
      const Node& node = graph_.node(id);
      const bool reads_result =
          std::ranges::any_of(node.operands, [&](const ValueId& o) { return o == v; });
      if (!reads_result) {  // the statistics of a norm
        if (graph_.node(v.node).results.size() > 1) continue;
        return std::nullopt;
      }
      if (is(node, Op::reshape)) {
        const Shape &x = graph_.type(v).shape, &y = graph_.type({id, 0}).shape;
        if (y.rank() < 1 || !(x[-1] == y[-1])) return std::nullopt;
        const std::optional<std::vector<std::string>> behind = readers_of({id, 0});
        if (!behind) return std::nullopt;
        weights.insert(weights.end(), behind->begin(), behind->end());
        continue;
      }
      const std::optional<ProductForm> form = product_form(node);
      if (!form || form->transpose_a || !form->transpose_b || node.operands[1] == v)
        return std::nullopt;
      const std::string weight = parameter(node.operands[1]);
      if (!chosen_.contains(weight)) return std::nullopt;
      weights.push_back(weight);
    }
    return weights;
  }

  const Graph& graph_;
  const std::set<std::string>& chosen_;
  std::vector<std::vector<NodeId>> readers_;
  std::set<NodeId> outputs_;
};

/// Reads parameters of a model, and writes changes.
class Scaler {
 public:
  explicit Scaler(const io::ModelFolder& model)
      : model_(model), files_(io::open_weight_source(model.folder)) {
    for (const models::ParameterInfo& p : model.definition->parameters())
      shapes_.emplace(p.name, p.shape);
  }

  std::vector<float> read(const std::string& parameter) const {
    std::vector<float> numbers(static_cast<size_t>(shapes_.at(parameter).elements()));
    model_.read(parameter, numbers);
    return numbers;
  }
  int64_t inputs_of(const std::string& weight) const { return shapes_.at(weight).size(1); }

  /// Divides the channels of a place by `factors` and multiplies its readers by them.
  void scale(const ScalingPlace& place, std::vector<float> factors, io::WeightChanges& to) const {
    if (place.producer.empty()) {
      divide_norm(place, factors, to);
    } else {
      std::vector<float> inverse(factors.size());
      std::ranges::transform(factors, inverse.begin(), [](float f) { return 1 / f; });
      to.output_factors[place.producer] = std::move(inverse);
    }
    for (const std::string& weight : place.readers) to.input_factors[weight] = factors;
  }

 private:
  /// Divides the norm's parameters, which are rounded to the dtype of the file, and sets `factors`
  /// to the quotients after rounding, so that the readers compensate exactly.
  void divide_norm(const ScalingPlace& place, std::vector<float>& factors,
                   io::WeightChanges& to) const {
    std::vector<float> weight = read(place.norm_weight), bias;
    const auto offset = static_cast<float>(place.norm_offset);
    const DType dtype = dtype_of(place.norm_weight);
    for (size_t i = 0; i < weight.size(); ++i) {
      const float before = weight[i] + offset;
      const auto after =
          static_cast<float>(rounded_to(dtype, static_cast<double>(before / factors[i] - offset)));
      const float now = after + offset;
      if (now == 0 || before == 0 || !std::isfinite(now)) {
        factors[i] = 1;
        continue;
      }
      weight[i] = after;
      factors[i] = before / now;
    }
    if (!place.norm_bias.empty()) {
      bias = read(place.norm_bias);
      const DType of_bias = dtype_of(place.norm_bias);
      for (size_t i = 0; i < bias.size(); ++i)
        bias[i] =
            static_cast<float>(rounded_to(of_bias, static_cast<double>(bias[i] / factors[i])));
      to.vectors[place.norm_bias] = std::move(bias);
    }
    to.vectors[place.norm_weight] = std::move(weight);
  }

  DType dtype_of(const std::string& parameter) const {
    return io::find_parameter(*files_, model_.definition->file_names(), parameter)->dtype;
  }

  const io::ModelFolder& model_;
  std::shared_ptr<const WeightSource> files_;
  std::map<std::string, Shape> shapes_;
};

/// Scales the factors so that the geometric mean of the largest and the smallest is 1.
void centre(std::vector<float>& factors) {
  const auto [low, high] = std::ranges::minmax(factors);
  const float middle = std::sqrt(low * high);
  for (float& f : factors) f /= middle;
}

/// The squared change of the outputs when the rows are quantised with factors.
double error_with(const std::vector<float>& rows, std::span<const float> factors,
                  const InputStatistics& statistics, int64_t bits, int64_t group) {
  const int64_t width = statistics.width;
  std::vector<float> scaled(rows.size()), back(rows.size());
  for (size_t i = 0; i < rows.size(); ++i)
    scaled[i] = rows[i] * factors[i % static_cast<size_t>(width)];
  const io::IntegerMatrix q = io::quantize(scaled, {std::ssize(rows) / width, width, bits, group});
  io::dequantize(q.form, q.integers, q.scales, back);
  for (size_t i = 0; i < rows.size(); ++i)
    back[i] = back[i] / factors[i % static_cast<size_t>(width)] - rows[i];
  return output_square(back, statistics.gram, width);
}

}  // namespace

std::vector<ScalingPlace> scaling_places(const models::Model& model,
                                         const std::vector<io::LinearLayer>& layers) {
  std::set<std::string> chosen;
  for (const io::LinearLayer& l : layers) chosen.insert(l.parameter);
  const int64_t length = std::min<int64_t>(model.sizes().context, 8);
  const Graph graph = model.forward(Dim(1), Dim(length));
  return PlaceFinder(graph, chosen).run();
}

io::WeightChanges smoothing(const io::ModelFolder& model, const std::vector<ScalingPlace>& places,
                            const StatisticsOf& statistics, double strength) {
  const Scaler scaler(model);
  io::WeightChanges changes;
  for (const ScalingPlace& place : places) {
    const InputStatistics& inputs = statistics(place.readers.front());
    std::vector<float> largest(static_cast<size_t>(inputs.width), 0.0f);
    for (const std::string& name : place.readers) {
      const std::vector<float> weight = scaler.read(name);
      for (size_t i = 0; i < weight.size(); ++i) {
        float& most = largest[i % largest.size()];
        most = std::max(most, std::fabs(weight[i]));
      }
    }
    std::vector<float> factors(largest.size());
    for (size_t i = 0; i < factors.size(); ++i)
      factors[i] = std::pow(std::max(inputs.most[i], kLeast), static_cast<float>(strength)) /
                   std::pow(std::max(largest[i], kLeast), static_cast<float>(1 - strength));
    centre(factors);
    scaler.scale(place, std::move(factors), changes);
  }
  return changes;
}

io::WeightChanges activation_aware_scaling(const io::ModelFolder& model,
                                           const std::vector<ScalingPlace>& places,
                                           const StatisticsOf& statistics, int64_t bits,
                                           int64_t group) {
  const Scaler scaler(model);
  io::WeightChanges changes;
  for (const ScalingPlace& place : places) {
    const InputStatistics& inputs = statistics(place.readers.front());
    std::vector<std::vector<float>> samples;
    for (const std::string& name : place.readers)
      samples.push_back(sampled_rows(scaler.read(name), inputs.width));
    std::vector<float> best(static_cast<size_t>(inputs.width), 1.0f);
    double least = INFINITY;
    for (int64_t step = 0; step < kSteps; ++step) {
      const float exponent = static_cast<float>(step) / static_cast<float>(kSteps);
      std::vector<float> factors(best.size());
      for (size_t i = 0; i < factors.size(); ++i)
        factors[i] = std::pow(std::max(inputs.mean[i], kLeast), exponent);
      centre(factors);
      double error = 0;
      for (const std::vector<float>& rows : samples)
        error += error_with(rows, factors, inputs, bits, group);
      if (error >= least) continue;
      least = error;
      best = std::move(factors);
    }
    scaler.scale(place, std::move(best), changes);
  }
  return changes;
}

InputStatistics divided(const InputStatistics& statistics, std::span<const float> factors) {
  InputStatistics result = statistics;
  const auto n = static_cast<size_t>(statistics.width);
  for (size_t i = 0; i < n; ++i) {
    result.most[i] /= factors[i];
    result.mean[i] /= factors[i];
    for (size_t j = 0; j < n; ++j) result.gram[i * n + j] /= factors[i] * factors[j];
  }
  return result;
}

}  // namespace brrr::calibration
