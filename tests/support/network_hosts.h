#pragma once
// Hosts within one machine: network namespaces whose links lead to one switch at a given rate, and
// in which Open MPI starts ranks without ssh. A namespace belongs to a process that ends with the
// test, so that nothing is left behind, whatever happens to the test.

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/system_text.h"
#include "support/temp_folder.h"

namespace brrr::test {

/// A process that owns a network namespace and a host name, and does nothing.
class NamespaceOwner {
 public:
  explicit NamespaceOwner(const std::string& host_name) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe failed");
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      const bool is_good = ::unshare(CLONE_NEWNET | CLONE_NEWUTS) == 0 &&
                           ::sethostname(host_name.data(), host_name.size()) == 0;
      if (is_good && ::write(ends[1], "", 1) == 1)
        for (;;) ::pause();
      ::_exit(1);
    }
    ::close(ends[1]);
    char ready = 0;
    is_ready_ = ::read(ends[0], &ready, 1) == 1;
    ::close(ends[0]);
  }
  NamespaceOwner(const NamespaceOwner&) = delete;
  NamespaceOwner& operator=(const NamespaceOwner&) = delete;
  ~NamespaceOwner() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  bool is_ready() const { return is_ready_; }
  pid_t pid() const { return pid_; }
  std::string file(const char* kind) const { return fmt::format("/proc/{}/ns/{}", pid_, kind); }
  /// Runs a command of the shell in the network namespace.
  bool run(const std::string& command) const {
    return std::system(fmt::format("PATH=$PATH:/usr/sbin:/sbin nsenter --target {} --net sh -c "
                                   "'{}' >/dev/null 2>&1",
                                   pid_, command)
                           .c_str()) == 0;
  }
  void must_run(const std::string& command) const {
    if (!run(command)) throw std::runtime_error("failed in a network namespace: " + command);
  }

 private:
  pid_t pid_ = -1;
  bool is_ready_ = false;
};

class NetworkHosts {
 public:
  /// Why there can be none on this machine; empty: there can.
  static std::string missing() {
    if (::geteuid() != 0) return "network namespaces need root";
    const NamespaceOwner owner("probe");
    if (!owner.is_ready()) return "the system refuses network namespaces";
    if (!owner.run("ip link add e0 type veth peer name e1 && ip link add b0 type bridge && "
                   "tc qdisc add dev e0 root tbf rate 1gbit burst 128kb latency 50ms"))
      return "ip and tc (package iproute2) cannot make links of a given rate";
    if (std::system("mpirun --version 2>/dev/null | grep -q \"Open MPI\"") != 0)
      return "mpirun of Open MPI (package openmpi-bin) is not installed";
    return "";
  }

  /// `rate`: of each link, in each direction, in the words of tc.
  NetworkHosts(int hosts, const std::string& rate) : switch_("switch") {
    switch_.must_run("ip link add b0 type bridge && ip link set b0 up");
    std::string agent =
        "#!/bin/sh\nwhile [ \"${1#-}\" != \"$1\" ]; do shift; done\n"  // options of ssh
        "host=$1; shift\ncase $host in\n";
    for (int host = 0; host < hosts; ++host) {
      owners_.push_back(std::make_unique<NamespaceOwner>(fmt::format("host{}", host)));
      const NamespaceOwner& owner = *owners_.back();
      const std::string shape = fmt::format("root tbf rate {} burst 128kb latency 50ms", rate);
      owner.must_run(fmt::format(
          "ip link add eth0 type veth peer name p{0} netns {1} && ip addr add {2}/24 dev eth0 && "
          "ip link set lo up && ip link set eth0 up && tc qdisc add dev eth0 {3}",
          host, switch_.pid(), address(host), shape));
      switch_.must_run(
          fmt::format("ip link set p{0} master b0 up && tc qdisc add dev p{0} {1}", host, shape));
      agent += fmt::format("{}) pid={};;\n", address(host), owner.pid());
    }
    // mpirun calls it as it would call ssh.
    agent += "esac\nexec nsenter --target $pid --net --uts sh -c \"$*\"\n";
    write_file_atomically(agent_file(), agent);
    ::chmod(agent_file().c_str(), 0755);
  }
  NetworkHosts(const NetworkHosts&) = delete;
  NetworkHosts& operator=(const NetworkHosts&) = delete;
  ~NetworkHosts() {
    for (int host = 0; host < size(); ++host)
      for (const pid_t process : processes(host)) ::kill(process, SIGKILL);
  }

