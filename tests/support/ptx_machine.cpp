#include "support/ptx_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace brrr::test::ptx {
namespace {

constexpr uint64_t kMostInstructions = uint64_t{1} << 34;  // of a block: it runs forever
constexpr uint64_t kTurn = 100000;                         // of a warp, before others go on

}  // namespace

// -- launches

Machine::Machine(const Program& p, Dimensions grid_, Dimensions threads_, int shared_bytes,
                 void** args)
    : program(p), grid(grid_), threads(threads_) {
  const uint32_t count = threads.x * threads.y * threads.z;
  if (threads.y != 1 || threads.z != 1 || count == 0 || count > p.most_threads)
    throw Error(fmt::format("{}: {} x {} x {} threads, where {} were announced", p.entry, threads.x,
                            threads.y, threads.z, p.most_threads));
  params.resize(p.param_bytes + 128);
  auto* aligned = params.data() + (128 - reinterpret_cast<uintptr_t>(params.data()) % 128) % 128;
  for (size_t k = 0; k < p.params.size(); ++k)
    std::memcpy(aligned + p.params[k].offset, args[k], p.params[k].bytes);
  param_bytes = aligned;
  shared_.resize(p.dynamic_shared + static_cast<uint32_t>(shared_bytes));
  state_of_.resize(shared_.size());
  written_by_.resize(shared_.size());
  read_by_.resize(shared_.size());
  warps.resize((count + 31) / 32);
  const size_t words = (p.register_bytes + 7) / 8;
  register_files_.resize(words * warps.size());
  for (uint32_t k = 0; k < warps.size(); ++k) {
    Warp& w = warps[k];
    w.index = k;
    w.registers = reinterpret_cast<std::byte*>(register_files_.data() + words * k);
    w.local.resize(p.local_bytes * kLanes);
    if (p.has_wgmma) {
      w.owned.resize(p.register_bytes / 64 + 1);
      for (std::vector<uint32_t>* of : {&w.touched, &w.used_at, &w.used_as})
        of->resize(p.register_bytes / 64 + 1);
    }
  }
}

void Machine::start(Warp& w) {
  const uint32_t count = threads.x - w.index * 32;
  w.live = count >= 32 ? kAllLanes : (1u << count) - 1;
  w.active = w.live;
  w.pc = 0;
  w.next_pc = ~0u;
  w.others.clear();
  w.has_jumped = w.yields = w.is_at_barrier = w.has_tried = false;
  w.waits = Waits::no;
  w.clocks = {};
  w.ahead.clear();
  meet(w);
  w.clocks.seen[w.index] = 1;
  w.products.clear();
  w.committed = w.fences = w.copy_groups = w.registers_per_thread = 0;
  w.copies.clear();
  std::fill(w.owned.begin(), w.owned.end(), uint8_t{0});
  std::fill(w.touched.begin(), w.touched.end(), 0u);
  std::fill(w.used_at.begin(), w.used_at.end(), 0u);
  std::fill(w.local.begin(), w.local.end(), std::byte{0xcd});
  // What nobody wrote is no number, so that its use shows.
  std::memset(w.registers, 0xff, program.register_bytes);
  const auto set = [&](const char* name, auto&& of) {
    const auto found = program.special.find(name);
    if (found == program.special.end()) return;
    for (uint32_t lane = 0; lane < kLanes; ++lane) w.to<uint32_t>({found->second})[lane] = of(lane);
  };
  set("%tid.x", [&](uint32_t lane) { return w.index * 32 + lane; });
  set("%laneid", [&](uint32_t lane) { return lane; });
  for (const char* zero : {"%tid.y", "%tid.z"}) set(zero, [](uint32_t) { return 0u; });
  const auto set_three = [&](const std::string& name, const Dimensions& d) {
    set((name + ".x").c_str(), [&](uint32_t) { return d.x; });
    set((name + ".y").c_str(), [&](uint32_t) { return d.y; });
    set((name + ".z").c_str(), [&](uint32_t) { return d.z; });
  };
  set_three("%ntid", threads);
  set_three("%ctaid", block);
  set_three("%nctaid", grid);
}

