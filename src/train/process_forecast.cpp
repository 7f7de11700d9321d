#include "train/process_forecast.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "formats/svg_plot.h"
#include "runtime/ranks/collectives.h"
#include "runtime/ranks/place.h"
#include "runtime/ranks/transports.h"
#include "train/elastic/peer_checkpoint.h"
#include "train/parts.h"
#include "train/run_folder.h"

namespace brrr::train {
namespace {

// Bytes, measured on x86-64 Linux with glibc.
constexpr int64_t kLoaderBytes = int64_t{8} << 10;    // for each worker of a loader
constexpr int64_t kSavingBytes = int64_t{640} << 10;  // for writing a checkpoint
constexpr int64_t kLiveBytes = int64_t{3} << 20;      // for the live page, its server and its meter
constexpr int64_t kChoiceBytes = 16;                  // for each token that a sampler chooses among
constexpr int64_t kPointBytes = 48;                 // for each logged step, in curves and pictures
constexpr int64_t kFaultBytes = int64_t{64} << 10;  // that a page fault maps of a file
// Batches in memory: a loader with one worker reads two ahead.
constexpr int64_t kEvalLoaderBatches = 4;
constexpr int64_t kMostRanksOfAHost = 128;

std::vector<const Graph*> graphs_of(const Session& session) {
  std::vector<const Graph*> graphs;
  for (const Program* program : session.all_programs()) graphs.push_back(&program->graph());
  return graphs;
}

// Expected bytes of shards that become resident: each window lies anywhere in the shards, and its
// page faults map the surrounding pages as well.
int64_t touched(int64_t file_bytes, double windows, int64_t context) {
  if (file_bytes == 0) return 0;
  const double bytes = static_cast<double>(file_bytes);
  const double each = static_cast<double>(kFaultBytes + 4 * context);
  return static_cast<int64_t>(bytes * -std::expm1(-windows * each / bytes));
}

/// The bytes of a batch: "tokens", "targets" and the model's other inputs.
int64_t batch_bytes(const Graph& graph) {
  int64_t bytes = 0;
  for (const NodeId id : graph.inputs(InputKind::data))
    if (const Type& type = graph.type({id, 0}); type.shape.rank() > 0) bytes += type.bytes();
  return bytes;
}

/// Whether open_transport() would choose MPI. A plan without a launcher is for one host.
bool goes_by_mpi(const TrainOptions& o) {
  const RankPlace place = find_place();
  return o.comm == "mpi" || place.local_ranks < place.ranks;
}

}  // namespace

ProcessInputs inputs_of(const TrainOptions& o, const Dataset* data, int64_t vocab_size) {
  ProcessInputs inputs{.vocabulary = vocab_size};
  if (data == nullptr) return inputs;
  const int64_t rows = o.max_steps * o.gradient_accumulation_steps * o.batch_size;
  inputs.mapped_bytes = data->mapped_bytes();
  inputs.cached_bytes = data->cached_bytes(loader_options(o, vocab_size), rows);
  return inputs;
}

machine::ProcessForecast forecast_process(const TrainOptions& o, const Session& session,
                                          const ProcessInputs& inputs, const ResidentMemory& now,
                                          bool compiled) {
  const MemoryForecast arena = session.forecast();
  const bool is_on_device = session.engine().backend().memory_bytes > 0;
  machine::ProcessForecast f = machine::forecast_running(
      graphs_of(session), machine::ProcessKind::training, now, is_on_device);
  if (compiled) f.program = now.needed();
  f.arena = is_on_device ? 0 : arena.total();
  const int64_t row = batch_bytes(session.step_program().graph()) / o.batch_size;
  // The batches that are read ahead, one that each worker is making, and the current one.
  const int64_t loader_batches = o.dataloader_num_workers * (o.dataloader_prefetch_factor + 1) + 1;
  f.batches = row * ((loader_batches + o.gradient_accumulation_steps) * o.batch_size +
                     kEvalLoaderBatches * o.eval_batch_size) +
              inputs.cached_bytes;
  f.threads += o.dataloader_num_workers * kLoaderBytes + kSavingBytes;
  const int64_t every = o.logging_steps > 0 ? o.interval(o.logging_steps)
                                            : std::max<int64_t>(1, o.interval(o.eval_steps));
  if (const StepShares& shares = session.shares(); shares.ranks > 1) {
    constexpr int64_t kThreads = 2;  // one exchanges, one watches the other ranks
    const auto of_host = static_cast<int>(std::min<int64_t>(shares.ranks, kMostRanksOfAHost));
    f.ranks = collective_bytes(shares.ranks, goes_by_mpi(o) ? 2 : 1) +
              ranks::touched_shared_memory(of_host) + kThreads * machine::kThreadBytes +
              gathered_bytes(session.engine());
  }
  if (o.keeps_peer_checkpoints())
    f.ranks += LauncherMemory::kGenerations *
               peer_checkpoint_bytes(session.engine(), static_cast<int>(session.shares().rank),
                                     static_cast<int>(session.shares().ranks));
  f.logging =
      std::min(o.max_steps / every, static_cast<int64_t>(io::LossCurve::kMost)) * kPointBytes;
  if (o.wants_live()) f.logging += kLiveBytes;
  if (o.writes_samples()) f.logging += kChoiceBytes * inputs.vocabulary;
  const double windows = static_cast<double>(o.max_steps) *
                         static_cast<double>(o.batch_size * o.gradient_accumulation_steps);
  const int64_t shards = touched(inputs.mapped_bytes, windows, o.context);
  f.mapped = std::max(now.inputs, shards);
  return f;
}

}  // namespace brrr::train
