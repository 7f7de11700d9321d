// brrr bench: how fast this machine and this build are, one question at a time.

#include <charconv>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/host_load.h"
#include "base/tell.h"
#include "cli/commands.h"
#include "insight/bench/bench.h"
#include "insight/machine/machine.h"

namespace brrr::cli {
namespace {

using insight::Timing;
using OrderedJson = nlohmann::ordered_json;

struct BenchOptions {
  std::vector<std::string> shapes;      // "MxKxN"
  std::vector<std::string> dtypes;      // names; which ones depends on the benchmark
  std::vector<std::string> ops;         // substrings of names
  std::vector<std::string> lengths;     // of attention
  std::vector<std::string> precisions;  // of a step
  std::vector<std::string> rematerialize;
  std::string preset;  // "": char-cpu for step, gpt2 for decode
  std::string model;
  int64_t batch = 0, context = 0, prompt = 0, rows = 1024, elements = 0;
  bool compile = true;
  std::string device = "auto";
  int64_t layers = 0, heads = 0, width = 0;
  bool json = false;
  double seconds = 2;
  int64_t steps = 4;
  bool peaks = true;
  std::string svg;
  int64_t threads = 0;
};

const OptionTable<BenchOptions>& bench_table() {
  static const OptionTable<BenchOptions> table = [] {
    using O = BenchOptions;
    OptionTable<O> t;
    t.group("what");
    t.list("shape", &O::shapes, true, "MxKxN...",
           "matmul: shapes of the products, as MxKxN (default: the twelve of a GPT-2 124M step)");
    t.list("dtype", &O::dtypes, true, "NAME...",
           "f32, bf16, f16; matmul: i8, too; ops: any (default: all)");
    t.list("op", &O::ops, true, "NAME...", "ops: those whose names contain one of these");
    t.integer("rows", &O::rows, 1, 1 << 24, "N", "matmul: tokens of the GPT-2 products");
    t.list("length", &O::lengths, true, "T...",
           "attention: sequence lengths (default: 256, 1024, 4096)");
    t.integer("elements", &O::elements, 0, int64_t{1} << 32, "N",
              "fusion, ops: elements of a tensor; optimizer: number of parameters (0: 16,777,216, "
              "and 1,048,576 for ops)");
    t.text("svg", &O::svg, "FILE", "fusion: also draw the plot");
    t.text("preset", &O::preset, "NAME",
           "step, decode: preset of `brrr train` (default: char-cpu for step, gpt2 for decode)");
    t.text(
        "model", &O::model, "FOLDER",
        "step, decode: the model of a run, checkpoint or model folder, or ORG/NAME of the Hugging "
        "Face Hub, instead of a preset's",
        {"model-name-or-path"});
    t.integer("prompt", &O::prompt, 0, 1 << 20, "N",
              "decode: tokens in the cache at the start (0: 64, or half of the context)");
    t.list("precision", &O::precisions, true, "NAME...",
           "step, decode: fp32, bf16, fp16; step: tf32, fp8 (default: fp32 and bf16)");
    t.integer("batch-size", &O::batch, 0, 1 << 16, "N", "step: sequences (0: the preset's)");
    t.integer("context", &O::context, 0, 1 << 24, "N", "step: sequence length (0: the preset's)",
              {"block-size"});
    t.list("rematerialize", &O::rematerialize, true, "NAME...",
           "step: none, all, blocks, auto, or budgets of auto such as 300MB (default: none)");
    t.flag("compile", &O::compile, "step: --no-compile also measures execution node by node");
    t.text("device", &O::device, "NAME", "step: auto, cpu, or a GPU of this machine: cuda, cuda:N");
    t.integer("n-layer", &O::layers, 0, 4096, "N", "step: layers (0: the preset's)");
    t.integer("n-head", &O::heads, 0, 4096, "N", "step: heads (0: the preset's)");
    t.integer("n-embd", &O::width, 0, 1 << 20, "N", "step: width (0: the preset's)");
    t.group("running");
    t.flag("peaks", &O::peaks,
           "step: --no-peaks skips measuring the machine's peak, and prints no MFU");
    t.integer("steps", &O::steps, 2, 1000, "N",
              "step: run at least this many steps, however long they take, and print their losses");
    t.real("seconds", &O::seconds, {.low = 0, .high = 3600}, "X",
           "time to spend on each row (ops: a fortieth of it)");
    t.flag("json", &O::json, "one JSON object on standard output");
    t.integer("threads", &O::threads, 0, 4096, "N",
              "threads (0: as many as OMP_NUM_THREADS or the processors allow)", {"num-threads"});
    return t;
  }();
  return table;
}

int64_t positive(std::string_view text, const char* option) {
  int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size() || value < 1)
    usage_error("--{}: expected whole numbers from 1; got '{}'", option, text);
  return value;
}

insight::MatmulShape parse_shape(const std::string& text) {
  std::vector<int64_t> sizes;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('x', begin), text.size());
    sizes.push_back(positive(std::string_view(text).substr(begin, end - begin), "shape"));
    begin = end + 1;
  }
  if (sizes.size() != 3) usage_error("--shape: expected MxKxN; got '{}'", text);
  return {text, sizes[0], sizes[2], sizes[1], false, false};
}

