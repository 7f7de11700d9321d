#include "runtime/ranks/mpi_library.h"

#include <dlfcn.h>

#include <vector>

#include "base/errors.h"

namespace brrr::ranks {

MpiLibrary::MpiLibrary(std::string_view source) {
  std::vector<const char*> names{"libmpi.so.40", "libmpich.so.12", "libmpi.so.12"};
  if (source == "PMI") names = {"libmpich.so.12", "libmpi.so.12", "libmpi.so.40"};
  for (const char* name : names)  // RTLD_GLOBAL, because MPI's plugins need its symbols
    if (library_ == nullptr) library_ = ::dlopen(name, RTLD_NOW | RTLD_GLOBAL);
  if (library_ == nullptr)
    usage_error(
        "MPI is not installed: there is no libmpi.so.40 (Open MPI) and no libmpich.so.12 (MPICH); "
        "Debian and Ubuntu have it in the packages openmpi-bin and mpich; ranks of one host need "
        "none: --comm shm");
  const auto find = [&](auto& pointer, const char* name) {
    void* symbol = ::dlsym(library_, name);
    if (symbol == nullptr) usage_error("the MPI library of this system is too old: no {}", name);
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(symbol);
  };
  find(init_thread, "MPI_Init_thread");
  find(finalize, "MPI_Finalize");
  find(comm_rank, "MPI_Comm_rank");
  find(comm_size, "MPI_Comm_size");
  find(comm_set_errhandler, "MPI_Comm_set_errhandler");
  find(isend, "MPI_Isend");
  find(irecv, "MPI_Irecv");
  find(test, "MPI_Test");
  find(cancel, "MPI_Cancel");
  find(request_free, "MPI_Request_free");
  find(error_string, "MPI_Error_string");
  find(get_library_version, "MPI_Get_library_version");
  if (::dlsym(library_, "ompi_mpi_comm_world") != nullptr) {
    find(world, "ompi_mpi_comm_world");
    find(byte, "ompi_mpi_byte");
    find(errors_return, "ompi_mpi_errors_return");
    any_source = -1;
  } else {  // the numbers of the MPICH ABI, which are fixed since 2014
    world = 0x44000000;
    byte = 0x4c00010d;
    errors_return = 0x54000001;
    any_source = -2;
    ignored_status = reinterpret_cast<void*>(1);
  }
}

std::string MpiLibrary::version() const {
  char text[8193] = {};
  int bytes = 0;
  if (get_library_version(text, &bytes) != 0) return "unknown version";
  // "Open MPI v4.1.4, package: ...", "MPICH Version:      4.0.2\n..."
  std::string name;
  for (const char c : std::string_view(text).substr(0, std::string_view(text).find_first_of(",\n")))
    if (c != ':' && (c != ' ' || !name.ends_with(' '))) name += c == '\t' ? ' ' : c;
  if (const size_t at = name.find(" Version "); at != std::string::npos) name.erase(at, 8);
  if (const size_t at = name.find(" v"); at != std::string::npos) name.erase(at + 1, 1);
  return name;
}

void MpiLibrary::check(int code, const char* call) const {
  if (code == 0) return;
  char text[1025] = {};
  int bytes = 0;
  if (error_string(code, text, &bytes) != 0) text[0] = '\0';
  user_error("MPI: {} failed: {}", call, text);
}

}  // namespace brrr::ranks
