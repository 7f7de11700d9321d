#pragma once
// The one thread team (OpenMP, shared with oneDNN). Work is split in a way that does not depend on
// the number of threads wherever the split could change the bits of a result.

#include <omp.h>

#include <algorithm>
#include <cstdint>

#include "base/work_spans.h"

namespace brrr {

inline int thread_count() { return omp_get_max_threads(); }

/// body(part, begin, end) for so many contiguous parts of [0, n), each on a thread of its own, or
/// fewer; `part` is below `parts`.
template <typename Body>
void parallel_parts(int64_t n, int64_t parts, Body&& body) {
  if (n <= 0) return;
  if (parts <= 1 || omp_in_parallel()) {
    body(int64_t{0}, int64_t{0}, n);
    return;
  }
#pragma omp parallel num_threads(static_cast <int>(parts))
  {
    const WorkClock clock("share");
    const int64_t t = omp_get_thread_num(), count = omp_get_num_threads();
    const int64_t begin = n * t / count, end = n * (t + 1) / count;
    if (begin < end) body(t, begin, end);
  }
}

/// body(begin, end) over [0, n) in contiguous parts, at most one per thread, none smaller than
/// `grain` (but the last). For element-wise work only: the split depends on the number of threads.
template <typename Body>
void parallel_for(int64_t n, int64_t grain, Body&& body) {
  const int64_t parts =
      std::min<int64_t>(thread_count(), std::max<int64_t>(1, n / std::max<int64_t>(1, grain)));
  parallel_parts(n, parts, [&](int64_t, int64_t begin, int64_t end) { body(begin, end); });
}

/// body(chunk) for chunk in [0, chunks): the caller fixes the chunks, so partial results per chunk
/// are the same for any number of threads.
template <typename Body>
void parallel_chunks(int64_t chunks, Body&& body) {
  if (chunks <= 1 || thread_count() == 1 || omp_in_parallel()) {
    for (int64_t c = 0; c < chunks; ++c) body(c);
    return;
  }
#pragma omp parallel
  {
    const WorkClock clock("share");
#pragma omp for schedule(dynamic, 1) nowait
    for (int64_t c = 0; c < chunks; ++c) body(c);
  }
}

}  // namespace brrr
