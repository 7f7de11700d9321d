#include "cli/join_ranks.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <exception>

#include "base/tell.h"
#include "runtime/ranks/place.h"
#include "train/ranks.h"

namespace brrr::cli {

std::shared_ptr<Communicator> join_ranks(train::TrainOptions& options) {
  std::shared_ptr<Communicator> communicator = train::join_ranks(options);
  if (communicator != nullptr && communicator->rank() > 0) set_tell_sink([](std::string_view) {});
  return communicator;
}

std::shared_ptr<Communicator> join_to_share_work(int64_t threads) {
  const RankPlace place = find_place();
  if (place.ranks == 1) return nullptr;
  std::shared_ptr<Communicator> communicator = connect_ranks(place, threads);
  if (communicator->rank() == 0) return communicator;
  set_tell_sink([](std::string_view) {});
  std::fflush(stdout);
  const int nothing = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (nothing >= 0) ::dup2(nothing, STDOUT_FILENO);
  return communicator;
}

void rethrow_of_rank(Communicator& communicator) {
  try {
    throw;
  } catch (const SharedError&) {
    throw;
  } catch (const LostRank&) {
    set_tell_sink({});
    throw;
  } catch (const std::exception& e) {
    set_tell_sink({});
    communicator.abandon(e.what());
    throw;
  }
}

}  // namespace brrr::cli
