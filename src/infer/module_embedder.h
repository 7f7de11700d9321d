#pragma once
// Vectors for texts by an ONNX or .brrr file with the inputs that exporters of encoders name:
// input_ids, attention_mask, token_type_ids, position_ids. Its output is the vectors
// (sentence_embedding) or those of all tokens, which are pooled as for our own encoders.
//
// Where a file quantizes activations by the largest of a whole batch, a vector depends a little on
// the texts and the padding beside it.

#include <memory>
#include <optional>
#include <string>

#include "infer/embedder.h"
#include "infer/module_runner.h"
#include "models/task.h"
#include "runtime/bindings.h"

namespace brrr::infer {

struct ModuleEmbedderOptions {
  std::string name;       // of the file, for errors
  models::Task task;      // how token vectors become one; Head::embedding
  int64_t context = 512;  // the longest text, in tokens
  int64_t batch_size = 32;
  modules::ModuleOptions how = {};
  Memory memory = {};
  int64_t beside = 0;  // bytes of that memory which the caller's texts and results take
};

class ModuleEmbedder final : public Embedder {
 public:
  /// Throws UserError for a file with other inputs, or without an output that holds vectors.
  ModuleEmbedder(const std::shared_ptr<const modules::Module>& module, const Backend& backend,
                 const ModuleEmbedderOptions& options);
  int64_t width() const override { return width_; }
  /// The most tokens of a text: what the options say, or the file's fixed length.
  int64_t context() const { return options_.context; }
  /// Whether the file pools by itself.
  bool is_pooled() const { return is_pooled_; }
  void run(std::span<const EncoderRow> rows, const OnRow& on_row) override;

 private:
  struct Batch {
    modules::ModuleValues inputs;
    std::vector<int32_t> lengths;
  };
  Batch batch_of(std::span<const EncoderRow> rows, std::span<const size_t> chosen) const;
  void find_ports();
  void find_width();
  void run_batch(std::span<const EncoderRow> rows, std::span<const size_t> chosen,
                 const OnRow& on_row);
  /// The vectors out of what the file gave: [B, width()].
  std::span<const float> pooled(const HostTensor& output, std::span<const int32_t> lengths);

  std::shared_ptr<const modules::Module> module_;
  ModuleEmbedderOptions options_;
  ModuleRunner runner_;
  std::vector<modules::Port> inputs_;
  std::string output_;
  bool is_pooled_ = false;  // by the file
  std::optional<int64_t> fixed_batch_, fixed_length_;
  int64_t width_ = 0;
  Engine pooling_;
  Bindings bindings_;
  std::vector<float> floats_;  // of outputs in another format
  std::vector<std::byte> room_;
};

}  // namespace brrr::infer
