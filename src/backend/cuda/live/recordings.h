#pragma once
// What a stream captures, as CUDA graphs, and events between its kernels.

#include <functional>
#include <memory>
#include <vector>

#include "backend/cuda/live/driver.h"
#include "runtime/device.h"

namespace brrr::cuda {

class GraphRecording final : public Recording {
 public:
  /// Of what `work` queues on the stream.
  GraphRecording(const Driver& d, CUstream stream, const std::function<void()>& work);
  ~GraphRecording() override;
  GraphRecording(const GraphRecording&) = delete;
  GraphRecording& operator=(const GraphRecording&) = delete;
  void launch(CUstream stream) { BRRR_CU(d_, cuGraphLaunch(exec_, stream)); }

 private:
  const Driver& d_;
  CUgraphExec exec_ = nullptr;
};

/// Precise to about half a microsecond.
class EventMarks final : public Marks {
 public:
  EventMarks(const Driver& d, CUstream stream, size_t count);
  ~EventMarks() override;
  EventMarks(const EventMarks&) = delete;
  EventMarks& operator=(const EventMarks&) = delete;
  void set(size_t i) override;
  std::vector<double> seconds() override;

 private:
  void destroy();

  const Driver& d_;
  CUstream stream_;
  std::vector<CUevent> events_;
};

}  // namespace brrr::cuda