void Machine::run_block(Dimensions which) {
  block = which;
  is_late = blocks_++ % 2 == 0;
  std::fill(shared_.begin(), shared_.end(), std::byte{0xff});
  std::fill(state_of_.begin(), state_of_.end(), 0u);
  states_.assign(1, {});
  history_.clear();
  used_transitions_ = 0;
  barriers = {};
  memory_barriers.clear();
  bulk.clear();
  bulk_clock = {};
  busy_bulk = 0;
  asked = {};
  for (Warp& w : warps) start(w);
  const uint64_t first = instructions;
  const auto count = static_cast<uint32_t>(warps.size());
  for (uint32_t turn = 0;; ++turn) {
    const uint64_t before = instructions;
    bool any = false;
    for (uint32_t k = 0; k < count; ++k) {
      // From another one on in every turn, forwards or backwards.
      const uint32_t at = (k + turn) % count;
      Warp& w = warps[is_late ? at : count - 1 - at];
      if (w.live == 0) continue;
      any = true;
      run_warp(w);
    }
    if (!any) break;
    if (instructions - first > kMostInstructions)
      throw Error(fmt::format("{}: a block that never ends", program.entry));
    if (instructions != before) continue;
    if (bulk.empty()) stuck();
    // Nobody can go on without a copy, and they come in any order.
    random_ = random_ * 1664525 + 1013904223;
    const auto chosen = bulk.begin() + static_cast<std::ptrdiff_t>((random_ >> 8) % bulk.size());
    BulkCopy copy = std::move(*chosen);
    bulk.erase(chosen);
    finish(std::move(copy));
  }
  if (!bulk.empty())
    throw Error(
        fmt::format("{}: the block ends while a copy is under way", program.at(bulk.front().line)));
}

void run(const Program& program, Dimensions grid, Dimensions threads, int shared_bytes,
         void** args) {
  Machine machine(program, grid, threads, shared_bytes, args);
  for (uint32_t z = 0; z < grid.z; ++z)
    for (uint32_t y = 0; y < grid.y; ++y)
      for (uint32_t odd : {1u, 0u})  // any order must do
        for (uint32_t x = odd; x < grid.x; x += 2) machine.run_block({x, y, z});
}

// -- warps

void Machine::refuse(const Instruction& i, const std::string& why) const {
  throw Error(fmt::format("{}: block {} {} {}: {}: {}", program.entry, block.x, block.y, block.z,
                          program.at(i.line), why));
}

void Machine::stuck() const {
  std::string text = fmt::format("{}: block {} {} {}: warps wait in vain", program.entry, block.x,
                                 block.y, block.z);
  for (const Warp& w : warps)
    if (w.live != 0)
      text += fmt::format("\n  warp {} ({}) at {}", w.index, w.waits_for,
                          program.at(program.code[w.pc].line));
  for (const auto& [at, b] : memory_barriers)
    text += fmt::format("\n  mbarrier at {}: phase {}, {} of {} arrivals and {} bytes missing", at,
                        b.phase, b.missing, b.threads, b.bytes);
  throw Error(text);
}

/// The lanes that stand at one place become one; those at the lowest are next.
void Machine::choose(Warp& w) {
  if (w.active != 0) w.others.push_back({w.pc, w.active, w.waits});
  w.active = 0;
  w.next_pc = ~0u;
  if (w.others.empty()) return;
  std::sort(w.others.begin(), w.others.end(),
            [](const Lanes& a, const Lanes& b) { return a.pc < b.pc; });
  size_t last = 0;
  for (size_t k = 1; k < w.others.size(); ++k)
    if (w.others[k].pc == w.others[last].pc) {
      w.others[last].mask |= w.others[k].mask;
      w.others[last].waits = Waits::no;  // together they may go on
    } else {
      w.others[++last] = w.others[k];
    }
  w.others.resize(last + 1);
  size_t which = 0;
  while (which < w.others.size() && w.others[which].waits != Waits::no) ++which;
  if (which == w.others.size()) which = 0;
  w.waits = w.others[which].waits;
  w.pc = w.others[which].pc;
  w.active = w.others[which].mask;
  w.others.erase(w.others.begin() + static_cast<std::ptrdiff_t>(which));
  for (const Lanes& other : w.others)
    if (other.pc > w.pc) w.next_pc = std::min(w.next_pc, other.pc);
}

