#include "calibration/input_statistics.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/target.h"
#include "infer/runner.h"
#include "ops/ops.h"

namespace brrr::calibration {
namespace {

/// A model with the sums over the rows of chosen products as its only outputs.
class ObservedProducts final : public ObservedModel {
 public:
  ObservedProducts(std::shared_ptr<const Runnable> model, const ParameterSet& weights)
      : ObservedModel(std::move(model)), weights_(weights) {}

  /// Learns which products share their rows, and so which outputs there are.
  void find_rows(const PortValues& inputs) {
    GraphRequest request;
    for (const auto& [name, value] : inputs)
      request.data.emplace(name, Type{value.tensors[0].dtype, value.tensors[0].shape});
    request.wanted = wanted_of_model();
    const LoweredGraph lowered = model().lower(request);
    for (const auto& [weight, rows] : products_of(lowered.graph)) {
      const auto [at, is_new] = index_.try_emplace(rows, index_.size());
      rows_of_[weight] = at->second;
      if (is_new)
        for (const char* sum : {"gram", "most", "mean"}) declare(name_of(sum, at->second));
    }
  }

  static std::string name_of(const char* sum, size_t index) {
    return fmt::format("{}:{}", sum, index);
  }
  const std::map<std::string, size_t>& rows_of() const { return rows_of_; }

 protected:
  void observe(Graph& g) const override {
    std::map<size_t, ValueId> rows;
    for (const auto& [weight, value] : products_of(g)) rows.emplace(rows_of_.at(weight), value);
    for (const auto& [index, value] : rows) {
      const Value given = g.value(value);
      const int64_t width = given.shape().size(-1);
      const Value x = cast(reshape(given, {given.shape().elements() / width, width}), DType::f32);
      g.output(name_of("gram", index), matmul(x, x, true));
      g.output(name_of("most", index), max(abs(x), {0}));
      g.output(name_of("mean", index), sum(abs(x), {0}));
    }
  }

 private:
  /// The chosen weights of products, and what they multiply.
  std::map<std::string, ValueId> products_of(const Graph& g) const {
    std::map<std::string, ValueId> products;
    for (NodeId id = 0; id < g.size(); ++id) {
      const Node& node = g.node(id);
      const std::optional<ProductForm> form = product_form(node);
      if (!form || form->transpose_a) continue;
      const ValueId weight = node.operands[1];
      if (!g.is_input(weight.node) || !weights_.contains(g.input_name(weight.node))) continue;
      products.emplace(g.input_name(weight.node), behind_reshapes(g, node.operands[0]));
    }
    return products;
  }

  const ParameterSet& weights_;
  std::map<ValueId, size_t> index_;        // of the rows, in the graph of find_rows()
  std::map<std::string, size_t> rows_of_;  // of a weight
};

/// Adds what one run found.
void add(InputStatistics& to, std::span<const float> gram, std::span<const float> most,
         std::span<const float> mean) {
  to.width = std::ssize(most);
  to.gram.resize(gram.size());
  to.most.resize(most.size());
  to.mean.resize(mean.size());
  for (size_t i = 0; i < gram.size(); ++i) to.gram[i] += gram[i];
  for (size_t i = 0; i < most.size(); ++i) {
    to.most[i] = std::max(to.most[i], most[i]);
    to.mean[i] += mean[i];
  }
}

}  // namespace

StatisticsByWeight gather_statistics(const std::shared_ptr<const Runnable>& model,
                                     const ParameterSet& weights, const CalibrationRuns& runs,
                                     const infer::Memory& memory) {
  BRRR_CHECK(!runs.empty(), "no rows to calibrate on");
  const auto observed = std::make_shared<ObservedProducts>(model, weights);
  observed->find_rows(runs.front());
  std::vector<std::shared_ptr<InputStatistics>> found;
  StatisticsByWeight result;
  for (const auto& [weight, index] : observed->rows_of()) {
    while (found.size() <= index) found.push_back(std::make_shared<InputStatistics>());
    result[weight] = found[index];
  }
  if (found.empty()) return result;
  infer::Runner runner(observed, cpu::cpu_backend(), {}, infer::counting_all(memory));
  PortValues outputs;
  for (const PortValues& inputs : runs) {
    runner.run_into(outputs, inputs);
    const int64_t rows = inputs.at("tokens").tensors[0].shape.elements();
    for (size_t i = 0; i < found.size(); ++i) {
      const auto sum = [&](const char* name) {
        return outputs.at(ObservedProducts::name_of(name, i)).tensors[0].as<float>();
      };
      add(*found[i], sum("gram"), sum("most"), sum("mean"));
      found[i]->rows += rows;
    }
  }
  for (const auto& [weight, statistics] : result)
    if (!std::ranges::all_of(statistics->gram, [](float x) { return std::isfinite(x); }))
      user_error("the inputs of {} are not finite on the calibration text; check the weights",
                 weight);
  for (const auto& statistics : found)
    for (float& x : statistics->mean)
      x /= static_cast<float>(std::max<int64_t>(statistics->rows, 1));
  return result;
}

}  // namespace brrr::calibration
