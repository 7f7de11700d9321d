#pragma once
// Files of states that the ranks of a run write together: each rank writes what it holds, if all of
// them see the file of rank 0; else rank 0 gathers the tensors, one after the other, and writes
// them. Both give the bytes that a run of one process writes.

#include <span>

#include "base/file.h"
#include "formats/safetensors.h"
#include "runtime/engine.h"
#include "runtime/ranks/communicator.h"

namespace brrr::train {

/// Writes a safetensors file; called by all ranks with the same tensors. A tensor without bytes is
/// the state of its name, as a whole. `file` counts on rank 0 alone. The file appears under its
/// name once all ranks have written; if one fails or ends, all throw (SharedError or LostRank) and
/// what had the name before is still there. `communicator` is null in a run of one process.
void write_together(const fs::path& file, std::span<const io::TensorView> tensors,
                    const io::Metadata& metadata, const Engine& engine, Communicator* communicator);

}  // namespace brrr::train
