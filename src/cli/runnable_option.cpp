#include "cli/runnable_option.h"

#include "base/encoding/ascii.h"
#include "base/file.h"
#include "base/tell.h"
#include "cli/model_option.h"
#include "folders/state_dict.h"
#include "formats/gguf/gguf_file.h"
#include "formats/npy.h"
#include "infer/model_runnable.h"
#include "insight/plan/runnable_plan.h"
#include "machine/device.h"
#include "modules/open_module.h"
#include "modules/silero/silero.h"
#include "train/fit.h"

namespace brrr::cli {
namespace {

/// "NAME=VALUE" cut at its last or first sign.
std::pair<std::string, std::string> pair_of(const std::string& given, size_t at,
                                            const char* expected) {
  if (at == std::string::npos || at == 0) usage_error("{}; got '{}'", expected, given);
  return {given.substr(0, at), given.substr(at + 1)};
}

bool entry_exists(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

bool has_other_weights(const fs::path& folder) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const fs::path file = entry.path().filename();
    if (file.extension() == ".safetensors" || file == "pytorch_model.bin") return true;
  }
  return entry_exists(folder / "pytorch_model.bin.index.json");
}

}  // namespace

bool is_module_file(const std::string& word) {
  const std::string ending = ascii_lowercase(fs::path(word).extension().string());
  std::error_code ignored;
  if (modules::is_silero_file(word)) return true;
  return (ending == ".onnx" || ending == ".brrr") && !fs::is_directory(word, ignored);
}

std::optional<std::string> module_named(const Arguments& args) {
  if (args.positional.empty() || !is_module_file(args.positional[0])) return std::nullopt;
  if (args.positional.size() > 1)
    usage_error("expected one file; got '{}' and '{}'", args.positional[0], args.positional[1]);
  return args.positional[0];
}

const OptionTable<RunnableArguments>& runnable_table() {
  static const OptionTable<RunnableArguments> table = [] {
    OptionTable<RunnableArguments> t;
    add_input_rows(t);
    add_runnable_rows(t);
    return t;
  }();
  return table;
}

PortValues read_inputs(const std::vector<std::string>& given) {
  PortValues inputs;
  for (const std::string& word : given) {
    const auto [name, file] = pair_of(word, word.find('='), "--input: expected NAME=FILE.npy");
    if (inputs.contains(name)) usage_error("--input {} is given twice", name);
    inputs.emplace(name, io::read_npy(file));
  }
  return inputs;
}

std::map<std::string, int64_t> read_sizes(const std::vector<std::string>& given) {
  constexpr int64_t kMost = int64_t{1} << 32;
  std::map<std::string, int64_t> sizes;
  for (const std::string& word : given) {
    const auto [name, number] = pair_of(word, word.rfind('='), "--size: expected NAME=N");
    int64_t size = 0;
    try {
      size = parse_integer(number, 0, kMost);
    } catch (const UserError& e) {
      usage_error("--size {}: {}", name, e.what());
    }
    if (!sizes.emplace(name, size).second) usage_error("--size {} is given twice", name);
  }
  return sizes;
}

void refuse_without_file(const std::vector<std::string>& inputs,
                         const std::vector<std::string>& sizes) {
  if (!inputs.empty() || !sizes.empty())
    usage_error("--{} is for an ONNX or .brrr file; name one: FILE.onnx",
                inputs.empty() ? "size" : "input");
}

ModuleFiles module_files(const std::string& name) {
  if (is_module_file(name)) {
    const fs::path file(name), beside = file.parent_path();
    const bool is_below = !entry_exists(beside / "tokenizer.json") && beside.filename() == "onnx";
    return {file, is_below ? beside.parent_path() : beside};
  }
  std::error_code ignored;
  const fs::path folder(name);
  if (name.empty() || !fs::is_directory(folder, ignored)) return {};
  if (const fs::path file = modules::silero_file_in(folder); !file.empty()) return {file, folder};
  if (has_other_weights(folder)) return {};
  for (const fs::path& file : {folder / "model.onnx", folder / "onnx" / "model.onnx"})
    if (entry_exists(file)) return {file, folder};
  return {};
}

infer::RunPrecision NamedRunnable::precision(const RunnableArguments& options) const {
  if (own && !options.is_precision_given) return *own;
  return infer::run_precision(options.precision);
}

NamedRunnable open_runnable(const std::string& name, const std::string& device) {
  if (const ModuleFiles files = module_files(name); !files.file.empty())
    return {modules::open_module(files.file), std::nullopt};
  std::error_code ignored;
  if (fs::is_regular_file(name, ignored) && !io::is_gguf_file(name) && !io::is_state_dict(name))
    return {modules::open_module(name), std::nullopt};
  const std::shared_ptr<const io::ModelFolder> folder = open_exchange_model(name);
  return {infer::exchange_runnable(folder->definition, folder->weights),
          infer::own_precision(*folder, machine::backend_for(device))};
}

std::shared_ptr<infer::Runner> runner_of(const NamedRunnable& named,
                                         const RunnableArguments& options, Refuses refuses) {
  RunnableOptions how;
  const infer::RunPrecision precision = named.precision(options);
  how.passes = for_inference(precision.dtype, precision.quantization);
  how.passes.disabled = {options.disabled.begin(), options.disabled.end()};
  how.compile = options.compile;
  how.explain = options.explain;
  how.passes.dump_folder = options.dump_folder;
  const std::string advice =
      precision.dtype == DType::f32 ? "--precision bf16, smaller inputs" : "smaller inputs";
  infer::Memory memory{machine::memory_budget(options.device, options.memory_limit), advice};
  memory.is_only_planned = refuses == Refuses::never;
  return std::make_shared<infer::Runner>(named.runnable, machine::backend_for(options.device), how,
                                         memory);
}

void prepare(infer::Runner& runner, const MadeInputs& inputs) {
  const auto say = [&] {
    for (const std::string& line : insight::assumed_values(inputs, runner.session()))
      tell("note: {}\n", line);
  };
  try {
    runner.prepare(inputs.values);
  } catch (const UserError&) {
    say();  // it may be the reason
    throw;
  }
  say();
}

void say_notes(const infer::Runner& runner) {
  const std::vector<Notes>& programs = runner.session().notes();
  for (size_t i = 0; i < programs.size(); ++i)
    for (const std::string& note : programs[i]) tell("program {}: {}\n", i, note);
}

MadeInputs inputs_of(const Runnable& runnable, const RunnableArguments& options) {
  MadeInputs inputs = make_inputs(runnable, read_inputs(options.inputs), read_sizes(options.sizes));
  if (const std::string sizes = insight::assumed_sizes(inputs); !sizes.empty())
    tell("note: {}\n", sizes);
  return inputs;
}

void say_made_up(const MadeInputs& inputs) {
  if (!inputs.made.empty())
    tell("note: made up: {} (floats are random, other numbers are 1)\n",
         fmt::join(inputs.made, ", "));
}

}  // namespace brrr::cli
