#pragma once
// Layers of nets for pictures [B, C, H, W]. Each declares its parameters in a graph under a dotted
// name and builds nodes when called.

#include <optional>
#include <string>

#include "models/parameters.h"
#include "ops/ops.h"

namespace brrr::models {

/// Zeros around a picture: kernel / 2 on each side, or TensorFlow's "same", which pads no more than
/// the last window needs and puts the odd row and column behind the picture.
enum class Padding { symmetric, same };

/// y = conv(x, w), without a bias. x: [B, in, H, W], w: [out, in / groups, kernel, kernel], y: [B,
/// out, ceil(H / stride), ceil(W / stride)] for odd kernels. Initially normal with variance 2 /
/// (out / groups kernel²) (He et al. 2015, fan out).
class Convolution {
 public:
  Convolution(Parameters& p, const std::string& name, int64_t in, int64_t out, int64_t kernel,
              int64_t stride, int64_t groups = 1, Padding padding = Padding::symmetric);
  Value operator()(Value x) const;

 private:
  Value weight_;
  int64_t kernel_, stride_, groups_;
  Padding padding_;
};
/// Initial weights of a convolution with so many output channels in each group.
Fill fan_out_fill(int64_t out, int64_t kernel = 1);

/// What batch norm adds to a variance, and the share of the batch in a new running statistic.
struct BatchNormSizes {
  double eps = 1e-5;
  double momentum = 0.1;
};

/// Batch normalisation of the channels of x: [B, C, H, W]. A training graph with
/// Statistics::of_batch normalises by the batch and updates the buffers running_mean, running_var
/// (from the unbiased variance) and num_batches_tracked once per micro-batch, as
/// torch.nn.BatchNorm2d does. All other graphs scale and shift each channel by the running
/// statistics, which a pass can fold into the preceding convolution.
class BatchNorm {
 public:
  /// `weight`: the initial values of the scale.
  BatchNorm(Parameters& p, const std::string& name, int64_t channels, const BatchNormSizes& sizes,
            Fill::Kind weight = Fill::Kind::ones);
  /// Throws UserError in training where a channel of the batch has a single value.
  Value operator()(Value x) const;

 private:
  Value by_batch(Value x) const;
  Value by_running_statistics(Value x) const;

  bool updates_statistics_;
  BatchNormSizes sizes_;
  Value weight_, bias_, mean_, variance_;
  std::optional<Value> count_;
};

/// y = x wᵀ + b. x: [B, in], w: [out, in], b: [out]; both initially uniform within 1 / sqrt(in), as
/// torch.nn.Linear.
class Classifier {
 public:
  Classifier(Parameters& p, const std::string& name, int64_t in, int64_t out);
  Value operator()(Value x) const;

 private:
  Value weight_, bias_;
};

/// The mean over the spatial axes of x: [B, C, H, W]. Returns [B, C].
Value global_average(Value x);
/// Drops whole channels of x: [B, C, H, W] with probability p and scales the others by 1 / (1 - p)
/// (Tompson et al. 2015). `key`: i32[2] (seed, step); without it nothing is dropped.
Value dropout_channels(Value x, const std::optional<Value>& key, double p, int64_t stream);
/// The same for whole pictures of a batch (stochastic depth, Huang et al. 2016).
Value drop_pictures(Value x, const std::optional<Value>& key, double p, int64_t stream);

}  // namespace brrr::models
