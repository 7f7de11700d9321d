#pragma once
// Transport: sends bytes between the ranks of a run. Each kind (shared memory, MPI) is one small
// file, and open_transport() chooses among them. A transport only moves bytes: gradients are summed
// by the kernels of collectives (runtime/ranks/collectives.h), so the order of a sum does not
// depend on the transport.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/errors.h"

namespace brrr {

/// The exit code of a rank that ends because another one is lost, so that a launcher can tell the
/// first rank to fail from those that followed.
inline constexpr ExitCode kLostRankExit{4};

/// Ends a run because another rank is lost. The message names the rank, its host and what to do.
class LostRank : public UserError {
 public:
  explicit LostRank(const std::string& message, ExitCode code = kLostRankExit)
      : UserError(message, code) {}
};

/// Another rank ended the run by an error of its own, or has finished although this one still needs
/// it. Restarted ranks would end in the same way.
class AbandonedRun : public LostRank {
 public:
  using LostRank::LostRank;
};

/// A rank of another host does not answer. If its host is cut off, the launcher can end neither the
/// processes there nor itself.
class SilentHost : public LostRank {
 public:
  using LostRank::LostRank;
};

/// The position of a process among those of a run.
struct RankPlace {
  int rank = 0, ranks = 1;
  int local_rank = 0, local_ranks = 1;  // the same within its host
  /// Where this comes from: "--ranks", "torchrun", "Open MPI", "PMI", "PMIx", "Slurm"; empty: there
  /// is one rank.
  std::string source;
  /// Identifies the run on a host: the same for all its ranks and different for other runs.
  std::string run_id;
};

/// Bytes for another rank, or from it. Several segments between the same two ranks match in order,
/// and have the same sizes on both sides.
struct Outgoing {
  int peer = 0;
  const std::byte* data = nullptr;
  int64_t bytes = 0;
};
struct Incoming {
  int peer = 0;
  std::byte* data = nullptr;
  int64_t bytes = 0;
};

/// Used by one thread, the one that made it. Every call is made by all ranks, in the same order.
class Transport {
 public:
  virtual ~Transport() = default;
  /// "shared memory", "MPI (Open MPI 4.1.4)"
  virtual std::string name() const = 0;
  int rank() const { return place_.rank; }
  int ranks() const { return place_.ranks; }
  const RankPlace& place() const { return place_; }

  /// Sends and receives all segments; returns when the outgoing memory may be changed and the
  /// incoming bytes are there. Throws LostRank when a rank has ended, does not answer within the
  /// time limit, or ended the run.
  virtual void exchange(std::span<const Outgoing> out, std::span<const Incoming> in) = 0;

  /// How many exchanges may have begun and not ended; each kind of transport has a fixed number.
  virtual int most_in_flight() const { return 1; }
  /// exchange() in two halves: the bytes travel in between, and exchanges end in the order in which
  /// they began. The memory of the segments belongs to the transport until the end. Where one
  /// exchange is in flight at most, the beginning does all.
  virtual void begin_exchange(std::span<const Outgoing> out, std::span<const Incoming> in) {
    exchange(out, in);
  }
  virtual void end_exchange() {}

  /// Makes all other ranks throw LostRank with this rank's name and `why`. From any thread.
  virtual void abandon(const std::string& why) { static_cast<void>(why); }

  /// How often idle() wants to be called while nothing is exchanged; 0: never.
  virtual double idle_seconds() const { return 0; }
  virtual void idle() {}

 protected:
  explicit Transport(RankPlace place) : place_(std::move(place)) {}

 private:
  RankPlace place_;
};

struct TransportOptions {
  /// "auto", or a name of transport_names().
  std::string kind = "auto";
  /// How long a rank may be silent before the run ends; while a rank computes it is not silent.
  /// 0: BRRR_RANK_TIMEOUT, else 12, so that a run ends everywhere within 15 s.
  double timeout_seconds = 0;
  /// How long ranks wait for the next one to come at the start.
  double start_seconds = 30;
  /// Shared memory: large segments are read from the memory of the process that sends them, where
  /// the system allows it, instead of being copied twice.
  bool reads_directly = true;
};
/// The values of --comm: "auto", "shm", "mpi", ...
std::vector<std::string> transport_names();
/// Connects all ranks of the place. Throws UserError (usage) for a kind that is not installed,
/// naming the package that brings it, and LostRank when a rank does not come.
std::unique_ptr<Transport> open_transport(const RankPlace& place, const TransportOptions& options);

}  // namespace brrr