std::vector<DType> dtypes_of(const BenchOptions& o, std::vector<DType> fallback,
                             bool int8 = false) {
  std::vector<DType> list;
  for (const std::string& name : o.dtypes) {
    if (name != "f32" && name != "bf16" && name != "f16" && (name != "i8" || !int8))
      usage_error("--dtype: expected f32, bf16{}; got '{}'", int8 ? ", f16 or i8" : " or f16",
                  name);
    list.push_back(*dtype_from_name(name));
  }
  return list.empty() ? fallback : list;
}

int64_t elements_of(const BenchOptions& o) {
  return o.elements > 0 ? o.elements : int64_t{1} << 24;
}

std::string spread(const Timing& t) {
  return fmt::format("{:9.3f} ms  ({:.3f}-{:.3f})", t.median, t.low, t.high);
}

OrderedJson list_of(const OrderedJson& rows) { return OrderedJson{{"results", rows}}; }

OrderedJson matmul(const BenchOptions& o) {
  std::vector<insight::MatmulShape> shapes;
  for (const std::string& s : o.shapes) shapes.push_back(parse_shape(s));
  if (shapes.empty()) shapes = insight::default_products(o.rows);
  OrderedJson rows = OrderedJson::array();
  const auto results =
      insight::bench_matmul(shapes, dtypes_of(o, {DType::f32, DType::bf16}, true), o.seconds);
  for (const auto& r : results)
    rows.push_back({{"name", r.shape.name},
                    {"m", r.shape.m},
                    {"n", r.shape.n},
                    {"k", r.shape.k},
                    {"dtype", r.dtype},
                    {"kernel", r.kernel},
                    {"ms", r.ms.median},
                    {"tflops", r.tflops},
                    {"peak_fraction", r.peak_fraction}});
  if (!o.json) {
    fmt::print("{:<20} {:>6} {:>6} {:>6}  {:<5} {:<26} {:>28} {:>9} {:>6}\n", "product", "m", "k",
               "n", "type", "kernel", "time", "TFLOP/s", "peak");
    for (const auto& r : results)
      fmt::print("{:<20} {:>6} {:>6} {:>6}  {:<5} {:<26} {:>28} {:>9.3f} {:>5.0f}%\n", r.shape.name,
                 r.shape.m, r.shape.k, r.shape.n, r.dtype, r.kernel, spread(r.ms), r.tflops,
                 100 * r.peak_fraction);
  }
  return list_of(rows);
}

OrderedJson fusion(const BenchOptions& o) {
  const auto results = insight::bench_fusion(elements_of(o), o.seconds);
  OrderedJson rows = OrderedJson::array();
  for (const auto& r : results) {
    rows.push_back({{"name", r.name},
                    {"n", r.n},
                    {"fused_ms", r.fused.median},
                    {"unfused_ms", r.unfused.median}});
    if (r.over_one.median > 0) rows.back()["over_one"] = r.over_one.median;
  }
  if (!o.json) {
    fmt::print("{} f32 numbers\n{:<26} {:>4} {:>28} {:>28} {:>7} {:>22}\n", elements_of(o), "chain",
               "n", "fused", "one kernel each", "gain", "fused over n = 1");
    for (const auto& r : results)
      fmt::print("{:<26} {:>4} {:>28} {:>28} {:>6.1f}x {:>22}\n", r.name, r.n, spread(r.fused),
                 spread(r.unfused), r.unfused.median / r.fused.median,
                 r.over_one.median > 0 ? fmt::format("{:.3f} [{:.3f}, {:.3f}]", r.over_one.median,
                                                     r.over_one.low, r.over_one.high)
                                       : "");
  }
  if (!o.svg.empty()) write_named_file(o.svg, io::svg_plot(insight::fusion_plot(results)));
  return list_of(rows);
}

