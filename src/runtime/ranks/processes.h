#pragma once
// Other processes of this host, as a rank watches them.

#include <cstdint>
#include <string>

namespace brrr {

/// A process by its number and the time at which it began, because numbers are used again.
struct ProcessName {
  int32_t pid = 0;
  uint64_t start_ticks = 0;  // since the host was started; 0 where the system does not say
};
ProcessName own_process();
/// Whether it is gone, or is a zombie that nobody has waited for.
bool has_ended(const ProcessName& process);

/// The letter of proc(5): 'R' runs, 'T' is stopped, 'Z' has ended; 0: there is no such process.
char process_state(int32_t pid);

/// Tells when a process ends. Where the system has no such descriptors, it asks /proc.
class ProcessWatch {
 public:
  explicit ProcessWatch(const ProcessName& process);
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;
  ~ProcessWatch();
  /// Readable in poll() once the process has ended; -1 where there is no such thing.
  int descriptor() const { return fd_; }
  bool ended() const;

 private:
  ProcessName process_;
  int fd_ = -1;
  bool ended_ = false;
};

/// Tells the system's namespaces of process numbers apart: a number means nothing in another one.
uint64_t process_namespace();
std::string host_name();

}  // namespace brrr
