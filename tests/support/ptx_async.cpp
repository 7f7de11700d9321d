// What runs on its own: copies into shared memory, the barriers that know of them, and the fences
// between the proxies.

#include <fmt/format.h>

#include "support/cuda_context.h"
#include "support/ptx_machine.h"

namespace brrr::test::ptx {

// -- barriers in shared memory

MemoryBarrier& Machine::barrier_at(Warp& w, const Instruction& i, uint32_t lane, uint64_t address) {
  shared(i, address, 8, 8);
  const auto found = memory_barriers.find(static_cast<uint32_t>(address));
  if (found == memory_barriers.end())
    refuse(i, fmt::format("no mbarrier.init at {} before", address));
  if (clocks_of(w, 1u << lane).seen[found->second.owner] < found->second.made_at)
    refuse(i, fmt::format("nothing orders mbarrier.init by warp {} before", found->second.owner));
  return found->second;
}

void Machine::land(const SmallCopy& copy) {
  std::byte* to = shared_.data() + copy.to;
  if (copy.from_bytes != 0) std::memcpy(to, copy.from, copy.from_bytes);
  std::memset(to + copy.from_bytes, 0, copy.bytes - copy.from_bytes);
}

namespace {

void end_phase_if_complete(MemoryBarrier& b) {
  if (b.missing != 0 || b.bytes != 0) return;
  ++b.phase;
  b.missing = b.threads;
  b.released.join(b.collected);
  b.collected = {};
}

}  // namespace

void Machine::finish(BulkCopy copy) {
  for (const SmallCopy& piece : copy.pieces) land(piece);
  MemoryBarrier& b = memory_barriers.at(copy.barrier);
  const auto fail = [&](const char* why) {
    throw Error(fmt::format("{}: block {} {} {}: {}: {}", program.entry, block.x, block.y, block.z,
                            program.at(copy.line), why));
  };
  if (b.phase != copy.phase)
    fail("the barrier's phase ended before these bytes came: it expected fewer");
  b.bytes -= copy.bytes;
  if (b.bytes <= -(1 << 20)) fail("more bytes than an mbarrier can count");
  copy.clocks.seen[kBulk + copy.agent] = bulk_clock[copy.agent];
  b.collected.join(copy.clocks);
  busy_bulk &= ~(uint64_t{1} << copy.agent);
  end_phase_if_complete(b);
}

namespace {

uint64_t address_at(const Machine& m, const Warp& w, Value v, bool is_32, uint32_t lane) {
  return is_32 ? m.from<uint32_t>(w, v)[lane] : m.from<uint64_t>(w, v)[lane];
}
/// Of the operand a[k]; bit k of number[3]: it has 32 bits.
uint64_t address_of(const Machine& m, const Warp& w, const Instruction& i, uint32_t k,
                    uint32_t lane) {
  const uint64_t at = address_at(m, w, i.a[k], (i.number[3] >> k & 1u) != 0, lane);
  return at + (k == 1 ? static_cast<uint64_t>(i.offset) : 0);
}

/// A lane that lets others know of what it did knows nothing of what other lanes did.
void need_quiet_others(const Machine& m, const Warp& w, const Instruction& i, uint32_t lanes,
                       const char* do_what) {
  if ((w.accessed & ~lanes) != 0)
    m.refuse(i,
             fmt::format("lanes {:08x} have accessed shared memory since the warp's last barrier, "
                         "and lanes {:08x} {}",
                         w.accessed, lanes, do_what));
}

void barrier_init(Machine& m, Warp& w, const Instruction& i, uint32_t lanes) {
  each_lane(lanes, [&](uint32_t lane) {
    const uint64_t at = address_of(m, w, i, 1, lane);
    m.shared(i, at, 8, 8);
    if (m.memory_barriers.contains(static_cast<uint32_t>(at)))
      m.refuse(i, "there is an mbarrier already");
    const uint32_t threads = m.from<uint32_t>(w, i.a[2])[lane];
    if (threads == 0 || threads >= 1u << 20)
      m.refuse(i, "a number of arrivals that it cannot have");
    Access access = m.access(w, i, 1u << lane, true);
    m.touch(access, static_cast<uint32_t>(at), 8);
    m.make_barrier(static_cast<uint32_t>(at));
    MemoryBarrier& b = m.memory_barriers[static_cast<uint32_t>(at)];
    b.threads = b.missing = threads;
    b.owner = w.index;
    b.made_at = w.clocks.seen[w.index];
  });
  m.tick(w);
}
/// number[0]: expects bytes; number[1]: arrives.
void barrier_arrive(Machine& m, Warp& w, const Instruction& i, uint32_t lanes) {
  if (i.number[1] != 0) need_quiet_others(m, w, i, lanes, "arrive");
  each_lane(lanes, [&](uint32_t lane) {
    MemoryBarrier& b = m.barrier_at(w, i, lane, address_of(m, w, i, 1, lane));
    if (i.number[0] != 0) {
      b.bytes += m.from<uint32_t>(w, i.a[2])[lane];
      if (b.bytes >= 1 << 20) m.refuse(i, "more bytes than an mbarrier can count");
    }
    if (i.number[1] == 0) return;
    if (b.missing == 0) m.refuse(i, "more arrivals than the mbarrier was made for");
    --b.missing;
    b.collected.join(m.clocks_of(w, 1u << lane));
    end_phase_if_complete(b);
  });
  m.tick(w);
}
void barrier_wait(Machine& m, Warp& w, const Instruction& i, uint32_t lanes) {
  uint32_t done = 0;
  std::array<uint64_t, kLanes> where{};
  each_lane(lanes, [&](uint32_t lane) {
    where[lane] = address_of(m, w, i, 1, lane);
    const MemoryBarrier& b = m.barrier_at(w, i, lane, where[lane]);
    const uint32_t parity = m.from<uint32_t>(w, i.a[2])[lane];
    if (parity > 1) m.refuse(i, "a parity that is neither 0 nor 1");
    if ((b.phase & 1u) != parity) done |= 1u << lane;
  });
  if (done != lanes) {
    // In vain the first time, so that the way around is taken, too.
    if (!m.is_late || w.has_tried) return m.wait(w, "an mbarrier");
    w.has_tried = w.yields = true;
  } else {
    w.has_tried = false;
    // Who has not waited must not read what the others have waited for.
    for (uint32_t rest = lanes; rest != 0;) {
      const auto first = static_cast<uint32_t>(__builtin_ctz(rest));
      uint32_t same = 0;
      each_lane(rest, [&](uint32_t lane) {
        if (where[lane] == where[first]) same |= 1u << lane;
      });
      const Clocks& released = m.barrier_at(w, i, first, where[first]).released;
      m.change_clocks(w, same, [&](Clocks& clocks) { clocks.join(released); });
      rest &= ~same;
    }
    m.tick(w);
  }
  uint32_t& p = *w.to<uint32_t>(i.a[0]);
  p = (p & ~lanes) | done;
}

void publish_barriers(Machine& m, Warp& w, const Instruction&, uint32_t) {
  for (auto& [at, b] : m.memory_barriers)
    if (b.owner == w.index) b.is_published = true;
}
/// What these lanes have seen the async proxy sees, too.
void proxy_fence(Machine& m, Warp& w, const Instruction& i, uint32_t lanes) {
  need_quiet_others(m, w, i, lanes, "fence");
  m.change_clocks(w, lanes, [](Clocks& clocks) {
    for (uint32_t k = 0; k < kAgents; ++k)
      clocks.fenced[k] = std::max(clocks.fenced[k], clocks.seen[k]);
  });
  publish_barriers(m, w, i, lanes);
  m.tick(w);
}

// -- copies by the copy engine

void ask(Machine& m, Warp& w, const Instruction& i, uint32_t lane, uint64_t barrier,
         BulkCopy copy) {
  need_quiet_others(m, w, i, 1u << lane, "ask for a copy");
  MemoryBarrier& b = m.barrier_at(w, i, lane, barrier);
  if (!b.is_published)
    m.refuse(i, "no fence.mbarrier_init between mbarrier.init and what the copy engine does to it");
  if (~m.busy_bulk == 0) m.refuse(i, "more copies under way than are counted");
  copy.barrier = static_cast<uint32_t>(barrier);
  copy.phase = b.phase;
  copy.line = i.line;
  copy.agent = static_cast<uint32_t>(__builtin_ctzll(~m.busy_bulk));
  m.busy_bulk |= uint64_t{1} << copy.agent;
  const uint32_t clock = ++m.bulk_clock[copy.agent];
  copy.clocks = m.clocks_of(w, 1u << lane);
  Access access{copy.clocks, Machine::event(kBulk + copy.agent, clock, m.index_of(i), true, true)};
  for (const SmallCopy& piece : copy.pieces) {
    m.shared(i, piece.to, piece.bytes, 16);
    m.touch(access, piece.to, piece.bytes);
    copy.bytes += piece.bytes;
  }
  m.tick(w);
  if (m.is_late)
    m.bulk.push_back(std::move(copy));
  else
    m.finish(std::move(copy));
}

/// a[1]: where to, a[2]: what from, a[3]: bytes, a[4]: barrier.
void copy_bytes(Machine& m, Warp& w, const Instruction& i, uint32_t lanes) {
  each_lane(lanes, [&](uint32_t lane) {
    const uint64_t to = address_of(m, w, i, 1, lane), from = address_of(m, w, i, 2, lane);
    const uint32_t bytes = m.from<uint32_t>(w, i.a[3])[lane];
    if (to % 16 != 0 || from % 16 != 0 || bytes % 16 != 0 || bytes == 0)
      m.refuse(i, fmt::format("{} bytes from {:#x} to {}: no multiples of 16", bytes, from, to));
    if (from < 65536 || (from & kWindows) != 0)
      m.refuse(i, fmt::format("{:#x} is no address of global memory", from));
    BulkCopy copy;
    copy.pieces.push_back(
        {static_cast<uint32_t>(to), bytes, bytes, 0, reinterpret_cast<const std::byte*>(from)});
    ask(m, w, i, lane, address_of(m, w, i, 4, lane), std::move(copy));
  });
}

/// a[1]: where to, a[2]: the map, a[4]: barrier; the list: coordinates. What the map stands for is
/// a box of 64 columns of 2 bytes, its 16-byte chunks exchanged over 128 bytes.
void copy_box(Machine& m, Warp& w, const Instruction& i, uint32_t lanes) {
  each_lane(lanes, [&](uint32_t lane) {
    const uint64_t to = address_of(m, w, i, 1, lane);
    uint64_t from = address_of(m, w, i, 2, lane);
    if ((from & kWindows) == kParamWindow) {
      from &= ~kWindows;
      if (!Machine::is_inside(from, sizeof(emulated::TensorMap), m.program.param_bytes))
        m.refuse(i, "a tensor map outside the parameters");
      from += reinterpret_cast<uint64_t>(m.param_bytes);
    }
    if (from % 64 != 0) m.refuse(i, "a tensor map that is not aligned to 64 bytes");
    if (to % 128 != 0) m.refuse(i, fmt::format("{} is no multiple of 128", to));
    emulated::TensorMap map;
    std::memcpy(&map, reinterpret_cast<const void*>(from), sizeof map);
    if (map.columns * 2 != 128) m.refuse(i, "a box whose rows have not 128 bytes");
    int64_t at[4];
    for (uint32_t k = 0; k < 4; ++k)
      at[k] = static_cast<int32_t>(m.from<uint32_t>(w, m.program.lists[i.list + k])[lane]);
    if (at[0] % 8 != 0 || map.sizes[0] % 8 != 0)
      m.refuse(i, "columns that do not come in 16 bytes");
    BulkCopy copy;
    for (int64_t row = 0; row < map.rows; ++row)
      for (int64_t chunk = 0; chunk < 8; ++chunk) {
        const int64_t c[4] = {at[0] + chunk * 8, at[1] + row, at[2], at[3]};
        bool is_inside = true;
        for (int k = 0; k < 4; ++k) is_inside &= c[k] >= 0 && c[k] < map.sizes[k];
        const auto plain =
            static_cast<uint32_t>(to + static_cast<uint64_t>(row * 128 + chunk * 16));
        const uint32_t place = plain ^ (plain >> 7 & 7u) << 4;
        const int64_t offset =
            2 * c[0] + c[1] * map.strides[0] + c[2] * map.strides[1] + c[3] * map.strides[2];
        copy.pieces.push_back({place, 16, is_inside ? 16u : 0u, 0,
                               reinterpret_cast<const std::byte*>(map.base) + offset});
      }
    ask(m, w, i, lane, address_of(m, w, i, 4, lane), std::move(copy));
  });
}

// -- copies of a thread's own (cp.async): number[0]: bytes

void copy_async(Machine& m, Warp& w, const Instruction& i, uint32_t lanes) {
  const uint32_t bytes = i.number[0];
  const uint64_t event =
      Machine::event(kCopiesOf + w.index, w.copy_groups + 1, m.index_of(i), true, false);
  Access access = m.access(w, lanes, event);
  each_lane(lanes, [&](uint32_t lane) {
    const uint64_t to = address_of(m, w, i, 1, lane), from = address_of(m, w, i, 2, lane);
    const uint32_t taken = i.a[3].is_there() ? m.from<uint32_t>(w, i.a[3])[lane] : bytes;
    if (taken > bytes) m.refuse(i, "more bytes than are copied");
    if (from % bytes != 0) m.refuse(i, fmt::format("{:#x} is no multiple of {}", from, bytes));
    if (from < 65536 || (from & kWindows) != 0)
      m.refuse(i, fmt::format("{:#x} is no address of global memory", from));
    m.shared(i, to, bytes, bytes);
    m.touch(access, static_cast<uint32_t>(to), bytes);
    m.touch_by_lane(w, i, lane, static_cast<uint32_t>(to), bytes, true);
    const SmallCopy copy{static_cast<uint32_t>(to),
                         bytes,
                         taken,
                         w.copy_groups,
                         reinterpret_cast<const std::byte*>(from),
                         lane};
    if (!m.is_late) m.land(copy);
    w.copies.push_back(copy);
  });
}
void commit_copies(Machine& m, Warp& w, const Instruction& i, uint32_t lanes) {
  if (lanes != w.live) m.refuse(i, "a part of the warp");
  ++w.copy_groups;
}
/// Until at most number[0] groups are under way; number[1]: no copy at all.
void wait_copies(Machine& m, Warp& w, const Instruction& i, uint32_t lanes) {
  if (lanes != w.live) m.refuse(i, "a part of the warp");
  if (i.number[1] != 0) ++w.copy_groups;
  const uint32_t done = w.copy_groups - std::min(w.copy_groups, i.number[0]);
  for (const SmallCopy& copy : w.copies)
    if (copy.group < done) {
      // A lane waits for its own copies: the others know of them after the warp's next barrier.
      m.touch_by_lane(w, i, copy.lane, copy.to, copy.bytes, true);
      if (m.is_late) m.land(copy);
    }
  std::erase_if(w.copies, [&](const SmallCopy& copy) { return copy.group < done; });
  m.change_clocks(w, lanes, [&](Clocks& clocks) {
    uint32_t& seen = clocks.seen[kCopiesOf + w.index];
    seen = std::max(seen, done);
  });
  m.tick(w);
}

}  // namespace

bool decode_async(Decoder& d, const Statement& s) {
  Instruction& i = *d.now;
  const auto& o = s.operands;
  const std::string& op = s.opcode;
  /// Addresses with an offset are the first operand's alone.
  const auto address = [&](uint32_t k, const Operand& x) {
    const int64_t before = i.offset;
    i.a[k] = d.address(x);
    if (k != 1) {
      if (i.offset != 0) d.refuse("an offset here");
      i.offset = before;
    }
    if (d.bits_of(x) == 32) i.number[3] |= 1u << k;
  };
  if (op == "mbarrier.init.shared::cta.b64" || op == "mbarrier.init.shared.b64") {
    i.run = barrier_init;
    address(1, o.at(0));
    i.a[2] = d.source(o.at(1), 32);
  } else if (op == "mbarrier.arrive.shared::cta.b64" || op == "mbarrier.arrive.shared.b64" ||
             op == "mbarrier.arrive.expect_tx.shared::cta.b64" ||
             op == "mbarrier.arrive.expect_tx.shared.b64") {
    if (o.at(0).kind != Operand::Kind::sink) d.refuse("a token that somebody wants");
    i.run = barrier_arrive;
    i.number[0] = s.has("expect_tx") ? 1 : 0;
    i.number[1] = 1;
    address(1, o.at(1));
    if (i.number[0] != 0) i.a[2] = d.source(o.at(2), 32);
    if (o.size() != 2 + i.number[0]) d.refuse("another number of operands");
  } else if (op == "mbarrier.expect_tx.relaxed.cta.shared::cta.b64") {
    i.run = barrier_arrive;
    i.number[0] = 1;
    address(1, o.at(0));
    i.a[2] = d.source(o.at(1), 32);
  } else if (op == "mbarrier.try_wait.parity.shared::cta.b64" ||
             op == "mbarrier.try_wait.parity.shared.b64") {
    i.run = barrier_wait;
    address(1, o.at(1));
    i.a[2] = d.source(o.at(2), 32);
    i.a[0] = d.destination(o.at(0), 1);
  } else if (op == "fence.mbarrier_init.release.cluster") {
    i.run = publish_barriers;
  } else if (op == "fence.proxy.async" || op == "fence.proxy.async.shared::cta") {
    i.run = proxy_fence;
  } else if (op == "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes") {
    i.run = copy_bytes;
    address(1, o.at(0));
    address(2, o.at(1));
    i.a[3] = d.source(o.at(2), 32);
    address(4, o.at(3));
  } else if (op ==
             "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes") {
    i.run = copy_box;
    address(1, o.at(0));
    address(2, o.at(1));
    if (o[1].items.size() != 1 || o[1].items[0].items.size() != 4)
      d.refuse("four coordinates were expected");
    for (const Operand& c : o[1].items[0].items) d.add_to_list(d.source(c, 32));
    address(4, o.at(2));
  } else if (op == "cp.async.cg.shared.global" || op == "cp.async.ca.shared.global") {
    i.run = copy_async;
    address(1, o.at(0));
    address(2, o.at(1));
    i.number[0] = static_cast<uint32_t>(o.at(2).bits);
    const bool is_16 = i.number[0] == 16;
    if (!is_16 && (s.has("cg") || (i.number[0] != 4 && i.number[0] != 8)))
      d.refuse("a number of bytes that it does not copy");
    if (o.size() > 3) i.a[3] = d.source(o[3], 32);
  } else if (op == "cp.async.commit_group") {
    i.run = commit_copies;
  } else if (op == "cp.async.wait_group") {
    i.run = wait_copies;
    i.number[0] = static_cast<uint32_t>(o.at(0).bits);
  } else if (op == "cp.async.wait_all") {
    i.run = wait_copies;
    i.number[1] = 1;
  } else {
    return false;
  }
  return true;
}

}  // namespace brrr::test::ptx
