#pragma once
// HostSegment: the memory that the ranks of one host share. It holds who takes part, whether each
// is alive, why the run ended if it did, a doorbell for each rank to sleep on, and room for the
// bytes that travel (shared_memory.cpp). Its name is removed as soon as all ranks are attached, so
// that nothing is left behind however they end. A thread of each process beats for its rank and
// watches the others.

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>

#include "runtime/ranks/processes.h"
#include "runtime/ranks/transport.h"

namespace brrr::ranks {

/// Why a run ended, for which the rank in question is named.
enum class Fault : uint8_t {
  none,
  ended,        // its process is gone
  silent,       // it lives, but no thread of it runs
  absent,       // it never came
  left,         // it is done, and another waited for it
  gave_up,      // it said so
  other_build,  // it runs another program
  other_count,  // it was started as one of another number of ranks
  duplicate,    // its number was taken by a process that has ended
};
/// The fault, the rank and a number (seconds, or ranks) in one word, so that the first one to
/// write it decides what all ranks say.
struct Verdict {
  Fault fault = Fault::none;
  int rank = 0;
  int number = 0;
  uint64_t word() const;
  static Verdict of(uint64_t word);
};

class HostSegment {
 public:
  static constexpr int kMostRanks = 128;

  /// Attaches this process and waits until all ranks of the place have come. `ring_bytes`: for each
  /// ordered pair of ranks. Throws UserError where the memory cannot be had or the number of this
  /// rank is taken, LostRank for what ends the run.
  HostSegment(const RankPlace& place, const TransportOptions& options, int64_t ring_bytes);
  HostSegment(const HostSegment&) = delete;
  HostSegment& operator=(const HostSegment&) = delete;
  /// This rank has left: an error only for ranks that still wait for it.
  ~HostSegment();

  /// One direction between two ranks. The counts only grow; the bytes lie at the count modulo
  /// ring_bytes().
  struct alignas(64) Ring {
    std::atomic<uint64_t> written{0};
    alignas(64) std::atomic<uint64_t> read{0};
    /// Whether the receiver can read the sender's own memory, and how many segments it has read
    /// from there.
    std::atomic<bool> is_direct{false};
    std::atomic<uint64_t> direct_read{0};
  };
  Ring& ring(int sender, int receiver) const;
  std::byte* ring_data(int sender, int receiver) const;
  int64_t ring_bytes() const { return ring_bytes_; }

  /// How often this rank's doorbell was rung. Read it, look for work, then sleep on it.
  uint32_t rings() const;
  /// Until the doorbell was rung since it showed `seen`, or for so long.
  void sleep(uint32_t seen, double seconds = 1) const;
  void ring_doorbell(int rank) const;

  /// Reads from the memory of another rank's process. Returns the number of bytes, or -1 where the
  /// system does not let it.
  int64_t read_memory(int rank, uint64_t address, std::byte* to, uint64_t bytes) const;

  bool has_left(int rank) const;
  /// Throws LostRank once there is a verdict.
  void check() const;
  /// The run ends for this reason, unless another came first.
  void end_run(const Verdict& verdict) const;
  /// As end_run() for this rank, with its own words.
  void give_up(const std::string& why) const;

 private:
  struct Header;
  struct Slot;

  struct Layout;  // where the parts lie, by the number of ranks
  Layout layout() const;
  Header& header() const;
  Slot& slot(int rank) const;

  void attach();
  bool try_to_attach();
  void make(int fd) const;
  void claim_slot();
  bool is_stale(uint64_t size) const;
  void await_all();
  void try_direct_reads() const;
  void watch();
  void remove_name() const;
  void unmap();
  std::string who(int rank) const;
  std::string sentence(const Verdict& verdict) const;

  int rank_, ranks_;
  double timeout_seconds_, start_seconds_;
  int64_t ring_bytes_;
  std::string name_;
  uint64_t probe_;  // what others read to find out whether they can
  int fd_ = -1;
  std::byte* memory_ = nullptr;
  uint64_t mapped_bytes_ = 0;
  int stop_ = -1;  // an eventfd that ends the watching thread
  std::thread watcher_;
};

}  // namespace brrr::ranks
