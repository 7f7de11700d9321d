#include "cli/join_ranks.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <exception>

#include "base/file.h"
#include "base/tell.h"
#include "folders/adapters/adapter_folder.h"
#include "machine/device.h"
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

void check_same_files(Communicator* communicator, std::string_view what,
                      const std::function<std::string()>& identify) {
  if (communicator == nullptr) return;
  std::string own;
  run_on_all(communicator, [&] { own = identify(); });
  train::check_same(*communicator, what, own, "give all ranks the same files");
}

void check_same_models(Communicator* communicator, const io::ModelFolder& model,
                       const std::string& device) {
  if (communicator == nullptr) return;
  check_same_files(communicator, "weights", [&] { return io::fingerprint_of_all(*model.weights); });
  check_same_files(communicator, "settings of the model", [&] {
    const std::string config = model.definition->config_json(DType::f32);
    return crc_text(crc32c(config.data(), config.size()));
  });
  train::check_same(*communicator, "kernels", machine::backend_for(device).name,
                    "set BRRR_ISA on all ranks to the lesser of both");
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
