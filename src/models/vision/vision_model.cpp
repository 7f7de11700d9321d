#include "models/vision/vision_model.h"

#include "base/errors.h"
#include "models/exchange_names.h"
#include "models/vision/picture_layers.h"
#include "ops/ops.h"

namespace brrr::models {

Value smoothed_losses(Value logits, Value targets, double smoothing) {
  const auto plain = cross_entropy(logits, targets);
  if (smoothing == 0) return plain.losses;
  // -log p of class k is lse - z_k, and its mean over the classes lse - mean(z).
  Graph& g = *logits.graph;
  const Value of_all = plain.lse - mean(cast(logits, plain.lse.dtype()), {1});
  const Value is_scored = not_equal(targets, full(g, {}, -1, DType::i32));
  const Value shared = where(is_scored, of_all, scalar(g, 0, of_all.dtype()));
  return plain.losses * (1 - smoothing) + shared * smoothing;
}

Value VisionModel::pixels_input(Graph& g, Dim batch, const char* name) const {
  const PictureSizes picture = *sizes().picture;
  return g.input(name, {batch, Dim(picture.channels), Dim(picture.height), Dim(picture.width)},
                 DType::f32);
}

Value VisionModel::logits_of(const VisionNet& net, Value pixels) const {
  const Value planes = net.trunk(pixels);
  Scope scope(*pixels.graph, "head");
  return net.class_logits(global_average(planes));
}

Graph VisionModel::loss(int64_t batch, int64_t) const {
  if (task().head != Head::classes)
    user_error("[{}] a model that gives embeddings has no loss; give it a task",
               architecture().name);
  Graph g;
  const Value pixels = pixels_input(g, Dim(batch));
  const PictureLoss how = picture_loss();
  const Value targets = g.input("targets", {batch}, DType::i32);
  std::optional<Value> others, mix;
  if (how.mixes) {
    others = g.input("targets2", {batch}, DType::i32);
    mix = g.input("mix", {batch}, DType::f32);
  }
  const Value scale = g.input("loss_scale", {}, DType::f32);
  std::optional<Value> key;
  if (has_dropout()) key = g.input("rng_key", {2}, DType::i32);
  Parameters parameters(g, Purpose::training, how.statistics);
  const auto net = build(parameters, key);
  const Value logits = logits_of(*net, pixels);
  Scope scope(g, "loss");
  Value losses = smoothed_losses(logits, targets, how.label_smoothing);
  if (how.mixes)
    losses = losses * *mix + smoothed_losses(logits, *others, how.label_smoothing) * (1.0 - *mix);
  g.output("loss", sum(losses, {0}) * scale);
  return g;
}

Graph VisionModel::scored(int64_t batch, int64_t) const {
  Graph g;
  const Value pixels = pixels_input(g, Dim(batch));
  const Value targets = g.input("targets", {batch}, DType::i32);
  const Value scale = g.input("loss_scale", {}, DType::f32);
  Parameters parameters(g, Purpose::inference);
  const auto net = build(parameters, std::nullopt);
  const Value logits = logits_of(*net, pixels);
  Scope scope(g, "loss");
  g.output("loss", sum(cross_entropy(logits, targets).losses, {0}) * scale);
  g.output("logits", cast(logits, DType::f32));
  return g;
}

Graph VisionModel::forward(Dim batch, Dim) const {
  Graph g;
  const Value pixels = pixels_input(g, batch);
  Parameters parameters(g, Purpose::inference);
  const auto net = build(parameters, std::nullopt);
  if (task().head == Head::embedding)
    g.output("embedding", cast(global_average(net->trunk(pixels)), DType::f32));
  else
    g.output("logits", logits_of(*net, pixels));
  return g;
}

Graph VisionModel::exchange(const ExchangeBinding& binding) const {
  if (binding.past) user_error("[{}] a model for pictures has no cache", architecture().name);
  Graph g;
  const Value pixels = pixels_input(g, Dim(binding.batch), exchange_names::kPixels);
  Parameters parameters(g, Purpose::inference);
  const auto net = build(parameters, std::nullopt);
  if (task().head == Head::embedding) {
    const Value planes = net->trunk(pixels);
    g.output(exchange_names::kLastHidden, planes);
    g.output("pooler_output", global_average(planes));
  } else {
    g.output("logits", logits_of(*net, pixels));
  }
  return g;
}

Graph VisionModel::decode(const DecodeBinding&) const {
  user_error(
      "[{}] a model for pictures does not generate text: use `brrr classify --images` or `brrr "
      "embed --images`",
      architecture().name);
}

double VisionModel::flops_per_token(int64_t, bool) const {
  const Graph g = forward(Dim(1), Dim(1));
  double flops = 0;
  for (NodeId id = 0; id < g.size(); ++id)
    if (!g.is_input(id) && g.node(id).op->op_class == OpClass::contraction)
      flops += cost_of(g, id).flops;
  return 3 * flops;
}

}  // namespace brrr::models
