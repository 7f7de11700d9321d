#pragma once
// A low-rank adapter of a model (LoRA, Hu et al. 2021) as a value: which linear layers it changes,
// by what rank and scale, and which parameters it has a trained copy of. Names and defaults are
// those of PEFT, whose folders folders/adapters/ reads and writes.

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/model.h"

namespace brrr::models {

/// How a linear layer holds its weight W.
enum class WeightForm {
  linear,       // [out, in], as PyTorch's Linear
  conv1d,       // [in, out], as GPT-2's Conv1D
  convolution,  // [out, in, 1, 1]
};

/// A linear layer of a model: y = x Wᵀ, and perhaps a bias. A 1 x 1 convolution is a linear layer
/// over the channels of each pixel.
struct LinearLayer {
  std::string module = {};  // "model.layers.0.self_attn.q_proj": its weight without ".weight"
  std::string weight = {};  // the parameter
  int64_t in = 0, out = 0;  // numbers of inputs and outputs
  WeightForm form = WeightForm::linear;
  bool is_head = false;  // the last layer of a language model, or a layer of a task's head

  /// Position of W[o, i] among the elements of the weight.
  size_t element(int64_t o, int64_t i) const {
    return static_cast<size_t>(form == WeightForm::conv1d ? i * out + o : o * in + i);
  }
  /// Shapes of the adapter's matrices.
  Shape a_shape(int64_t rank) const { return shape(rank, in); }
  Shape b_shape(int64_t rank) const { return shape(out, rank); }

 private:
  Shape shape(int64_t rows, int64_t columns) const {
    return form == WeightForm::convolution ? Shape{rows, columns, 1, 1} : Shape{rows, columns};
  }
};

/// The linear layers of the model, in the order of its forward pass.
std::vector<LinearLayer> linear_layers(const Model& model);

/// A layer with an adapter.
struct AdaptedLayer {
  LinearLayer layer;
  int64_t rank = 0;
  double alpha = 0;
  bool has_factor = false;  // DoRA (Liu et al. 2024): the result is scaled by column
};

struct Adapter {
  /// Infix of the parameters' names where a model has several adapters; "": none.
  std::string name = {};
  /// What the user calls it, where texts choose their adapters; by default its folder's name.
  std::string title = {};
  std::vector<AdaptedLayer> layers = {};
  std::set<std::string> saved = {};  // parameters that are trained as a whole
  double dropout = 0;                // of what A multiplies, in training
  bool rslora = false;  // scale alpha / sqrt(rank) (Kalajdzievski 2023), not alpha / rank
  double weight = 1;    // a further factor of the scale, chosen by who uses the adapter

  double scale_of(const AdaptedLayer& layer) const;
  /// Names of the parameters: "MODULE.lora_A.weight".
  std::string a_of(const LinearLayer& layer) const { return part_of(layer, "lora_A"); }
  std::string b_of(const LinearLayer& layer) const { return part_of(layer, "lora_B"); }
  std::string factor_of(const LinearLayer& layer) const { return part_of(layer, "lora_factor"); }

 private:
  std::string part_of(const LinearLayer& layer, const char* part) const;
};

/// Whether a parameter is a part of an adapter: lora_A, lora_B or lora_factor.
bool is_of_adapter(std::string_view parameter);

/// A new adapter as options describe it.
struct AdapterRequest {
  int64_t rank = 0;
  double alpha = 0;
  double dropout = 0;
  bool rslora = false;
  /// "all-linear" (every linear layer but the head), the last parts of modules' names, or regular
  /// expressions for whole names.
  std::vector<std::string> targets = {};
  /// The last parts of names of modules that are trained as a whole.
  std::vector<std::string> saved = {};
};

/// Resolves names to layers and parameters. `trained`: further parameters to train as a whole, such
/// as those of a new head; a task's head always is. Throws UserError (exit 2) for names that match
/// nothing, with those that there are, and for a rank above the width of a layer.
Adapter make_adapter(const Model& model, const AdapterRequest& request,
                     const std::set<std::string>& trained = {});

/// The shortest names by which PEFT finds exactly these layers among all linear layers of the
/// model: what follows the number of a block where the layers of all blocks are adapted, else whole
/// names.
std::vector<std::string> target_names(const Model& model, std::span<const AdaptedLayer> layers);
/// The names of modules by which PEFT finds these parameters: "classifier", "lm_head".
std::vector<std::string> saved_modules(const std::set<std::string>& parameters);

}  // namespace brrr::models
