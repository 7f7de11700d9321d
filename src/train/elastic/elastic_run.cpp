#include "train/elastic/elastic_run.h"

#include "runtime/ranks/processes.h"
#include "runtime/ranks/shared_work.h"

namespace brrr::train {
namespace {

/// For `auto`: the time between two peer checkpoints as a multiple of the time that one takes.
constexpr double kKeepEvery = 100;

}  // namespace

ElasticRun::ElasticRun(Communicator* communicator)
    : rank_(rank_of(communicator)),
      ranks_(ranks_of(communicator)),
      launcher_(LauncherMemory::inherited()) {
  if (launcher_) start_ = start_of(*launcher_);
  // On several hosts, only rank 0 sees the launcher's memory; it tells the others.
  if (LauncherMemory::is_of_several_hosts() && communicator != nullptr)
    start_ =
        elastic_start_from_json(gather_texts(*communicator, launcher_ ? to_json(start_) : "")[0]);
  if (launcher_) launcher_->set_joined(own_process().pid);
}

TrainOptions ElasticRun::options(const TrainOptions& given) const {
  return options_of_rank(given, start_);
}

bool ElasticRun::goes_on_from_memory() const {
  return start_.restarts > 0 && start_.go_on.from == GoOn::From::memory;
}

void ElasticRun::note_place_checked() {
  if (launcher_) launcher_->set_place_checked();
}

void ElasticRun::publish(const std::string& folder) {
  if (launcher_ && rank_ == 0) launcher_->set_folder(folder);
}

void ElasticRun::open(const TrainOptions& options) {
  if (launcher_ && (options.keeps_peer_checkpoints() || goes_on_from_memory()))
    peers_.emplace(*launcher_, rank_, ranks_);
}

void ElasticRun::note_step(int64_t step) {
  if (launcher_) launcher_->set_step(rank_, step);
}

bool ElasticRun::wants_to_keep(int64_t step, const TrainOptions& options) const {
  if (!peers_ || !options.keeps_peer_checkpoints()) return false;
  const int64_t every = options.peer_checkpoint_steps;
  return every < 0 ? since_kept_.seconds() >= kKeepEvery * keep_seconds_ : step % every == 0;
}

void ElasticRun::keep(OpenRun& run) {
  const Stopwatch watch;
  run.keep_in(*peers_);
  keep_seconds_ = watch.seconds();
  since_kept_.restart();
}

}  // namespace brrr::train
