#pragma once
// Parallel tasks whose exceptions are rethrown in a fixed order.

#include <cstdint>
#include <exception>
#include <vector>

#include "base/threads/parallel.h"

namespace brrr {

/// body(task) for each task in [0, tasks), in parallel. All of them run; then the error of the
/// first task that threw one is thrown again, whatever order the threads took.
template <typename Body>
void parallel_tasks(int64_t tasks, Body&& body) {
  std::vector<std::exception_ptr> errors(static_cast<size_t>(tasks));
  parallel_chunks(tasks, [&](int64_t task) {
    try {
      body(static_cast<size_t>(task));
    } catch (...) {
      errors[static_cast<size_t>(task)] = std::current_exception();
    }
  });
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace brrr
