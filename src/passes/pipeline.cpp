#include "passes/pipeline.h"

#include <algorithm>
#include <sstream>

#include "base/clock.h"
#include "base/env.h"
#include "base/file.h"
#include "ir/rewriter.h"
#include "ir/text.h"
#include "passes/pass_table.h"

namespace brrr {
namespace {

class Pipeline {
 public:
  Pipeline(std::span<const Pass> table, const Target& target, const PipelineOptions& options,
           PipelineReport* report)
      : table_(table), context_{target, options, {}}, options_(options), report_(report) {}

  Graph run(Graph graph) {
    dump("input", graph, true);
    for (size_t i = 0; i < table_.size(); ++i) {
      const Pass& pass = table_[i];
      if (is_skipped(pass)) continue;
      check_order(pass);
      context_.finish = [&, i](const Graph& g) { return finished(g, i + 1); };
      const Stopwatch watch;
      PassResult result = run_on(pass, graph);
      PassRecord record{pass.name, watch.milliseconds(), result.graph.size(), false, {}};
      check_interface(pass, graph, result.graph);
      if (options_.verify) verify_after(pass, result.graph);
      if (is_watched()) record.changed = !(result.graph == graph);
      record.notes = std::move(result.notes);
      graph = std::move(result.graph);
      facts_.insert(pass.order.gives.begin(), pass.order.gives.end());
      dump(pass.name, graph, record.changed);
      if (report_) report_->push_back(std::move(record));
    }
    return graph;
  }

 private:
  bool is_skipped(const Pass& pass) const {
    return options_.disabled.contains(pass.name) || !pass.applies(context_);
  }

  bool is_watched() const { return report_ != nullptr || !options_.dump_folder.empty(); }

  PassResult run_on(const Pass& pass, const Graph& graph) const {
    if (!pass.enters_regions || !runs_regions(graph)) return pass.run(graph, context_);
    Notes inside;
    const Graph changed = change_regions(graph, [&](const Graph& region) {
      PassResult result = pass.run(region, context_);
      for (const std::string& note : result.notes) inside.push_back("in a region: " + note);
      return std::move(result.graph);
    });
    PassResult result = pass.run(changed, context_);
    result.notes.insert(result.notes.end(), inside.begin(), inside.end());
    return result;
  }

  void check_order(const Pass& pass) const {
    for (const Fact fact : pass.order.needs)
      BRRR_CHECK(facts_.contains(fact), "the pass {} needs a graph that is {}", pass.name,
                 name_of(fact));
    for (const Fact fact : pass.order.before)
      BRRR_CHECK(!facts_.contains(fact), "the pass {} comes after one that gives {}", pass.name,
                 name_of(fact));
  }

  /// What the outside gives and reads has the names and types that it had: inputs of each run, and
  /// outputs that are no gradients and no next values of states. The pass that consumes the
  /// gradients may consume what they were taken of, too: a scaled loss.
  static void check_interface(const Pass& pass, const Graph& before, const Graph& after) {
    const std::vector<Named> was = read_outside(before), is = read_outside(after);
    const bool consumes = has_gradients(before) && !has_gradients(after);
    for (const Named& output : was) {
      const auto now =
          std::ranges::find_if(is, [&](const Named& other) { return *other.name == *output.name; });
      if (now == is.end() && consumes) continue;
      BRRR_CHECK(now != is.end(), "the pass {} drops the output '{}'", pass.name, *output.name);
      check_same(pass, output, *now, "output");
    }
    for (const NodeId id : before.inputs(InputKind::data)) {
      const std::string& name = before.input_name(id);
      const NodeId now = after.find_input(name);
      BRRR_CHECK(now != kNoNode, "the pass {} drops the input '{}'", pass.name, name);
      check_same(pass, {&name, &before.type({id, 0})}, {&name, &after.type({now, 0})}, "input");
    }
  }
  struct Named {
    const std::string* name;
    const Type* type;
  };
  static bool has_gradients(const Graph& g) {
    return std::ranges::any_of(g.outputs(),
                               [](const Output& o) { return o.gradient_of != kNoNode; });
  }
  static std::vector<Named> read_outside(const Graph& g) {
    std::vector<Named> list;
    for (const Output& o : g.outputs())
      if (o.updates == kNoNode && o.gradient_of == kNoNode)
        list.push_back({&o.name, &g.type(o.value)});
    return list;
  }
  static void check_same(const Pass& pass, const Named& was, const Named& is,
                         std::string_view what) {
    BRRR_CHECK(*was.name == *is.name && *was.type == *is.type,
               "the pass {} makes of the {} '{}' {} the {} '{}' {}", pass.name, what, *was.name,
               was.type->str(), what, *is.name, is.type->str());
  }

