#include "base/threads/work_spans.h"

#include <algorithm>
#include <mutex>
#include <thread>
#include <utility>

namespace brrr {
namespace {

struct Kept {
  std::mutex mutex;
  std::vector<std::thread::id> threads;
  std::vector<WorkSpan> spans;
  double since = 0;
};

Kept& kept() {
  static Kept all;
  return all;
}

}  // namespace

void start_work_spans() {
  Kept& k = kept();
  const std::lock_guard lock(k.mutex);
  k.threads = {std::this_thread::get_id()};
  k.spans.clear();
  k.since = now_seconds();
  work_spans::are_kept = true;
}

std::vector<WorkSpan> stop_work_spans() {
  work_spans::are_kept = false;
  Kept& k = kept();
  const std::lock_guard lock(k.mutex);
  return std::exchange(k.spans, {});
}

void work_spans::add(const char* what, double start) {
  const double end = now_seconds();
  Kept& k = kept();
  const std::lock_guard lock(k.mutex);
  if (!are_kept || start < k.since) return;  // of an earlier recording
  const auto me = std::find(k.threads.begin(), k.threads.end(), std::this_thread::get_id());
  const auto thread = static_cast<size_t>(me - k.threads.begin());
  if (me == k.threads.end()) k.threads.push_back(std::this_thread::get_id());
  k.spans.push_back({thread, what, start, end - start});
}

}  // namespace brrr
