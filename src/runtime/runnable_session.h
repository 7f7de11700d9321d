#pragma once
// RunnableSession: runs a Runnable (runtime/runnable.h). Programs are built for the types of the
// inputs as they come, kept by them, and share weights and temporary memory. Where a size depends
// on data, a run is a chain of programs: what one of them gives decides which is next.

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/host_tensor.h"
#include "passes/pipeline.h"
#include "runtime/bindings.h"
#include "runtime/runnable.h"

namespace brrr {

/// What goes into a Runnable, or comes out: one tensor, a list of them (a sequence), or nothing (an
/// optional that has no value).
struct PortValue {
  enum class Kind { tensor, list, none };
  Kind kind = Kind::none;
  std::vector<HostTensor> tensors;

  PortValue() = default;
  PortValue(HostTensor tensor) : kind(Kind::tensor) {  // NOLINT(google-explicit-constructor)
    tensors.push_back(std::move(tensor));
  }
  static PortValue list(std::vector<HostTensor> tensors) {
    PortValue v;
    v.kind = Kind::list;
    v.tensors = std::move(tensors);
    return v;
  }
  const HostTensor& tensor() const;
};
using PortValues = std::map<std::string, PortValue, std::less<>>;

/// A tensor in memory of others, which a run only reads.
struct HostTensorView {
  DType dtype = DType::f32;
  Shape shape;
  std::span<const std::byte> bytes;  // as many as dtype and shape say
};
using TensorViews = std::map<std::string, HostTensorView, std::less<>>;

/// An output where its program wrote it: valid until the next run of its session.
struct OutputView {
  Shape shape;
  std::span<const float> numbers;
};

struct RunnableOptions {
  PipelineOptions passes = for_inference(DType::f32);
  bool compile = true;  // off: the graph as it was lowered
  /// Called with the graph of each program before the engine has it: it may set the engine's limit,
  /// or throw.
  std::function<void(Engine& engine, const Graph& next)> before_program = {};
  bool explain = false;  // keep the notes of the passes
  /// Bytes of derived weights that one program makes: it costs little more for many small weights
  /// than for each of them, and takes the memory of all of them.
  int64_t together = int64_t{4} << 20;
};

class RunnableSession {
 public:
  RunnableSession(std::shared_ptr<const Runnable> runnable, const Backend& backend,
                  const RunnableOptions& options = {});
  ~RunnableSession();
  RunnableSession(const RunnableSession&) = delete;
  RunnableSession& operator=(const RunnableSession&) = delete;

  /// Runs it. Throws UserError for an input that is missing, unknown, or of another dtype or rank
  /// than the Runnable declares. `wanted`: names of outputs; empty: all.
  /// With a timeline, every kernel is timed.
  PortValues run(const PortValues& inputs, const std::vector<std::string>& wanted = {},
                 Timeline* timeline = nullptr);
  /// The same, with the results in `outputs`. Tensors that are there already keep their memory.
  void run_into(PortValues& outputs, const PortValues& inputs,
                const std::vector<std::string>& wanted = {}, Timeline* timeline = nullptr);
  /// The same for one output that is f32, which is not copied.
  OutputView run_in_place(const PortValues& inputs, const std::vector<std::string>& wanted = {},
                          Timeline* timeline = nullptr);
  /// Gets an output where its program wrote it: valid during the call.
  using SeeOutput = std::function<void(const std::string& name, const Type& type,
                                       std::span<const std::byte> bytes)>;
  /// The same for inputs in memory of others: programs read them there, where Engine can
  /// (Call::Input::is_lent). Throws UserError for an output that is a list.
  void run_views(const TensorViews& inputs, const std::vector<std::string>& wanted,
                 const SeeOutput& see);
  /// Compiles the first program for such inputs and, where nothing was run yet, allocates nothing.
  /// True: that program is all there is; false: sizes of later ones depend on what it computes.
  bool prepare(const PortValues& inputs, const std::vector<std::string>& wanted = {});
  bool prepare(const TensorViews& inputs, const std::vector<std::string>& wanted);
  /// Gets the memory of what was prepared and loads the weights, which the first run does else.
  void allocate();

