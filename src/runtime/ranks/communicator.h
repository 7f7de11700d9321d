#pragma once
// Communicator: runs the collectives of programs. It owns a transport and a thread that processes a
// queue of jobs, so that communication overlaps with kernels.

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/ranks/transport.h"

namespace brrr {

class Communicator {
 public:
  /// Calls `open` on the thread that will use the transport.
  explicit Communicator(const std::function<std::unique_ptr<Transport>()>& open);
  /// Waits for the current job; queued jobs that nobody has waited for may be dropped. Calls
  /// abandon() if an exception is unwinding the stack.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return place_.rank; }
  int ranks() const { return place_.ranks; }
  const RankPlace& place() const { return place_; }
  const std::string& transport_name() const { return name_; }

  /// Queues a piece of work with the transport. All ranks must queue their jobs in the same order.
  using Job = std::function<void(Transport&)>;
  using Ticket = uint64_t;
  Ticket start(Job job);
  /// Waits until the job is done. Throws what it threw, as every later call does.
  void wait(Ticket ticket);
  void run(Job job) { wait(start(std::move(job))); }

  /// Ends the run on all ranks because this one cannot go on: the others throw LostRank with this
  /// rank's name and `why`. No job can be started afterwards.
  void abandon(const std::string& why);

  // -- blocking calls on host memory, made by all ranks in the same order
  /// Returns the bytes of every rank, in the order of ranks; all ranks pass the same number of
  /// bytes.
  std::vector<std::vector<std::byte>> gather(std::span<const std::byte> bytes);
  template <typename T>
  std::vector<T> gather_values(const T& value) {
    std::vector<T> all;
    for (const std::vector<std::byte>& bytes : gather(std::as_bytes(std::span(&value, 1)))) {
      std::memcpy(&all.emplace_back(), bytes.data(), sizeof(T));
    }
    return all;
  }
  /// Copies the bytes of rank `root` to all others.
  void broadcast(std::span<std::byte> bytes, int root);
  void barrier();

  struct Traffic {
    int64_t bytes_sent = 0, bytes_received = 0;  // to and from other ranks
    int64_t exchanges = 0;
    double busy_seconds = 0;    // in which the thread ran jobs
    double waited_seconds = 0;  // that callers spent in wait()
  };
  Traffic traffic() const;

 private:
  class CountingTransport;
  struct State;
  void end(const std::string& why);

  RankPlace place_;
  std::string name_;
  int exceptions_before_ = 0;
  std::unique_ptr<State> state_;
};

}  // namespace brrr
