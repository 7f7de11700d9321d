#pragma once
// What the verbs share that run a model by the names of its inputs (an ONNX file, a .brrr file, a
// model's folder): how it is opened, the options of its run, inputs from .npy files.

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/memory.h"
#include "base/options.h"
#include "infer/open/named_model.h"
#include "infer/runner.h"
#include "machine/device.h"
#include "passes/precision/precision.h"
#include "runtime/made_inputs.h"
#include "runtime/runnable_session.h"

namespace brrr::cli {

struct RunnableArguments {
  std::string model;
  std::vector<std::string> inputs;  // NAME=FILE.npy
  std::vector<std::string> sizes;   // NAME=N
  bool json = false;
  std::string device = "auto";
  Precision precision = Precision::fp32;
  bool is_precision_given = false;  // else a quantised folder is computed as it says
  std::string memory_limit;         // "6GiB"; "": what there is
  int64_t threads = 0;
  std::vector<std::string> disabled;
  bool compile = true;
  bool explain = false;
  std::string dump_folder;
};

using infer::is_module_file;
using infer::module_files;
using infer::ModuleFiles;
using infer::NamedRunnable;
using infer::open_runnable;

/// Returns the only positional argument, where that is a module's file.
std::optional<std::string> module_named(const Arguments& args);

/// The rows --input and --size, whose fields a verb's options have from RunnableArguments.
template <typename T>
void add_input_rows(OptionTable<T>& t) {
  t.group("ONNX and .brrr files");
  t.repeated("input", &T::inputs, false, "NAME=FILE.npy",
             "the tensor of an input, once for each input (default: made up)");
  t.repeated("size", &T::sizes, false, "NAME=N",
             "the size of an axis that the file leaves open; x.1: axis 1 of the input x");
}

/// Rows of a run: --json, --device, --precision, --memory-limit, --threads, --disable-pass,
/// --compile.
template <typename T>
void add_runnable_rows(OptionTable<T>& t) {
  t.flag("json", &T::json, "one JSON object with the result on standard output");
  machine::add_device_row(t);
  auto& precision = add_precision_row(t, "precision", &T::precision, PrecisionUse::inference,
                                      kPrecisionHelp, {"dtype"});
  precision.set = [set = precision.set](T& o, const std::string& s) {
    set(o, s);
    o.is_precision_given = true;
  };
  machine::add_memory_row(t);
  t.integer("threads", &T::threads, 0, 4096, "N",
            "threads (0: as many as OMP_NUM_THREADS or the processors allow)", {"num-threads"});
  t.repeated("disable-pass", &T::disabled, true, "NAME,...", "comma-separated passes to disable");
  t.flag("compile", &T::compile, "--no-compile runs the graph as it is written, without passes");
  t.flag("explain", &T::explain, "print what each pass decided");
  t.text("dump-graph", &T::dump_folder, "FOLDER", "write the graph after each pass there");
}

/// The options of a verb that was given a module's file: those of `table` that `applies` names go
/// to `own`. Throws UserError (exit 2) for the others.
template <typename T>
RunnableArguments runnable_arguments(const Arguments& args, const OptionTable<T>& table, T& own,
                                     const std::vector<std::string>& applies);

/// Tensors of --input. Throws UserError for a word that is no NAME=FILE.npy, a name that comes
/// twice, a file that cannot be read.
PortValues read_inputs(const std::vector<std::string>& given);
/// The sizes of --size. Throws UserError for a word that is no NAME=N.
std::map<std::string, int64_t> read_sizes(const std::vector<std::string>& given);

/// Throws UserError (exit 2) for --input and --size where no module's file was given.
void refuse_without_file(const std::vector<std::string>& inputs,
                         const std::vector<std::string>& sizes);

/// What --precision says, or, where it is not given, the folder's own precision.
infer::RunPrecision precision_of(const NamedRunnable& named, const RunnableArguments& options);

/// Its runner, refused where --memory-limit, or what there is, is too little.
enum class Refuses { beyond_memory, never };
std::shared_ptr<infer::Runner> runner_of(const NamedRunnable& runnable,
                                         const RunnableArguments& options,
                                         Refuses refuses = Refuses::beyond_memory);

/// Prepares it for the inputs, and says on stderr which made-up values decided about its graph.
void prepare(infer::Runner& runner, const MadeInputs& inputs);
/// What the passes decided (--explain), program by program, on stderr.
void say_notes(const infer::Runner& runner);
/// The inputs of --input and --size, and what is missing; says on stderr which sizes were guessed.
MadeInputs inputs_of(const Runnable& runnable, const RunnableArguments& options);
/// Says on stderr which inputs are made up.
void say_made_up(const MadeInputs& inputs);

const OptionTable<RunnableArguments>& runnable_table();

template <typename T>
RunnableArguments runnable_arguments(const Arguments& args, const OptionTable<T>& table, T& own,
                                     const std::vector<std::string>& applies) {
  const auto has = [](const auto& rows, const std::string& name) {
    return std::ranges::any_of(rows, [&](const auto& row) {
      return row.name == name || std::ranges::find(row.aliases, name) != row.aliases.end();
    });
  };
  RunnableArguments options;
  options.model = args.positional[0];
  for (const auto& [key, value] : args.given) {
    const std::string name = canonical_key(key);
    if (has(runnable_table().rows(), name)) {
      runnable_table().set(options, runnable_table().find(key), value, "--" + name);
    } else if (std::ranges::find(applies, name) != applies.end()) {
      table.set(own, table.find(key), value, "--" + name);
    } else {
      std::string known;
      for (const auto& row : runnable_table().rows()) known += "--" + row.name + ", ";
      usage_error("--{} does not apply to {}; an ONNX or .brrr file takes {}--{}", name,
                  options.model, known, fmt::join(applies, ", --"));
    }
  }
  return options;
}

}  // namespace brrr::cli
