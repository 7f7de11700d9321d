#pragma once
// Engine: several programs over one state. A training run has a step program, perhaps an
// accumulation program, an evaluation program; they see the same parameters by name and take turns
// in the same temporary bytes. Every byte is known before allocate().
//
//   [ state: parameters, moments, caches | constants of each program ]   [ temporaries, shared ]
//
// Programs come and go at any time. The state never moves; the temporary region is always as large
// as the program that needs the most, and a program finds its places again when it next runs.
//
// Derived weights whose parameters are there, too, are made again before a program reads them, when
// the parameters were written by others than an update that knows them
// (runtime/weight_refresher.h).
//
// No program reads a parameter or a derived weight that was never written: run() fills those that
// appeared since the last run, from the parameters in the engine or from the source that it was
// given (use_weights), and a CHECK fails where that is not possible. Every other state (moments,
// sums, caches, counters) begins as zeros.
//
// The memory is that of the backend's device. Where that is the host, what is read and written
// through the engine is the memory itself; else it is copied.

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/weight_source.h"
#include "runtime/arena.h"
#include "runtime/program.h"
#include "runtime/weight_refresher.h"

namespace brrr {

struct StateInfo {
  std::string name;
  Type type;
  Role role = Role::state;
  Attrs attrs;  // of its input: what the role alone does not say
  int64_t offset = 0;
  /// Where it lies when that is not the arena: memory that was lent, or of its own because a
  /// program brought it after allocate().
  std::byte* apart = nullptr;
  bool is_lent = false;
  bool is_written = false;  // it holds what somebody put there; set by the engine
  InputKind kind() const { return kind_of(role); }
};

struct MemoryForecast {
  int64_t parameter_bytes = 0;  // and derived weights that take the place of parameters
  int64_t state_bytes = 0, constant_bytes = 0, temporary_bytes = 0;
  int64_t total() const { return parameter_bytes + state_bytes + constant_bytes + temporary_bytes; }
};

/// One run of a program, with what goes in and what is read afterwards.
struct Call {
  struct Input {
    std::string_view name;
    std::span<const std::byte> bytes;
    /// The bytes stay until the outputs of the run were read, so that the program may read them
    /// where they lie. They are copied on another device than the host, and where their address is
    /// no multiple of the element's size.
    bool is_lent = false;
  };
  size_t program = 0;
  std::vector<Input> inputs;
  std::vector<std::string_view> scalars;  // f32[] outputs

  template <typename T>
  void set(std::string_view name, std::span<const T> values) {
    inputs.push_back({name, std::as_bytes(values)});
  }
};

class Staging;
class UnalignedReaders;

/// Who writes parameters. By a loader alone: it makes the derived weights, once, and no program
/// makes them again.
enum class WrittenBy : uint8_t { anyone, loader };

class Engine {
 public:
  explicit Engine(Backend backend, WrittenBy written_by = WrittenBy::anyone);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const Backend& backend() const { return backend_; }
  /// The host until allocate() has opened another.
  const Device& device() const { return *device_; }
  /// Adds a program; ids count from 0 and are not used again. Programs must agree on the types of
  /// the state they share. State that a program brings after allocate() gets memory of its own and
  /// starts as zeros; weights among it are filled before the program's first run. After allocate()
  /// its outputs, and the inputs and outputs of the others, are there from its next run on. Throws
  /// UserError (exit 3) when the engine would then need more than its limit; nothing has changed
  /// then.
  size_t add(Program program);
  size_t add(const Graph& graph, const ProgramOptions& options = {}) {
    return add(Program(graph, backend_, options));
  }
  /// Drops a program and what only it needed: its constants, and derived weights that it brought
  /// after allocate() and that the kept source can make again. Inputs and outputs of the others are
  /// gone until their next run.
  void remove(size_t id);
  const Program& program(size_t id) const { return slot(id).program; }
  /// The graphs of all programs, the refreshing one included.
  std::vector<const Graph*> graphs() const;
  /// What the engine would need with these programs instead of those of `without`.
  int64_t bytes_with(std::span<const Program> programs, std::span<const size_t> without = {}) const;
  /// The most bytes that the engine may need; 0: any number.
  void set_limit(int64_t bytes) { limit_ = bytes; }
  int64_t limit() const { return limit_; }
  /// The most calls that run(calls) will get, 1 unless it is said; before allocate().
  void expect_calls(int64_t most);

