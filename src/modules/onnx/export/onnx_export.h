#pragma once
// Writing a graph as an ONNX file that other runtimes run for any sizes.

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/host_tensor.h"
#include "formats/onnx/onnx_writer.h"
#include "ir/graph.h"

namespace brrr::onnx {

/// A graph for any sizes, of which some are tried.
struct ExportSource {
  std::string name;                // of the graph in the file
  std::vector<std::string> sizes;  // names; empty: there is one graph
  /// Sizes for which graph() is called, in the order of their names: where they differ, numbers of
  /// the graphs may. Two equal numbers among them, or a 1, can hide that a number follows a size.
  std::vector<std::vector<int64_t>> examples;
  /// Inputs of Role::data and Role::parameter; outputs, and no updates.
  std::function<Graph(const std::vector<int64_t>& sizes)> graph;
  /// The bytes of a parameter, as its type in the graph says; they live as long as the export.
  std::function<std::span<const std::byte>(std::string_view name)> weight;
  std::vector<std::string> inputs;  // their order in the file; others follow
  std::string producer_version;
  std::vector<std::pair<std::string, std::string>> metadata;
};

struct ExportOptions {
  int64_t opset = 18;          // kOldestExport to kNewestExport
  DType storage = DType::f32;  // of f32 matrices; bf16 and f16 are converted where they are read
};
inline constexpr int64_t kOldestExport = 17, kNewestExport = 23;

/// What a graph is for some sizes it is not for others: no formula says a number, nodes differ, or
/// it cannot be built. Other sizes, or fewer open ones, may do.
class SizesDiffer : public UserError {
 public:
  using UserError::UserError;
};

/// A model that can be written; it holds what its views are of.
class ExportedModel {
 public:
  const ModelProto& model() const { return model_; }
  /// Whether a number is a quotient of sizes, of which few examples allow several.
  bool has_quotients() const { return has_quotients_; }

 private:
  friend class Emission;
  ModelProto model_;
  bool has_quotients_ = false;
  std::vector<std::shared_ptr<const void>> holds_;
};

/// Throws UserError for what ONNX cannot say, and SizesDiffer.
std::shared_ptr<const ExportedModel> export_model(const ExportSource& source,
                                                  const ExportOptions& options = {});

/// The graph as it is written: without dropout, composed of what the version of ONNX's operators
/// has. To do so again changes nothing.
Graph onnx_form(const Graph& graph, int64_t opset);

}  // namespace brrr::onnx
