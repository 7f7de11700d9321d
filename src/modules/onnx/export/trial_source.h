#pragma once
// Exports whose sizes must be tried out. What a graph demands of its sizes (a multiple of 32, at
// least a window) is not known before, so there are several families of them, and the first that
// works is taken.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "modules/onnx/export/onnx_export.h"
#include "runtime/runnable_session.h"

namespace brrr::onnx {

struct TrialSource {
  ExportSource source;  // its examples are those of the family that was taken
  struct Family {
    /// `dense` are further examples, for quotients: every remainder of their divisors.
    std::vector<std::vector<int64_t>> examples, dense = {};
    /// Sizes to try the result on, as far as the graph accepts them.
    std::vector<std::vector<int64_t>> unseen;
    /// Where its graphs differ, narrower families would only hide it: a slice of the first 512
    /// shows beyond 512 alone.
    bool is_decisive = false;
  };
  std::vector<Family> families;
  std::function<PortValues(const std::vector<int64_t>& sizes)> inputs;
  std::vector<std::vector<int64_t>> unseen;  // of the family that was taken
};

/// A graph cannot be built for sizes that were tried.
class SizesRefused : public SizesDiffer {
 public:
  using SizesDiffer::SizesDiffer;
};

/// A family is passed over where a graph refuses its sizes, or where graphs differ, which those of
/// small sizes may (what has one element is left out); but not a decisive one. Throws SizesDiffer.
std::shared_ptr<const ExportedModel> export_trying(TrialSource& source,
                                                   const ExportOptions& options);

/// A graph depends on the content of an input, which must therefore become part of it.
class NeedsValue : public UserError {
 public:
  explicit NeedsValue(const std::string& input)
      : UserError(fmt::format("the graph depends on the content of the input '{}', which must be "
                              "given and then becomes part of the export",
                              input)),
        input_(input) {}
  const std::string& input() const { return input_; }

 private:
  std::string input_;
};

/// A module for open sizes: each axis of an input that the file leaves open, but for those that
/// `fixed` names. `known`: inputs that become part of the graph. Graphs throw NeedsValue, and
/// SizesRefused where the module cannot be lowered.
TrialSource module_source(std::shared_ptr<const Runnable> module,
                          const std::map<std::string, int64_t>& fixed,
                          const std::map<std::string, HostTensor>& known);

}  // namespace brrr::onnx
