#pragma once
// Communicator: what a program's collectives run on. It owns a transport and a thread that works
// through a queue of jobs, so that bytes travel while kernels run.

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
  /// Makes the transport on the thread that will use it.
  explicit Communicator(const std::function<std::unique_ptr<Transport>()>& open);
  /// Waits for the job that runs; those that nobody waited for may be left out. While an exception
  /// unwinds the stack, as abandon().
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return place_.rank; }
  int ranks() const { return place_.ranks; }
  const RankPlace& place() const { return place_; }
  const std::string& transport_name() const { return name_; }

  /// A piece of work with the transport, in the queue. Jobs of all ranks run in the same order.
  using Job = std::function<void(Transport&)>;
  using Ticket = uint64_t;
  Ticket start(Job job);
  /// Until the job is done; throws what it threw, as every later call does.
  void wait(Ticket ticket);
  void run(Job job) { wait(start(std::move(job))); }

  /// Ends the run on all ranks, because this one cannot go on: they throw LostRank with this rank's
  /// name and `why`. Nothing can be started afterwards.
  void abandon(const std::string& why);

  // -- on the host's memory, at once; called by all ranks in the same order
  /// What every rank gave, in the order of ranks; `bytes` is the same on all.
  std::vector<std::vector<std::byte>> gather(std::span<const std::byte> bytes);
  template <typename T>
  std::vector<T> gather_values(const T& value) {
    std::vector<T> all;
    for (const std::vector<std::byte>& bytes : gather(std::as_bytes(std::span(&value, 1)))) {
      std::memcpy(&all.emplace_back(), bytes.data(), sizeof(T));
    }
    return all;
  }
  /// The content of `root`'s memory goes into everyone's.
  void broadcast(std::span<std::byte> bytes, int root);
  void barrier();

  struct Traffic {
    int64_t bytes_sent = 0, bytes_received = 0;  // between ranks
    int64_t exchanges = 0;
    double busy_seconds = 0;    // of the thread that exchanges
    double waited_seconds = 0;  // of callers, in wait()
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
