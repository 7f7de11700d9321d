#include "runtime/ranks/place.h"

#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "base/env.h"
#include "base/options.h"
#include "base/system_text.h"
#include "base/threads/thread_team.h"

namespace brrr {
namespace {

/// The environment variables of a launcher. Of several names, the first one that is set counts.
struct Launcher {
  const char* name;
  std::vector<const char*> rank, ranks, local_rank, local_ranks;
  std::vector<const char*> run_id;
};

const std::vector<Launcher>& launchers() {
  static const std::vector<Launcher> all{
      {"torchrun", {"RANK"}, {"WORLD_SIZE"}, {"LOCAL_RANK"}, {"LOCAL_WORLD_SIZE"}, {}},
      {"Open MPI",
       {"OMPI_COMM_WORLD_RANK"},
       {"OMPI_COMM_WORLD_SIZE"},
       {"OMPI_COMM_WORLD_LOCAL_RANK"},
       {"OMPI_COMM_WORLD_LOCAL_SIZE"},
       {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}},
      {"PMI", {"PMI_RANK"}, {"PMI_SIZE"}, {"MPI_LOCALRANKID"}, {"MPI_LOCALNRANKS"}, {}},
      {"PMIx",
       {"PMIX_RANK"},
       {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"},
       {"SLURM_LOCALID"},
       {},
       {"PMIX_NAMESPACE"}},
      {"Slurm",
       {"SLURM_PROCID"},
       {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"},
       {"SLURM_LOCALID"},
       {},
       {}}};
  return all;
}

struct Setting {
  std::string variable, value;
};

std::optional<Setting> first_set(const std::vector<const char*>& names) {
  for (const char* name : names)
    if (const std::optional<std::string> value = env::get(name)) return Setting{name, *value};
  return {};
}

std::optional<int64_t> number_of(const std::vector<const char*>& names, int64_t low, int64_t high) {
  const std::optional<Setting> setting = first_set(names);
  if (!setting) return {};
  try {
    return parse_integer(setting->value, low, high);
  } catch (const UserError& e) {
    usage_error("the environment variable {}: {}", setting->variable, e.what());
  }
}

/// The number of tasks of a Slurm step on this node: entry SLURM_NODEID of a list such as
/// "4(x2),1".
std::optional<int64_t> slurm_local_ranks() {
  const std::optional<Setting> list =
      first_set({"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"});
  const std::optional<int64_t> node = number_of({"SLURM_NODEID"}, 0, kMostRanksOfARun);
  if (!list || !node) return {};
  int64_t before = 0;
  for (std::string_view rest = list->value; !rest.empty();) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view entry = rest.substr(0, comma);
    const size_t times = entry.find("(x");
    const std::optional<int64_t> tasks = system_text::number(entry);
    if (!tasks) return {};
    before += times == std::string_view::npos
                  ? 1
                  : system_text::number(entry.substr(times + 2)).value_or(1);
    if (*node < before) return tasks;
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return {};
}

bool is_this_host(const std::string& address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

std::string slurm_step() {
  const auto part = [](std::vector<const char*> names) {
    const std::optional<Setting> setting = first_set(names);
    return setting ? setting->value : std::string("0");
  };
  return "slurm-" + part({"SLURM_JOB_ID", "SLURM_JOBID"}) + "-" +
         part({"SLURM_STEP_ID", "SLURM_STEPID"});
}

/// The launcher's name for the run, or else the address at which its ranks meet, or else a value
/// that all its processes on this host share.
std::string run_id_of(const std::string& source, const std::vector<const char*>& own) {
  if (const auto id = env::get("BRRR_RUN_ID")) return *id;
  if (const std::optional<Setting> id = first_set(own)) return id->value;
  if (source == "Slurm" || source == "PMIx") return slurm_step();
  const auto address = env::get("MASTER_ADDR"), port = env::get("MASTER_PORT");
  if (address || port) return address.value_or("localhost") + ":" + port.value_or("");
  // With MPICH's mpiexec, all ranks of a host have the same parent.
  if (source == "PMI") return fmt::format("parent-{}", ::getppid());
  return "default";
}

/// Whether the launcher started this process as one of several. Slurm sets its variables also in
/// the batch script, which is not a task of a step.
bool is_started_by(const Launcher& launcher) {
  const bool has_rank = first_set(launcher.rank).has_value();
  const std::string_view name = launcher.name;
  if (name == "Slurm") return has_rank && first_set({"SLURM_STEP_ID", "SLURM_STEPID"});
  if (name == "torchrun") {
    const std::optional<Setting> ranks = first_set(launcher.ranks);
    if (ranks && ranks->value != "1" && !has_rank)
      usage_error("WORLD_SIZE is {}, but RANK is not set; set both, as torchrun does, or neither",
                  ranks->value);
    return has_rank && ranks;
  }
  return has_rank;
}

RankPlace place_of(const Launcher& launcher) {
  const std::string_view name = launcher.name;
  RankPlace place;
  place.source = launcher.name;
  const std::optional<int64_t> rank = number_of(launcher.rank, 0, kMostRanksOfARun - 1);
  const std::optional<int64_t> ranks = number_of(launcher.ranks, 1, kMostRanksOfARun);
  if (!ranks)
    usage_error("{} is set, but not how many ranks there are; add --ranks N and --rank R",
                launcher.rank[0]);
  if (*rank >= *ranks)
    usage_error("{} is {}, but {} is {}; ranks are numbered from 0", launcher.rank[0], *rank,
                first_set(launcher.ranks)->variable, *ranks);
  place.rank = static_cast<int>(*rank);
  place.ranks = static_cast<int>(*ranks);
  const std::optional<int64_t> local_rank = number_of(launcher.local_rank, 0, *ranks - 1);
  std::optional<int64_t> local_ranks = number_of(launcher.local_ranks, 1, *ranks);
  if (name == "Slurm" || name == "PMIx") local_ranks = slurm_local_ranks();
  if (!local_ranks) {
    // Other launchers (Kubernetes) set torchrun's variables with one rank per host, unless the
    // master address is this host.
    const bool is_one_host = is_this_host(env::get("MASTER_ADDR").value_or(""));
    local_ranks = is_one_host ? *ranks : local_rank.value_or(0) + 1;
  }
  const bool has_local_rank = local_rank.has_value();
  place.local_ranks = static_cast<int>(*local_ranks);
  place.local_rank = static_cast<int>(has_local_rank           ? *local_rank
                                      : *local_ranks == *ranks ? *rank
                                                               : 0);
  if (place.local_rank >= place.local_ranks)
    usage_error("{} is {}, but this host has {} of the ranks; ranks are numbered from 0",
                launcher.local_rank[0], place.local_rank, place.local_ranks);
  place.run_id = run_id_of(place.source, launcher.run_id);
  return place;
}

std::optional<RankPlace> launched_place() {
  for (const Launcher& launcher : launchers())
    if (is_started_by(launcher)) return place_of(launcher);
  return {};
}

}  // namespace

RankPlace find_place(std::optional<int64_t> rank, std::optional<int64_t> ranks) {
  if (rank && !ranks)
    usage_error("--rank {} needs --ranks, the number of processes of the run", *rank);
  if (rank) {
    if (*ranks < 1 || *ranks > kMostRanksOfARun)
      usage_error("--ranks: expected 1 to {}; got {}", kMostRanksOfARun, *ranks);
    if (*rank < 0 || *rank >= *ranks)
      usage_error("--rank is {}, but --ranks is {}; ranks are numbered from 0", *rank, *ranks);
    RankPlace place;
    place.rank = place.local_rank = static_cast<int>(*rank);
    place.ranks = place.local_ranks = static_cast<int>(*ranks);
    place.source = "--ranks";
    place.run_id = run_id_of(place.source, {});
    return place;
  }
  const RankPlace place = launched_place().value_or(RankPlace{});
  if (ranks && *ranks != place.ranks) {
    if (place.source.empty())
      usage_error(
          "--ranks {} needs --rank, or `brrr launch -n {} ...` in front of the command line, which "
          "starts them",
          *ranks, *ranks);
    usage_error("--ranks is {}, but {} started {}; leave --ranks out", *ranks, place.source,
                place.ranks);
  }
  return place;
}

void divide_threads(const RankPlace& place) {
  if (place.local_ranks > 1 && !env::get("OMP_NUM_THREADS"))
    set_thread_count(std::max(1, usable_processors() / place.local_ranks));
}

}  // namespace brrr
