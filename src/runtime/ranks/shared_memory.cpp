// Ranks of one host: bytes are copied through a ring for each pair, in memory that all share.

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "runtime/ranks/host_segment.h"
#include "runtime/ranks/transports.h"

namespace brrr::ranks {
namespace {

/// What is copied before the other side is told, so that both copy at the same time.
constexpr uint64_t kPiece = 32 << 10;

/// Bytes of a ring: at most 256 KiB, which stays in the caches, and 16 MiB for all pairs together.
int64_t ring_bytes_for(int ranks) {
  const int64_t pairs = int64_t{ranks} * (ranks - 1);
  const auto most = static_cast<uint64_t>((16 << 20) / std::max<int64_t>(1, pairs));
  return static_cast<int64_t>(std::clamp<uint64_t>(std::bit_floor(most), 4 << 10, 256 << 10));
}

/// A transfer of one segment: its size, then its bytes.
template <typename Byte>
struct Transfer {
  Byte* data = nullptr;
  uint64_t bytes = 0;
  uint64_t header_done = 0, done = 0;
  uint64_t header = 0;  // the size as it was sent
  bool is_done() const { return header_done == sizeof header && done == bytes; }
};

/// The transfers between this rank and one other, in one direction.
template <typename Byte>
struct Lane {
  std::vector<Transfer<Byte>> transfers;
  size_t at = 0;
  bool is_done() const { return at == transfers.size(); }
};

class SharedMemory : public Transport {
 public:
  SharedMemory(const RankPlace& place, const TransportOptions& options)
      : Transport(place), segment_(place, options, ring_bytes_for(place.ranks)) {
    outgoing_.resize(static_cast<size_t>(ranks()));
    incoming_.resize(static_cast<size_t>(ranks()));
  }

  std::string name() const override { return "shared memory"; }
  void abandon(const std::string& why) override { segment_.give_up(why); }

  void exchange(std::span<const Outgoing> out, std::span<const Incoming> in) override {
    copy_own_segments(out, in, rank());
    for (auto& lane : outgoing_) lane = {};
    for (auto& lane : incoming_) lane = {};
    for (const Outgoing& s : out)
      if (s.peer != rank())
        outgoing_[static_cast<size_t>(s.peer)].transfers.push_back(
            {s.data, static_cast<uint64_t>(s.bytes), 0, 0, static_cast<uint64_t>(s.bytes)});
    for (const Incoming& s : in)
      if (s.peer != rank())
        incoming_[static_cast<size_t>(s.peer)].transfers.push_back(
            {s.data, static_cast<uint64_t>(s.bytes)});
    for (;;) {
      const uint32_t seen = segment_.rings();
      // A peer that has left wrote all that it ever will before it did.
      const int left = first_that_left();
      bool is_done = true, moves = false;
      for (int step = 1; step < ranks(); ++step) {
        // Ranks begin with different peers, so that not all write to the same one.
        const int to = (rank() + step) % ranks(), from = (rank() - step + ranks()) % ranks();
        moves |= send(to);
        moves |= receive(from);
        is_done &= outgoing_[static_cast<size_t>(to)].is_done() &&
                   incoming_[static_cast<size_t>(from)].is_done();
      }
      if (is_done) return;
      if (moves) continue;
      segment_.check();
      if (left >= 0) {
        segment_.end_run({Fault::left, left});
        segment_.check();
      }
      if (!poll(seen)) segment_.sleep(seen);
    }
  }

 private:
  /// A peer that is still needed and has left, or -1.
  int first_that_left() const {
    for (int peer = 0; peer < ranks(); ++peer)
      if ((!outgoing_[static_cast<size_t>(peer)].is_done() ||
           !incoming_[static_cast<size_t>(peer)].is_done()) &&
          segment_.has_left(peer))
        return peer;
    return -1;
  }

