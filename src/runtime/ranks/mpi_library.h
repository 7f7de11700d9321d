#pragma once
// The system's MPI library, loaded at run time. There are two binary interfaces: Open MPI's, whose
// handles are pointers to objects that it exports, and that of MPICH, Intel MPI and others, whose
// handles are numbers. A handle is one register wide here, which fits both.

#include <cstdint>
#include <string>
#include <string_view>

namespace brrr::ranks {

class MpiLibrary {
 public:
  using Handle = uintptr_t;

  /// Loads the library that belongs to the launcher `source` (RankPlace). Throws UserError naming
  /// the packages that have one.
  explicit MpiLibrary(std::string_view source);
  MpiLibrary(const MpiLibrary&) = delete;
  MpiLibrary& operator=(const MpiLibrary&) = delete;

  /// "Open MPI 4.1.4"; known once MPI is initialised.
  std::string version() const;
  /// Throws UserError with MPI's own words for a code that is not 0.
  void check(int code, const char* call) const;

  Handle world = 0, byte = 0, errors_return = 0;
  int any_source = 0;
  void* ignored_status = nullptr;

  int (*init_thread)(int*, char***, int, int*) = nullptr;
  int (*finalize)() = nullptr;
  int (*comm_rank)(Handle, int*) = nullptr;
  int (*comm_size)(Handle, int*) = nullptr;
  int (*comm_set_errhandler)(Handle, Handle) = nullptr;
  int (*isend)(const void*, int, Handle, int, int, Handle, Handle*) = nullptr;
  int (*irecv)(void*, int, Handle, int, int, Handle, Handle*) = nullptr;
  int (*test)(Handle*, int*, void*) = nullptr;
  int (*cancel)(Handle*) = nullptr;
  int (*request_free)(Handle*) = nullptr;
  int (*error_string)(int, char*, int*) = nullptr;
  int (*get_library_version)(char*, int*) = nullptr;

 private:
  // Never unloaded: MPI's own threads and exit handlers may still run.
  void* library_ = nullptr;
};

}  // namespace brrr::ranks
