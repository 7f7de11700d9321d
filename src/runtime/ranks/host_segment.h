#pragma once
// HostSegment: the memory that the ranks of one host share. It records which ranks take part,
// whether each of them is alive and why the run ended, and holds a doorbell per rank to sleep on
// and the ring buffers of shared_memory.cpp. Its name is removed as soon as all ranks are attached,
// so that nothing is left behind however they end. A thread in each process increments a counter,
// the beat of its rank, and watches the beats of the others.

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>

#include "runtime/ranks/processes.h"
#include "runtime/ranks/transport.h"

namespace brrr::ranks {

/// What a rank did that ended the run.
enum class Fault : uint8_t {
  none,
  ended,        // its process ended
  silent,       // its process exists, but none of its threads runs
  absent,       // it never attached
  left,         // it finished while another rank still waited for it
  gave_up,      // it reported an error
  other_build,  // it runs another build of the program
  other_count,  // it was started with another number of ranks
  duplicate,    // its number was taken by a process that has ended
};
/// A fault, the rank and a number (of seconds or ranks) in one word, so that the first rank to
/// write it decides what all ranks report.
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

  /// Attaches this process and waits until all ranks are attached. `ring_bytes`: size of the ring
  /// buffer of each ordered pair of ranks. Throws UserError if the memory cannot be allocated or
  /// the number of this rank is taken, and LostRank for faults that end the run.
  HostSegment(const RankPlace& place, const TransportOptions& options, int64_t ring_bytes);
  HostSegment(const HostSegment&) = delete;
  HostSegment& operator=(const HostSegment&) = delete;
  /// Marks this rank as finished, which is an error only for ranks that still wait for it.
  ~HostSegment();

  /// The ring buffer of one direction between two ranks. The counts only grow; a byte is stored at
  /// its count modulo ring_bytes().
  struct alignas(64) Ring {
    std::atomic<uint64_t> written{0};
    alignas(64) std::atomic<uint64_t> read{0};
    /// Whether the receiver can read the memory of the sender's process, and how many segments it
    /// has read from there.
    std::atomic<bool> is_direct{false};
    std::atomic<uint64_t> direct_read{0};
  };
  Ring& ring(int sender, int receiver) const;
  std::byte* ring_data(int sender, int receiver) const;
  int64_t ring_bytes() const { return ring_bytes_; }

  /// Returns how often this rank's doorbell was rung. Read it, look for work, then sleep() on it.
  uint32_t rings() const;
  /// Sleeps until the doorbell is rung after it showed `seen`, or until the time has passed.
  void sleep(uint32_t seen, double seconds = 1) const;
  void ring_doorbell(int rank) const;

  /// Reads from the memory of another rank's process. Returns the number of bytes, or -1 if the
  /// system does not permit it.
  int64_t read_memory(int rank, uint64_t address, std::byte* to, uint64_t bytes) const;

  bool has_left(int rank) const;
  /// Throws LostRank once there is a verdict.
  void check() const;
  /// Ends the run for this reason, unless there is a verdict already.
  void end_run(const Verdict& verdict) const;
  /// Ends the run because this rank cannot go on; `why` is its error.
  void give_up(const std::string& why) const;

 private:
  struct Header;
  struct Slot;

  struct Layout;  // offsets of the parts, which depend on the number of ranks
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
  uint64_t probe_;  // a value that others read to find out whether direct reads work
  int fd_ = -1;
  std::byte* memory_ = nullptr;
  uint64_t mapped_bytes_ = 0;
  int stop_ = -1;  // an eventfd that ends the watching thread
  std::thread watcher_;
};

}  // namespace brrr::ranks
