#pragma once
// Separates mpirun's standard error into lines of the ranks, which are passed on at once, and
// blocks between lines of dashes, in which mpirun reports how the job ended.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace brrr::cli {

class MpirunOutput {
 public:
  /// Adds output of mpirun. Everything but mpirun's blocks goes to standard error at once.
  void add(std::string_view bytes);
  /// Prints mpirun's blocks. Called when the run ends for good, because they give the reason.
  void tell_blocks() const;

  /// A rank that was ended by a signal, as mpirun reports it.
  struct Killed {
    int64_t rank = 0, process = 0;  // process 0: mpirun does not say
    std::string host;
    int64_t signal = 0;
  };
  std::optional<Killed> killed() const;
  /// Whether mpirun reports that it lost the connection to the daemon of a host.
  bool lost_a_daemon() const;

 private:
  void end_line();

  std::string line_;           // the current line, held back while it may belong to a block
  bool is_passed_on_ = false;  // whether the start of the current line was printed
  bool is_in_block_ = false;
  std::string blocks_, recent_;
};

}  // namespace brrr::cli
