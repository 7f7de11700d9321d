#pragma once
// Running a module (modules/module.h): programs are built for the types of the inputs as they come,
// kept by them, and share weights and temporary memory. Where a size depends on data, a run is a
// chain of programs: what one of them gives decides which is next.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/host_tensor.h"
#include "modules/module.h"
#include "passes/pipeline.h"
#include "runtime/engine.h"

namespace brrr::modules {

/// What goes into a module, or comes out: one tensor, a list of them (a sequence), or nothing (an
/// optional that has no value).
struct ModuleValue {
  enum class Kind { tensor, list, none };
  Kind kind = Kind::none;
  std::vector<HostTensor> tensors;

  ModuleValue() = default;
  ModuleValue(HostTensor tensor) : kind(Kind::tensor) {  // NOLINT(google-explicit-constructor)
    tensors.push_back(std::move(tensor));
  }
  static ModuleValue list(std::vector<HostTensor> tensors) {
    ModuleValue v;
    v.kind = Kind::list;
    v.tensors = std::move(tensors);
    return v;
  }
  const HostTensor& tensor() const;
};
using ModuleValues = std::map<std::string, ModuleValue, std::less<>>;

struct ModuleOptions {
  DType precision = DType::f32;    // of products
  std::set<std::string> disabled;  // optional passes
  bool compile = true;             // off: the graph as it was lowered
};

class ModuleSession {
 public:
  ModuleSession(std::shared_ptr<const modules::Module> module, const Backend& backend,
                const ModuleOptions& options = {});
  ~ModuleSession();

  /// Runs it. Throws UserError for an input that is missing, unknown, or of another dtype or rank
  /// than the module declares. `wanted`: names of outputs; empty: all.
  ModuleValues run(const ModuleValues& inputs, const std::vector<std::string>& wanted = {});

  const modules::Module& module() const { return *module_; }
  const Engine& engine() const { return engine_; }
  /// The programs that there are.
  size_t programs() const;
  /// Of the last run: the programs that it went through, in their order.
  const std::vector<size_t>& last_programs() const { return last_; }

 private:
  struct Segment;
  using Segments = std::map<std::string, std::unique_ptr<Segment>>;
  void check(const ModuleValues& inputs) const;
  /// Throws where a value that must be known is needed: the inputs are then in bound_.
  std::unique_ptr<Segment> build(const modules::Request& request);
  void load_new_states(size_t before);
  void forget_oldest();
  void drop(Segments& segments);
  int64_t own_bytes(const Segments& segments) const;

  std::shared_ptr<const modules::Module> module_;
  ModuleOptions options_;
  Engine engine_;
  std::set<std::string> bound_;  // inputs whose values programs depend on
  std::set<std::string> lent_;
  Segments first_;
  uint64_t runs_ = 0;
  std::vector<size_t> last_;
  std::vector<std::byte> room_;
};

}  // namespace brrr::modules
