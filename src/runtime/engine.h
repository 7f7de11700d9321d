#pragma once
// Engine: several programs over one state in one arena. A training run has a step program, perhaps
// an accumulation program, an evaluation program; they see the same parameters by name and take
// turns in the same temporary bytes. Every byte is known before allocate().
//
//   [ state: parameters, moments, caches | constants of each program | temporaries, shared ]

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
  InputKind kind = InputKind::state;
  int64_t offset = 0;
};

struct MemoryForecast {
  int64_t parameter_bytes = 0, state_bytes = 0, constant_bytes = 0, temporary_bytes = 0;
  int64_t total() const { return parameter_bytes + state_bytes + constant_bytes + temporary_bytes; }
};

class Engine {
 public:
  explicit Engine(Backend backend) : backend_(std::move(backend)) {}
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const Backend& backend() const { return backend_; }
  /// Adds a program; the id is its index. Programs must agree on the types of the state they share.
  /// May be called after allocate() when the program needs no new state: its memory comes on top.
  size_t add(Graph graph, const ProgramOptions& options = {});
  const Program& program(size_t id) const { return programs_[id].program; }

  MemoryForecast forecast() const;
  /// Gets the arena and binds every program. State starts as zeros.
  void allocate();
  bool allocated() const { return arena_.data() != nullptr; }
  int64_t arena_bytes() const { return arena_.bytes() + extra_bytes_; }

  /// The states in arena order: parameters first, each group in order of appearance.
  const std::vector<StateInfo>& states() const { return states_; }
  const StateInfo* find_state(std::string_view name) const;
  std::byte* state_data(std::string_view name) const;
  std::span<float> state_f32(std::string_view name) const;

  /// The place of a data input, to be filled before run(). InternalError when there is none.
  std::byte* input(size_t program, std::string_view name);
  template <typename T>
  void set_input(size_t program, std::string_view name, std::span<const T> values) {
    copy_input(program, name, values.data(), values.size() * sizeof(T));
  }
  template <typename T>
  void set_scalar(size_t program, std::string_view name, T value) {
    copy_input(program, name, &value, sizeof(T));
  }
  void run(size_t program, Timeline* timeline = nullptr);
  /// Program::first_non_finite() on the inputs that are set now.
  std::optional<std::string> first_non_finite(size_t program) {
    return programs_[program].program.first_non_finite();
  }
  /// The content of an output, valid until the next run of any program.
  const std::byte* output(size_t program, std::string_view name) const;
  float output_scalar(size_t program, std::string_view name) const;

 private:
  struct Slot {
    explicit Slot(Program p) : program(std::move(p)) {}
    Program program;
    std::map<std::string, NodeId, std::less<>> inputs;
    Arena own;  // of a program added after allocate()
  };
  void register_states(const Graph& graph);
  void bind(Slot& slot, std::byte* temporary, std::byte* constant);
  void copy_input(size_t program, std::string_view name, const void* data, size_t bytes);

  Backend backend_;
  std::deque<Slot> programs_;
  std::vector<StateInfo> states_;
  std::map<std::string, size_t, std::less<>> state_index_;
  int64_t state_total_ = 0;
  Arena arena_;
  int64_t extra_bytes_ = 0;
};

}  // namespace brrr
