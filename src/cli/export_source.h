#pragma once
// What `brrr export` writes: graphs and weights of a model folder, or of an ONNX or .brrr file.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "folders/model_folder.h"
#include "modules/module_session.h"
#include "modules/onnx/export/onnx_export.h"

namespace brrr::cli {

/// A source, what holds its weights, and inputs to try it on.
struct ExportedSource {
  onnx::ExportSource source;  // without examples
  /// Sizes that a graph may accept: examples, and others to try the result on. What a graph demands
  /// of its sizes is not known before.
  struct Family {
    std::vector<std::vector<int64_t>> examples, unseen;
  };
  std::vector<Family> families;
  std::vector<std::vector<int64_t>> unseen;  // of the family that was taken
  std::function<modules::ModuleValues(const std::vector<int64_t>& sizes)> inputs;
  std::vector<std::shared_ptr<const void>> holds;
};

/// A model's graph for other runtimes (Model::exchange), with the sizes batch_size and
/// sequence_length, and past_sequence_length `with_cache`.
ExportedSource export_source(std::shared_ptr<const io::ModelFolder> folder, bool with_cache);

/// A module for open sizes: each axis of an input that the file leaves open, but for those that
/// `fixed` names. `known`: inputs that become part of the graph.
ExportedSource export_source(std::shared_ptr<const modules::Module> module,
                             const std::map<std::string, int64_t>& fixed,
                             const std::map<std::string, HostTensor>& known);

/// Exports it with the first of its families that works. Throws UserError of the last.
std::shared_ptr<const onnx::ExportedModel> export_for_open_sizes(
    ExportedSource& source, const onnx::ExportOptions& options);

/// The f32 values of a parameter of a folder, read once.
std::vector<float> values_of(const io::ModelFolder& folder, const std::string& name,
                             const Type& type);

}  // namespace brrr::cli
