// brrr bench: how fast this machine and this build are, one question at a time.

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/host_load.h"
#include "base/human.h"
#include "base/tell.h"
#include "cli/bench/bench_options.h"
#include "cli/commands.h"
#include "folders/model_folder.h"
#include "insight/bench/bench.h"
#include "insight/bench/bench_ranks.h"
#include "insight/machine/machine.h"
#include "passes/pipeline.h"
#include "runtime/ranks/communicator.h"
#include "runtime/ranks/place.h"

namespace brrr::cli {
namespace {

using insight::Timing;
using OrderedJson = nlohmann::ordered_json;

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
  std::vector<Precision> precisions;
  for (const std::string& text : o.precisions) {
    precisions.push_back(parse_precision(text, PrecisionUse::inference));
    if (!is_quantized(precisions.back()))
      usage_error(
          "--precision {}: bench matmul takes int8, int8-weight-only, int4 and int4-weight-only; "
          "dtypes are --dtype",
          text);
  }
  const auto results = insight::bench_matmul(shapes, dtypes_of(o, {DType::f32, DType::bf16}, true),
                                             o.seconds, precisions);
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
  if (const int64_t batch = single_batch(o, "attention"); batch > 0) a.batch = batch;
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
  const int64_t batch = single_batch(o, "step");
  std::vector<insight::StepOptions> steps;
  std::vector<std::string> precisions = o.precisions;
  if (precisions.empty()) precisions = {"fp32", "bf16"};
  std::vector<std::string> policies = o.rematerialize;
  if (policies.empty()) policies = {"none"};
  for (const std::string& p : precisions)
    for (const std::string& policy : policies)
      for (bool compile : {true, false})
        if (compile || !o.compile)
          steps.push_back({o.preset.empty() ? "char-cpu" : o.preset, p, compile, batch, o.context,
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
  std::vector<std::optional<Precision>> precisions;
  for (const Precision p : inference_precisions(o.precisions)) precisions.emplace_back(p);
  const bool is_own =
      precisions.empty() && !o.model.empty() && io::holds_integers(io::find_model(o.model));
  if (is_own) precisions = {std::nullopt};
  if (precisions.empty()) precisions = {Precision::fp32, Precision::bfloat16};
  for (const std::optional<Precision> p : precisions)
    list.push_back({o.preset.empty() ? "gpt2" : o.preset, p, o.prompt, o.model, o.kv_cache});
  const auto results =
      insight::bench_decode(list, o.seconds * static_cast<double>(precisions.size()));
  OrderedJson rows = OrderedJson::array();
  for (const auto& r : results)
    rows.push_back({{"preset", r.preset},
                    {"precision", name_of(r.precision)},
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

/// On every rank; rank 0 prints.
OrderedJson time_ranks(const BenchOptions& o, bool& prints) {
  const RankPlace place = find_place();
  if (place.ranks == 1)
    usage_error(
        "bench ranks times what ranks send each other; start several: `brrr launch -n 2 bench "
        "ranks`");
  Communicator communicator([&] { return open_transport(place, {.kind = o.comm}); });
  const insight::RanksResult result = insight::bench_ranks(communicator, o.seconds);
  prints = place.rank == 0;
  OrderedJson rows = OrderedJson::array();
  for (const auto& r : result.rows)
    rows.push_back({{"ranks", place.ranks},
                    {"transport", communicator.transport_name()},
                    {"bytes", r.bytes},
                    {"ms", r.ms.median},
                    {"latency_us", result.latency_us},
                    {"gigabytes_per_second", result.gigabytes_per_second}});
  if (!o.json && prints) {
    fmt::print("{}, {}\n{:>12} {:>28} {:>8}\n", counted(place.ranks, "rank"),
               communicator.transport_name(), "bytes", "all to all", "GB/s");
    for (const auto& r : result.rows)
      fmt::print("{:>12} {:>28} {:>8.2f}\n", with_commas(r.bytes), spread(r.ms),
                 1e-6 * static_cast<double>(r.bytes) / r.ms.median);
    fmt::print("latency {:.1f} us and {:.2f} GB/s of each rank fit these best\n", result.latency_us,
               result.gigabytes_per_second);
  }
  return list_of(rows);
}

/// The others are silent.
int run_ranks(const BenchOptions& options) {
  bool prints = false;
  const OrderedJson result = time_ranks(options, prints);
  if (options.json && prints) fmt::print("{}\n", result.dump());
  return 0;
}

struct Question {
  const char* name;
  OrderedJson (*run)(const BenchOptions&);
};
constexpr Question kQuestions[] = {
    {"matmul", matmul},     {"fusion", fusion}, {"attention", attention}, {"optimizer", optimizer},
    {"overhead", overhead}, {"ops", ops},       {"step", step},           {"decode", decode}};

constexpr const char* kQuestionNames =
    "matmul, fusion, attention, optimizer, overhead, ops, step, decode, ranks, inference";

int run_bench(const Arguments& args) {
  BenchOptions options;
  for (const auto& [key, value] : args.given)
    bench_table().set(options, bench_table().find(key), value, "--" + canonical_key(key));
  if (args.positional.empty() || args.positional.size() > 2)
    usage_error("expected one of {}; got {}", kQuestionNames,
                args.positional.empty() ? "nothing" : counted(std::ssize(args.positional), "word"));
  if (args.positional.size() == 2) {
    if (!options.model.empty())
      usage_error("expected one model folder; got --model {} and '{}'", options.model,
                  args.positional[1]);
    options.model = args.positional[1];
  }
  if (!options.model.empty() && !options.preset.empty())
    usage_error("expected a model folder or --preset, not both; got {} and {}", options.model,
                options.preset);
  const bool is_inference = args.positional[0] == "inference";
  const bool runs_model =
      args.positional[0] == "step" || args.positional[0] == "decode" || is_inference;
  if (!options.model.empty() && !runs_model)
    usage_error("{}: this benchmark uses no model; got {}", args.positional[0], options.model);
  if (options.kv_cache != CachePrecision::computed && args.positional[0] != "decode")
    usage_error("--kv-cache: {} has no cache; only decode has one", args.positional[0]);
  if (is_inference) {
    use_threads(options.threads);
    return bench_inference_main(options);
  }
  if (args.positional[0] == "ranks") return run_ranks(options);
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
  usage_error("expected one of {}; got '{}'", kQuestionNames, args.positional[0]);
}

}  // namespace

Command bench_command() {
  return {
      .name = "bench",
      .summary = "time products, attention, optimizers, ops, a step, decoding, ranks, an encoder",
      .synopsis = "BENCHMARK [FOLDER] [options]",
      .notes =
          "Benchmarks:\n"
          "  matmul      products of matrices, by kernel\n"
          "  fusion      chains of element-wise operations as one kernel and as many\n"
          "  attention   naive and flash attention\n"
          "  optimizer   an update of each optimizer\n"
          "  overhead    what one small operation costs\n"
          "  ops         every op except products, beside a copy of as many bytes\n"
          "  step        a training step (--preset, --model)\n"
          "  decode      generation of one text with the KV cache (--preset, --model)\n"
          "  ranks       exchanges between ranks (`brrr launch -n 2 bench ranks`, mpirun, ...)\n"
          "  inference   sentences per second of a text encoder, packed without padding, sorted\n"
          "              by length and in random order, beside other runtimes (--peers)\n"
          "Variants run interleaved; figures are medians with quartiles.\n",
      .options = bench_table().infos(),
      .run = run_bench,
      .takes_positional = true};
}

}  // namespace brrr::cli
