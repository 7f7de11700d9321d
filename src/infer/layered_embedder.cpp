#include "infer/layered_embedder.h"

#include <deque>
#include <utility>

#include "base/errors.h"
#include "folders/weights.h"
#include "models/encoder.h"
#include "models/torch_activation.h"
#include "ops/ops.h"

namespace brrr::infer {
namespace {

using Kind = io::SentenceLayer::Kind;

/// The weights of all modules by the names of their parameters.
class LayerWeights {
 public:
  /// Declares a parameter: the tensor of that name in the module's folder.
  Value declare(Graph& g, const fs::path& folder, const std::string& tensor, const Shape& shape) {
    const std::string name = folder.filename().string() + "/" + tensor;
    if (folders_.empty() || folders_.back().first != folder)
      folders_.emplace_back(folder, std::make_unique<io::WeightFiles>(folder));
    const io::WeightFiles& files = *folders_.back().second;
    const io::TensorView* const view = files.find(tensor);
    if (view == nullptr)
      user_error("{}: the tensor {} of the module {} is missing", files.what(), tensor,
                 folder.filename().string());
    if (view->shape != shape)
      user_error("{}: the tensor {} is {}; expected {}", files.what(), tensor, view->shape.str(),
                 shape.str());
    if (list_.find(name) == nullptr)
      list_.add({name, view->dtype, view->shape, view->bytes, view->storage});
    return g.parameter(name, shape);
  }
  const WeightSource& all() const { return list_; }

 private:
  std::deque<std::pair<fs::path, std::unique_ptr<io::WeightFiles>>> folders_;
  WeightList list_{"the modules behind the model"};
};

/// x: [1, C]; returns [1, D].
Value apply(Value x, const io::SentenceLayer& layer, LayerWeights& weights) {
  Graph& g = *x.graph;
  const int64_t width = x.shape().size(1);
  if (layer.inputs > 0 && layer.inputs != width)
    user_error("{}: the module takes vectors of {} numbers, and gets {}",
               (layer.folder / "config.json").string(), layer.inputs, width);
  const auto parameter = [&](const char* name, const Shape& shape) {
    return weights.declare(g, layer.folder, name, shape);
  };
  if (layer.kind == Kind::normalize) return models::unit_length(x);
  if (layer.kind == Kind::layer_norm)
    return layer_norm(x, parameter("norm.weight", {width}), parameter("norm.bias", {width})).y;
  Value y = matmul(x, parameter("linear.weight", {layer.outputs, width}), false, true);
  if (layer.has_bias) y = y + parameter("linear.bias", {layer.outputs});
  y = models::torch_activation(layer.activation)(y);
  if (!layer.adds_input) return y;
  if (layer.outputs == width) return y + x;
  return y + matmul(x, parameter("residual.weight", {layer.outputs, width}), false, true);
}

}  // namespace

LayeredEmbedder::LayeredEmbedder(std::unique_ptr<Embedder> vectors,
                                 const std::vector<io::SentenceLayer>& layers,
                                 const Backend& backend)
    : vectors_(std::move(vectors)) {
  Graph g;
  const auto weights = std::make_shared<LayerWeights>();
  Value x = g.input("x", {1, vectors_->width()}, DType::f32);
  for (const io::SentenceLayer& layer : layers) {
    Scope scope(g, layer.kind == Kind::normalize ? "normalize" : layer.folder.filename().string());
    x = apply(x, layer, *weights);
  }
  g.output("y", x);
  width_ = x.shape().size(1);
  layers_ = std::make_unique<RunnableSession>(runnable_of(g, {weights, &weights->all()}),
                                              backend);  // kept by what it lists
}

// Row by row: what a row gets does not depend on the others, and beside the encoder it is little.
void LayeredEmbedder::run(std::span<const EncoderRow> rows, const OnRow& on_row) {
  vectors_->run(rows, [&](size_t row, std::span<const float> numbers) {
    const PortValues inputs{
        {"x", HostTensor::of<float>({1, vectors_->width()}, {numbers.begin(), numbers.end()})}};
    on_row(row, layers_->run_in_place(inputs).numbers);
  });
}

}  // namespace brrr::infer
