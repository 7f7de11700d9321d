#include "cli/join_ranks.h"

#include "base/tell.h"
#include "train/ranks.h"

namespace brrr::cli {

std::shared_ptr<Communicator> join_ranks(train::TrainOptions& options) {
  std::shared_ptr<Communicator> communicator = train::join_ranks(options);
  if (communicator != nullptr && communicator->rank() > 0) set_tell_sink([](std::string_view) {});
  return communicator;
}

}  // namespace brrr::cli
