#pragma once
// What models for pictures share: the loss and the forward graphs around a trunk that makes one
// vector of a picture. An architecture brings a VisionNet.

#include <memory>
#include <optional>

#include "models/configured_model.h"
#include "models/model.h"

namespace brrr::models {

class VisionNet {
 public:
  virtual ~VisionNet() = default;
  /// pixels: [B, channels, H, W] f32, normalised as the model's folder says. Returns the planes of
  /// the last layer, [B, C, h, w].
  virtual Value trunk(Value pixels) const = 0;
  /// features: [B, C], the mean over the planes. Returns [B, K].
  virtual Value class_logits(Value features) const = 0;
};

/// The loss of pictures, summed over those whose target is not -1. logits: [B, K]; targets: [B]
/// i32. Of the target the share `smoothing` is divided among all K classes (Szegedy et al. 2015,
/// section 7), as torch.nn.CrossEntropyLoss has it. Returns [B] f32.
Value smoothed_losses(Value logits, Value targets, double smoothing);

/// Where a batch of pictures counts tokens, a picture is one: lengths are ignored.
class VisionModel : public Model {
 public:
  /// Inputs "pixels" [B, channels, H, W] f32, "targets" [B] i32 (-1: not scored), where the loss
  /// mixes "targets2" [B] i32 and "mix" [B] f32, "loss_scale" f32[] and "rng_key" i32[2] where the
  /// model has dropout. Output "loss" f32[], a sum over what is scored times the scale. Batch norm
  /// uses the statistics that PictureLoss::statistics names.
  Graph loss(int64_t batch, int64_t length) const final;
  /// The plain cross-entropy by running statistics, and the output "logits" [B, K].
  Graph scored(int64_t batch, int64_t length) const final;
  /// Input "pixels". Output "logits" [B, K]; of Head::embedding "embedding" [B, C].
  Graph forward(Dim batch, Dim length) const final;
  /// Input "pixel_values". Output "logits"; of Head::embedding "last_hidden_state" [B, C, h, w] and
  /// "pooler_output" [B, C].
  Graph exchange(const ExchangeBinding& binding) const final;
  /// Throws UserError: a model for pictures does not generate.
  Graph decode(const DecodeBinding& binding) const final;

  /// Three times the FLOPs of the forward pass of one picture.
  double flops_per_token(int64_t length, bool whole_scores) const final;

 protected:
  /// Declares the parameters. `rng_key`: i32[2] (seed, step); without it nothing is dropped.
  virtual std::unique_ptr<VisionNet> build(Parameters& p, std::optional<Value> rng_key) const = 0;
  virtual bool has_dropout() const = 0;
  virtual PictureLoss picture_loss() const = 0;
  void declare(Parameters& p) const final { build(p, std::nullopt); }

 private:
  Value pixels_input(Graph& g, Dim batch, const char* name = "pixels") const;
  Value logits_of(const VisionNet& net, Value pixels) const;
};

/// The model of a configuration that has a task, an image_size and a picture_loss.
template <typename C>
class ConfiguredVision : public ConfiguredModel<C, VisionModel> {
 public:
  using ConfiguredModel<C, VisionModel>::ConfiguredModel;

  Task task() const override { return this->c_.task; }
  ModelPtr with_task(const Task& task) const override {
    if (task.head != Head::classes && task.head != Head::embedding)
      user_error("[{}] a model for pictures has no head for {}", this->architecture().name,
                 description(task.head));
    C c = this->c_;
    c.task = task;
    return c.model();
  }
  ModelPtr with_image_size(int64_t size) const override {
    C c = this->c_;
    c.image_size = size;
    return c.model();
  }
  ModelPtr with_picture_loss(const PictureLoss& loss) const override {
    C c = this->c_;
    c.picture_loss = loss;
    return c.model();
  }

 protected:
  PictureLoss picture_loss() const override { return this->c_.picture_loss; }
};

}  // namespace brrr::models
