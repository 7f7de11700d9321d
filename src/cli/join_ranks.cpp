#include "cli/join_ranks.h"

#include "base/errors.h"
#include "base/tell.h"
#include "runtime/ranks/place.h"

namespace brrr::cli {

std::shared_ptr<Communicator> join_ranks(train::TrainOptions& options) {
  const RankPlace place = find_place();
  if (place.ranks == 1) return nullptr;
  if (options.ranks != 1 && options.ranks != place.ranks)
    usage_error("--ranks {}: {} has started {}; leave --ranks out", options.ranks, place.source,
                place.ranks);
  options.ranks = place.ranks;
  if (place.rank > 0) set_tell_sink([](std::string_view) {});
  return std::make_shared<Communicator>([&] {
    return open_transport(place, {.kind = options.comm, .timeout_seconds = options.rank_timeout});
  });
}

}  // namespace brrr::cli
