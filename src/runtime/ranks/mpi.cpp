#include "runtime/ranks/transports.h"

namespace brrr::ranks {

std::unique_ptr<Transport> open_mpi(const RankPlace&, const TransportOptions&) {
  usage_error("MPI is not installed; install openmpi-bin");
}

}  // namespace brrr::ranks
