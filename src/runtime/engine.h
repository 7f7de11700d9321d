#pragma once
// Engine: several programs over one state in one arena. A training run has a step program, perhaps
// an accumulation program, an evaluation program; they see the same parameters by name and take
// turns in the same temporary bytes. Every byte is known before allocate().
//
//   [ state: parameters, moments, caches | constants of each program | temporaries, shared ]
//
// The arena lies in the memory of the backend's device. Where that is the host, what is read and
// written through the engine is the arena itself; else it is copied.

#include <deque>
#include <map>
#include <string>
#include <string_view>

#include "runtime/arena.h"
#include "runtime/program.h"

namespace brrr {

struct StateInfo {
  std::string name;
  Type type;
  Role role = Role::state;
  Attrs attrs;  // of its input: what the role alone does not say
  int64_t offset = 0;
  InputKind kind() const { return kind_of(role); }
};

struct MemoryForecast {
  int64_t parameter_bytes = 0, state_bytes = 0, constant_bytes = 0, temporary_bytes = 0;
  int64_t total() const { return parameter_bytes + state_bytes + constant_bytes + temporary_bytes; }
};

/// One run of a program, with what goes in and what is read afterwards.
struct Call {
  struct Input {
    std::string_view name;
    std::span<const std::byte> bytes;
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

class Engine {
 public:
  explicit Engine(Backend backend);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const Backend& backend() const { return backend_; }
  /// The host until allocate() has opened another.
  const Device& device() const { return *device_; }
  /// Adds a program; the id is its index. Programs must agree on the types of the state they share.
  /// May be called after allocate() when the program needs no new state: its memory comes on top.
  size_t add(Graph graph, const ProgramOptions& options = {});
  const Program& program(size_t id) const { return programs_[id].program; }
  /// The most calls that run(calls) will get, 1 unless it is said; before allocate().
  void expect_calls(int64_t most);

  MemoryForecast forecast() const;
  /// Opens the device, gets the arena and binds every program. State starts as zeros.
  void allocate();
  bool allocated() const { return arena_.data() != nullptr; }
  int64_t arena_bytes() const { return arena_.bytes() + extra_bytes_; }

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
  /// Grows whenever parameters may have been written by others than programs: what was made of them
  /// may hold no longer.
  uint64_t parameter_writes() const { return parameter_writes_; }
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
  /// Program::first_non_finite() of the call.
  std::optional<std::string> first_non_finite(const Call& call);
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
    Arena own;  // of a program added after allocate()
  };
  struct Place {
    std::byte* data;
    int64_t bytes;
  };
  void register_states(const Graph& graph);
  void bind(Slot& slot, std::byte* temporary, std::byte* constant);
  Place state_place(std::string_view name) const;
  Place state_to_write(std::string_view name);
  Place input_place(size_t program, std::string_view name) const;
  Place output_place(size_t program, std::string_view name) const;
  void copy_input(size_t program, std::string_view name, std::span<const std::byte> bytes);
  std::span<const std::byte> read(Place place, std::vector<std::byte>& room) const;
  bool fits_staging(std::span<const Call> calls) const;
  std::vector<std::vector<float>> run_staged(std::span<const Call> calls);
  void set_inputs(const Call& call);
  std::byte* host(Place place) const;
  int64_t staging_bytes() const;

  Backend backend_;
  std::unique_ptr<Device> device_;
  std::deque<Slot> programs_;
  std::vector<StateInfo> states_;
  std::map<std::string, size_t, std::less<>> state_index_;
  int64_t state_total_ = 0;
  uint64_t parameter_writes_ = 0;
  Arena arena_;
  int64_t extra_bytes_ = 0;
  int64_t most_calls_ = 1;
  std::unique_ptr<Staging> staging_;  // of another device than the host
  int64_t staging_bytes_ = 0;
};

}  // namespace brrr