  /// The inputs whose values decide about programs, as far as it was seen.
  const std::set<std::string>& bound() const { return bound_; }
  const Runnable& runnable() const { return *runnable_; }
  const Engine& engine() const { return engine_; }
  Engine& engine() { return engine_; }
  /// The programs that there are.
  size_t programs() const { return segments_.size(); }
  /// What the passes decided for each program, in the order in which programs were built; nothing
  /// unless it was asked for.
  const std::vector<Notes>& notes() const { return notes_; }
  /// What values take on which programs depend, on the heap; a part of no program.
  int64_t known_bytes() const;
  /// The programs that the last run went through, in their order; after prepare(), its program.
  const std::vector<size_t>& last_programs() const { return last_; }

 private:
  struct Segment;
  struct FedTensor;
  using Feed = std::map<std::string, FedTensor>;  // tensors by name
  using Results = std::map<std::string, HostTensor>;

  template <typename Inputs>
  bool prepare_for(const Inputs& inputs, const std::vector<std::string>& wanted);
  void check(const PortValues& inputs) const;
  void check(const TensorViews& inputs) const;
  /// The port of an input. Throws UserError for a name that is no input.
  const Port& input_named(const std::string& name) const;
  void check_missing(const std::function<bool(const std::string& name)>& is_given) const;
  /// What is asked for, but for the inputs that are tensors: those are added to `feed`.
  GraphRequest request_of(const PortValues& inputs, const std::vector<std::string>& wanted,
                          Feed& feed) const;
  GraphRequest request_of(const TensorViews& inputs, const std::vector<std::string>& wanted,
                          Feed& feed) const;
  /// Names of all outputs, or those that are wanted.
  std::vector<std::string> outputs_of(const std::vector<std::string>& wanted) const;
  /// The key by which a first program is found: the types of the inputs, the values of those in
  /// bound_, and the outputs that are wanted.
  std::string key_of(const GraphRequest& request, const Feed& feed) const;
  /// Completes the request of a first program by the inputs.
  void bind(GraphRequest& request, const Feed& feed) const;
  /// Bytes that are left within the engine's limit for values that decide about programs; 0: any
  /// number.
  int64_t left_for_values() const;
  /// Throws UserError (exit 3) where values that must be read are more than is left.
  void check_room_to_read(const Segment& segment, const Results& results) const;
  /// Makes it the request of the program behind `segment`, whose key is `key`, and returns its key.
  std::string go_on(GraphRequest& request, const std::string& key, const Segment& segment,
                    const Results& results) const;
  /// The graph after the passes.
  Graph compiled(const Graph& graph, PipelineReport* report);
  /// Returns the program of the key and builds it if it does not exist. Returns null if the graph
  /// depends on the values of further inputs: bound_ then names them, every program is dropped, and
  /// the caller begins again.
  Segment* find_or_build(const std::string& key, const GraphRequest& request);
  /// The sizes of axes that the Runnable leaves open and names, in the order of its inputs.
  using OpenSizes = std::vector<std::pair<std::string, int64_t>>;
  OpenSizes sizes_of(const GraphRequest& request) const;
  /// "; the largest that fits is batch 1, length 48" for a request whose program does not fit, or
  /// "".
  std::string largest_that_fits(const GraphRequest& request);
  /// Runs programs up to the last one, whose outputs are still in the engine; null: see
  /// find_or_build().
  Segment* run_chain(GraphRequest& request, Feed& feed, Timeline* timeline);
  void execute(Segment& segment, const Feed& feed, Timeline* timeline);
  /// Copies the program's outputs. Tensors in `spare` of the same names provide the memory.
  Results results_of(const Segment& segment, Results spare = {});

  std::shared_ptr<const Runnable> runnable_;
  RunnableOptions options_;
  Engine engine_;
  std::map<std::string, std::unique_ptr<Segment>> segments_;  // by the keys of their bindings
  Bindings bindings_;
  std::set<std::string> bound_;  // inputs whose values programs depend on
  Results results_;              // what the feed of a later program of a chain points to
  std::vector<size_t> last_;
  std::vector<Notes> notes_;
  size_t built_ = 0;
  std::vector<std::byte> room_;
};

}  // namespace brrr
