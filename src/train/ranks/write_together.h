#pragma once
// Writes files of states by all ranks of a run. If all ranks see the file of rank 0, each of them
// writes what it holds. Otherwise rank 0 gathers one tensor after the other and writes them. Either
// way the file has the bytes that a run of one process would write.

#include <span>

#include "base/file.h"
#include "formats/safetensors.h"
#include "runtime/engine.h"
#include "runtime/ranks/communicator.h"

namespace brrr::train {

/// Writes a safetensors file; called by all ranks with the same tensors. A tensor without bytes
/// stands for the whole state of that name. Only rank 0 uses `file`. The file gets its name once
/// all ranks have written; if one fails or ends, all throw (SharedError or LostRank) and an earlier
/// file of that name remains. `communicator` is null in a run of one process.
void write_together(const fs::path& file, std::span<const io::TensorView> tensors,
                    const io::Metadata& metadata, const Engine& engine, Communicator* communicator);

}  // namespace brrr::train
