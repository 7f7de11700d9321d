#include "models/vision/picture_layers.h"

#include <algorithm>
#include <cmath>

#include "base/errors.h"

namespace brrr::models {
namespace {

Fill uniform_by_width(int64_t in) {
  return {Fill::Kind::uniform, 1 / std::sqrt(static_cast<double>(in))};
}

/// v: [C] -> [C, 1, 1], which broadcasts to pictures.
Value per_channel(Value v) { return reshape(v, {v.shape()[0], Dim(1), Dim(1)}); }

}  // namespace

Fill fan_out_fill(int64_t out, int64_t kernel) {
  return {Fill::Kind::normal, std::sqrt(2.0 / static_cast<double>(out * kernel * kernel))};
}

Convolution::Convolution(Parameters& p, const std::string& name, int64_t in, int64_t out,
                         int64_t kernel, int64_t stride, int64_t groups, Padding padding)
    : weight_(p.filled_weight(name + ".weight", {out, in / groups, kernel, kernel},
                              fan_out_fill(out / groups, kernel))),
      kernel_(kernel),
      stride_(stride),
      groups_(groups),
      padding_(padding) {}

Value Convolution::operator()(Value x) const {
  const int64_t half = kernel_ / 2;
  Windows windows{{stride_, stride_}, {1, 1}, {half, half, half, half}};
  if (padding_ == Padding::same)
    for (const int axis : {0, 1}) {
      const int64_t size = x.shape().size(2 + axis), last = (size - 1) / stride_ * stride_;
      const int64_t zeros = std::max<int64_t>(0, last + kernel_ - size);
      windows.pads[static_cast<size_t>(axis)] = zeros / 2;
      windows.pads[static_cast<size_t>(axis) + 2] = zeros - zeros / 2;
    }
  return conv(x, weight_, std::nullopt, windows, groups_);
}

BatchNorm::BatchNorm(Parameters& p, const std::string& name, int64_t channels,
                     const BatchNormSizes& sizes, Fill::Kind weight)
    : updates_statistics_(p.updates_statistics()),
      sizes_(sizes),
      weight_(p.vector(name + ".weight", channels, weight)),
      bias_(p.bias(name + ".bias", channels)),
      mean_(p.buffer(name + ".running_mean", {channels}, Fill::Kind::zeros)),
      variance_(p.buffer(name + ".running_var", {channels}, Fill::Kind::ones)),
      count_(p.counter(name + ".num_batches_tracked")) {}

Value BatchNorm::operator()(Value x) const {
  return updates_statistics_ ? by_batch(x) : by_running_statistics(x);
}

Value BatchNorm::by_batch(Value x) const {
  Graph& g = *x.graph;
  const int64_t values = x.shape().elements() / x.shape().size(1);
  if (values < 2)
    user_error(
        "[batch norm] a channel of a batch {} has one value (at {}), which has no variance: train "
        "with more pictures in a batch, or larger ones",
        x.shape().str(), g.current_scope().path);
  const auto norm = batch_norm(x, weight_, bias_, sizes_.eps);
  const auto updated = [&](Value running, Value fresh) {
    g.update(running, running * (1 - sizes_.momentum) + fresh * sizes_.momentum);
  };
  const auto n = static_cast<double>(values);
  updated(mean_, norm.mean);
  updated(variance_, norm.variance * (n / (n - 1)));
  g.update(*count_, *count_ + scalar(g, 1, DType::i64));
  return norm.y;
}

Value BatchNorm::by_running_statistics(Value x) const {
  const Value factor = weight_ * rsqrt(variance_ + sizes_.eps);
  return x * per_channel(factor) + per_channel(bias_ - mean_ * factor);
}

Classifier::Classifier(Parameters& p, const std::string& name, int64_t in, int64_t out)
    : weight_(p.filled_weight(name + ".weight", {out, in}, uniform_by_width(in))),
      bias_(p.filled_bias(name + ".bias", out, uniform_by_width(in))) {}

Value Classifier::operator()(Value x) const { return matmul(x, weight_, false, true) + bias_; }

Value global_average(Value x) { return mean(x, {2, 3}); }

Value dropout_channels(Value x, const std::optional<Value>& key, double p, int64_t stream) {
  if (!key || p == 0) return x;
  const Shape planes{x.shape()[0], x.shape()[1], Dim(1), Dim(1)};
  return x * dropout(full(*x.graph, planes, 1, x.dtype()), *key, p, stream);
}

Value drop_pictures(Value x, const std::optional<Value>& key, double p, int64_t stream) {
  if (!key || p == 0) return x;
  const Shape pictures{x.shape()[0], Dim(1), Dim(1), Dim(1)};
  return x * dropout(full(*x.graph, pictures, 1, x.dtype()), *key, p, stream);
}

}  // namespace brrr::models
