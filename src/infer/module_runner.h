#pragma once
// Running a module within the memory that there is: what a run will take is known before anything
// is allocated, and a run that does not fit is refused. Where the weights do not fit in panels,
// which are memory for time, they are read where they lie in the file. A module whose later sizes
// depend on data is known to its first program; the engine's limit holds for the others.

#include <memory>
#include <string>
#include <vector>

#include "infer/room.h"
#include "machine/process_forecast.h"
#include "modules/module_session.h"

namespace brrr::infer {

class ModuleRunner {
 public:
  /// `beside`: bytes of the memory which the caller takes beside inputs and outputs.
  /// `output_copies`: as often the outputs lie in memory while the caller works on them.
  ModuleRunner(const std::shared_ptr<const modules::Module>& module, const Backend& backend,
               modules::ModuleOptions options, Memory memory = {}, int64_t beside = 0,
               int64_t output_copies = 1);
  ModuleRunner(const ModuleRunner&) = delete;
  ModuleRunner& operator=(const ModuleRunner&) = delete;

  /// Compiles for such inputs and allocates nothing. Throws UserError (exit 3) where it does not
  /// fit. Before the first run.
  void prepare(const modules::ModuleValues& inputs, const std::vector<std::string>& wanted = {});
  /// Whether prepare() saw all programs of such a run.
  bool is_complete() const { return is_complete_; }

  /// ModuleSession::run(), prepared where it was not.
  modules::ModuleValues run(const modules::ModuleValues& inputs,
                            const std::vector<std::string>& wanted = {},
                            Timeline* timeline = nullptr);

  /// What the process takes when what is prepared runs, or has run.
  machine::ProcessForecast forecast() const;
  /// Another one after prepare(), where the weights do not fit in panels.
  const modules::ModuleSession& session() const { return *session_; }

 private:
  /// Outputs as the caller gets them, and what one program hands to the next.
  int64_t tensor_bytes(const Graph* next = nullptr) const;
  modules::ModuleOptions watched(modules::ModuleOptions options);
  void compile(const modules::ModuleValues& inputs, const std::vector<std::string>& wanted);

  Room room_;
  int64_t beside_, output_copies_;
  bool is_prepared_ = false, is_complete_ = false;
  ResidentMemory now_;  // compiled, nothing allocated
  std::shared_ptr<const modules::Module> module_;
  modules::ModuleOptions options_;
  std::unique_ptr<modules::ModuleSession> session_;
};

}  // namespace brrr::infer
