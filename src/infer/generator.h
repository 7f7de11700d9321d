#pragma once
// Generation: a model that continues token ids. With the KV cache a new token costs one pass over
// the weights; without it (the judge) every token recomputes the whole window. Both see the same
// window: when the context is full, the older half is forgotten and the rest is read again.

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "infer/runner.h"
#include "models/model.h"
#include "passes/precision/cache_precision.h"
#include "passes/weights/weight_choice.h"
#include "sampling/continuation.h"

namespace brrr::infer {

struct GeneratorOptions {
  bool use_cache = true;
  DType precision = DType::f32;          // of weights and products
  WeightQuantization quantization = {};  // of weights
  CachePrecision cache = CachePrecision::computed;
  /// The most positions that the model reads at once; beyond them it forgets the older half. 0: the
  /// model's context, which is also the most.
  int64_t context = 0;
  /// Positions that prompt and new tokens will need; the cache has room for as many, rounded up,
  /// and a longer text forgets its older half. 0: as many as the context.
  int64_t positions = 0;
  /// The tokens of the prompt, which are read at once: whether their program fits is known before
  /// anything is allocated. 0: not known.
  int64_t prompt = 0;
  Memory memory = {};  // that it may take; by default any
};

class Generator {
 public:
  /// `weights` has each parameter of the model by name.
  Generator(models::ModelPtr model, const Backend& backend,
            std::shared_ptr<const WeightSource> weights, const GeneratorOptions& options = {});

  /// Continues `prompt` (at least one token) by up to `count` tokens; on_token gets each as it
  /// comes and may return false to stop. Returns the new tokens.
  std::vector<int32_t> generate(std::span<const int32_t> prompt, int64_t count, Sampler sampler,
                                const std::function<bool(int32_t)>& on_token = {});

  int64_t arena_bytes() const { return runner_.session().engine().arena_bytes(); }
  /// Bytes of the weights in the form in which they are read.
  int64_t weight_bytes() const { return runner_.session().engine().forecast().parameter_bytes; }

 private:
  std::span<const float> logits_of(std::span<const int32_t> window);
  int64_t largest_length() const;
  int64_t padded(int64_t length) const;  // without a cache

  int64_t vocabulary_;
  int64_t context_;  // of the window: the model's, or as much as was asked for
  GeneratorOptions options_;
  Runner runner_;
  CachedTokens cached_;
};

}  // namespace brrr::infer
