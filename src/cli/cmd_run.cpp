// brrr run: runs an ONNX file, a .brrr file or a model's folder on tensors from .npy files.

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "base/clock.h"
#include "base/human.h"
#include "base/memory.h"
#include "base/tell.h"
#include "cli/commands.h"
#include "cli/exported_decoder.h"
#include "cli/runnable_option.h"
#include "formats/json_file.h"
#include "formats/npy.h"
#include "insight/plan/anatomy.h"

namespace brrr::cli {

using infer::kept_texts;
using infer::KeptTexts;
namespace {

using RunJson = nlohmann::ordered_json;

struct RunOptions : RunnableArguments {
  std::vector<std::string> wanted;  // names of outputs; empty: all
  std::string output_dir;
  int64_t repeats = 1;
  bool random = false;  // inputs that are not given are made up
};

const OptionTable<RunOptions>& run_table() {
  static const OptionTable<RunOptions> table = [] {
    using O = RunOptions;
    OptionTable<O> t;
    t.group("run");
    t.text("model", &O::model, "FILE",
           "an ONNX file, a .brrr file, or a model's folder or its name on the Hub");
    t.repeated(
        "input", &O::inputs, false, "NAME=FILE.npy",
        "the tensor of an input, once for each input; without any, and without --random, the "
        "inputs and outputs of the file are listed");
    t.flag("random", &O::random,
           "make up the inputs that are not given: random floats, ones elsewhere");
    t.repeated(
        "size", &O::sizes, false, "NAME=N",
        "with --random, the size of an axis that the file leaves open; x.1: axis 1 of the input "
        "x");
    t.repeated("output", &O::wanted, false, "NAME",
               "an output to compute, once for each (default: all)");
    t.text("output-dir", &O::output_dir, "FOLDER",
           "write each output to NAME.npy there; a / in a name becomes _");
    t.integer("repeats", &O::repeats, 1, 1 << 24, "N",
              "run so many times and give the median time");
    add_runnable_rows(t);
    return t;
  }();
  return table;
}

RunOptions resolve(const Arguments& args) {
  RunOptions options;
  for (const auto& [key, value] : args.given)
    run_table().set(options, run_table().find(key), value, "--" + canonical_key(key));
  if (!options.sizes.empty() && !options.random)
    usage_error("--size needs --random: given tensors have their sizes");
  for (const std::string& word : args.positional) {
    if (!options.model.empty())
      usage_error("expected one model; got '{}' and '{}'", options.model, word);
    options.model = word;
  }
  if (options.model.empty()) usage_error("name a model: `brrr run FILE.onnx`");
  return options;
}

std::string file_name_of(std::string name) {
  std::ranges::replace(name, '/', '_');
  std::ranges::replace(name, '\0', '_');
  return name + ".npy";
}

/// Throws UserError, before anything is computed, if the file name of an output is too long or
/// equals that of another output.
void check_file_names(const Runnable& module, const std::vector<std::string>& wanted) {
  constexpr size_t kLongest = 240;
  std::map<std::string, std::string> names;
  for (const Port& port : module.outputs()) {
    if (!wanted.empty() && std::ranges::find(wanted, port.name) == wanted.end()) continue;
    const std::string file = file_name_of(port.name);
    if (file.size() > kLongest)
      user_error("the name of the output '{}' is too long for a file; leave out --output-dir",
                 port.name);
    const auto [other, is_new] = names.emplace(file, port.name);
    if (!is_new)
      user_error("the outputs '{}' and '{}' would both be written to {}; choose one with --output",
                 other->second, port.name, file);
  }
}

RunJson port_json(const Port& port) {
  RunJson dims = RunJson::array();
  for (const PortDim& d : port.dims) {
    if (d.size >= 0)
      dims.push_back(d.size);
    else
      dims.push_back(d.name.empty() ? RunJson(nullptr) : RunJson(d.name));
  }
  RunJson json{{"name", port.name}, {"dtype", port.type}};
  json["shape"] = port.has_shape ? dims : RunJson(nullptr);
  if (port.is_optional) json["optional"] = true;
  return json;
}

void print_json(const RunJson& json) { fmt::print("{}\n", io::json_line(json)); }

int list_ports(const Runnable& module, const RunOptions& options) {
  if (options.json) {
    RunJson inputs = RunJson::array(), outputs = RunJson::array();
    for (const Port& p : module.inputs()) inputs.push_back(port_json(p));
    for (const Port& p : module.outputs()) outputs.push_back(port_json(p));
    print_json({{"model", options.model},
                {"format", module.summary()},
                {"inputs", inputs},
                {"outputs", outputs}});
    return 0;
  }
  fmt::print("{}: {}\n", options.model, fit_for_a_line(module.summary()));
  bool has_open_axes = false;
  const auto list = [&](const char* title, const std::vector<Port>& ports) {
    fmt::print("{}\n", title);
    for (Port p : ports) {
      // Axes have the names that --size takes.
      for (size_t axis = 0; axis < p.dims.size(); ++axis) {
        if (p.dims[axis].size >= 0) continue;
        has_open_axes = true;
        p.dims[axis].name = axis_name(p, axis);
      }
      fmt::print("  {:<24} {}{}\n", fit_for_a_line(p.name), fit_for_a_line(p.str()),
                 p.is_optional ? "  (optional)" : "");
    }
  };
  list("inputs", module.inputs());
  const bool has_sizes = has_open_axes;
  list("outputs", module.outputs());
  fmt::print("run it with --input NAME=FILE.npy for each input, or with --random{}\n",
             has_sizes ? " (--size NAME=N sets the size of an axis)" : "");
  return 0;
}

/// "i64[1,40]  101, 7592, 102, ..., from 0 to 7592": numbers that count, or name something.
std::string described_integers(const HostTensor& t) {
  constexpr int64_t kShown = 12;
  const bool is_bool = t.dtype == DType::boolean;
  const RefTensor values = read_tensor({t.dtype, t.shape}, t.bytes.data());
  const int64_t n = t.shape.elements();
  const auto shown = [&](int64_t i) {
    const auto at = static_cast<size_t>(i);
    if (is_bool) return std::string(values.bits(at) != 0 ? "true" : "false");
    return is_unsigned_integer(t.dtype) ? std::to_string(values.bits(at))
                                        : std::to_string(values.integer<int64_t>(at));
  };
  std::string text = Type{t.dtype, t.shape}.str() + " ";
  for (int64_t i = 0; i < std::min(n, kShown); ++i) text += (i == 0 ? " " : ", ") + shown(i);
  if (n <= kShown) return text;
  int64_t low = 0, high = 0, trues = 0;
  for (int64_t i = 1; i < n; ++i) {
    if (values.number(static_cast<size_t>(i)) < values.number(static_cast<size_t>(low))) low = i;
    if (values.number(static_cast<size_t>(i)) > values.number(static_cast<size_t>(high))) high = i;
  }
  for (int64_t i = 0; is_bool && i < n; ++i) trues += values.bits(static_cast<size_t>(i)) != 0;
  return text + (is_bool ? fmt::format(", ...; {} of {} are true", trues, n)
                         : fmt::format(", ..., from {} to {}", shown(low), shown(high)));
}

/// "f32[2,3]  mean 0.5, from -1 to 2".
std::string described(const HostTensor& t) {
  std::string text = Type{t.dtype, t.shape}.str();
  const int64_t n = t.shape.elements();
  if (n == 0) return text;
  if (is_integer(t.dtype) || t.dtype == DType::boolean) return described_integers(t);
  double low = INFINITY, high = -INFINITY, sum = 0;
  int64_t bad = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double x = load_as_double(t.dtype, t.bytes.data(), i);
    if (!std::isfinite(x)) {
      ++bad;
      continue;
    }
    low = std::min(low, x);
    high = std::max(high, x);
    sum += x;
  }
  if (n == 1) return text + fmt::format("  {:g}", load_as_double(t.dtype, t.bytes.data(), 0));
  if (bad < n)
    text += fmt::format("  mean {:.4g}, from {:.4g} to {:.4g}", sum / static_cast<double>(n - bad),
                        low, high);
  if (bad > 0) text += fmt::format("; {} are NaN or infinite", bad);
  return text;
}

/// The tensors of an output with their names: a list has one for each element.
std::vector<std::pair<std::string, const HostTensor*>> named(const std::string& name,
                                                             const PortValue& value) {
  std::vector<std::pair<std::string, const HostTensor*>> list;
  for (size_t i = 0; i < value.tensors.size(); ++i)
    list.emplace_back(value.kind == PortValue::Kind::tensor ? name : fmt::format("{}.{}", name, i),
                      &value.tensors[i]);
  return list;
}

/// The text of a decoder's tokens, where the file keeps a tokenizer.
void print_text(const Runnable& module, const PortValues& outputs) {
  const auto tokens = outputs.find("tokens"), count = outputs.find("count");
  if (tokens == outputs.end() || count == outputs.end() || module.files().empty()) return;
  const KeptTexts texts = kept_texts(module);
  if (texts.tokenizer == nullptr || tokens->second.tensor().dtype != DType::i32) return;
  const auto ids = tokens->second.tensor().as<int32_t>();
  const auto wanted = static_cast<size_t>(std::max(0.0, count->second.tensor().number(0)));
  fmt::print("{:<24} {}\n", "text",
             fit_for_a_line(texts.tokenizer->decode(ids.first(std::min(wanted, ids.size())))));
}

/// The time spent in kernels during one run.
struct KernelTimes {
  double ms = 0;
  struct Interpreted {
    std::string text;  // "cumsum f16[8,4] at Loop/CumSum"
    double ms = 0;
  };
  std::vector<Interpreted> interpreted;  // nodes without a kernel, the slowest first
};

KernelTimes kernel_times(infer::Runner& runner, const PortValues& inputs,
                         const std::vector<std::string>& wanted, PortValues& outputs) {
  Timeline timeline;
  runner.run_into(outputs, inputs, wanted, &timeline);
  KernelTimes times;
  for (const TimelineRun& run : timeline.runs)
    for (size_t r = run.first; r < run.last; ++r) {
      const TimelineRecord& record = timeline.records[r];
      const double ms = 1e3 * record.seconds;
      times.ms += ms;
      const Graph& g = run.program->graph();
      if (g.is_input(record.node) || !run.program->is_interpreted(record.node)) continue;
      const std::string scope = g.scope_of(record.node);
      times.interpreted.push_back({fmt::format("{} {}{}", insight::op_text(g, record.node),
                                               insight::shape_text(g, g.node(record.node)),
                                               scope.empty() ? "" : " at " + scope),
                                   ms});
    }
  std::ranges::sort(times.interpreted, std::greater<>(), &KernelTimes::Interpreted::ms);
  return times;
}

/// The median run by the kernels' time, of at most five.
KernelTimes median_kernel_times(infer::Runner& runner, const PortValues& inputs,
                                const RunOptions& options, PortValues& outputs) {
  std::vector<KernelTimes> all;
  for (int64_t i = 0; i < std::min<int64_t>(options.repeats, 5); ++i)
    all.push_back(kernel_times(runner, inputs, options.wanted, outputs));
  std::ranges::sort(all, {}, &KernelTimes::ms);
  return std::move(all[all.size() / 2]);
}

void say_interpreted(const KernelTimes& times) {
  for (const KernelTimes::Interpreted& node : times.interpreted)
    tell("runs on the reference loops: {}, {} ({:.1f}% of the kernels)\n", node.text,
         duration_text(1e-3 * node.ms), 100 * node.ms / std::max(times.ms, 1e-9));
}

int run_run(const Arguments& args) {
  const RunOptions options = resolve(args);
  use_threads(options.threads);
  PortValues inputs;
  if (!options.random) inputs = read_inputs(options.inputs);
  if (!options.output_dir.empty()) create_folder(options.output_dir);

  const Stopwatch load;
  const NamedRunnable opened = open_runnable(options.model, options.device);
  const std::shared_ptr<const Runnable> module = opened.runnable;
  const bool takes_inputs =
      std::ranges::any_of(module->inputs(), [](const Port& p) { return !p.is_optional; });
  if (inputs.empty() && !options.random && (takes_inputs || options.output_dir.empty()))
    return list_ports(*module, options);
  if (options.random) {
    MadeInputs made = inputs_of(*module, options);
    say_made_up(made);
    inputs = std::move(made.values);
  }
  if (!options.output_dir.empty()) check_file_names(*module, options.wanted);
  const std::shared_ptr<infer::Runner> runner = runner_of(opened, options);
  PortValues outputs = runner->run(inputs, options.wanted);
  const double load_ms = load.seconds() * 1000;
  std::vector<double> times;
  for (int64_t i = 0; i < options.repeats; ++i) {
    const Stopwatch watch;
    runner->run_into(outputs, inputs, options.wanted);
    times.push_back(watch.seconds() * 1000);
  }
  say_notes(*runner);
  // Takes further runs, so only when times or the passes' decisions are asked for.
  std::optional<KernelTimes> kernels;
  if (options.repeats > 1 || options.explain)
    kernels = median_kernel_times(*runner, inputs, options, outputs);
  if (options.explain) say_interpreted(*kernels);
  std::ranges::sort(times);
  const double ms = times[times.size() / 2];

  if (!options.output_dir.empty())
    for (const auto& [name, value] : outputs)
      for (const auto& [part, tensor] : named(name, value))
        io::write_npy(fs::path(options.output_dir) / file_name_of(part), *tensor);
  if (options.json) {
    RunJson list = RunJson::array();
    for (const auto& [name, value] : outputs)
      for (const auto& [part, tensor] : named(name, value)) {
        RunJson entry{
            {"name", part}, {"dtype", name_of(tensor->dtype)}, {"shape", tensor->shape.sizes()}};
        if (tensor->dtype == DType::bf16) entry["stored_as"] = "u16";
        list.push_back(entry);
      }
    RunJson json{{"model", options.model}, {"outputs", list}, {"load_ms", load_ms}, {"ms", ms}};
    if (kernels) {
      json["kernels_ms"] = kernels->ms;
      json["reference_nodes"] = kernels->interpreted.size();
    }
    json["programs"] = runner->session().programs();
    json["peak_bytes"] = peak_resident_bytes();
    print_json(json);
    return 0;
  }
  for (const auto& [name, value] : outputs) {
    if (value.kind == PortValue::Kind::none) fmt::print("{:<24} nothing\n", name);
    for (const auto& [part, tensor] : named(name, value))
      fmt::print("{:<24} {}\n", fit_for_a_line(part), described(*tensor));
  }
  print_text(*module, outputs);
  tell("{}: ready after {}, {} a run\n", options.model, duration_text(1e-3 * load_ms),
       duration_text(1e-3 * ms));
  return 0;
}

}  // namespace

Command run_command() {
  return {.name = "run",
          .summary = "run a model on tensors from .npy files",
          .synopsis =
              "FILE|FOLDER [--input NAME=FILE.npy]... [--random] [--output-dir FOLDER] [options]",
          .notes =
              "Without inputs, the inputs and outputs of the file are listed; --random makes "
              "them up. With --repeats, --json has the kernels' part of the time; --explain also "
              "names\n"
              "each node that has no kernel and is computed by the reference loops.\n",
          .options = run_table().infos(),
          .run = run_run,
          .takes_positional = true};
}

}  // namespace brrr::cli