void Machine::run_warp(Warp& w) {
  const Instruction* code = program.code.data();
  for (Lanes& other : w.others) other.waits = Waits::no;
  w.waits = Waits::no;
  w.yields = false;
  if (!w.others.empty()) choose(w);
  for (uint64_t n = 0; n < kTurn; ++n) {
    if (w.pc >= w.next_pc) choose(w);
    const Instruction& i = code[w.pc];
    uint32_t lanes = w.active;
    if (i.guard != Value::kNone) {
      const uint32_t p = *w.to<uint32_t>({i.guard});
      lanes &= i.guard_is_negated ? ~p : p;
      if (lanes == 0) {
        ++w.pc;
        continue;
      }
    }
    if (i.is_aligned && lanes != kAllLanes && !have_met(w, i, lanes, w.live)) {
      choose(w);
      if (w.waits != Waits::no) return;
      continue;
    }
    if (program.has_wgmma) check_registers(*this, w, i);
    ++w.pc;
    i.run(*this, w, i, lanes);
    if (w.waits != Waits::no) {
      --w.pc;
      if (w.others.empty()) return;
      choose(w);
      if (w.waits != Waits::no) return;
      continue;
    }
    ++instructions;
    if (w.has_jumped) {
      w.has_jumped = false;
      if (!w.others.empty()) choose(w);
    }
    if (w.active == 0) {
      choose(w);
      if (w.active == 0) return;  // all have ended
    }
    if (w.yields) return;
  }
}

void Machine::jump(Warp& w, uint32_t to, uint32_t lanes) {
  if (const uint32_t stay = w.active & ~lanes; stay != 0)
    w.others.push_back({w.pc, stay, Waits::no});
  w.active = lanes;
  w.pc = to;
  w.has_jumped = true;
}

void Machine::end(Warp& w, const Instruction& i, uint32_t lanes) {
  if ((w.live & ~lanes) == 0 && !w.products.empty())
    refuse(i, "the warp ends while products of wgmma are under way");
  if ((w.live & ~lanes) == 0 && !w.copies.empty())
    refuse(i, "the warp ends while copies of cp.async are under way");
  w.live &= ~lanes;
  w.active &= ~lanes;
}

void Machine::wait(Warp& w, const char* why, Waits waits) {
  w.waits = waits;
  w.waits_for = why;
}

bool Machine::have_met(Warp& w, const Instruction& i, uint32_t lanes, uint32_t wanted) {
  if ((wanted & ~lanes) == 0) return true;
  const bool can_come = std::any_of(w.others.begin(), w.others.end(), [](const Lanes& other) {
    return other.waits != Waits::for_lanes;
  });
  if (!can_come || (wanted & ~w.live) != 0 || lanes != w.active)
    refuse(i, fmt::format("lanes {:08x} are here, and {:08x} must be", lanes, wanted));
  wait(w, "other lanes", Waits::for_lanes);
  return false;
}

// -- control

