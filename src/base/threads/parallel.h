#pragma once
// Loops on the thread team. Work is split in a way that does not depend on the number of threads
// wherever the split could change the bits of a result. Inside a piece of the team's work they run
// on the calling thread.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "base/threads/thread_team.h"

namespace brrr {

/// body(piece, slot) for every piece in [0, pieces), in any order, on at most `members` threads of
/// the team; `slot`, below `members`, tells the threads at work apart.
template <typename Body>
void parallel_pieces(int64_t pieces, int64_t members, Body&& body) {
  members = std::min({members, pieces, int64_t{thread_count()}});
  if (members <= 1 || thread_team::is_at_work()) {
    for (int64_t piece = 0; piece < pieces; ++piece) body(piece, 0);
    return;
  }
  const auto run_piece = [](const void* work, int64_t piece, int slot) {
    (*static_cast<std::remove_reference_t<Body>*>(const_cast<void*>(work)))(piece, slot);
  };
  thread_team::run(pieces, static_cast<int>(members), run_piece, &body);
}

/// body(part, begin, end) for `parts` contiguous parts of [0, n), on as many threads; one part
/// inside a piece of the team's work. Empty parts are left out.
template <typename Body>
void parallel_parts(int64_t n, int64_t parts, Body&& body) {
  if (n <= 0) return;
  if (parts <= 1 || thread_team::is_at_work()) {
    body(int64_t{0}, int64_t{0}, n);
    return;
  }
  parallel_pieces(parts, parts, [&](int64_t part, int) {
    const int64_t begin = n * part / parts, end = n * (part + 1) / parts;
    if (begin < end) body(part, begin, end);
  });
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
  parallel_pieces(chunks, thread_count(), [&](int64_t chunk, int) { body(chunk); });
}

}  // namespace brrr