  /// Looks at the doorbell for about as long as waking up takes. Returns whether it was rung.
  bool poll(uint32_t seen) const {
    for (int i = 0; i < 400; ++i) {
      if (segment_.rings() != seen) return true;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    return false;
  }

  /// Copies between a ring, at the count `at`, and memory; what lies behind the ring's end lies at
  /// its beginning.
  template <typename Copy>
  void in_ring(std::byte* data, uint64_t at, uint64_t bytes, Copy&& copy) const {
    const auto size = static_cast<uint64_t>(segment_.ring_bytes());
    const uint64_t begin = at % size, first = std::min(bytes, size - begin);
    copy(data + begin, uint64_t{0}, first);
    if (first < bytes) copy(data, first, bytes - first);
  }

  /// Writes what there is room for. Returns whether anything was written.
  bool send(int peer) {
    auto& lane = outgoing_[static_cast<size_t>(peer)];
    if (lane.is_done()) return false;
    HostSegment::Ring& ring = segment_.ring(rank(), peer);
    std::byte* const data = segment_.ring_data(rank(), peer);
    uint64_t written = ring.written.load(std::memory_order_relaxed);
    bool any = false;
    while (!lane.is_done()) {
      auto& t = lane.transfers[lane.at];
      const auto size = static_cast<uint64_t>(segment_.ring_bytes());
      const uint64_t room = size - (written - ring.read.load(std::memory_order_acquire));
      if (room < sizeof t.header) break;
      uint64_t bytes = 0;
      if (t.header_done == 0) {
        in_ring(data, written, sizeof t.header, [&](std::byte* to, uint64_t from, uint64_t n) {
          std::memcpy(to, reinterpret_cast<const std::byte*>(&t.header) + from, n);
        });
        t.header_done = bytes = sizeof t.header;
      }
      const uint64_t piece = std::min({room - bytes, t.bytes - t.done, kPiece});
      in_ring(data, written + bytes, piece, [&](std::byte* to, uint64_t from, uint64_t n) {
        if (n > 0) std::memcpy(to, t.data + t.done + from, n);
      });
      t.done += piece;
      written += bytes + piece;
      ring.written.store(written, std::memory_order_release);
      segment_.ring_doorbell(peer);
      any = true;
      if (t.is_done()) ++lane.at;
    }
    return any;
  }

  /// Reads what has come. Returns whether anything was read.
  bool receive(int peer) {
    auto& lane = incoming_[static_cast<size_t>(peer)];
    if (lane.is_done()) return false;
    HostSegment::Ring& ring = segment_.ring(peer, rank());
    std::byte* const data = segment_.ring_data(peer, rank());
    uint64_t read = ring.read.load(std::memory_order_relaxed);
    bool any = false;
    while (!lane.is_done()) {
      auto& t = lane.transfers[lane.at];
      const uint64_t there = ring.written.load(std::memory_order_acquire) - read;
      uint64_t bytes = 0;
      if (t.header_done == 0) {
        if (there < sizeof t.header) break;
        in_ring(data, read, sizeof t.header, [&](std::byte* from, uint64_t to, uint64_t n) {
          std::memcpy(reinterpret_cast<std::byte*>(&t.header) + to, from, n);
        });
        t.header_done = bytes = sizeof t.header;
        check_size(peer, t.header, t.bytes);
      }
      const uint64_t piece = std::min({there - bytes, t.bytes - t.done, kPiece});
      if (bytes + piece == 0) break;
      in_ring(data, read + bytes, piece, [&](std::byte* from, uint64_t to, uint64_t n) {
        if (n > 0) std::memcpy(t.data + t.done + to, from, n);
      });
      t.done += piece;
      read += bytes + piece;
      ring.read.store(read, std::memory_order_release);
      segment_.ring_doorbell(peer);
      any = true;
      if (t.is_done()) ++lane.at;
    }
    return any;
  }

  void check_size(int peer, uint64_t sent, uint64_t expected) const {
    BRRR_CHECK(sent == expected, "rank {} sent {} bytes where rank {} expects {}", peer, sent,
               rank(), expected);
  }

  HostSegment segment_;
  std::vector<Lane<const std::byte>> outgoing_;  // by peer
  std::vector<Lane<std::byte>> incoming_;
};

}  // namespace

int64_t touched_shared_memory(int ranks) {
  // The rings to and from each other rank, and who takes part.
  constexpr int64_t kTableBytes = int64_t{128} << 10;
  return 2 * int64_t{ranks - 1} * ring_bytes_for(ranks) + kTableBytes;
}

std::unique_ptr<Transport> open_shared_memory(const RankPlace& place,
                                              const TransportOptions& options) {
  return std::make_unique<SharedMemory>(place, options);
}

}  // namespace brrr::ranks
