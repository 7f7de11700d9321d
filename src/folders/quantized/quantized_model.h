#pragma once
// A model whose linear layers are quantised, in memory: what `brrr quantize` measures and writes.

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "folders/model_folder.h"
#include "folders/quantized/integer_matrix.h"
#include "folders/quantized/weight_changes.h"
#include "passes/weights/weight_choice.h"

namespace brrr::io {

/// The layers of a model that may be quantised: linear layers of its blocks, of at least 16,384
/// elements and 32 inputs and outputs, as for weights that are quantised while they are loaded.
struct LinearLayer {
  std::string parameter;            // the model's name of its weight
  std::string tensor;               // the weight's name in the folder's files
  std::string place;                // "h.3", as --freeze names it
  int64_t outputs = 0, inputs = 0;  // the weight is [outputs, inputs]
  /// The tensor's name without ".weight".
  std::string name() const;
};

/// Throws UserError where the folder is quantised already, has no such layer, or has its weights as
/// [inputs, outputs] (GPT-2), which compressed-tensors does not know.
std::vector<LinearLayer> linear_layers(const ModelFolder& model);

/// Returns the names of the weights that quantisation may change: the linear layers of the model's
/// blocks that are large enough, stored as [outputs, inputs] or [inputs, outputs].
ParameterSet linear_weights(const models::Model& model);

/// Throws UserError where a quantised format, which stores [outputs, inputs], holds weights that
/// the model multiplies by as [inputs, outputs] (Conv1D of GPT-2).
void refuse_conv1d(const models::Model& model, const QuantizedWeights& found,
                   const std::string& what);

/// Bytes of a model's weights.
struct WeightSizes {
  int64_t fp32 = 0, bf16 = 0;
  /// Its linear layers in 8 bits, or in 4 bits in groups of 32, everything else in bf16.
  int64_t int8 = 0, int4 = 0;
};
WeightSizes weight_sizes(const models::Model& model);

/// Throws UserError for bits or groups that the method lacks.
void check_method(const FolderQuantization& quantization);

/// The layers that are left when those that `keep` names are kept: by their name, by a part of it
/// between dots ("down_proj", "layers.0"), or by their place ("h.0"). Throws UserError for a name
/// that fits none, where none is left, and where groups do not divide the inputs of a layer that is
/// left.
std::vector<LinearLayer> chosen_layers(const std::vector<LinearLayer>& layers,
                                       const std::vector<std::string>& keep, int64_t group,
                                       const std::string& what);

struct QuantizedLayer {
  LinearLayer layer;
  IntegerMatrix matrix;
  double error = 0;  // |W - Q| / |W|, the Frobenius norms

  /// Bytes of its tensors in a file, packed in words or not.
  int64_t stored_bytes(bool is_packed) const;
};

/// Chooses the integers of a layer's weight; `weight` [outputs, inputs] has the model's changes.
using LayerQuantizer = std::function<IntegerMatrix(
    const LinearLayer& layer, std::span<const float> weight, const IntegerForm& form)>;

struct QuantizingOptions {
  /// What is not quantised stays as it is in the files.
  enum class Kept {
    as_stored,         // but blocks of a GGUF file, which are rounded to bf16
    matrices_in_bf16,  // but matrices of f32, which are rounded to bf16
  };
  Kept kept = Kept::as_stored;
  /// Layers in another form than the rest, by their tensors.
  std::map<std::string, IntegerGrid> forms = {};
  LayerQuantizer quantizer = {};  // empty: each number becomes the nearest integer
  WeightChanges changes = {};     // made before quantising
};

class QuantizedModel {
 public:
  /// Quantises the layers. `model` outlives this. Throws UserError, which names the tensor, for
  /// weights that are not finite.
  QuantizedModel(const ModelFolder& model, const FolderQuantization& quantization,
                 const std::vector<LinearLayer>& layers, QuantizingOptions options = {});

  const std::vector<QuantizedLayer>& layers() const { return layers_; }
  /// With the list of layers that are kept.
  const FolderQuantization& quantization() const { return quantization_; }
  /// Bytes of all tensors that write() writes.
  int64_t stored_bytes() const;
  /// The folder as it will be read back, without being written.
  ModelFolder as_read_back() const;
  /// Writes weights, config.json and, where the model has one, its tokenizer and the other files
  /// that it is used by, into a folder that exists.
  void write(const fs::path& folder) const;

 private:
  bool is_narrowed(const TensorView& kept) const;
  /// The new values of the vectors that change, by the names of their tensors.
  std::map<std::string, const std::vector<float>*> changed_tensors() const;

  const ModelFolder& model_;
  QuantizingOptions options_;
  FolderQuantization quantization_;
  std::shared_ptr<const WeightSource> files_;
  std::vector<QuantizedLayer> layers_;
};

}  // namespace brrr::io
