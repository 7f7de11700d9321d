// Loads and stores, and what shared memory knows of its bytes.

#include <fmt/format.h>

#include <algorithm>

#include "support/ptx_machine.h"

namespace brrr::test::ptx {

// -- who comes before whom

std::string Machine::describe(uint64_t event) const {
  const auto agent = static_cast<uint32_t>(event & 255u);
  const auto index = static_cast<uint32_t>(event >> 10 & 0x3fffffu);
  const std::string who = agent < kWgmmaOf    ? fmt::format("warp {}", agent)
                          : agent < kCopiesOf ? fmt::format("wgmma of warp {}", agent - kWgmmaOf)
                          : agent < kBulk ? fmt::format("cp.async of warp {}", agent - kCopiesOf)
                                          : std::string("a bulk copy");
  return fmt::format("{} {} at {}", who, (event >> 8 & 1u) != 0 ? "writes" : "reads",
                     program.at(program.code[index].line));
}

void Machine::check_order(const Access& access, uint64_t before, uint32_t address) const {
  const auto agent = static_cast<uint32_t>(before & 255u),
             clock = static_cast<uint32_t>(before >> 32);
  const bool was_async = (before >> 9 & 1u) != 0, is_async = (access.event >> 9 & 1u) != 0;
  if (agent < kWgmmaOf && (access.event & 255u) == agent) return;  // in a warp's own order
  const auto fail = [&](const char* why) {
    throw Error(fmt::format("{}: block {} {} {}: {} at byte {} of shared memory:\n  {}\n  {}",
                            program.entry, block.x, block.y, block.z, why, address,
                            describe(before), describe(access.event)));
  };
  if (access.clocks.seen[agent] < clock) fail("a race");
  if (!was_async && is_async && access.clocks.fenced[agent] < clock)
    fail("no fence.proxy.async between");
}

const Clocks& Machine::clocks_of(Warp& w, uint32_t lanes) {
  if (w.ahead.empty()) return w.clocks;
  uint32_t found = 0;
  const auto add = [&](const Clocks& clocks, uint32_t mask) {
    if (mask == 0) return;
    if (found == 0)
      w.mixed = clocks;
    else
      w.mixed.meet(clocks);
    found |= mask;
  };
  for (Ahead& a : w.ahead) {
    a.clocks.seen[w.index] = w.clocks.seen[w.index];
    add(a.clocks, a.lanes & lanes);
  }
  add(w.clocks, lanes & ~found);
  return w.mixed;
}

uint32_t Machine::next_state(const Access& access, uint32_t state, uint32_t address) {
  const State old = states_[state];
  const bool writes = (access.event >> 8 & 1u) != 0;
  const Instruction& i = program.code[access.event >> 10 & 0x3fffffu];
  if (old.is_barrier)
    refuse(i, fmt::format("byte {} of shared memory belongs to an mbarrier", address));
  if (!writes && old.writes == 0)
    refuse(i, fmt::format("nobody has written byte {} of shared memory", address));
  const uint32_t reads = old.first + old.writes, end = reads + old.reads;
  for (uint32_t k = old.first; k < reads; ++k) check_order(access, history_[k], address);
  State next;
  next.first = static_cast<uint32_t>(history_.size());
  if (writes) {
    for (uint32_t k = reads; k < end; ++k) check_order(access, history_[k], address);
    history_.push_back(access.event);
    next.writes = 1;
  } else {
    // Of an agent's reads the last is enough: what comes after it comes after the others.
    constexpr uint64_t kAgent = 0x3ff, kClock = ~uint64_t{0} << 32;
    for (uint32_t k = reads; k < end; ++k)
      if (((history_[k] ^ access.event) & (kAgent | kClock)) == 0) return state;
    for (uint32_t k = old.first; k < end; ++k)
      if (k < reads || ((history_[k] ^ access.event) & kAgent) != 0) {
        const uint64_t kept = history_[k];
        history_.push_back(kept);
      }
    history_.push_back(access.event);
    next.last_read = access.event & (kAgent | kClock);
    next.writes = old.writes;
    next.reads = static_cast<uint32_t>(history_.size()) - next.first - next.writes;
    next.is_atomic = old.is_atomic;
  }
  states_.push_back(next);
  return static_cast<uint32_t>(states_.size() - 1);
}

Machine::Transition& Machine::place_of(uint32_t state, uint64_t event) {
  const size_t mask = transitions_.size() - 1;
  uint64_t hash = (event * 0x9E3779B97F4A7C15ull ^ state) * 0xD6E8FEB86659FD93ull;
  for (size_t k = (hash >> 32) & mask;; k = (k + 1) & mask) {
    Transition& t = transitions_[k];
    if (t.block != blocks_ || (t.from == state && t.event == event)) return t;
  }
}

uint32_t Machine::transition(const Access& access, uint32_t state, uint32_t address) {
  // Of another lane it would say too much.
  if (!access.is_of_warp) return next_state(access, state, address);
  // Reading once more changes nothing.
  constexpr uint64_t kWhoAndWhen = ~uint64_t{0} << 32 | 0x3ff;
  if (states_[state].last_read == (access.event & kWhoAndWhen)) return state;
  Transition& t = place_of(state, access.event);
  if (t.block == blocks_) return t.to;
  const uint32_t to = next_state(access, state, address);
  t = {access.event, state, to, blocks_};
  if (++used_transitions_ * 2 > transitions_.size()) {
    std::vector<Transition> old(2 * transitions_.size());
    old.swap(transitions_);
    for (const Transition& x : old)
      if (x.block == blocks_) place_of(x.from, x.event) = x;
  }
  return to;
}

void Machine::touch(Access& access, uint32_t begin, uint32_t bytes) {
  uint32_t* state = state_of_.data() + begin;
  for (uint32_t k = 0; k < bytes;) {
    const uint32_t old = state[k];
    if (old != access.from) {
      access.to = transition(access, old, begin + k);
      access.from = old;
    }
    const uint32_t to = access.to;
    do state[k++] = to;
    while (k < bytes && state[k] == old);
  }
}

void Machine::touch_by_lane(Warp& w, const Instruction& i, uint32_t lane, uint32_t at,
                            uint32_t bytes, bool writes, bool is_atomic) {
  constexpr uint64_t kAtomic = uint64_t{1} << 40, kSeveral = uint64_t{kLanes} << 32;
  const uint64_t mine = uint64_t{lane} << 32 | w.meeting;
  w.accessed |= lane < kLanes ? 1u << lane : kAllLanes;
  const auto check = [&](uint64_t before, uint32_t byte, const char* what) {
    if (static_cast<uint32_t>(before) == w.meeting && (before & ~kAtomic) != mine)
      refuse(i, fmt::format("byte {} of shared memory was {} by another lane since the warp's last "
                            "barrier",
                            byte, what));
  };
  for (uint32_t k = at; k < at + bytes; ++k) {
    if (is_atomic) {
      const uint64_t before = written_by_[k];
      const bool is_first = static_cast<uint32_t>(before) != w.meeting;
      check(read_by_[k], k, "read");
      if (!is_first && (before & kAtomic) == 0)
        check(before, k, "written");  // and what it wrote counts more
      else if (is_first || (before & ~kAtomic) == mine)
        written_by_[k] = mine | kAtomic;
      else
        written_by_[k] = kSeveral | kAtomic | w.meeting;
      continue;
    }
    check(written_by_[k], k, "written");
    if (writes) {
      check(read_by_[k], k, "read");
      written_by_[k] = mine;
    } else if (static_cast<uint32_t>(read_by_[k]) != w.meeting) {
      read_by_[k] = mine;
    } else if (read_by_[k] != mine) {
      read_by_[k] = kSeveral | w.meeting;
    }
  }
}

void Machine::make_barrier(uint32_t at) {
  State s;
  s.is_barrier = true;
  states_.push_back(s);
  for (uint32_t k = 0; k < 8; ++k) state_of_[at + k] = static_cast<uint32_t>(states_.size() - 1);
}

std::byte* Machine::shared(const Instruction& i, uint64_t address, uint32_t bytes,
                           uint32_t alignment) {
  if (address < kFirstShared || !is_inside(address, bytes, shared_.size()))
    refuse(i, fmt::format("{} bytes at {} are outside shared memory, [{}, {})", bytes, address,
                          kFirstShared, shared_.size()));
  if (address % alignment != 0)
    refuse(i, fmt::format("{} is no multiple of {}", address, alignment));
  return shared_.data() + address;
}

namespace {

enum Space : uint32_t { generic, shared, local, param, global };

/// number[0]: space; number[1]: elements of a vector; number[2]: the base has 32 bits.
uint64_t address_of(const Machine& m, const Warp& w, const Instruction& i, Value base,
                    uint32_t lane) {
  const uint64_t start =
      i.number[2] != 0 ? m.from<uint32_t>(w, base)[lane] : m.from<uint64_t>(w, base)[lane];
  return start + static_cast<uint64_t>(i.offset);
}

/// Memory that is not shared.
std::byte* plain_memory(Machine& m, Warp& w, const Instruction& i, uint32_t space, uint64_t address,
                        uint32_t lane, uint32_t bytes, bool writes) {
  if (address % bytes != 0) m.refuse(i, fmt::format("{:#x} is no multiple of {}", address, bytes));
  if (space == local) {
    if (!Machine::is_inside(address, bytes, m.program.local_bytes))
      m.refuse(i, fmt::format("{} bytes at {} are outside local memory", bytes, address));
    return w.local.data() + lane * m.program.local_bytes + address;
  }
  if (space == param) {
    if (writes) m.refuse(i, "parameters cannot be written");
    if (!Machine::is_inside(address, bytes, m.program.param_bytes))
      m.refuse(i, fmt::format("{} bytes at {} are outside the parameters", bytes, address));
    return const_cast<std::byte*>(m.param_bytes) + address;
  }
  if (address < 65536 || (address & kWindows) != 0)
    m.refuse(i, fmt::format("{:#x} is no address of global memory", address));
  return reinterpret_cast<std::byte*>(address);
}

/// Shared accesses of neighbouring lanes are one.
struct Run {
  Machine& m;
  Access access;
  uint32_t begin = 0, end = 0;
  void add(uint32_t at, uint32_t bytes) {
    if (at == end) {
      end += bytes;
    } else if (at < begin || at + bytes > end) {
      close();
      begin = at, end = at + bytes;
    }
  }
  void close() {
    if (end > begin) m.touch(access, begin, end - begin);
    begin = end = 0;
  }
};

template <typename T, typename R, bool kStores>
void transfer(Machine& m, Warp& w, const Instruction& i, uint32_t lanes) {
  const uint32_t count = i.number[1], bytes = count * static_cast<uint32_t>(sizeof(T));
  // Lanes that do not know the same.
  if (!w.ahead.empty() && (lanes & (lanes - 1)) != 0)
    return each_lane(lanes,
                     [&](uint32_t lane) { transfer<T, R, kStores>(m, w, i, uint32_t{1} << lane); });
  Run run{m, m.access(w, i, lanes, kStores)};
  R y[4][kLanes];
  const R* x[4] = {};
  if (kStores)
    for (uint32_t k = 0; k < count; ++k) x[k] = m.from<R>(w, m.program.lists[i.list + k]);
  each_lane(lanes, [&](uint32_t lane) {
    uint64_t address = address_of(m, w, i, i.a[1], lane);
    uint32_t space = i.number[0];
    if (space == generic) {
      const auto window = static_cast<uint32_t>(address >> 56);
      if (window > param) m.refuse(i, fmt::format("{:#x} is no address", address));
      space = window == 0 ? static_cast<uint32_t>(global) : window;
      address &= ~kWindows;
    }
    std::byte* at = nullptr;
    if (space == shared) {
      at = m.shared(i, address, bytes, bytes);
      const auto begin = static_cast<uint32_t>(address);
      const auto touch = [&](uint32_t first, uint32_t count_of) {
        run.add(begin + first, count_of);
        m.touch_by_lane(w, i, lane, begin + first, count_of, kStores);
      };
      if (i.used_bytes == ~0u) {
        touch(0, bytes);
      } else {
        for (uint32_t k = 0; k < bytes; ++k)
          if ((i.used_bytes >> k & 1u) != 0) touch(k, 1);
      }
    } else {
      at = plain_memory(m, w, i, space, address, lane, bytes, kStores);
    }
    for (uint32_t k = 0; k < count; ++k) {
      if constexpr (kStores) {
        const T value = static_cast<T>(x[k][lane]);
        std::memcpy(at + k * sizeof(T), &value, sizeof(T));
      } else {
        T value;
        std::memcpy(&value, at + k * sizeof(T), sizeof(T));
        y[k][lane] = static_cast<R>(value);
      }
    }
  });
  run.close();
  if constexpr (!kStores)
    for (uint32_t k = 0; k < count; ++k) {
      const Value v = m.program.lists[i.list + k];
      if (v.is_there()) put(w.to<R>(v), y[k], lanes);
    }
}

/// atom.add and the like: number[3]: 0 add, 1 min, 2 max, 3 exchange. a[0]: what was there.
template <typename T>
void atomic(Machine& m, Warp& w, const Instruction& i, uint32_t lanes) {
  const T* x = m.from<T>(w, i.a[2]);
  T y[kLanes] = {};
  each_lane(lanes, [&](uint32_t lane) {
    uint64_t address = address_of(m, w, i, i.a[1], lane);
    uint32_t space = i.number[0];
    if (space == generic) {
      space = (address & kWindows) == kSharedWindow ? shared : global;
      if (space == shared) address &= ~kWindows;
    }
    std::byte* at = space == shared ? m.shared(i, address, sizeof(T), sizeof(T))
                                    : plain_memory(m, w, i, space, address, lane, sizeof(T), true);
    if (space == shared) m.touch_atomically(w, i, lane, static_cast<uint32_t>(address), sizeof(T));
    T old;
    std::memcpy(&old, at, sizeof(T));
    const T now = i.number[3] == 0   ? static_cast<T>(old + x[lane])
                  : i.number[3] == 1 ? std::min(old, x[lane])
                  : i.number[3] == 2 ? std::max(old, x[lane])
                                     : x[lane];
    std::memcpy(at, &now, sizeof(T));
    y[lane] = old;
  });
  if (i.a[0].is_there()) put(w.to<T>(i.a[0]), y, lanes);
}

template <bool kStores>
Handler transfer_of(const std::string& type, int bits) {
  const auto of = [&]<typename T>(const T&) -> Handler {
    if (bits < static_cast<int>(8 * sizeof(T))) return nullptr;
    if constexpr (sizeof(T) <= 2)
      if (bits == 16) return transfer<T, uint16_t, kStores>;
    if constexpr (sizeof(T) <= 4)
      if (bits == 32) return transfer<T, uint32_t, kStores>;
    return bits == 64 ? transfer<T, uint64_t, kStores> : nullptr;
  };
  if (type == "u8" || type == "b8") return of(uint8_t{});
  if (type == "s8") return of(int8_t{});
  if (type == "u16" || type == "b16") return of(uint16_t{});
  if (type == "s16") return of(int16_t{});
  if (type == "u32" || type == "b32" || type == "f32") return of(uint32_t{});
  if (type == "s32") return of(int32_t{});
  if (type == "u64" || type == "b64" || type == "f64" || type == "s64") return of(uint64_t{});
  return nullptr;
}
int bits_of_type(const std::string& type) { return std::atoi(type.c_str() + 1); }

bool space_named(const std::string& part, uint32_t& space) {
  const char* const names[] = {"", "shared", "local", "param", "global"};
  for (uint32_t k = 1; k < 5; ++k)
    if (part == names[k] || (k == shared && part == "shared::cta")) {
      space = k;
      return true;
    }
  if (part == "const") {
    space = global;
    return true;
  }
  return false;
}

/// The address operand; what a call passes lies in local memory.
void take_address(Decoder& d, const Operand& o) {
  Instruction& i = *d.now;
  i.a[1] = d.address(o);
  i.number[2] = d.bits_of(o) == 32 ? 1 : 0;
  if (i.number[0] == param && d.space_of(o) == 'l') i.number[0] = local;
}

}  // namespace

void Machine::touch_atomically(Warp& w, const Instruction& i, uint32_t lane, uint32_t at,
                               uint32_t bytes) {
  const Access mine = access(w, i, 1u << lane, true);
  uint32_t from = ~0u, to = 0;
  for (uint32_t byte = at; byte < at + bytes; ++byte) {
    if (uint32_t& state = state_of_[byte]; state == from) {
      state = to;
      continue;
    }
    from = state_of_[byte];
    const State old = states_[from];
    if (old.is_barrier)
      refuse(i, fmt::format("byte {} of shared memory belongs to an mbarrier", byte));
    if (old.writes == 0)
      refuse(i, fmt::format("nobody has written byte {} of shared memory", byte));
    State next;
    next.first = static_cast<uint32_t>(history_.size());
    next.is_atomic = true;
    for (uint32_t k = 0; k < old.writes + old.reads; ++k) {
      const uint64_t before = history_[old.first + k];
      const bool was_atomic = k < old.writes && old.is_atomic;
      if (!was_atomic) check_order(mine, before, byte);
      // Whoever reads waits for all that were added.
      if (was_atomic && ((before ^ mine.event) & 255u) != 0) history_.push_back(before);
    }
    history_.push_back(mine.event);
    next.writes = static_cast<uint32_t>(history_.size()) - next.first;
    states_.push_back(next);
    to = state_of_[byte] = static_cast<uint32_t>(states_.size() - 1);
  }
  touch_by_lane(w, i, lane, at, bytes, true, true);
}

bool decode_memory(Decoder& d, const Statement& s) {
  Instruction& i = *d.now;
  const auto& o = s.operands;
  if (s.is("ld") || s.is("st")) {
    const bool stores = s.is("st");
    size_t at = 1;
    if (s.parts.size() > 2 && (s.parts[at] == "volatile" || s.parts[at] == "weak")) ++at;
    i.number[0] = generic;
    if (space_named(s.parts[at], i.number[0])) ++at;
    if (!stores && s.parts.size() > at && s.parts[at] == "nc") ++at;
    i.number[1] = 1;
    if (s.parts.size() > at && (s.parts[at] == "v2" || s.parts[at] == "v4"))
      i.number[1] = static_cast<uint32_t>(s.parts[at++][1] - '0');
    if (s.parts.size() != at + 1 || o.size() != 2) return false;
    const std::string& type = s.parts[at];
    const Operand& value = stores ? o[1] : o[0];
    const bool is_vector = value.kind == Operand::Kind::list;
    if (is_vector != (i.number[1] > 1)) return false;
    const std::vector<Operand> values = is_vector ? value.items : std::vector<Operand>{value};
    if (values.size() != i.number[1]) return false;
    int bits = std::max(bits_of_type(type), 16);
    for (const Operand& v : values)
      if (d.bits_of(v) != 0) bits = d.bits_of(v);
    i.run = stores ? transfer_of<true>(type, bits) : transfer_of<false>(type, bits);
    if (i.run == nullptr) return false;
    take_address(d, stores ? o[0] : o[1]);
    for (const Operand& v : values)
      d.add_to_list(stores ? d.source(v, bits) : d.destination(v, bits));
    return true;
  }
  if (s.is("atom") || s.is("red")) {
    const bool keeps = s.is("atom");
    size_t at = 1;
    i.number[0] = generic;
    if (s.parts[at] == "relaxed") ++at;
    if (s.parts.size() > at && (s.parts[at] == "gpu" || s.parts[at] == "cta")) ++at;
    if (s.parts.size() > at && space_named(s.parts[at], i.number[0])) ++at;
    if (s.parts.size() != at + 2 || o.size() != (keeps ? 3u : 2u)) return false;
    const char* const names[] = {"add", "min", "max", "exch"};
    while (i.number[3] < 4 && s.parts[at] != names[i.number[3]]) ++i.number[3];
    if (i.number[3] == 4) return false;
    const std::string& type = s.parts[at + 1];
    i.run = type == "u32" || type == "b32"   ? atomic<uint32_t>
            : type == "s32"                  ? atomic<int32_t>
            : type == "u64" || type == "b64" ? atomic<uint64_t>
            : type == "f32"                  ? atomic<float>
                                             : nullptr;
    if (i.run == nullptr) return false;
    const int bits = bits_of_type(type);
    take_address(d, o[keeps ? 1 : 0]);
    i.a[2] = d.source(o[keeps ? 2 : 1], bits);
    if (keeps) i.a[0] = d.destination(o[0], bits);
    return true;
  }
  return false;
}

}  // namespace brrr::test::ptx
