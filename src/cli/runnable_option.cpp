#include "cli/runnable_option.h"

#include "base/file.h"
#include "base/tell.h"
#include "cli/model_option.h"
#include "formats/npy.h"
#include "insight/plan/runnable_plan.h"
#include "machine/device.h"
#include "train/fit.h"

namespace brrr::cli {
namespace {

/// "NAME=VALUE" cut at its last or first sign.
std::pair<std::string, std::string> pair_of(const std::string& given, size_t at,
                                            const char* expected) {
  if (at == std::string::npos || at == 0) usage_error("{}; got '{}'", expected, given);
  return {given.substr(0, at), given.substr(at + 1)};
}

}  // namespace

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

infer::RunPrecision precision_of(const NamedRunnable& named, const RunnableArguments& options) {
  if (named.own && !options.is_precision_given) return *named.own;
  return infer::run_precision(options.precision);
}

std::shared_ptr<infer::Runner> runner_of(const NamedRunnable& named,
                                         const RunnableArguments& options, Refuses refuses) {
  RunnableOptions how;
  const infer::RunPrecision precision = precision_of(named, options);
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
