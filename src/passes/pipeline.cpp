#include "passes/pipeline.h"

#include <algorithm>
#include <sstream>

#include "base/clock.h"
#include "base/env.h"
#include "base/file.h"
#include "ir/text.h"
#include "passes/weights/keep_copies.h"

namespace brrr {
namespace {

class Pipeline {
 public:
  Pipeline(Graph graph, const PipelineOptions& options, PipelineReport* report)
      : graph_(std::move(graph)), options_(options), report_(report) {
    dump("input", true);
  }

  template <typename Pass>
  void run(const char* name, Pass&& pass) {
    if (options_.disabled.contains(name)) return;
    const Stopwatch watch;
    PassRecord record;
    record.name = name;
    Graph next = pass(graph_, &record.notes);
    record.milliseconds = watch.milliseconds();
    if (options_.verify) verify(next);
    record.changed = !(next == graph_);
    graph_ = std::move(next);
    record.nodes = graph_.size();
    dump(name, record.changed);
    if (report_) report_->push_back(std::move(record));
  }

  Graph finish() { return std::move(graph_); }

 private:
  void dump(const std::string& name, bool changed) {
    if (options_.dump_folder.empty()) return;
    create_folder(options_.dump_folder);
    write_file_atomically(fs::path(options_.dump_folder) /
                              fmt::format("{}{:02}_{}.txt", options_.dump_prefix, count_++, name),
                          changed ? print(graph_) : "(unchanged)\n");
  }