namespace {

void bra(Machine& m, Warp& w, const Instruction& i, uint32_t lanes) { m.jump(w, i.target, lanes); }
void exit(Machine& m, Warp& w, const Instruction& i, uint32_t lanes) { m.end(w, i, lanes); }
void trap(Machine& m, Warp&, const Instruction& i, uint32_t) { m.refuse(i, "trap"); }
void nothing(Machine&, Warp&, const Instruction&, uint32_t) {}

/// number[0]: 1 arrives only. a[0]: which barrier; a[1]: of how many threads.
void bar(Machine& m, Warp& w, const Instruction& i, uint32_t lanes) {
  if (lanes != w.live) m.refuse(i, "a part of the warp at a barrier");
  const uint32_t which = *m.from<uint32_t>(w, i.a[0]);
  if (which >= m.barriers.size()) m.refuse(i, fmt::format("there is no barrier {}", which));
  BlockBarrier& b = m.barriers[which];
  if (!w.is_at_barrier) {
    uint32_t wanted = 0;
    if (i.a[1].is_there()) {
      const uint32_t count = *m.from<uint32_t>(w, i.a[1]);
      if (count == 0 || count % 32 != 0) m.refuse(i, fmt::format("a barrier of {} threads", count));
      wanted = count / 32;
      if (wanted > m.warps.size()) m.refuse(i, "a barrier of more threads than there are");
    }
    if (b.arrived != 0 && b.wanted != wanted) m.refuse(i, "other threads name another number");
    b.wanted = wanted;
    ++b.arrived;
    b.collected.join(w.clocks);
    for (const Ahead& a : w.ahead) b.collected.join(a.clocks);
    m.tick(w);
    if (i.number[0] == 0) {
      w.is_at_barrier = true;
      w.barrier = which;
      w.generation = b.generation;
    }
  }
  uint32_t wanted = b.wanted;
  if (wanted == 0)
    for (const Warp& other : m.warps) wanted += other.live != 0 ? 1 : 0;
  if (b.arrived >= wanted && (i.number[0] != 0 || w.generation == b.generation)) {
    ++b.generation;
    b.arrived = 0;
    b.released = b.collected;
    b.collected = {};
  }
  if (i.number[0] != 0) return;
  if (w.generation == b.generation) return m.wait(w, "a barrier");
  w.is_at_barrier = false;
  w.clocks.join(b.released);
  m.tick(w);
  m.meet(w);
}

void warp_barrier(Machine& m, Warp& w, const Instruction& i, uint32_t lanes) {
  const uint32_t* mask = m.from<uint32_t>(w, i.a[0]);
  uint32_t wanted = 0;
  each_lane(lanes, [&](uint32_t lane) { wanted = mask[lane]; });
  wanted &= w.live;
  if (m.have_met(w, i, lanes, wanted) && lanes == w.live) m.meet(w);
}

/// Lanes read from lanes that take part; number[0]: 0 idx, 1 bfly, 2 up, 3 down.
void shfl(Machine& m, Warp& w, const Instruction& i, uint32_t lanes) {
  const uint32_t wanted = m.from<uint32_t>(w, i.a[4])[__builtin_ctz(lanes)];
  if ((lanes & ~wanted) != 0) m.refuse(i, "a lane that is not in its own mask");
  if (!m.have_met(w, i, lanes, wanted)) return;
  const uint32_t* x = m.from<uint32_t>(w, i.a[1]);
  const uint32_t* b = m.from<uint32_t>(w, i.a[2]);
  const uint32_t* c = m.from<uint32_t>(w, i.a[3]);
  uint32_t y[kLanes] = {}, inside = 0;
  each_lane(lanes, [&](uint32_t lane) {
    const uint32_t clamp = c[lane] & 31u, segment = c[lane] >> 8 & 31u;
    const uint32_t most = (lane & segment) | (clamp & ~segment), least = lane & segment;
    const uint32_t by = b[lane] & 31u;
    uint32_t from = lane;
    bool good = true;
    switch (i.number[0]) {
      case 0:
        from = least | (by & ~segment), good = from <= most;
        break;
      case 1:
        from = lane ^ by, good = from <= most;
        break;
      case 2:
        good = lane >= by && lane - by >= most, from = lane - by;
        break;
      default:
        from = lane + by, good = from <= most;
    }
    if (!good) from = lane;
    if ((lanes >> from & 1u) == 0)
      m.refuse(i, fmt::format("lane {} reads lane {}, which is not there", lane, from));
    y[lane] = x[from];
    inside |= static_cast<uint32_t>(good) << lane;
  });
  put(w.to<uint32_t>(i.a[0]), y, lanes);
  if (i.count != 0) {
    uint32_t& p = *w.to<uint32_t>(m.program.lists[i.list]);
    p = (p & ~lanes) | (inside & lanes);
  }
}

/// number[0]: 0 any, 1 all, 2 ballot; number[1]: the predicate is negated.
void vote(Machine& m, Warp& w, const Instruction& i, uint32_t lanes) {
  const uint32_t wanted = m.from<uint32_t>(w, i.a[2])[__builtin_ctz(lanes)];
  if ((lanes & ~wanted) != 0) m.refuse(i, "a lane that is not in its own mask");
  if (!m.have_met(w, i, lanes, wanted)) return;
  const uint32_t p = (i.number[1] != 0 ? ~m.predicate(w, i.a[1]) : m.predicate(w, i.a[1])) & lanes;
  if (i.number[0] == 2) {
    uint32_t y[kLanes];
    std::fill(y, y + kLanes, p);
    return put(w.to<uint32_t>(i.a[0]), y, lanes);
  }
  const bool yes = i.number[0] == 0 ? p != 0 : p == lanes;
  uint32_t& y = *w.to<uint32_t>(i.a[0]);
  y = yes ? y | lanes : y & ~lanes;
}

void globaltimer(Machine& m, Warp& w, const Instruction& i, uint32_t lanes) {
  uint64_t y[kLanes];
  std::fill(y, y + kLanes, m.nanoseconds += 1000);
  put(w.to<uint64_t>(i.a[0]), y, lanes);
}

/// Multiples of 8 from 24 to 256; together no more than a multiprocessor has.
void setmaxnreg(Machine& m, Warp& w, const Instruction& i, uint32_t) {
  const uint32_t n = i.number[0];
  if (n % 8 != 0 || n < 24 || n > 256) m.refuse(i, "a number of registers that there is not");
  w.registers_per_thread = n;
  uint32_t all = 0;
  for (const Warp& other : m.warps) {
    if (other.registers_per_thread == 0) return;
    all += 32 * other.registers_per_thread;
  }
  const uint32_t count = m.threads.x, at_launch = std::min(65536 / count / 8 * 8, 248u);
  if (all > at_launch * count)
    m.refuse(i, fmt::format("{} registers, where the block has {}", all, at_launch * count));
}

}  // namespace

