#pragma once
// .brrr files: a model as a program. The file is a safetensors file whose metadata hold the graph
// as text (ir/text.h), as it is before the passes of any target, and the names of inputs and
// outputs; its tensors are the weights, memory-mapped. Nothing of an architecture's code is needed
// to run it.
//
// A trace is a straight graph of one binding. A script has sizes with names, which the inputs of a
// run bind, and may branch and loop.

#include <map>
#include <span>
#include <string>
#include <vector>

#include "formats/safetensors.h"
#include "runtime/runnable.h"

namespace brrr::modules {

/// What a file is made of.
struct BrrrProgram {
  Graph graph;                               // inputs of Role::data and Role::parameter, no updates
  std::vector<io::TensorView> weights;       // the parameters, by their names
  std::map<std::string, std::string> files;  // of a tokenizer, by names without folders
  io::Metadata about;                        // further entries: "producer", "model_type", ...
  std::map<std::string, int64_t> most;    // by the names of sizes: the largest that the graph takes
  std::map<std::string, int64_t> lowest;  // by the names of inputs: the lowest number of each
};

/// Writes it; the name is replaced at once when all is written. Throws UserError.
void write_brrr_file(const fs::path& path, const BrrrProgram& program);

/// Whether the file begins as a safetensors file does and says that it is one of ours.
bool is_brrr_file(const fs::path& path);

/// Opens a file: the graph and everything that the header says are checked, against its SHA-256,
/// too; the data of the weights only with `verify`. Throws UserError.
std::shared_ptr<const Runnable> open_brrr_file(const fs::path& path, bool verify = false);

}  // namespace brrr::modules
