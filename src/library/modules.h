#pragma once
// How the C interface opens and holds modules.

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "infer/open/named_model.h"
#include "infer/runner.h"
#include "library/api.h"

namespace brrr::library {

/// The options of a module, by the names of the command line.
struct ModuleOptions {
  std::string device = "auto";
  Precision precision = Precision::fp32;
  bool is_precision_given = false;  // else a quantised folder is computed as it says
  std::string memory_limit;
  int64_t threads = 0;
  std::vector<std::string> disabled;
};
/// Sets the number of threads, too. Throws UserError (usage) for an unknown option.
ModuleOptions module_options(const KeyValues& given);

/// Ports in the form of the C interface, with what they point to.
struct PortList {
  PortList() = default;
  explicit PortList(const std::vector<Port>& ports);
  PortList(PortList&&) = default;  // a copy would point into the original
  PortList& operator=(PortList&&) = default;
  std::deque<std::string> names;
  std::deque<std::vector<int64_t>> sizes;
  std::vector<brrr_port> list;
};

std::unique_ptr<brrr_module> make_module(const infer::NamedRunnable& named,
                                         const ModuleOptions& options);

}  // namespace brrr::library

struct brrr_module {
  std::shared_ptr<const brrr::Runnable> runnable;
  std::unique_ptr<brrr::infer::Runner> runner;
  brrr::library::PortList inputs, outputs;
};
