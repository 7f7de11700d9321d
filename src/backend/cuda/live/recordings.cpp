#include "backend/cuda/live/recordings.h"

namespace brrr::cuda {

GraphRecording::GraphRecording(const Driver& d, CUstream stream, const std::function<void()>& work)
    : d_(d) {
  CUgraph graph = nullptr;
  BRRR_CU(d_, cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  try {
    work();
  } catch (...) {
    d_.cuStreamEndCapture(stream, &graph);
    if (graph != nullptr) d_.cuGraphDestroy(graph);
    throw;
  }
  BRRR_CU(d_, cuStreamEndCapture(stream, &graph));
  const CUresult result = d_.cuGraphInstantiate(&exec_, graph, 0);
  d_.cuGraphDestroy(graph);
  d_.check(result, "cuGraphInstantiate");
}

GraphRecording::~GraphRecording() { d_.cuGraphExecDestroy(exec_); }

EventMarks::EventMarks(const Driver& d, CUstream stream, size_t count) : d_(d), stream_(stream) {
  for (size_t i = 0; i < count; ++i) {
    CUevent e = nullptr;
    if (const CUresult result = d_.cuEventCreate(&e, CU_EVENT_DEFAULT); result != CUDA_SUCCESS) {
      destroy();
      d_.check(result, "cuEventCreate");
    }
    events_.push_back(e);
  }
}

EventMarks::~EventMarks() { destroy(); }

void EventMarks::destroy() {
  for (CUevent e : events_) d_.cuEventDestroy(e);
}

void EventMarks::set(size_t i) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  BRRR_CU(d_, cuStreamIsCapturing(stream_, &status));
  // An event that a graph records is of use outside only if the call says so; it may not say so
  // where there is no graph.
  const bool captured = status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
  BRRR_CU(d_,
          cuEventRecordWithFlags(events_[i], stream_,
                                 captured ? CU_EVENT_RECORD_EXTERNAL : CU_EVENT_RECORD_DEFAULT));
}

std::vector<double> EventMarks::seconds() {
  BRRR_CU(d_, cuStreamSynchronize(stream_));
  std::vector<double> seconds;
  for (CUevent e : events_) {
    float ms = 0;
    d_.check(d_.event_elapsed_time(&ms, events_[0], e), "cuEventElapsedTime");
    seconds.push_back(1e-3 * static_cast<double>(ms));
  }
  return seconds;
}

}  // namespace brrr::cuda