OrderedJson attention(const BenchOptions& o) {
  std::vector<int64_t> lengths;
  for (const std::string& t : o.lengths) lengths.push_back(positive(t, "length"));
  if (lengths.empty()) lengths = {256, 1024, 4096};
  insight::AttentionOptions a;
  a.dtype = dtypes_of(o, {DType::f32}).front();
  if (o.batch > 0) a.batch = o.batch;
  const auto results = insight::bench_attention(lengths, a, o.seconds);
  OrderedJson rows = OrderedJson::array();
  auto ms = [](const Timing& t) {
    return t.median > 0 ? OrderedJson(t.median) : OrderedJson(nullptr);
  };
  for (const auto& r : results)
    rows.push_back({{"t", r.t},
                    {"direction", r.backward ? "forward and backward" : "forward"},
                    {"naive_ms", ms(r.naive)},
                    {"flash_ms", ms(r.flash)},
                    {"naive_bytes", r.naive_bytes},
                    {"flash_bytes", r.flash_bytes}});
  if (!o.json) {
    const double mib = 1.0 / (1 << 20);
    fmt::print("causal, {} x {} heads of {}, {}\n{:>6} {:<9} {:>30} {:>30} {:>7} {:>12} {:>12}\n",
               a.batch, a.heads, a.head_width, name_of(a.dtype), "T", "", "naive", "flash", "gain",
               "naive MiB", "flash MiB");
    for (const auto& r : results)
      fmt::print("{:>6} {:<9} {:>30} {:>30} {:>7} {:>12.1f} {:>12.1f}\n", r.t,
                 r.backward ? "+backward" : "forward",
                 r.naive.median > 0 ? spread(r.naive) : "does not fit", spread(r.flash),
                 r.naive.median > 0 ? fmt::format("{:.1f}x", r.naive.median / r.flash.median) : "",
                 mib * static_cast<double>(r.naive_bytes),
                 mib * static_cast<double>(r.flash_bytes));
  }
  return list_of(rows);
}

OrderedJson optimizer(const BenchOptions& o) {
  const auto results = insight::bench_optimizer(elements_of(o), o.seconds);
  OrderedJson rows = OrderedJson::array();
  const auto gigabytes = [](const insight::OptimizerRow& r) {
    return r.bytes / r.ms.median * 1e-6;
  };
  for (const auto& r : results)
    rows.push_back({{"optim", r.name},
                    {"bf16_copies", r.copies},
                    {"parameters", r.parameters},
                    {"state_bytes_per_parameter", r.state_bytes_per_parameter},
                    {"ms", r.ms.median},
                    {"stream_ms", r.stream_ms.median},
                    {"gigabytes_per_second", gigabytes(r)}});
  if (!o.json) {
    fmt::print("{} f32 parameters, gradients clipped\n{:<18} {:>12} {:>28} {:>8} {:>28} {:>9}\n",
               results[0].parameters, "optimizer", "state B/par.", "update", "GB/s",
               "plain pass over the bytes", "of it");
    for (const auto& r : results)
      fmt::print("{:<18} {:>12.3f} {:>28} {:>8.1f} {:>28} {:>8.2f}x\n",
                 r.name + (r.copies ? " +bf16" : ""), r.state_bytes_per_parameter, spread(r.ms),
                 gigabytes(r), spread(r.stream_ms), r.ms.median / r.stream_ms.median);
  }
  return list_of(rows);
}

OrderedJson overhead(const BenchOptions& o) {
  const insight::Overhead r = insight::bench_overhead(o.seconds);
  if (!o.json)
    fmt::print(
        "one small op of a compiled program: {:.3f} us ({:.2f} million a second)\n"
        "a program of one op: {:.3f} us\n"
        "one of many ops compiled into one kernel: {:.4f} us\n",
        r.node_us, 1e-6 * r.ops_per_second, r.program_us, r.compiled_us);
  return list_of(OrderedJson::array({{{"node_us", r.node_us},
                                      {"ops_per_second", r.ops_per_second},
                                      {"program_us", r.program_us},
                                      {"compiled_us", r.compiled_us}}}));
}

