#pragma once
// Runs a kernel's PTX on the CPU, instruction by instruction, and refuses what a GPU would leave
// undefined. A warp executes the lanes at the lowest line together. Shared memory knows of every
// byte who wrote it and who has read it since, and which of these come before which: clocks of
// warps and of what runs on its own (wgmma, copies) are joined where they wait for each other, so
// an access that nothing orders is an error even where this run was lucky. What runs on its own
// happens in one block at once and in the next as late as it may: copies when they are asked for,
// products when their group is committed; or all of them when somebody waits.
//
// Between the lanes of a warp only a barrier of the warp (or of the block) orders accesses. A lane
// that arrives, fences or asks for a copy does so for itself: it is refused where other lanes have
// accessed shared memory since the warp's last barrier, even if they accessed something else.
//
// Not checked: races in global memory, and its bounds; which NaN a product or a conversion between
// floats of 32 and 64 bits makes.

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "support/ptx_program.h"

// Loops of fused multiplications, by the widest instructions that the host has.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define BRRR_WIDE __attribute__((target_clones("arch=skylake-avx512", "arch=haswell", "default")))
#else
#define BRRR_WIDE
#endif

namespace brrr::test::ptx {

struct Dimensions {
  uint32_t x = 1, y = 1, z = 1;
};

/// Runs the grid. `args`: an address to each parameter, as cuLaunchKernel takes them. Error: what
/// was refused, with the lines of the text.
void run(const Program& program, Dimensions grid, Dimensions threads, int shared_bytes,
         void** args);

// -- for those who implement instructions

/// Who accesses shared memory: warps, and what each of them has running on its own.
inline constexpr uint32_t kMostWarps = 32, kWgmmaOf = kMostWarps, kCopiesOf = 2 * kMostWarps,
                          kBulk = 3 * kMostWarps, kMostBulk = 64, kAgents = kBulk + kMostBulk;

/// Of every agent up to when its accesses come before what its owner does now; `fenced`: those of
/// the generic proxy that the async proxy sees, too.
struct Clocks {
  std::array<uint32_t, kAgents> seen{}, fenced{};
  void join(const Clocks& other) {
    for (uint32_t k = 0; k < kAgents; ++k) {
      seen[k] = std::max(seen[k], other.seen[k]);
      fenced[k] = std::max(fenced[k], other.fenced[k]);
    }
  }
  /// What both know.
  void meet(const Clocks& other) {
    for (uint32_t k = 0; k < kAgents; ++k) {
      seen[k] = std::min(seen[k], other.seen[k]);
      fenced[k] = std::min(fenced[k], other.fenced[k]);
    }
  }
};
/// Lanes that have waited or fenced without the others: what they know, the others do not know
/// before the warp's next barrier.
struct Ahead {
  uint32_t lanes = 0;
  Clocks clocks;
};

/// One instruction's accesses of shared memory.
struct Access {
  const Clocks& clocks;
  uint64_t event = 0;
  uint32_t from = ~0u, to = 0;  // the last transition
  bool is_of_warp = true;       // what is known of the event holds for all lanes
};

/// Lanes of a warp that stand at the same instruction.
enum class Waits { no, for_lanes, for_others };
struct Lanes {
  uint32_t pc = 0, mask = 0;
  Waits waits = Waits::no;
};

/// A product that was asked for.
struct Product {
  const Instruction* instruction = nullptr;
  uint32_t group = 0;
  uint64_t a = 0, b = 0;  // descriptors
  bool adds = false, is_done = false;
};
/// 16 bytes or fewer of a lane, on their way into shared memory.
struct SmallCopy {
  uint32_t to = 0, bytes = 0, from_bytes = 0, group = 0;  // the others are zeros
  const std::byte* from = nullptr;
  uint32_t lane = 0;
};

struct Warp {
  uint32_t index = 0;
  std::byte* registers = nullptr;
  uint32_t pc = 0, active = 0;
  uint32_t live = 0;       // lanes that have not ended
  uint32_t next_pc = ~0u;  // the next place where other lanes stand
  std::vector<Lanes> others;
  Waits waits = Waits::no;
  bool has_jumped = false, yields = false;
  uint32_t carries = 0;  // of add.cc and the like
  std::vector<std::byte> local;
  Clocks clocks;  // of the lanes that are not in `ahead`
  std::vector<Ahead> ahead;
  Clocks mixed;  // of several of them
  const char* waits_for = "";
  uint32_t meeting = 0;   // the number of the last barrier that all lanes have passed
  uint32_t accessed = 0;  // lanes that have accessed shared memory since
  // bar.sync
  bool is_at_barrier = false;
  uint32_t barrier = 0, generation = 0;
  bool has_tried = false;  // an mbarrier, in vain
  // wgmma
  std::vector<Product> products;
  uint32_t committed = 0;
  std::vector<uint8_t> owned;     // of each register: 1 a left operand, 2 a sum
  std::vector<uint32_t> touched;  // when, in fences
  std::vector<uint32_t> used_at;  // when by a product
  std::vector<uint32_t> used_as;  // the columns of the product whose sum it was; 0: an operand
  uint32_t fences = 0;
  // cp.async
  std::vector<SmallCopy> copies;
  uint32_t copy_groups = 0;
  uint32_t registers_per_thread = 0;  // setmaxnreg

