#include "train/options/rank_options.h"

#include <bit>

#include "base/human.h"
#include "runtime/ranks/transport.h"

namespace brrr::train {
namespace {

constexpr int64_t kMostRanks = 4096;

bool is_power_of_two(int64_t n) { return std::has_single_bit(static_cast<uint64_t>(n)); }

}  // namespace

void add_rank_rows(OptionTable<TrainOptions>& t) {
  t.group("ranks");
  t.integer("ranks", &TrainOptions::ranks, 1, kMostRanks, "N",
            "processes of this machine that train together; batch size and accumulation are those "
            "of all of them. On several machines use mpirun, torchrun, srun or brrr launch instead",
            {"nproc-per-node", "num-processes"})
      .free_on_resume = true;
  t.integer("zero", &TrainOptions::zero, 0, 3, "STAGE",
            "what ranks divide among them (ZeRO): 0 nothing, 1 the states of the optimizer, 2 also "
            "gradients, 3 also parameters",
            {"zero-stage"})
      .free_on_resume = true;
  t.integer("deterministic-ranks", &TrainOptions::deterministic_ranks, 0, kMostRanks, "SLOTS",
            "cut each step into so many slots, a power of two, whose gradients are summed in one "
            "fixed tree: 1, 2, 4, ... SLOTS ranks then give the same bits (default: as many as "
            "ranks)");
  std::vector<std::vector<std::string>> transports;
  for (const std::string& name : transport_names()) transports.push_back({name});
  t.flag("overlap", &TrainOptions::overlap,
         "let gradients travel between ranks while the backward pass goes on; off: one after the "
         "other, for comparison")
      .free_on_resume = true;
  t.choice("comm", &TrainOptions::comm, transports, "NAME",
           "what carries bytes between ranks: shm (shared memory of one machine), mpi; auto: shm "
           "where all ranks are on one machine")
      .free_on_resume = true;
  t.real("rank-timeout", &TrainOptions::rank_timeout, {.low = 0, .high = 86400}, "SECONDS",
         "how long a rank may give no sign of life before the run ends and names it (0: "
         "BRRR_RANK_TIMEOUT, else 12)")
      .free_on_resume = true;
  t.flag("elastic", &TrainOptions::elastic,
         "start all ranks again when one is lost (killed, stopped, out of memory), from the newest "
         "peer checkpoint or checkpoint");
  t.integer("max-restarts", &TrainOptions::max_restarts, 0, 1'000'000, "N",
            "how often --elastic starts them again; three times without a new step end the run "
            "before");
  t.parsed<int64_t>(
      "peer-checkpoint-steps", &TrainOptions::peer_checkpoint_steps,
      [](const std::string& text) -> int64_t {
        return text == "auto" ? -1 : parse_integer(text, 0, int64_t{1} << 40);
      },
      [](const int64_t& steps) { return steps < 0 ? "auto" : std::to_string(steps); }, "K",
      "with --elastic: after every K steps, keep the training state in memory of the launcher, "
      "each rank its part; auto: as often as takes 1% of the time at most; 0: never");
}

void validate_ranks(const TrainOptions& o) {
  if (o.deterministic_ranks > 0 && !is_power_of_two(o.deterministic_ranks))
    usage_error("--deterministic-ranks: expected a power of two; got {}", o.deterministic_ranks);
  if (o.ranks == 1 && o.deterministic_ranks <= 1) return;
  if (o.device.starts_with("cuda"))
    usage_error("--ranks {} runs on CPUs; --device {} trains on one GPU", o.ranks, o.device);
  if (o.zero > 0 && o.param_dtype == Precision::bfloat16)
    usage_error("--zero {} keeps fp32 parameters in shards: leave --param-dtype bf16 out", o.zero);
}

void cut_into_slots(TrainOptions& o) {
  validate_ranks(o);
  const int64_t slots = o.deterministic_ranks > 0 ? o.deterministic_ranks : o.ranks;
  if (slots == 1) return;
  if (slots % o.ranks != 0)
    usage_error("a step in {} (--deterministic-ranks) cannot be divided among {}: expected {}",
                counted(slots, "slot"), counted(o.ranks, "rank"),
                slots < o.ranks ? fmt::format("at most {}", slots)
                                : fmt::format("a number that divides {}", slots));
  const int64_t rows = o.batch_size * o.gradient_accumulation_steps;
  if (rows % slots != 0)
    usage_error(
        "{} of a step (batch size {} x accumulation {}) cannot be divided among {} {}: use a "
        "multiple of {}",
        counted(rows, "row"), o.batch_size, o.gradient_accumulation_steps, slots,
        o.deterministic_ranks > 0 ? "slots" : "ranks", slots);
  int64_t parts = (o.gradient_accumulation_steps + slots - 1) / slots * slots;
  while (rows % parts != 0) parts += slots;
  o.batch_size = rows / parts;
  o.gradient_accumulation_steps = parts;
  if (is_power_of_two(slots)) o.deterministic_ranks = slots;  // recorded, whoever goes on
}

}  // namespace brrr::train