/// The first twenty.
std::string losses_text(const std::vector<double>& losses) {
  constexpr size_t kMost = 20;
  std::string text;
  for (size_t i = 0; i < std::min(kMost, losses.size()); ++i)
    text += fmt::format(" {:.4f}", losses[i]);
  return text.substr(1) + (losses.size() > kMost ? " ..." : "");
}

OrderedJson step(const BenchOptions& o) {
  std::vector<insight::StepOptions> steps;
  std::vector<std::string> precisions = o.precisions;
  if (precisions.empty()) precisions = {"fp32", "bf16"};
  std::vector<std::string> policies = o.rematerialize;
  if (policies.empty()) policies = {"none"};
  for (const std::string& p : precisions)
    for (const std::string& policy : policies)
      for (bool compile : {true, false})
        if (compile || !o.compile)
          steps.push_back({o.preset.empty() ? "char-cpu" : o.preset, p, compile, o.batch, o.context,
                           -1, o.seconds, policy, o.device, o.layers, o.heads, o.width, o.peaks,
                           o.steps, o.model});
  const auto results = insight::bench_step(steps);
  OrderedJson rows = OrderedJson::array();
  for (const auto& r : results) {
    OrderedJson classes = OrderedJson::object();
    for (const auto& c : r.classes)
      classes[c.name] = {{"ms", c.ms}, {"share", c.share}, {"flops", c.flops}};
    OrderedJson kernels = OrderedJson::array();
    for (const auto& k : r.kernels)
      kernels.push_back({{"op", k.op},
                         {"kernel", k.kernel},
                         {"nodes", k.nodes},
                         {"ms", k.ms},
                         {"flops", k.flops},
                         {"bytes", k.bytes}});
    rows.push_back({{"preset", r.preset},
                    {"precision", r.precision},
                    {"compile", r.compiled},
                    {"batch", r.batch},
                    {"context", r.context},
                    {"tokens_per_second", r.tokens_per_second},
                    {"mfu", r.mfu},
                    {"ms", r.ms.median},
                    {"peak_tflops", r.peak_tflops},
                    {"arena_bytes", r.arena_bytes},
                    {"activation_bytes", r.activation_bytes},
                    {"rematerialize", r.rematerialize},
                    {"compile_ms", r.compile_ms},
                    {"classes", classes},
                    {"kernels", kernels},
                    {"losses", r.losses}});
  }
  if (!o.json)
    for (const auto& r : results) {
      fmt::print(
          "{} {}{}, batch {} x {}, rematerialize {}: {} per step, {:.0f} tokens/s, MFU {:.1f}% of "
          "{:.3f} TFLOP/s ({})\n  arena {:.1f} MiB, activations {:.1f} MiB, compiled in {:.0f} "
          "ms\n",
          r.preset, r.precision, r.compiled ? "" : ", node by node", r.batch, r.context,
          r.rematerialize, spread(r.ms), r.tokens_per_second, 100 * r.mfu, r.peak_tflops,
          r.peak_type, static_cast<double>(r.arena_bytes) / (1 << 20),
          static_cast<double>(r.activation_bytes) / (1 << 20), r.compile_ms);
      for (const auto& c : r.classes)
        fmt::print("  {:<14} {:9.3f} ms {:5.1f}%\n", c.name, c.ms, 100 * c.share);
      fmt::print("  losses on one batch: {}\n", losses_text(r.losses));
    }
  return list_of(rows);
}

OrderedJson decode(const BenchOptions& o) {
  std::vector<insight::DecodeOptions> list;
  std::vector<std::string> precisions = o.precisions;
  if (precisions.empty()) precisions = {"fp32", "bf16"};
  for (const std::string& p : precisions)
    list.push_back({o.preset.empty() ? "gpt2" : o.preset, p, o.prompt, o.model});
  const auto results =
      insight::bench_decode(list, o.seconds * static_cast<double>(precisions.size()));
  OrderedJson rows = OrderedJson::array();
  for (const auto& r : results)
    rows.push_back({{"preset", r.preset},
                    {"precision", r.precision},
                    {"position", r.position},
                    {"tokens_per_second", r.tokens_per_second},
                    {"ms", r.ms.median},
                    {"bytes", r.bytes},
                    {"bandwidth_fraction", r.bandwidth_fraction}});
  if (!o.json)
    for (const auto& r : results)
      fmt::print(
          "{} {}, {} tokens in the cache: {} per token, {:.1f} tokens/s; reads {:.1f} MB, {:.0f}% "
          "of the memory bandwidth\n",
          r.preset, r.precision, r.position, spread(r.ms), r.tokens_per_second,
          1e-6 * static_cast<double>(r.bytes), 100 * r.bandwidth_fraction);
  return list_of(rows);
}