  MemoryForecast forecast() const;
  /// Opens the device and gets the memory. State starts as zeros. Throws UserError (exit 3) for
  /// more than the limit.
  void allocate();
  bool allocated() const { return temporary_count_ > 0; }
  int64_t arena_bytes() const;

  // -- state
  // --------------------------------------------------------------------------------------
  /// The states in arena order: parameters first, each group in order of appearance.
  const std::vector<StateInfo>& states() const { return states_; }
  const StateInfo* find_state(std::string_view name) const;
  /// What a state holds: its own bytes on the host, else a copy in `room`.
  std::span<const std::byte> read_state(std::string_view name, std::vector<std::byte>& room) const;
  void write_state(std::string_view name, std::span<const std::byte> bytes);
  /// Calls fill with room for all bytes of the state, which then become its content.
  void fill_state(std::string_view name, const std::function<void(std::span<std::byte>)>& fill);
  /// The derived weight that a state is, where its parameters are not there and it takes their
  /// place; null: it is no such thing.
  const DerivedWeight* stands_for_parameters(const StateInfo& state) const;
  /// What a state is made of, where it is a derived weight; null: it is none.
  const DerivedWeight* derived_weight(const StateInfo& state) const {
    return state.role == Role::derived ? &weights_.weight(state.name) : nullptr;
  }
  /// Where the weights of a process that only reads them come from. On the host, a parameter that a
  /// later program brings is lent where its kernels can read the mapped tensor as it lies: dtype,
  /// storage and alignment are theirs, and no program updates it; the engine copies what is not
  /// aligned as soon as a program has a kernel that needs it so. Everything else is converted, and
  /// derived weights are made, `together` so many bytes at a time (0: one by one), before a program
  /// first reads them, or now by load_weights(). Throws UserError for a tensor that is missing or
  /// that cannot become what the program has.
  void use_weights(std::shared_ptr<const WeightSource> source, int64_t together = 0);
  void load_weights();
  /// Fills every parameter, and every derived weight that takes the place of parameters, from a
  /// source that is not kept.
  void load(const WeightSource& source);
  /// Bytes that are lent, of a source's mapped files.
  int64_t lent_bytes() const;
  /// The parameters, with their types, that have to be converted before the weight can be made.
  std::map<std::string, Type> sources_to_fill(const DerivedWeight& weight) const;
  float read_scalar(std::string_view name) const;         // of a state f32[]
  void write_scalar(std::string_view name, float value);  // of a state f32[]

  // -- running
  // ------------------------------------------------------------------------------------
  template <typename T>
  void set_input(size_t program, std::string_view name, std::span<const T> values) {
    copy_input(program, name, std::as_bytes(values));
  }
  template <typename T>
  void set_scalar(size_t program, std::string_view name, T value) {
    copy_input(program, name, std::as_bytes(std::span(&value, 1)));
  }
  void run(size_t program, Timeline* timeline = nullptr);
  /// Until all that was run has ended.
  void wait() { device_->synchronise(); }
  /// One call after the other, as one piece of work where the device can keep it; returns the
  /// scalars of each.
  std::vector<std::vector<float>> run(std::span<const Call> calls, Timeline* timeline = nullptr);
  /// Bytes of lent inputs that were copied nevertheless, since the engine was made.
  int64_t copied_input_bytes() const { return copied_input_bytes_; }
  /// Program::first_non_finite() of the call.
  std::optional<Program::Origin> first_non_finite(const Call& call);
  /// Program::run_and_look() of the call.
  void run_and_look(const Call& call, const Program::Look& look);
  /// What an output holds: its own bytes on the host (until the next run of any program), else a
  /// copy in `room`.
  std::span<const std::byte> read_output(size_t program, std::string_view name,
                                         std::vector<std::byte>& room) const;
  float output_scalar(size_t program, std::string_view name) const;

  // -- the arena itself, where the device is the host (InternalError elsewhere)
  // ------------------------------------------------------------------------------------------
  std::byte* state_data(std::string_view name);
  std::span<float> state_f32(std::string_view name);
  /// The place of a data input, to be filled before run(). InternalError when there is none.
  std::byte* input(size_t program, std::string_view name);
  const std::byte* output(size_t program, std::string_view name) const;

