#pragma once
// Writes a model as a GGUF file that llama.cpp loads: metadata, tokenizer, chat template and
// weights, which are quantised as a kind of file asks for. A plan knows all sizes before a weight
// is read; one tensor at a time is in memory.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "folders/gguf/gguf_names.h"
#include "folders/gguf/gguf_types.h"
#include "folders/model_folder.h"
#include "formats/gguf/gguf_output.h"

namespace brrr::io {

class GgufExport {
 public:
  /// `model` was opened with its tokenizer and outlives the plan. Throws UserError for an
  /// architecture, a setting or a tokenizer that GGUF files cannot hold, by name.
  GgufExport(const ModelFolder& model, GgufFileKind kind);

  /// The kind that holds the weights as they are stored; Q8_0 for quantised ones.
  static GgufFileKind stored_kind(const ModelFolder& model);

  /// The exact size of the file.
  uint64_t bytes() const { return output_->bytes(); }
  /// How many tensors have which type, "Q4_K 12, F32 25".
  std::string types() const;
  /// What the user should know: what llama.cpp does otherwise, and where a type could not be used.
  const std::vector<std::string>& notes() const { return notes_; }
  /// Throws UserError for weights that the type cannot hold, and where the disk is full.
  void write(const fs::path& path) const;

 private:
  struct Tensor {
    std::string parameter = {};  // "": `values`, or zeros
    GgufChange change = GgufChange::none;
    int64_t heads = 0;
    std::vector<float> values = {};
  };

  void add_general(GgufMetadata& keys, const GgufArchitecture& architecture) const;
  void add_tensors(const struct GgufHyperparameters& hyper);
  void add(GgufPlanned planned, Tensor tensor) {
    tensors_.emplace(planned.name, std::move(tensor));
    planned_.push_back(std::move(planned));
  }
  void make(const GgufPlanned& planned, std::span<std::byte> out) const;
  void make_in_pieces(const GgufPlanned& planned, const Tensor& tensor, const TensorView& stored,
                      std::span<std::byte> out) const;
  /// Throws UserError for values that the type cannot hold.
  void quantise_checked(const GgufPlanned& planned, const Tensor& tensor,
                        std::span<const float> values, std::span<std::byte> out) const;
  std::vector<float> values_of(const GgufPlanned& planned, const Tensor& tensor) const;

  const ModelFolder& model_;
  GgufFileKind kind_;
  std::vector<GgufPlanned> planned_;
  std::map<std::string, Tensor> tensors_;
  std::vector<std::string> notes_;
  std::shared_ptr<const GgufOutput> output_;
};

}  // namespace brrr::io