  int size() const { return static_cast<int>(owners_.size()); }
  static std::string address(int host) { return fmt::format("10.77.0.{}", host + 1); }
  /// For --hosts.
  std::string addresses() const {
    std::string all;
    for (int host = 0; host < size(); ++host) all += (host > 0 ? "," : "") + address(host);
    return all;
  }
  /// Open MPI's own settings: the agent, the network, and TCP alone between ranks.
  std::vector<std::string> environment() const {
    return {"OMPI_MCA_plm_rsh_agent=" + agent_file().string(),
            "OMPI_MCA_pml=ob1",
            "OMPI_MCA_btl=tcp,self",
            "OMPI_MCA_btl_tcp_if_include=10.77.0.0/24",
            "OMPI_MCA_oob_tcp_if_include=10.77.0.0/24",
            "TMPDIR=" + folder_.path().string()};
  }
  /// Whether MPICH is installed beside Open MPI, as Debian does it.
  static bool has_mpich() { return fs::exists("/usr/bin/mpirun.mpich"); }
  /// The same for MPICH, whose programs come first in PATH.
  std::vector<std::string> environment_of_mpich() const {
    const fs::path programs = folder_ / "mpich";
    fs::create_directories(programs);
    fs::create_symlink("/usr/bin/mpirun.mpich", programs / "mpirun");
    fs::create_symlink("/usr/bin/hydra_pmi_proxy", programs / "hydra_pmi_proxy");
    const char* const path = std::getenv("PATH");
    return {"HYDRA_LAUNCHER=ssh", "HYDRA_LAUNCHER_EXEC=" + agent_file().string(),
            "HYDRA_IFACE=eth0",
            fmt::format("PATH={}:{}", programs.string(), path == nullptr ? "/usr/bin" : path)};
  }
  /// The words before a command that is to run on a host.
  std::vector<std::string> on(int host) const {
    return {"nsenter", "--target", std::to_string(owner(host).pid()), "--net", "--uts"};
  }
  void set_link(int host, bool is_up) const {
    owner(host).must_run(fmt::format("ip link set eth0 {}", is_up ? "up" : "down"));
  }
  /// What the host has sent, by the counter of its network interface.
  int64_t bytes_sent(int host) const {
    std::istringstream lines(
        system_text::read_or_empty(fmt::format("/proc/{}/net/dev", owner(host).pid())));
    for (std::string line; std::getline(lines, line);) {
      const size_t at = line.find("eth0:");
      if (at == std::string::npos) continue;
      std::istringstream fields(line.substr(at + 5));
      int64_t value = 0;
      for (int field = 0; field < 9; ++field) fields >> value;  // 8 of what was received
      return value;
    }
    return 0;
  }
  /// The processes that run on a host.
  std::vector<pid_t> processes(int host) const {
    std::vector<pid_t> found;
    struct stat own {};
    if (::stat(owner(host).file("net").c_str(), &own) != 0) return found;
    for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
      const auto pid = system_text::number(entry.path().filename().string());
      struct stat other {};
      if (!pid || *pid == owner(host).pid() ||
          ::stat((entry.path() / "ns/net").c_str(), &other) != 0)
        continue;
      if (other.st_ino == own.st_ino && other.st_dev == own.st_dev)
        found.push_back(static_cast<pid_t>(*pid));
    }
    return found;
  }
  /// Seconds until nothing runs on any host, at most `limit`.
  double seconds_until_empty(double limit) const {
    const Stopwatch watch;
    const auto is_empty = [&] {
      for (int host = 0; host < size(); ++host)
        if (!processes(host).empty()) return false;
      return true;
    };
    while (!is_empty() && watch.seconds() < limit)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return watch.seconds();
  }
  /// What Open MPI keeps in files while it runs.
  bool has_session_files() const {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_.path()))
      if (entry.path() != agent_file()) return true;
    return false;
  }

 private:
  const NamespaceOwner& owner(int host) const { return *owners_[static_cast<size_t>(host)]; }
  fs::path agent_file() const { return folder_ / "agent"; }

  TempFolder folder_;
  NamespaceOwner switch_;
  std::vector<std::unique_ptr<NamespaceOwner>> owners_;
};

}  // namespace brrr::test
