#pragma once
// A GPU as a backend, described or present.

#include <optional>

#include "backend/cuda/launch.h"

namespace brrr::cuda {

/// The backend of a GPU that is only described: programs are compiled and planned for it.
Backend described_backend(const GpuDescription& gpu);

/// Whether it is a name that backend_named() may know: "cuda", "cuda:<number>", "cuda:sm_90".
bool is_name(const std::string& name);

/// For the names that --device takes: "cuda" (the first GPU), "cuda:1" (by ordinal), "cuda:sm_90"
/// (described). UserError when there is no such GPU here.
Backend backend_named(const std::string& name);

}  // namespace brrr::cuda
