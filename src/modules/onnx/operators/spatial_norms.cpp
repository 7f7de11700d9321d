// Normalisation over images: of a batch, an instance, groups of channels, and neighbours among
// them.

#include "modules/onnx/operators/spatial.h"

namespace brrr::onnx {
namespace {

/// A parameter of each channel, or before opset 9 with spatial = 0 of each element of an image.
Value channel_parameter(Call& c, size_t i, const Value& x) {
  const Value v = cast(c.in(i), sum_dtype(c.in(i).dtype()));
  const bool of_elements = c.opset() < 9 && c.integer("spatial", 1) == 0 && v.shape().rank() > 1;
  if (of_elements) return v;
  return x.shape().rank() < 2 ? v : per_channel(v, x);
}

void batch_normalization(Call& c) {
  const DType dtype = c.in(0).dtype();
  const Value x = cast(c.in(0), sum_dtype(dtype));
  const int rank = x.shape().rank();
  const auto parameter = [&](size_t i) { return cast(channel_parameter(c, i, x), x.dtype()); };
  Value mean_of = parameter(3), variance = parameter(4);
  const bool by_batch = c.opset() >= 14 ? c.integer("training_mode", 0) != 0
                                        : c.opset() < 7 && c.integer("is_test", 0) == 0;
  if (by_batch) {
    std::vector<int64_t> axes{0};
    for (int64_t axis = 2; axis < rank; ++axis) axes.push_back(axis);
    const Value batch_mean = mean(x, axes, true), centred = x - batch_mean;
    const Value batch_variance = mean(centred * centred, axes, true);
    const double momentum = c.number("momentum", 0.9);
    const auto running = [&](size_t i, Value old, Value fresh) {
      const Value next = old * momentum + reshape(fresh, old.shape()) * (1 - momentum);
      return cast(reshape(next, c.in(i).shape()), c.in(i).dtype());
    };
    c.out(1, running(3, mean_of, batch_mean));
    c.out(2, running(4, variance, batch_variance));
    mean_of = reshape(batch_mean, mean_of.shape());
    variance = reshape(batch_variance, variance.shape());
  }
  // One product and one sum for each element. Where the parameters are weights of the file, both
  // factors are made once, and a convolution in front takes them into its own weights.
  const Value factor = parameter(1) * rsqrt(variance + c.number("epsilon", 1e-5));
  c.out(cast(x * factor + (parameter(2) - mean_of * factor), dtype));
}

/// (x - mean) / sqrt(variance + eps) of each row, [rows, width].
Value normal_rows(Call& c, Value rows, double eps) {
  const int64_t width = rows.shape().size(-1);
  return layer_norm(rows, full(c.graph(), {width}, 1, rows.dtype()),
                    full(c.graph(), {width}, 0, rows.dtype()), eps)
      .y;
}

void instance_normalization(Call& c) {
  const Value x = c.in(0);
  spatial_axes(c, 0);
  const DType inner = sum_dtype(x.dtype());
  const int64_t rows = x.shape().size(0) * x.shape().size(1);
  const int64_t width = rows == 0 ? 0 : x.shape().elements() / rows;
  const Value normal = reshape(
      normal_rows(c, reshape(cast(x, inner), {rows, width}), c.number("epsilon", 1e-5)), x.shape());
  const auto parameter = [&](size_t i) { return per_channel(cast(c.in(i), inner), x); };
  c.out(cast(normal * parameter(1) + parameter(2), x.dtype()));
}

void group_normalization(Call& c) {
  const Value x = c.in(0);
  spatial_axes(c, 0);
  const int64_t groups = c.integer("num_groups"), n = x.shape().size(0),
                channels = x.shape().size(1);
  if (groups < 1 || channels % groups != 0) c.fail("{} channels in {} groups", channels, groups);
  const DType stash = c.opset() >= 21 ? c.dtype("stash_type", DType::f32) : sum_dtype(x.dtype());
  const DType inner = x.dtype() == DType::f64 ? DType::f64 : stash;
  const int64_t rows = n * groups, width = rows == 0 ? 0 : x.shape().elements() / rows;
  const Value normal = reshape(
      normal_rows(c, reshape(cast(x, inner), {rows, width}), c.number("epsilon", 1e-5)), x.shape());
  const auto parameter = [&](size_t i) {
    Value v = cast(c.in(i), inner);
    // Before opset 21 there is one for each group.
    if (v.shape().size(0) == groups && groups != channels)
      v = reshape(broadcast_to(reshape(v, {groups, 1}), {groups, channels / groups}), {channels});
    return per_channel(v, x);
  };
  c.out(cast(normal * parameter(1) + parameter(2), x.dtype()));
}

void local_response_normalization(Call& c) {
  const DType dtype = c.in(0).dtype();
  spatial_axes(c, 0);
  const Value x = cast(c.in(0), sum_dtype(dtype));
  const int64_t size = c.integer("size"), n = x.shape().size(0), channels = x.shape().size(1);
  if (size < 1 || size > (int64_t{1} << 20)) c.fail("size = {}", size);
  const int64_t plane = n * channels == 0 ? 0 : x.shape().elements() / (n * channels);
  // Channels are the rows of an image.
  const Windows windows{{1, 1}, {1, 1}, {(size - 1) / 2, 0, size / 2, 0}};
  const Value sums =
      reshape(sum_pool(reshape(x * x, {n, 1, channels, plane}), {size, 1}, windows), x.shape());
  const double alpha = c.number("alpha", 1e-4), beta = c.number("beta", 0.75);
  const Value base = sums * (alpha / static_cast<double>(size)) + c.number("bias", 1.0);
  c.out(cast(x * pow(base, c.scalar_like(-beta, x)), dtype));
}

const OperatorRow kSpatialNormRows[] = {
    {"", "BatchNormalization", batch_normalization},
    {"", "InstanceNormalization", instance_normalization},
    {"", "GroupNormalization", group_normalization},
    {"", "LRN", local_response_normalization},
};

}  // namespace

std::span<const OperatorRow> spatial_norm_operators() { return kSpatialNormRows; }

}  // namespace brrr::onnx