 private:
  struct Slot {
    explicit Slot(Program p) : program(std::move(p)) {}
    Program program;
    std::map<std::string, NodeId, std::less<>> inputs;
    std::byte* constant = nullptr;  // in the arena, or of its own:
    Arena own;                      // of a program added after allocate()
    uint64_t bound = 0;             // to which temporary region, by temporary_count_; 0: to none
    bool has_run = false;           // all that it reads and updates is written
  };
  struct Place {
    std::byte* data;
    int64_t bytes;
  };
  void check_states(const Graph& graph) const;
  void register_states(const Graph& graph);
  std::vector<std::string> new_states(const Graph& graph) const;
  const std::byte* lent(const Graph& graph, NodeId input, UnalignedReaders& readers) const;
  std::vector<std::string> lent_too_oddly(const Graph& graph) const;
  void take_over(const std::string& name);
  void check_limit(int64_t needed) const;
  const Slot& slot(size_t id) const { return *find_slot(id); }
  Program& bound(size_t id) const { return bound(*find_slot(id)); }
  Program& bound(Slot& slot) const;
  Slot* find_slot(size_t id) const;
  std::vector<const Slot*> slots() const;
  std::unique_ptr<Slot> refresh_slot(const WeightRefresher& weights) const;
  void make_weights(std::span<const StateInfo> states, const WeightSource& source, Arena& room);
  void fill_from(const WeightSource& source, int64_t together, bool rewrites);
  void fill_new_states();
  void check_written(const Graph& graph) const;
  std::vector<std::string> released_with(std::span<const size_t> programs) const;
  void release(const std::vector<std::string>& states);
  /// Fills the states that are new, and makes stale derived weights again.
  void prepare_states(size_t program);
  void refresh(size_t program);
  /// Runs it and takes note of what it wrote, and of derived weights that hold no longer.
  void tracked(size_t program, const std::function<bool()>& run);
  void ran(size_t program);
  int64_t constant_bytes(const Program& program) const;
  int64_t state_bytes(const Type& type) const;
  int64_t bytes_of_state(const StateInfo& state) const;
  int64_t temporary_bytes(std::span<const size_t> without = {}) const;
  void resize_temporary();
  Place state_place(std::string_view name) const;
  Place state_to_write(std::string_view name);
  void fill_place(Place place, const std::function<void(std::span<std::byte>)>& fill);
  NodeId input_node(size_t program, std::string_view name) const;
  Place input_place(size_t program, std::string_view name) const;
  Place output_place(size_t program, std::string_view name) const;
  void copy_input(size_t program, std::string_view name, std::span<const std::byte> bytes);
  std::span<const std::byte> read(Place place, std::vector<std::byte>& room) const;
  bool can_stage(std::span<const Call> calls) const;
  std::vector<std::vector<float>> run_staged(std::span<const Call> calls);
  void set_inputs(const Call& call);
  bool lend_input(size_t program, const Call::Input& input);
  std::byte* host(Place place) const;
  int64_t staging_bytes() const;

  Backend backend_;
  std::unique_ptr<Device> device_;
  std::vector<std::unique_ptr<Slot>> programs_;  // null: removed
  std::vector<StateInfo> states_;
  std::map<std::string, size_t, std::less<>> state_index_;
  int64_t state_total_ = 0;
  std::map<std::string, Arena, std::less<>> later_;  // states that came after allocate()
  std::shared_ptr<const WeightSource> source_;       // null: none is kept
  int64_t together_ = 0;                             // bytes of weights that are made together
  WeightRefresher weights_;
  std::unique_ptr<Slot> refresh_;  // the program that makes derived weights again; null: none are
  int64_t limit_ = 0;
  Arena arena_;                  // state, constants of the programs before allocate(), staging
  int64_t arena_constants_ = 0;  // those, and staging
  Arena temporary_;
  uint64_t temporary_count_ = 0;  // of the regions that there were
  int64_t most_calls_ = 1;
  int64_t copied_input_bytes_ = 0;
  std::unique_ptr<Staging> staging_;  // of another device than the host
  int64_t staging_bytes_ = 0;
};

}  // namespace brrr