bool decode_control(Decoder& d, const Statement& s) {
  Instruction& i = *d.now;
  const std::string& op = s.opcode;
  const auto& o = s.operands;
  if (op == "bra" || op == "bra.uni") {
    i.run = bra;
  } else if (op == "ret" || op == "exit") {
    i.run = exit;
  } else if (op == "trap") {
    i.run = trap;
  } else if (op == "bar.sync" || op == "barrier.sync.aligned" || op == "bar.arrive") {
    i.run = bar;
    i.is_aligned = true;
    i.number[0] = op == "bar.arrive" ? 1 : 0;
    i.a[0] = d.source(o.at(0), 32);
    if (o.size() > 1) i.a[1] = d.source(o[1], 32);
    if (op == "bar.arrive" && o.size() < 2) d.refuse("a number of threads is missing");
  } else if (op == "bar.warp.sync") {
    i.run = warp_barrier;
    i.a[0] = d.source(o.at(0), 32);
  } else if (s.is("shfl", "sync") && s.parts.size() == 4 && s.parts[3] == "b32") {
    const std::string& mode = s.parts[2];
    i.number[0] = mode == "idx" ? 0 : mode == "bfly" ? 1 : mode == "up" ? 2 : 3;
    if (i.number[0] == 3 && mode != "down") return false;
    const bool is_pair = o.at(0).kind == Operand::Kind::pair;
    i.run = shfl;
    i.a[0] = d.destination(is_pair ? o[0].items[0] : o[0], 32);
    if (is_pair) d.add_to_list(d.destination(o[0].items[1], 1));
    for (size_t k = 1; k < 5; ++k) i.a[k] = d.source(o.at(k), 32);
  } else if (s.is("vote", "sync") && s.parts.size() == 4) {
    const bool is_ballot = s.parts[2] == "ballot" && s.parts[3] == "b32";
    if (!is_ballot && ((s.parts[2] != "any" && s.parts[2] != "all") || s.parts[3] != "pred"))
      return false;
    i.run = vote;
    i.number[0] = is_ballot ? 2 : s.parts[2] == "all" ? 1 : 0;
    i.a[0] = d.destination(o.at(0), is_ballot ? 32 : 1);
    i.a[1] = d.source(o.at(1), 1);
    i.number[1] = o[1].is_negated ? 1 : 0;
    i.a[2] = d.source(o.at(2), 32);
  } else if (op == "mov.u64" && o.size() == 2 && o[1].name == "%globaltimer") {
    i.run = globaltimer;
    i.a[0] = d.destination(o[0], 64);
  } else if (op == "setmaxnreg.inc.sync.aligned.u32" || op == "setmaxnreg.dec.sync.aligned.u32") {
    i.run = setmaxnreg;
    i.number[0] = static_cast<uint32_t>(o.at(0).bits);
  } else if (op == "membar.cta" || op == "fence.acq_rel.cta" || op == "membar.gl") {
    i.run = nothing;
  } else {
    return false;
  }
  return true;
}

}  // namespace brrr::test::ptx