  static void verify_after(const Pass& pass, const Graph& graph) {
    try {
      verify(graph);
    } catch (const std::exception& e) {
      throw InternalError(fmt::format("after the pass {}: {}", pass.name, e.what()));
    }
  }

  Graph finished(Graph graph, size_t from) const {
    for (const Pass& pass : table_.subspan(from)) {
      if (is_skipped(pass)) continue;
      Graph next = run_on(pass, graph).graph;
      check_interface(pass, graph, next);
      graph = std::move(next);
    }
    return graph;
  }

  void dump(const std::string& name, const Graph& graph, bool changed) {
    if (options_.dump_folder.empty()) return;
    create_folder(options_.dump_folder);
    write_file_atomically(fs::path(options_.dump_folder) /
                              fmt::format("{}{:02}_{}.txt", options_.dump_prefix, count_++, name),
                          changed ? print(graph) : "(unchanged)\n");
  }

  std::span<const Pass> table_;
  PassContext context_;
  const PipelineOptions& options_;
  PipelineReport* report_;
  std::set<Fact> facts_;
  int count_ = 0;
};

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

}  // namespace

Notes notes_of(const PipelineReport& report) {
  Notes lines;
  for (const PassRecord& pass : report)
    for (const std::string& note : pass.notes) lines.push_back(pass.name + ": " + note);
  return lines;
}

std::vector<std::string> optional_passes() {
  std::vector<std::string> names;
  for (const Pass& pass : pass_table())
    if (pass.optional && std::find(names.begin(), names.end(), pass.name) == names.end())
      names.push_back(pass.name);
  return names;
}

Graph run_passes(std::span<const Pass> table, const Graph& graph, const Target& target,
                 const PipelineOptions& given, PipelineReport* report) {
  PipelineOptions options = given;
  options.disabled = disabled_passes(given);
  options.verify = given.verify || env::get("BRRR_VERIFY").value_or("0") != "0";
  return Pipeline(table, target, options, report).run(graph);
}

PipelineOptions for_inference(DType precision, const WeightQuantization& quantization,
                              CachePrecision cache) {
  PipelineOptions options;
  options.cache = cache;
  options.quantization = quantization;
  options.precision = precision;
  options.parameter_dtype = precision;
  options.refresher = Refresher::loader;
  return options;
}

Quantization quantization_of_precision(Precision precision) {
  switch (precision) {
    case Precision::int8:
      return {.bits = 8, .of_rows = true};
    case Precision::int8_weight_only:
      return {.bits = 8};
    case Precision::int4:
      return {.bits = 4, .group = 32, .of_rows = true};
    case Precision::int4_weight_only:
      return {.bits = 4, .group = 32};
    default:
      return {};
  }
}

Precision precision_of(const Quantization& q) {
  BRRR_CHECK(q.bits == 8 || q.bits == 4, "no --precision quantises to {} bits", q.bits);
  if (q.bits == 8) return q.of_rows ? Precision::int8 : Precision::int8_weight_only;
  return q.of_rows ? Precision::int4 : Precision::int4_weight_only;
}

Graph run_pipeline(const Graph& graph, const Target& target, const PipelineOptions& options,
                   PipelineReport* report) {
  return run_passes(pass_table(), graph, target, options, report);
}

}  // namespace brrr
