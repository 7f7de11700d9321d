#include "train/ranks.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "formats/json_file.h"
#include "runtime/ranks/place.h"
#include "runtime/ranks/shared_work.h"

namespace brrr::train {
namespace {

/// Whether ranks may have different values of an option, because it concerns one process only.
bool may_differ(const OptionTable<TrainOptions>::Row& row) {
  for (const char* name :
       {"threads", "comm", "rank-timeout", "device", "dataloader-num-workers",
        "dataloader-prefetch-factor", "output-dir", "run-name", "report-to", "overlap"})
    if (row.name == name) return true;
  return is_per_call(row.name) && row.name != "ranks";
}

}  // namespace

std::shared_ptr<Communicator> join_ranks(TrainOptions& options) {
  const RankPlace place = find_place();
  if (place.ranks == 1) return nullptr;
  if (options.ranks != 1 && options.ranks != place.ranks)
    usage_error("--ranks {}: {} has started {}; leave --ranks out", options.ranks, place.source,
                place.ranks);
  options.ranks = place.ranks;
  return connect_ranks(place, options.threads,
                       {.kind = options.comm, .timeout_seconds = options.rank_timeout});
}

void check_agreement(Communicator& communicator, const TrainOptions& options,
                     const std::string& data) {
  const std::vector<std::string> all = gather_texts(communicator, to_json(options));
  const TrainOptions first = options_from_json(all[0], "the options of rank 0");
  for (size_t rank = 1; rank < all.size(); ++rank) {
    const TrainOptions theirs = options_from_json(all[rank], fmt::format("rank {}", rank));
    for (const auto& row : train_option_table().rows()) {
      if (!row.get || may_differ(row)) continue;
      const auto here = row.get(first), there = row.get(theirs);
      if (here != there)
        usage_error("rank {} has --{} {}, rank 0 has {}: start all ranks with the same options",
                    rank, row.name, fmt::join(there, " "), fmt::join(here, " "));
    }
  }
  check_same(communicator, "data", data, "give all ranks the same files");
}

void check_same(Communicator& communicator, std::string_view what, const std::string& text,
                std::string_view advice) {
  const std::vector<std::string> all = gather_texts(communicator, text);
  for (size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank] != all[0])
      usage_error("rank {} has other {} than rank 0: {} there, {} on rank 0; {}", rank, what,
                  all[rank], all[0], advice);
}

}  // namespace brrr::train
