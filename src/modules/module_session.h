#pragma once
// Running a module (modules/module.h): programs are built for the types of the inputs as they come,
// kept by them, and share weights and temporary memory. Where a size depends on data, a run is a
// chain of programs: what one of them gives decides which is next.

#include <functional>
#include <map>
#include <memory>
#include <set>
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
  DType precision = DType::f32;         // of products
  std::set<std::string> disabled = {};  // optional passes
  bool compile = true;                  // off: the graph as it was lowered
  /// Called with the graph of each program before the engine has it: it may set the engine's limit,
  /// or throw.
  std::function<void(Engine& engine, const Graph& next)> before_program = {};
  bool explain = false;          // keep the notes of the passes
  std::string dump_folder = {};  // writes the graphs after each pass there when not empty
};

class ModuleSession {
 public:
  ModuleSession(std::shared_ptr<const modules::Module> module, const Backend& backend,
                const ModuleOptions& options = {});
  ~ModuleSession();

  /// Runs it. Throws UserError for an input that is missing, unknown, or of another dtype or rank
  /// than the module declares. `wanted`: names of outputs; empty: all.
  /// With a timeline, every kernel is timed.
  ModuleValues run(const ModuleValues& inputs, const std::vector<std::string>& wanted = {},
                   Timeline* timeline = nullptr);
  /// Compiles the first program for such inputs and allocates nothing, where nothing was run yet.
  /// True: that program is all there is; false: sizes of later ones depend on what it computes.
  bool prepare(const ModuleValues& inputs, const std::vector<std::string>& wanted = {});

  /// The inputs whose values decide about programs, as far as it was seen.
  const std::set<std::string>& bound() const { return bound_; }
  const modules::Module& module() const { return *module_; }
  const Engine& engine() const { return engine_; }
  Engine& engine() { return engine_; }
  /// The programs that there are.
  size_t programs() const;
  /// What the passes decided for each program, in the order in which programs were built; nothing
  /// unless it was asked for.
  const std::vector<Notes>& notes() const { return notes_; }
  /// What values take on which programs depend, on the heap; a part of no program.
  int64_t known_bytes() const;
  /// The programs that the last run went through, in their order; after prepare(), its program.
  const std::vector<size_t>& last_programs() const { return last_; }

 private:
  struct Segment;
  using Segments = std::map<std::string, std::unique_ptr<Segment>>;
  using Feed = std::map<std::string, const HostTensor*>;  // tensors by name
  using Results = std::map<std::string, HostTensor>;

  void check(const ModuleValues& inputs) const;
  /// What is asked for, but for the inputs that are tensors: those are added to `feed`.
  modules::Request request_of(const ModuleValues& inputs, const std::vector<std::string>& wanted,
                              Feed& feed) const;
  /// Completes the request of a first program; returns the key by which that program is found.
  std::string begin(modules::Request& request, const Feed& feed) const;
  /// Bytes that are left within the engine's limit for values that decide about programs; 0: any
  /// number.
  int64_t left_for_values() const;
  /// Throws UserError (exit 3) where values that must be read are more than is left.
  void check_room_to_read(const Segment& segment, const Results& results) const;
  /// Makes it the request of the program behind `segment`, and returns its key.
  std::string go_on(modules::Request& request, const Segment& segment,
                    const Results& results) const;
  /// Null where the values of further inputs must be known first: they are then in bound_, and all
  /// programs are gone.
  std::unique_ptr<Segment> build(modules::Request request);
  size_t add(const Graph& graph);
  /// The segment of the key, built where it is not there; null: see build().
  Segment* find_or_build(Segments& segments, const std::string& key,
                         const modules::Request& request, bool& has_built);
  Results execute(Segment& segment, const Feed& feed, Timeline* timeline);
  /// The half of the programs that were used longest ago goes, where all take more than their
  /// share.
  void forget_oldest();
  /// Removes the programs that no run after `last_use` used.
  void drop(Segments& segments, uint64_t last_use);
  /// f(segment) for every program that there is.
  template <typename F>
  static void each(const Segments& segments, const F& f);

  std::shared_ptr<const modules::Module> module_;
  ModuleOptions options_;
  Engine engine_;
  std::set<std::string> bound_;  // inputs whose values programs depend on
  Segments first_;
  uint64_t runs_ = 0;
  std::shared_ptr<WeightList> weights_;  // those that graphs have named, in the file
  std::vector<size_t> last_;
  std::vector<Notes> notes_;
  size_t built_ = 0;
  std::vector<std::byte> room_;
};

}  // namespace brrr::modules
