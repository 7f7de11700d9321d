// The plan of a run as tables for people and as one object for programs.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/human.h"
#include "base/memory.h"
#include "base/threads/parallel.h"
#include "insight/plan/plan_lines.h"
#include "insight/plan/plan_parts.h"
#include "train/options/lora_options.h"
#include "train/parts.h"

namespace brrr::insight {
namespace {

using OrderedJson = nlohmann::ordered_json;
constexpr size_t kMostRows = 6;

}  // namespace

std::string flops_text(double flops) {
  constexpr const char* kUnits[] = {"", "k", "M", "G", "T", "P"};
  size_t unit = 0;
  while (flops >= 999.5 && unit + 1 < std::size(kUnits)) flops /= 1000, ++unit;
  return fmt::format("{:.{}f} {}", flops, unit == 0 ? 0 : 2, kUnits[unit]);
}

std::string title(const RunPlan& p) {
  const train::TrainOptions& o = p.plan.options;
  std::string text = fmt::format(
      "{}: {:.2f}M parameters, {}\n"
      "batch {}{} = {} a step, {}, {}; {} on {}; planned in {}",
      o.init_from == "scratch" ? o.preset : o.init_from,
      1e-6 * static_cast<double>(p.model->parameter_count()),
      train::text_of_sizes(p.model->sizes(), o.context), o.batch_size,
      o.gradient_accumulation_steps > 1
          ? fmt::format(" x accumulation {}", o.gradient_accumulation_steps)
          : "",
      counted(p.tokens_per_step, p.model->sees_pictures() ? "picture" : "token") +
          (o.ranks > 1 ? fmt::format(" on {}", counted(o.ranks, "rank")) : ""),
      o.precision,
      o.optim + (o.freeze.empty() ? "" : fmt::format(", frozen {}", fmt::join(o.freeze, ","))) +
          (o.rematerialize == "none"
               ? ""
               : ", rematerialize " + o.rematerialize +
                     (o.activation_memory.empty() ? "" : " in " + o.activation_memory)),
      p.backend, counted(thread_count(), "thread"), duration_text(1e-3 * p.compile_ms));
  return text;
}

std::vector<NamedBytes> memory_rows(const RunPlan& p) {
  std::vector<NamedBytes> rows;
  for (NamedBytes s : p.states) {
    if (s.name == "adam_m f32") s.name = "first moments (adam_m) f32";
    if (s.name == "adam_v f32") s.name = "second moments (adam_v) f32";
    rows.push_back(std::move(s));
  }
  for (Holds h : {Holds::copies, Holds::gradients, Holds::activations, Holds::recomputed,
                  Holds::temporaries, Holds::inputs, Holds::constants}) {
    const int64_t held = p.at_peak[static_cast<size_t>(h)];
    if (held > 0 || h == Holds::activations) rows.push_back({std::string(name_of(h)), h, held});
  }
  if (p.gaps > 0) rows.push_back({"gaps between them", Holds::temporaries, p.gaps});
  return rows;
}

std::vector<NamedBytes> process_rows(const RunPlan& p) {
  const machine::ProcessForecast& f = p.plan.process;
  std::vector<NamedBytes> rows;
  const auto part = [&](const char* name, int64_t bytes) {
    if (bytes > 0) rows.push_back({name, Holds::temporaries, bytes});
  };
  part(p.model->sees_pictures() ? "program, libraries" : "program, libraries, tokens",
       f.program + f.code);
  part("packed operands of products", f.packing);
  part("batches, threads, log", f.batches + f.threads + f.logging);
  part("exchange with other ranks", f.ranks);
  part("mapped inputs (reclaimable)", f.mapped);
  return rows;
}

std::string peak_text(const RunPlan& p) {
  return fmt::format("peak: kernel {} of {} of program '{}', in the {} pass: {}{}", p.peak.step,
                     p.peak.steps, p.peak.program, p.peak.phase, p.peak.op,
                     p.peak.scope.empty() ? "" : " at " + p.peak.scope);
}

namespace {

void add_memory(Report& r, const RunPlan& p) {
  const int64_t whole = p.plan.arena.total();
  r.heading("memory at the peak of a step");
  for (const NamedBytes& row : memory_rows(p)) r.bytes(row.name, row.bytes, whole);
  r.total("arena", whole, "exact");
  r.line("");
  for (const NamedBytes& row : process_rows(p))
    r.line(fmt::format("  {:<{}} {:>11}", row.name, Report::kNameWidth, memory_text(row.bytes)));
  r.total("process", p.plan.process.resident(), "forecast");
  r.line("\n  " + peak_text(p));
}

}  // namespace

std::vector<NamedBytes> alike_as_one(const std::vector<NamedBytes>& layers) {
  std::vector<NamedBytes> rows;
  for (size_t i = 0; i < layers.size();) {
    size_t end = i + 1;
    while (end < layers.size() && layers[end].bytes == layers[i].bytes &&
           layers[end].count == layers[i].count)
      ++end;
    const auto n = static_cast<int64_t>(end - i);
    if (n >= 3)
      rows.push_back({fmt::format("{} layers, {} each", n, memory_text(layers[i].bytes)),
                      layers[i].holds, n * layers[i].bytes, n * layers[i].count});
    else
      rows.insert(rows.end(), layers.begin() + static_cast<std::ptrdiff_t>(i),
                  layers.begin() + static_cast<std::ptrdiff_t>(end));
    i = end;
  }
  return rows;
}

std::vector<WorkRow> work_rows(const RunPlan& p) {
  std::vector<WorkRow> rows;
  for (size_t c = 0; c <= static_cast<size_t>(OpClass::control); ++c) {
    const auto op_class = static_cast<OpClass>(c);
    const double ms = p.time ? p.time->by_class[c] : 0;
    const auto at = std::find_if(p.flops.begin(), p.flops.end(),
                                 [&](const ClassFlops& f) { return f.name == name_of(op_class); });
    if (at != p.flops.end())
      rows.push_back({*at, ms});
    else if (ms >= 0.05)
      rows.push_back({{std::string(name_of(op_class))}, ms});
  }
  rows.push_back({{"all", p.flops_forward, p.flops_backward, p.flops_optimizer},
                  p.time ? p.time->total_ms() : 0});
  return rows;
}

namespace {

/// Rounded to the two digits that a prediction has.
int64_t two_digits(double value) {
  if (!(value >= 100)) return std::llround(value);
  const double step = std::pow(10.0, std::floor(std::log10(value)) - 1);
  return std::llround(std::round(value / step) * step);
}

}  // namespace

const char* example_word(const RunPlan& p) {
  return p.model->sees_pictures() ? "picture" : "token";
}

std::string predicted_text(const RunPlan& p) {
  if (!p.time || !p.speed) return "time: not measured";
  const double ms = p.time->total_ms();
  return fmt::format("predicted: {} a step, {} {}s/s ({})", machine::predicted_duration(ms),
                     with_commas(two_digits(1e3 * static_cast<double>(p.tokens_per_step) / ms)),
                     example_word(p),
                     machine::rates_text(*p.speed, dtype_of_precision(p.plan.options.precision)));
}

std::string disturbance_text(const RunPlan& p) {
  if (!p.time || !p.speed || p.speed->other_processors <= kDisturbingProcessors) return "";
  return fmt::format(
      "other programs used {:.1f} CPUs while this machine was measured, so predicted times are too "
      "long; use --measure to measure again",
      p.speed->other_processors);
}

namespace {

void add_full_tuning(Report& r, const RunPlan& p) {
  r.heading("against full fine-tuning of the same steps");
  const auto row = [&](const char* name, const std::string& now, const std::string& full,
                       double share) {
    r.line(fmt::format("  {:<16} {:>12} {:>12} {:>11.0f}%", name, now, full, 100 * share));
  };
  r.line(fmt::format("  {:<16} {:>12} {:>12} {:>12}", "", "adapter", "all weights", "share"));
  const auto bytes = [&](const char* name, int64_t now, int64_t full) {
    row(name, memory_text(now), memory_text(full),
        static_cast<double>(now) / static_cast<double>(full));
  };
  bytes("arena", p.plan.arena.total(), p.full->arena_bytes);
  bytes("process", p.plan.process.resident(), p.full->process_bytes);
  if (p.time && p.full->ms > 0)
    row("step, predicted", duration_text(1e-3 * p.time->total_ms()),
        duration_text(1e-3 * p.full->ms), p.time->total_ms() / p.full->ms);
  if (p.model->adapted() != nullptr) r.line("  " + train::adapter_line(*p.model));
}

void add_saved(Report& r, const RunPlan& p) {
  if (p.saved_bytes == 0) return;
  r.heading(fmt::format("kept from forward to backward: {}", memory_text(p.saved_bytes)));
  const auto rows = [&](const std::vector<NamedBytes>& list) {
    int64_t rest = 0;
    for (size_t i = 0; i < list.size(); ++i)
      if (i < kMostRows)
        r.bytes(
            list[i].count > 1 ? fmt::format("{} ({})", list[i].name, list[i].count) : list[i].name,
            list[i].bytes, p.saved_bytes);
      else
        rest += list[i].bytes;
    if (rest > 0) r.bytes(fmt::format("{} more", list.size() - kMostRows), rest, p.saved_bytes);
  };
  r.line("  by op (tensors)");
  rows(p.saved_by_op);
  r.line("  by layer (tensors)");
  rows(alike_as_one(p.saved_by_layer));
}

void add_work(Report& r, const RunPlan& p) {
  r.heading(fmt::format("work per {}", example_word(p)));
  r.line(fmt::format("  {:<16} {:>12} {:>12} {:>12}{}", "FLOPs", "forward", "backward", "optimizer",
                     p.time ? fmt::format(" {:>12}", "predicted") : ""));
  for (const auto& [flops, ms] : work_rows(p))
    r.line(fmt::format("  {:<16} {:>12} {:>12} {:>12}{}", flops.name, flops_text(flops.forward),
                       flops_text(flops.backward), flops_text(flops.optimizer),
                       p.time ? fmt::format(" {:>12}", duration_text(1e-3 * ms)) : ""));
  r.line("  " + predicted_text(p));
  if (const std::string text = disturbance_text(p); !text.empty()) r.line("  " + text);
}

}  // namespace

std::string kernels_text(const RunPlan& p) {
  const KernelPlan& k = *p.kernels;
  const double ms = k.total().ms;
  return fmt::format(
      "{} a step, {} {}s/s{}", machine::predicted_duration(ms),
      with_commas(two_digits(1e3 * static_cast<double>(p.tokens_per_step) / ms)), example_word(p),
      k.peak_flops > 0 && !p.model->sees_pictures()
          ? fmt::format("; MFU {:.1f}% by 6N + 6LCT, {:.1f}% by 6N + 12LCT, of {:.0f} "
                        "TFLOP/s",
                        100 * predicted_mfu(p, true), 100 * predicted_mfu(p, false),
                        1e-12 * k.peak_flops)
          : "");
}

std::string use_title(const RunPlan& p) {
  return p.model->sizes().causal    ? "to generate text with it, one sequence of the whole context"
         : p.model->sees_pictures() ? "to use it, one picture"
                                    : "to use it, one text as long as its context";
}

std::string use_text(const RunPlan& p) {
  const InferencePlan& i = p.inference;
  return fmt::format(
      "weights {}{} + temporaries {} = {}", memory_text(i.weights),
      p.model->sizes().causal ? " + KV cache " + memory_text(i.cache) : std::string(),
      memory_text(i.temporaries), memory_text(i.total()));
}

namespace {

void add_kernel_rows(Report& r, const RunPlan& p) {
  const KernelPlan& k = *p.kernels;
  const bool is_timed = !k.rates.empty();
  r.heading("kernels of a step");
  const auto row = [&](const PlannedKernel& w, const std::string& name) {
    r.line(fmt::format("  {:>8} {:>10.1f} {:>9.3f} {:>9.3f}{}  {:<9} {}", with_commas(w.launches),
                       1e-9 * w.flops, 1e-9 * w.bytes, 1e-9 * w.bytes_again,
                       is_timed ? fmt::format(" {:>9.3f}", w.ms) : "", w.phase, name));
  };
  r.line(fmt::format("  {:>8} {:>10} {:>9} {:>9}{}  {:<9} {}", "launches", "GFLOP", "GB",
                     "GB again", is_timed ? fmt::format(" {:>9}", "ms") : "", "pass", "kernel"));
  for (const PlannedKernel& w : k.kernels) row(w, w.kernel);
  const PlannedKernel all = k.total();
  row(all, "all");
  if (!is_timed) return r.line("  time: the machine's rates are unknown");
  r.line("  predicted, not measured: " + k.rates);
  r.line("  " + kernels_text(p));
}

OrderedJson kernels_json(const RunPlan& p) {
  const bool is_timed = !p.kernels->rates.empty();
  const auto row = [&](const PlannedKernel& w) {
    return OrderedJson{{"kernel", w.kernel},
                       {"pass", w.phase},
                       {"launches", w.launches},
                       {"flops", w.flops},
                       {"bytes", w.bytes},
                       {"bytes_again", w.bytes_again},
                       {"predicted_ms", is_timed ? OrderedJson(w.ms) : OrderedJson(nullptr)}};
  };
  OrderedJson rows = OrderedJson::array();
  for (const PlannedKernel& w : p.kernels->kernels) rows.push_back(row(w));
  const bool has_peak = is_timed && p.kernels->peak_flops > 0;
  const auto mfu = [&](bool is_causal) {
    return has_peak ? OrderedJson(predicted_mfu(p, is_causal)) : OrderedJson(nullptr);
  };
  return {
      {"rates", p.kernels->rates},
      {"all", row(p.kernels->total())},
      {"tokens_per_second",
       is_timed ? OrderedJson(1e3 * static_cast<double>(p.tokens_per_step) / p.kernels->total().ms)
                : OrderedJson(nullptr)},
      {"mfu_6n_6lct", mfu(true)},
      {"mfu_6n_12lct", mfu(false)},
      {"list", rows}};
}

void add_rules(Report& r, const RunPlan& p) {
  r.heading("rules of thumb, and this run");
  for (const Rule& rule : p.rules)
    r.line(fmt::format("  {:<18} {:<66} {}", rule.rule, rule.source_says, rule.here));
  r.heading(use_title(p));
  r.line("  " + use_text(p));
}

}  // namespace

std::string report(const RunPlan& p, bool colour) {
  Report r(colour);
  r.line(title(p));
  add_memory(r, p);
  add_saved(r, p);
  add_work(r, p);
  if (p.full) add_full_tuning(r, p);
  if (p.ranks) add_ranks(r, *p.ranks);
  if (p.kernels) add_kernel_rows(r, p);
  add_rules(r, p);
  return r.take();
}

std::string report_json(const RunPlan& p) {
  const train::TrainOptions& o = p.plan.options;
  const machine::ProcessForecast& f = p.plan.process;
  OrderedJson components = OrderedJson::object();
  for (const NamedBytes& s : p.states) components[s.name] = s.bytes;
  for (Holds h : {Holds::copies, Holds::gradients, Holds::activations, Holds::recomputed,
                  Holds::temporaries, Holds::inputs, Holds::constants})
    components[std::string(name_of(h))] = p.at_peak[static_cast<size_t>(h)];
  components["gaps"] = p.gaps;
  const auto list = [](const std::vector<NamedBytes>& all) {
    OrderedJson rows = OrderedJson::array();
    for (const NamedBytes& b : all)
      rows.push_back({{"name", b.name}, {"bytes", b.bytes}, {"tensors", b.count}});
    return rows;
  };
  OrderedJson flops = OrderedJson::object();
  for (const ClassFlops& c : p.flops)
    flops[c.name] = {{"forward", c.forward}, {"backward", c.backward}, {"optimizer", c.optimizer}};
  flops["all"] = {{"forward", p.flops_forward},
                  {"backward", p.flops_backward},
                  {"optimizer", p.flops_optimizer}};
  OrderedJson rules = OrderedJson::array();
  for (const Rule& rule : p.rules)
    rules.push_back({{"rule", rule.rule}, {"sources", rule.source_says}, {"here", rule.here}});
  OrderedJson j = {
      {"preset", o.preset},
      {"parameters", p.model->parameter_count()},
      {"batch_size", o.batch_size},
      {"gradient_accumulation_steps", o.gradient_accumulation_steps},
      {"context", o.context},
      {"precision", name_of(o.precision)},
      {"optim", o.optim},
      {"rematerialize", o.rematerialize},
      {"activation_memory", o.activation_memory},
      {"tokens_per_step", p.tokens_per_step},
      {"arena_bytes", p.plan.arena.total()},
      {"process_bytes", f.resident()},
      {"needed_bytes", f.needed()},
      {"components", components},
      {"process",
       {{"program", f.program + f.code},
        {"packing", f.packing},
        {"batches", f.batches},
        {"threads", f.threads},
        {"logging", f.logging},
        {"ranks", f.ranks},
        {"mapped", f.mapped}}},
      {"peak_at",
       {{"program", p.peak.program},
        {"phase", p.peak.phase},
        {"op", p.peak.op},
        {"scope", p.peak.scope},
        {"step", p.peak.step},
        {"steps", p.peak.steps},
        {"bytes", p.peak.bytes}}},
      {"saved_activations",
       {{"bytes", p.saved_bytes},
        {"by_op", list(p.saved_by_op)},
        {"by_layer", list(p.saved_by_layer)}}},
      {"flops_per_token", flops},
      {"predicted_ms", p.time ? OrderedJson(p.time->total_ms()) : OrderedJson(nullptr)},
      {p.model->sizes().causal ? "generation" : "inference",
       {{"weights", p.inference.weights},
        {"kv_cache", p.inference.cache},
        {"temporaries", p.inference.temporaries}}},
      {"rules", rules},
      {"plan_ms", p.compile_ms}};
  if (p.ranks) j["ranks"] = OrderedJson::parse(rank_plan_json(*p.ranks));
  if (p.kernels) j["kernels"] = kernels_json(p);
  if (p.full)
    j["full_fine_tuning"] = {{"arena_bytes", p.full->arena_bytes},
                             {"process_bytes", p.full->process_bytes},
                             {"predicted_ms", p.full->ms}};
  return j.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

}  // namespace brrr::insight