  template <typename T>
  T* to(Value v) {
    return reinterpret_cast<T*>(registers + v.at);
  }
};

struct BlockBarrier {
  uint32_t generation = 0, arrived = 0, wanted = 0;
  Clocks collected{}, released{};
};
struct MemoryBarrier {
  uint32_t threads = 0, missing = 0, phase = 0;
  int64_t bytes = 0;
  uint32_t owner = 0, made_at = 0;  // the warp that made it, and when
  bool is_published = false;        // to the async proxy
  Clocks collected{}, released{};
};
struct BulkCopy {
  uint32_t bytes = 0, barrier = 0, phase = 0, agent = 0, line = 0;
  std::vector<SmallCopy> pieces;
  Clocks clocks{};
};
/// What a warp group has asked of wgmma: its four warps must ask for the same.
struct Asked {
  const Instruction* instruction = nullptr;
  uint64_t a = 0, b = 0;
  bool adds = false;
};

class Machine {
 public:
  Machine(const Program& program, Dimensions grid, Dimensions threads, int shared_bytes,
          void** args);
  void run_block(Dimensions block);

  const Program& program;
  Dimensions grid, threads, block{};
  std::vector<std::byte> params;
  const std::byte* param_bytes = nullptr;  // aligned
  bool is_late = false;                    // what runs on its own happens as late as possible
  uint64_t instructions = 0;               // of warps
  uint64_t nanoseconds = 1000;

  template <typename T>
  const T* from(const Warp& w, Value v) const {
    return reinterpret_cast<const T*>(
        (v.at & Value::kConstant) != 0
            ? reinterpret_cast<const std::byte*>(program.constants.data()) +
                  (v.at & ~Value::kConstant)
            : w.registers + v.at);
  }
  uint32_t predicate(const Warp& w, Value v) const { return *from<uint32_t>(w, v); }
  [[noreturn]] void refuse(const Instruction& i, const std::string& why) const;
  uint32_t index_of(const Instruction& i) const {
    return static_cast<uint32_t>(&i - program.code.data());
  }

  // -- control
  void jump(Warp& w, uint32_t to, uint32_t lanes);
  void end(Warp& w, const Instruction& i, uint32_t lanes);
  /// The instruction is tried again when something has happened.
  void wait(Warp& w, const char* why, Waits waits = Waits::for_others);
  /// All lanes of the warp that have not ended; otherwise they wait for the others, or it is
  /// refused. False: not now.
  bool have_met(Warp& w, const Instruction& i, uint32_t lanes, uint32_t wanted);
  std::array<BlockBarrier, 16> barriers;
  std::vector<Warp> warps;
  /// Everything of the warp so far comes before what follows it elsewhere.
  void tick(Warp& w) { ++w.clocks.seen[w.index]; }

