#include "runtime/ranks/transports.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "base/env.h"
#include "base/hash.h"
#include "base/options.h"

namespace brrr {
namespace ranks {
namespace {

/// A run of one rank: nobody to send to.
class Alone : public Transport {
 public:
  explicit Alone(const RankPlace& place) : Transport(place) {}
  std::string name() const override { return "one process"; }
  void exchange(std::span<const Outgoing> out, std::span<const Incoming> in) override {
    copy_own_segments(out, in, 0);
  }
};

}  // namespace

std::string segment_name(const std::string& run_id) {
  return fmt::format("/brrr-{}-{:016x}", ::getuid(), Hash().add(std::string_view(run_id)).value());
}

void remove_segment(const std::string& run_id) { ::shm_unlink(segment_name(run_id).c_str()); }

void copy_own_segments(std::span<const Outgoing> out, std::span<const Incoming> in, int rank) {
  auto to = in.begin();
  for (const Outgoing& from : out) {
    if (from.peer != rank) continue;
    while (to != in.end() && to->peer != rank) ++to;
    BRRR_CHECK(to != in.end() && to->bytes == from.bytes,
               "a segment of {} bytes from rank {} to itself has no place", from.bytes, rank);
    if (from.bytes > 0) std::memmove(to->data, from.data, static_cast<size_t>(from.bytes));
    ++to;
  }
}

double timeout_seconds(double of_options) {
  if (of_options > 0) return of_options;
  const std::optional<std::string> given = env::get("BRRR_RANK_TIMEOUT");
  if (!given) return 12;
  try {
    return parse_real(*given, {.low = 0.5, .high = 86400});
  } catch (const UserError& e) {
    usage_error("BRRR_RANK_TIMEOUT: {}", e.what());
  }
}

}  // namespace ranks

std::vector<std::string> transport_names() { return {"auto", "shm", "mpi", "nccl", "gloo"}; }

std::unique_ptr<Transport> open_transport(const RankPlace& place, const TransportOptions& given) {
  TransportOptions options = given;
  options.timeout_seconds = ranks::timeout_seconds(options.timeout_seconds);
  BRRR_CHECK(place.ranks >= 1 && place.rank >= 0 && place.rank < place.ranks, "rank {} of {}",
             place.rank, place.ranks);
  const std::vector<std::string> names = transport_names();
  if (std::ranges::find(names, options.kind) == names.end()) {
    const std::string likely = nearest(options.kind, names);
    usage_error("unknown kind of communication '{}'; expected one of {}{}", options.kind,
                fmt::join(names, ", "), likely.empty() ? "" : "; did you mean " + likely + "?");
  }
  if (options.kind == "nccl")
    usage_error(
        "NCCL connects GPUs, and ranks compute on CPUs here; use --comm shm for one host or --comm "
        "mpi for several");
  if (options.kind == "gloo")
    usage_error(
        "Gloo is not built into this program; use --comm shm for one host or --comm mpi for "
        "several");
  const bool is_one_host = place.local_ranks == place.ranks;
  if (options.kind == "shm" && !is_one_host)
    usage_error(
        "--comm shm connects ranks of one host, but only {} of {} ranks are on this one; use "
        "--comm "
        "mpi",
        place.local_ranks, place.ranks);
  if (place.ranks == 1) return std::make_unique<ranks::Alone>(place);
  return is_one_host && options.kind != "mpi" ? ranks::open_shared_memory(place, options)
                                              : ranks::open_mpi(place, options);
}

}  // namespace brrr