  Graph graph_;
  const PipelineOptions& options_;
  PipelineReport* report_;
  int count_ = 0;
};

}  // namespace

std::vector<std::string> optional_passes() {
  return {"simplify",
          "match_attention",
          "match_loss_head",
          "pad_dims",
          "join_loss_head",
          "keep_accumulators",
          "pack_copies",
          "keep_copies",
          "pack_parameters",
          "fuse_bias_gradients",
          "fuse",
          "fuse_epilogues",
          "schedule"};
}

namespace {

// What the options and BRRR_DISABLE_PASS leave out.
std::set<std::string> disabled_passes(const PipelineOptions& options) {
  std::set<std::string> disabled = options.disabled;
  std::istringstream names(env::get("BRRR_DISABLE_PASS").value_or(""));
  for (std::string name; std::getline(names, name, ',');) disabled.insert(name);
  const auto optional = optional_passes();
  for (const std::string& name : disabled)
    if (std::find(optional.begin(), optional.end(), name) == optional.end())
      usage_error("--disable-pass={}: there is no such optional pass; there are: {}", name,
                  fmt::join(optional, ", "));
  return disabled;
}

// What rematerialize counts on, which sees f32 products before matmul_precision does.
Rates rates_of_products(const PipelineOptions& options, const Target& target) {
  Rates rates = options.rematerialize.rates;
  const bool in_tf32 = options.matmul_precision == MatmulPrecision::high && target.has_tf32;
  if (options.matmul_precision == MatmulPrecision::highest || in_tf32) return rates;
  const double products = options.matmul_precision == MatmulPrecision::high ? 3 : 1;
  rates.contraction_flops = rates.low_contraction_flops / products;
  // Attention stays in f32.
  rates.attention_share *= options.rematerialize.rates.contraction_flops / rates.contraction_flops;
  return rates;
}

}  // namespace

Graph run_pipeline(const Graph& graph, const Target& target, const PipelineOptions& given,
                   PipelineReport* report) {
  PipelineOptions options = given;
  options.disabled = disabled_passes(given);
  Pipeline p(graph, options, report);
  p.run("simplify", simplify);
  p.run("match_attention", match_attention);
  p.run("match_loss_head", [&](const Graph& g, Notes* notes) {
    return match_loss_head(g, notes, target.rounds_activations);
  });
  p.run("pad_dims", [&](const Graph& g, Notes* notes) { return pad_dims(g, target, notes); });
  if (options.parameter_dtype != DType::f32)
    p.run("low_parameters", [&](const Graph& g, Notes* notes) {
      return low_parameters(g, options.parameter_dtype, notes);
    });
  if (options.precision != DType::f32)
    p.run("autocast",
          [&](const Graph& g, Notes* notes) { return autocast(g, options.precision, notes); });
  if (options.loss.empty()) {
    p.run("inference", [](const Graph& g, Notes* notes) { return inference(g, notes); });
  } else {
    p.run("differentiate",
          [&](const Graph& g, Notes* notes) { return differentiate(g, options.loss, notes); });
    if (options.optimizer)
      p.run("optimizer", [&](const Graph& g, Notes*) {
        Graph out = g;
        options.optimizer(out);
        return out;
      });
    p.run("join_loss_head", join_loss_head);
  }
  if (options.precision != DType::f32 || options.parameter_dtype != DType::f32)
    p.run("keep_accumulators", [&](const Graph& g, Notes* notes) {
      return keep_accumulators(g, notes, target.rounds_activations);
    });
  if (options.fp8) p.run("fp8_products", fp8_products);
  p.run("decompose", [&](const Graph& g, Notes* notes) { return decompose(g, target, notes); });
  p.run("simplify", simplify);
  if (options.copies_from_parameters != nullptr && !options.disabled.contains("keep_copies") &&
      (options.precision != DType::f32 || options.parameter_dtype != DType::f32)) {
    p.run("pack_copies",
          [&](const Graph& g, Notes* notes) { return pack_copies(g, target, notes); });
    p.run("keep_copies", [&](const Graph& g, Notes* notes) {
      return keep_copies(g, target, *options.copies_from_parameters, notes);
    });
  }
  if (options.packs_parameters)
    p.run("pack_parameters",
          [&](const Graph& g, Notes* notes) { return pack_parameters(g, target, notes); });
  const auto products = [&](const Graph& g, Notes* notes) {
    return matmul_precision(g, options.matmul_precision, target, notes);
  };
  // Of products in 16 bits: those of f32 operands are no faster for it.
  const bool has_bias_gradients = !options.loss.empty() && options.precision != DType::f32 &&
                                  !options.disabled.contains("fuse_epilogues");
  const auto bias_gradients = [&](const Graph& g, Notes* notes) {
    return fuse_bias_gradients(g, target, notes);
  };
  const auto clusters = [&](const Graph& g, Notes* notes) { return fuse(g, target, notes); };
  const auto epilogues = [&](const Graph& g, Notes* notes) {
    return fuse_epilogues(g, target, notes);
  };
  const bool recomputes =
      !options.loss.empty() && options.rematerialize.policy != RematPolicy::none;
  if (options.precision == DType::f32)
    options.rematerialize.rates = rates_of_products(options, target);
  if (recomputes)
    p.run("rematerialize", [&](const Graph& g, Notes* notes) {
      return rematerialize(g, options.rematerialize, notes, [&](Graph chosen) {
        chosen = products(chosen, nullptr);
        if (has_bias_gradients && !options.disabled.contains("fuse_bias_gradients"))
          chosen = bias_gradients(chosen, nullptr);
        if (!options.disabled.contains("fuse")) chosen = clusters(chosen, nullptr);
        if (!options.disabled.contains("fuse_epilogues")) chosen = epilogues(chosen, nullptr);
        return options.disabled.contains("schedule") ? chosen : schedule(chosen);
      });
    });
  // Behind rematerialize: what products read in bf16 is made where they are, and made again.
  if (options.matmul_precision != MatmulPrecision::highest) {
    p.run("matmul_precision", products);
    if (!recomputes) p.run("simplify", simplify);  // one cast for forward and backward
  }
  if (has_bias_gradients) p.run("fuse_bias_gradients", bias_gradients);
  p.run("fuse", clusters);
  p.run("fuse_epilogues", epilogues);
  p.run("schedule", schedule);
  return p.finish();
}

}  // namespace brrr