  // -- shared memory
  static bool is_inside(uint64_t address, uint64_t bytes, uint64_t size) {
    return address <= size && bytes <= size - address;  // their sum may wrap
  }
  std::byte* shared(const Instruction& i, uint64_t address, uint32_t bytes, uint32_t alignment);
  std::byte* memory_of_shared() { return shared_.data(); }
  Access access(Warp& w, uint32_t lanes, uint64_t event) {
    return {clocks_of(w, lanes), event, ~0u, 0, w.ahead.empty()};
  }
  Access access(Warp& w, const Instruction& i, uint32_t lanes, bool writes) {
    const uint32_t now = w.clocks.seen[w.index];
    return access(w, lanes, event(w.index, now, index_of(i), writes, false));
  }
  /// What all of these lanes know; until the next call.
  const Clocks& clocks_of(Warp& w, uint32_t lanes);
  /// f(clocks) of these lanes, and of no others.
  template <typename F>
  void change_clocks(Warp& w, uint32_t lanes, F&& f) {
    if (w.ahead.empty() && lanes == w.live) return f(w.clocks);
    uint32_t rest = lanes;
    for (size_t k = 0, count = w.ahead.size(); k < count; ++k) {
      const uint32_t inside = w.ahead[k].lanes & lanes, outside = w.ahead[k].lanes & ~lanes;
      if (inside == 0) continue;
      if (outside != 0) w.ahead.push_back({outside, Clocks(w.ahead[k].clocks)});
      w.ahead[k].lanes = inside;
      w.ahead[k].clocks.seen[w.index] = w.clocks.seen[w.index];
      f(w.ahead[k].clocks);
      rest &= ~inside;
    }
    if (rest == 0) return;
    w.ahead.push_back({rest, w.clocks});
    f(w.ahead.back().clocks);
  }
  static uint64_t event(uint32_t agent, uint32_t clock, uint32_t instruction, bool writes,
                        bool is_async) {
    return uint64_t{clock} << 32 | uint64_t{instruction} << 10 | uint64_t{is_async} << 9 |
           uint64_t{writes} << 8 | agent;
  }
  void touch(Access& access, uint32_t begin, uint32_t bytes);
  /// A lane's access (kLanes: of all together) must not meet one of another lane since the warp's
  /// last barrier; atomics may meet each other.
  void touch_by_lane(Warp& w, const Instruction& i, uint32_t lane, uint32_t at, uint32_t bytes,
                     bool writes, bool is_atomic = false);
  /// A barrier of all lanes.
  void meet(Warp& w) {
    for (const Ahead& a : w.ahead) w.clocks.join(a.clocks);
    w.ahead.clear();
    w.meeting = ++meetings_;
    w.accessed = 0;
  }
  /// Atomics do not race with each other.
  void touch_atomically(Warp& w, const Instruction& i, uint32_t lane, uint32_t at, uint32_t bytes);
  /// The bytes become a barrier's; nobody else may read or write them.
  void make_barrier(uint32_t at);
  uint32_t shared_end() const { return static_cast<uint32_t>(shared_.size()); }

  // -- what runs on its own
  std::map<uint32_t, MemoryBarrier> memory_barriers;
  MemoryBarrier& barrier_at(Warp& w, const Instruction& i, uint32_t lane, uint64_t address);
  void land(const SmallCopy& copy);
  std::deque<BulkCopy> bulk;
  std::array<uint32_t, kMostBulk> bulk_clock{};
  uint64_t busy_bulk = 0;  // agents
  void finish(BulkCopy copy);
  struct Sequence {
    std::deque<Asked> list;
    uint32_t first = 0;              // the number of the list's first
    std::array<uint32_t, 4> next{};  // of each warp
  };
  std::array<Sequence, kMostWarps / 4> asked;  // of each warp group

 private:
  /// Of a byte: who wrote it last (several: atomics) and who has read it since, as events in a row
  /// of history_: the writes first.
  struct State {
    uint32_t first = 0, writes = 0, reads = 0;
    uint64_t last_read = 0;  // who and when
    bool is_atomic = false, is_barrier = false;
  };
  /// What an access makes of a state: a table of 2^n places, kept between blocks by their number.
  struct Transition {
    uint64_t event = 0;
    uint32_t from = 0, to = 0, block = 0;
  };
  void start(Warp& w);
  void run_warp(Warp& w);
  void choose(Warp& w);
  uint32_t transition(const Access& access, uint32_t state, uint32_t address);
  uint32_t next_state(const Access& access, uint32_t state, uint32_t address);
  Transition& place_of(uint32_t state, uint64_t event);
  void check_order(const Access& access, uint64_t before, uint32_t address) const;
  std::string describe(uint64_t event) const;
  [[noreturn]] void stuck() const;

  std::vector<std::byte> shared_;
  std::vector<uint32_t> state_of_;
  // Of each byte: a meeting, and above it a lane.
  std::vector<uint64_t> written_by_, read_by_;
  std::vector<State> states_;
  std::vector<uint64_t> history_;
  std::vector<Transition> transitions_{size_t{1} << 12};
  size_t used_transitions_ = 0;
  std::vector<uint64_t> register_files_;
  uint32_t blocks_ = 0, random_ = 1, meetings_ = 0;
};

/// The lanes of a mask, one after another.
template <typename F>
void each_lane(uint32_t lanes, F&& f) {
  for (; lanes != 0; lanes &= lanes - 1) f(static_cast<uint32_t>(__builtin_ctz(lanes)));
}
/// Writes the lanes of a mask.
template <typename T>
void put(T* to, const T* values, uint32_t lanes) {
  if (lanes == kAllLanes)
    std::memcpy(to, values, kLanes * sizeof(T));
  else
    for (int lane = 0; lane < kLanes; ++lane)
      to[lane] = (lanes >> lane & 1u) != 0 ? values[lane] : to[lane];
}

/// Refuses an instruction that touches registers of products under way, and remembers for
/// wgmma.fence what it touches.
void check_registers(Machine& m, Warp& w, const Instruction& i);
/// What every 16-bit float is.
const float* f16_values();

}  // namespace brrr::test::ptx
