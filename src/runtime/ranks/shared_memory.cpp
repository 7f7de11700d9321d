// The transport between ranks of one host: a ring buffer in shared memory for each pair.

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "runtime/ranks/host_segment.h"
#include "runtime/ranks/transports.h"

namespace brrr::ranks {
namespace {

/// Bytes that are copied before the other side is notified, so that both sides copy at the same
/// time.
constexpr uint64_t kPiece = 32 << 10;

/// Ring buffers have at most 256 KiB, which stays in the caches, and 16 MiB in total.
int64_t ring_bytes_for(int ranks) {
  const int64_t pairs = int64_t{ranks} * (ranks - 1);
  const auto most = static_cast<uint64_t>((16 << 20) / std::max<int64_t>(1, pairs));
  return static_cast<int64_t>(std::clamp<uint64_t>(std::bit_floor(most), 4 << 10, 256 << 10));
}

/// Segments of at least this size are read from the sender's memory, if the system permits it.
constexpr uint64_t kLeastDirect = 32 << 10;
/// Maximum bytes of one such read.
constexpr uint64_t kDirectPiece = 1 << 20;

/// Precedes the bytes of a segment in the ring, or replaces them.
struct SegmentHeader {
  uint64_t bytes = 0;
  uint64_t address = 0;  // where the receiver reads the bytes; 0: they follow in the ring
};

template <typename Byte>
struct Transfer {
  Byte* data = nullptr;
  uint64_t bytes = 0;
  SegmentHeader header = {};
  bool has_header = false;  // whether the header was written, or read
  uint64_t done = 0;
  bool is_done() const { return has_header && done == bytes; }
};

/// The pending transfers between this rank and another one, in one direction.
template <typename Byte>
struct Lane {
  std::vector<Transfer<Byte>> transfers;
  size_t at = 0;
  uint64_t direct = 0;  // number of segments so far that the receiver reads from the sender
  void begin() {
    transfers.clear();
    at = 0;
  }
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
    for (auto& lane : outgoing_) lane.begin();
    for (auto& lane : incoming_) lane.begin();
    for (const Outgoing& s : out)
      if (s.peer != rank())
        outgoing_[static_cast<size_t>(s.peer)].transfers.push_back(
            {s.data, static_cast<uint64_t>(s.bytes)});
    for (const Incoming& s : in)
      if (s.peer != rank())
        incoming_[static_cast<size_t>(s.peer)].transfers.push_back(
            {s.data, static_cast<uint64_t>(s.bytes)});
    for (;;) {
      const uint32_t seen = segment_.rings();
      // A peer that has left wrote all its bytes before.
      const int left = first_that_left();
      bool is_done = true, moves = false;
      for (int step = 1; step < ranks(); ++step) {
        // Each rank begins with another peer, so that not all write to the same one.
        const int to = (rank() + step) % ranks(), from = (rank() - step + ranks()) % ranks();
        moves |= send(to);
        moves |= receive(from);
        is_done &= has_sent(to) && incoming_[static_cast<size_t>(from)].is_done();
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
  /// Whether all bytes are in the ring or were read from this rank's memory by the receiver.
  bool has_sent(int peer) const {
    const auto& lane = outgoing_[static_cast<size_t>(peer)];
    return peer == rank() ||
           (lane.is_done() && segment_.ring(rank(), peer).direct_read.load() == lane.direct);
  }

  /// Returns a peer that has left but is still needed, or -1.
  int first_that_left() const {
    for (int peer = 0; peer < ranks(); ++peer)
      if ((!has_sent(peer) || !incoming_[static_cast<size_t>(peer)].is_done()) &&
          segment_.has_left(peer))
        return peer;
    return -1;
  }

  /// Polls the doorbell for about as long as waking up takes. Returns whether it was rung.
  bool poll(uint32_t seen) const {
    for (int i = 0; i < 400; ++i) {
      if (segment_.rings() != seen) return true;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    return false;
  }

  /// Copies between memory and a ring buffer at the count `at`, with wrap-around.
  void write_ring(std::byte* ring, uint64_t at, const void* from, uint64_t bytes) const {
    const auto size = static_cast<uint64_t>(segment_.ring_bytes());
    const uint64_t begin = at % size, first = std::min(bytes, size - begin);
    const auto* source = static_cast<const std::byte*>(from);
    if (first > 0) std::memcpy(ring + begin, source, first);
    if (first < bytes) std::memcpy(ring, source + first, bytes - first);
  }
  void read_ring(const std::byte* ring, uint64_t at, void* to, uint64_t bytes) const {
    const auto size = static_cast<uint64_t>(segment_.ring_bytes());
    const uint64_t begin = at % size, first = std::min(bytes, size - begin);
    auto* target = static_cast<std::byte*>(to);
    if (first > 0) std::memcpy(target, ring + begin, first);
    if (first < bytes) std::memcpy(target + first, ring, bytes - first);
  }

  /// Writes as much as there is room for. Returns whether anything was written.
  bool send(int peer) {
    auto& lane = outgoing_[static_cast<size_t>(peer)];
    if (lane.is_done()) return false;
    HostSegment::Ring& ring = segment_.ring(rank(), peer);
    std::byte* const data = segment_.ring_data(rank(), peer);
    const auto size = static_cast<uint64_t>(segment_.ring_bytes());
    uint64_t written = ring.written.load(std::memory_order_relaxed);
    bool any = false;
    while (!lane.is_done()) {
      auto& t = lane.transfers[lane.at];
      uint64_t room = size - (written - ring.read.load(std::memory_order_acquire));
      if (room < sizeof t.header) break;
      if (!t.has_header) {
        t.header.bytes = t.bytes;
        if (t.bytes >= kLeastDirect && ring.is_direct.load()) {
          t.header.address = reinterpret_cast<uintptr_t>(t.data);
          t.done = t.bytes;
          ++lane.direct;
        }
        write_ring(data, written, &t.header, sizeof t.header);
        t.has_header = true;
        written += sizeof t.header;
        room -= sizeof t.header;
      }
      const uint64_t piece = std::min({room, t.bytes - t.done, kPiece});
      write_ring(data, written, t.data + t.done, piece);
      t.done += piece;
      written += piece;
      ring.written.store(written, std::memory_order_release);
      segment_.ring_doorbell(peer);
      any = true;
      if (t.is_done()) ++lane.at;
    }
    return any;
  }

  /// Reads the available bytes. Returns whether anything was read.
  bool receive(int peer) {
    auto& lane = incoming_[static_cast<size_t>(peer)];
    if (lane.is_done()) return false;
    HostSegment::Ring& ring = segment_.ring(peer, rank());
    const std::byte* const data = segment_.ring_data(peer, rank());
    uint64_t read = ring.read.load(std::memory_order_relaxed);
    bool any = false;
    while (!lane.is_done()) {
      auto& t = lane.transfers[lane.at];
      uint64_t there = ring.written.load(std::memory_order_acquire) - read;
      if (!t.has_header) {
        if (there < sizeof t.header) break;
        read_ring(data, read, &t.header, sizeof t.header);
        check_size(peer, t.header.bytes, t.bytes);
        t.has_header = true;
        read += sizeof t.header;
        there -= sizeof t.header;
        any = true;
      }
      uint64_t piece = 0;
      if (t.header.address != 0) {
        piece = read_directly(peer, t);
        if (piece > 0 && t.done + piece == t.bytes) ring.direct_read.fetch_add(1);
      } else {
        piece = std::min({there, t.bytes - t.done, kPiece});
        read_ring(data, read, t.data + t.done, piece);
        read += piece;
      }
      t.done += piece;
      ring.read.store(read, std::memory_order_release);
      segment_.ring_doorbell(peer);
      any |= piece > 0;
      if (t.is_done()) ++lane.at;
      if (piece == 0 && !t.is_done()) break;
    }
    return any;
  }

  /// Reads the next piece from the sender's memory. Returns 0 if that fails, as it does once the
  /// sender has ended, which its watcher reports.
  uint64_t read_directly(int peer, Transfer<std::byte>& t) {
    const uint64_t piece = std::min(t.bytes - t.done, kDirectPiece);
    const int64_t got =
        segment_.read_memory(peer, t.header.address + t.done, t.data + t.done, piece);
    if (got > 0) {
      failed_reads_ = 0;
      return static_cast<uint64_t>(got);
    }
    segment_.check();
    BRRR_CHECK(++failed_reads_ < kMostFailedReads, "rank {} cannot read {} bytes of rank {}",
               rank(), piece, peer);
    return 0;
  }

  void check_size(int peer, uint64_t sent, uint64_t expected) const {
    BRRR_CHECK(sent == expected, "rank {} sent {} bytes where rank {} expects {}", peer, sent,
               rank(), expected);
  }

  /// Limits failed reads in a row. A read can fail because the other process has just ended, which
  /// the check of the segment reports within a second.
  static constexpr int kMostFailedReads = 8;

  HostSegment segment_;
  int failed_reads_ = 0;
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
