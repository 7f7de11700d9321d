#pragma once
// Watches other processes of this host.

#include <cstdint>
#include <string>

namespace brrr {

/// Identifies a process by its number and its start time, because numbers are reused.
struct ProcessName {
  int32_t pid = 0;
  uint64_t start_ticks = 0;  // since the host was started; 0: unknown
};
ProcessName own_process();
/// Whether the process no longer exists or is a zombie.
bool has_ended(const ProcessName& process);

/// The state letter of proc(5): 'R' running, 'T' stopped, 'Z' zombie; 0: no such process.
char process_state(int32_t pid);

/// Tells whether a process has ended, by a pidfd or, on older systems, by /proc.
class ProcessWatch {
 public:
  explicit ProcessWatch(const ProcessName& process);
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;
  ~ProcessWatch();
  /// Can be read in poll() once the process has ended; -1: the system has no pidfds.
  int descriptor() const { return fd_; }
  bool ended() const;

 private:
  ProcessName process_;
  int fd_ = -1;
  bool ended_ = false;
};

/// Identifies the PID namespace of this process; process numbers of another one have no meaning
/// here.
uint64_t process_namespace();
std::string host_name();

}  // namespace brrr