OrderedJson ops(const BenchOptions& o) {
  insight::OpsOptions options;
  for (const std::string& name : o.dtypes) {
    const std::optional<DType> dtype = dtype_from_name(name);
    if (!dtype || is_fp8(*dtype))
      usage_error("--dtype: expected a type of numbers such as f32, f16, i64 or bool; got '{}'",
                  name);
    options.dtypes.push_back(*dtype);
  }
  options.ops = o.ops;
  if (o.elements > 0) options.elements = o.elements;
  options.seconds_per_row = o.seconds / 40;
  const auto results = insight::bench_ops(options);
  if (results.empty()) usage_error("--op, --dtype: no op has such a name and takes such a type");
  OrderedJson rows = OrderedJson::array();
  for (const auto& r : results)
    rows.push_back({{"op", r.op},
                    {"dtype", r.dtype},
                    {"kernel", r.kernel},
                    {"elements", r.elements},
                    {"ms", r.ms.median},
                    {"copy_ms", r.copy_ms.median},
                    {"ns_per_element", r.ns_per_element()},
                    {"share_of_copy", r.share_of_copy()}});
  if (!o.json) {
    fmt::print(
        "{} elements, beside a copy of as many bytes as operands and results have\n"
        "{:<26} {:<5} {:>28} {:>9} {:>6}  {}\n",
        options.elements, "op", "type", "time", "ns/elem.", "copy", "kernel");
    for (const auto& r : results)
      fmt::print("{:<26} {:<5} {:>28} {:>9.3f} {:>5.0f}%  {}\n", r.op, r.dtype, spread(r.ms),
                 r.ns_per_element(), 100 * r.share_of_copy(), r.kernel);
  }
  return list_of(rows);
}

struct Question {
  const char* name;
  OrderedJson (*run)(const BenchOptions&);
};
constexpr Question kQuestions[] = {
    {"matmul", matmul},     {"fusion", fusion}, {"attention", attention}, {"optimizer", optimizer},
    {"overhead", overhead}, {"ops", ops},       {"step", step},           {"decode", decode}};

int run_bench(const Arguments& args) {
  BenchOptions options;
  for (const auto& [key, value] : args.given)
    bench_table().set(options, bench_table().find(key), value, "--" + canonical_key(key));
  if (args.positional.empty() || args.positional.size() > 2)
    usage_error(
        "expected one of matmul, fusion, attention, optimizer, overhead, ops, step, decode; got {}",
        args.positional.empty() ? "nothing" : fmt::format("{} words", args.positional.size()));
  if (args.positional.size() == 2) {
    if (!options.model.empty())
      usage_error("expected one model folder; got --model {} and '{}'", options.model,
                  args.positional[1]);
    options.model = args.positional[1];
  }
  if (!options.model.empty() && !options.preset.empty())
    usage_error("expected a model folder or --preset, not both; got {} and {}", options.model,
                options.preset);
  const bool runs_model = args.positional[0] == "step" || args.positional[0] == "decode";
  if (!options.model.empty() && !runs_model)
    usage_error("{}: this benchmark uses no model; got {}", args.positional[0], options.model);
  for (const Question& q : kQuestions) {
    if (args.positional[0] != q.name) continue;
    use_threads(options.threads);
    HostLoad load;
    const OrderedJson result = q.run(options);
    const double others = load.read().other_processors(machine_processors());
    const std::string warning = insight::busy_warning(others, "timings are unreliable");
    if (options.json)
      fmt::print("{}\n", result.dump());
    else if (!warning.empty())
      fmt::print("{}\n", warning);
    if (options.json && !warning.empty()) tell("{}\n", warning);
    return 0;
  }
  usage_error(
      "expected one of matmul, fusion, attention, optimizer, overhead, ops, step, decode; got '{}'",
      args.positional[0]);
}

}  // namespace

Command bench_command() {
  return {
      .name = "bench",
      .summary = "time products, fusion, attention, optimizers, overhead, ops, a step or decoding",
      .synopsis = "matmul|fusion|attention|optimizer|overhead|ops|step|decode [FOLDER] [options]",
      .notes = "Variants run interleaved; figures are medians with quartiles.\n",
      .options = bench_table().infos(),
      .run = run_bench,
      .takes_positional = true};
}

}  // namespace brrr::cli
