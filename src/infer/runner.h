#pragma once
// Runner: runs a Runnable within the memory that there is. What a run will take is known before
// anything is allocated, and a run that does not fit is refused. Where the weights do not fit in
// panels, which are memory for time, they are read where they lie in the file. Where sizes depend
// on data, the first program is known beforehand, and the engine's limit holds for later ones.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "infer/room.h"
#include "machine/process_forecast.h"
#include "runtime/runnable_session.h"

namespace brrr::infer {

class Runner {
 public:
  /// `beside`: bytes of the memory which the caller takes beside inputs and outputs.
  /// `output_copies`: as often the outputs lie in memory while the caller works on them.
  Runner(const std::shared_ptr<const Runnable>& runnable, const Backend& backend,
         RunnableOptions options, Memory memory = {}, int64_t beside = 0,
         int64_t output_copies = 1);
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  /// Compiles for all such inputs and allocates nothing. Throws UserError (exit 3) where they do
  /// not fit. Once, before the first run.
  void prepare(std::span<const PortValues> inputs, const std::vector<std::string>& wanted = {});
  void prepare(const PortValues& inputs, const std::vector<std::string>& wanted = {}) {
    prepare(std::span(&inputs, 1), wanted);
  }
  /// Whether prepare() saw all programs of such a run.
  bool is_complete() const { return is_complete_; }

  /// Gets the memory of what was prepared and loads the weights, which the first run does else.
  void allocate() { session_->allocate(); }

  /// RunnableSession::run(), prepared where nothing was.
  PortValues run(const PortValues& inputs, const std::vector<std::string>& wanted = {},
                 Timeline* timeline = nullptr);

  /// RunnableSession::run_into(), prepared where nothing was.
  void run_into(PortValues& outputs, const PortValues& inputs,
                const std::vector<std::string>& wanted = {}, Timeline* timeline = nullptr);

  /// RunnableSession::run_views(), prepared where nothing was.
  void run_views(const TensorViews& inputs, const std::vector<std::string>& wanted,
                 const RunnableSession::SeeOutput& see);

  /// RunnableSession::run_in_place(), prepared where nothing was.
  OutputView run_in_place(const PortValues& inputs, const std::vector<std::string>& wanted = {},
                          Timeline* timeline = nullptr);

  /// What the process takes when what is prepared runs, or has run.
  machine::ProcessForecast forecast() const;
  /// The session. prepare() replaces it if the weights do not fit in panels.
  const RunnableSession& session() const { return *session_; }

 private:
  /// Outputs as the caller gets them, and what one program hands to the next.
  int64_t tensor_bytes(const Graph* next = nullptr) const;
  RunnableOptions watched(RunnableOptions options);
  /// `compile` prepares programs of the session and sets is_complete_.
  void prepare_by(const std::function<void()>& compile);

  Room room_;
  int64_t beside_, output_copies_;
  bool is_prepared_ = false, is_complete_ = false;
  std::shared_ptr<const Runnable> runnable_;
  RunnableOptions options_;
  std::unique_ptr<RunnableSession> session_;
};

}  // namespace brrr::infer
