// Random graphs of formulas and of attention against the interpreter: compiled by every pass for
// inference, with derived weights, for training and in 16 bits (verified alone), and run on the CPU
// with and without the passes that may be left out. --long: 10,000 graphs; else a sample. What the
// passes found is counted: a form that the generators no longer reach fails the test.

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "backend/cpu/target.h"
#include "ir/text.h"
#include "optim/optimizer.h"
#include "passes/pipeline.h"
#include "support/derived_weights.h"
#include "support/engine_run.h"
#include "support/long_proof.h"
#include "support/random_attention.h"
#include "support/random_formulas.h"

namespace brrr {
namespace {

using Tensors = reference::Tensors;

/// Whether all is a number in each of them.
bool is_finite(const Tensors& tensors) {
  for (const auto& [name, t] : tensors)
    for (const double x : t.data)
      if (!std::isfinite(x)) return false;
  return true;
}

/// Nothing, or the first element that differs by more than `tolerance` of the largest number of its
/// tensor and of 1. NaN equals NaN.
std::string first_difference(const Tensors& wanted, const Tensors& got, double tolerance) {
  for (const auto& [name, w] : wanted) {
    const auto at = got.find(name);
    if (at == got.end()) return name + " is not there";
    const RefTensor& g = at->second;
    if (g.type.shape != w.type.shape)
      return fmt::format("{} is {}, wanted {}", name, g.type.str(), w.type.str());
    double top = 1;
    for (const double x : w.data)
      if (std::isfinite(x)) top = std::max(top, std::fabs(x));
    for (size_t i = 0; i < w.size(); ++i) {
      const double a = w.number(i), b = g.number(i);
      if (a == b || (std::isnan(a) && std::isnan(b)) || std::fabs(a - b) <= tolerance * top)
        continue;
      return fmt::format("{}[{}] is {}, wanted {}", name, i, b, a);
    }
  }
  return "";
}

/// What the passes did, by the words of their notes.
struct Counts {
  std::map<std::string, int> found;
  int graphs = 0, trained = 0, ran = 0;

  void add(const PipelineReport& report) {
    for (const PassRecord& pass : report) {
      if (pass.changed) ++found[pass.name];
      for (const std::string& note : pass.notes) read(pass.name, note);
    }
  }
  /// Prints them all; each of `wanted` must have been found.
  void expect(std::initializer_list<const char*> wanted) const {
    std::string text =
        fmt::format("{} graphs, {} of them also trained, {} run;", graphs, trained, ran);
    for (const auto& [what, n] : found) text += fmt::format(" {}: {},", what, n);
    fmt::print("{}\n", text);
    for (const char* what : wanted)
      EXPECT_TRUE(found.contains(what)) << what << " was never found: the generator misses it";
  }

 private:
  void read(const std::string& pass, const std::string& note) {
    if (pass == "match_formulas") {  // "found 2 gelu"
      const size_t space = note.rfind(' ');
      found[note.substr(space + 1)] += std::stoi(note.substr(note.find(' ') + 1));
    } else if (pass == "match_attention") {
      const size_t at = note.find("attention: ");
      if (note.find("not matched") != std::string::npos) {
        ++found["not attention"];
      } else if (at != std::string::npos) {
        // "scale 0.5, causal, window 2; q, k and v apart, heads joined": numbers left out
        std::string word;
        for (const char c : note.substr(at + 11) + ",") {
          if (c != ',' && c != ';') {
            if (!std::isdigit(c) && c != '.' && c != '-') word += c;
            continue;
          }
          while (word.starts_with(' ')) word.erase(0, 1);
          while (word.ends_with(' ')) word.pop_back();
          if (!word.empty()) ++found[word];
          word.clear();
        }
      }
    }
  }
};

class FormulaProof {
 public:
  explicit FormulaProof(Counts& counts) : counts_(counts), backend_(cpu::cpu_backend()) {}

  void check(const Graph& g, const Tensors& in, double tolerance, bool trains) {
    ++counts_.graphs;
    const Graph undropped = inference(g);
    const Tensors wanted = reference::evaluate(undropped, in);
    PipelineOptions options;
    options.verify = true;
    PipelineReport report;
    const Graph compiled = run_pipeline(g, backend_.target(), options, &report);
    counts_.add(report);
    compare("for inference", wanted, reference::evaluate(compiled, in), tolerance, g, compiled);

    report.clear();
    options.refresher = Refresher::loader;
    const Graph loaded = run_pipeline(g, backend_.target(), options, &report);
    for (PassRecord& pass : report)  // the others have been counted
      if (std::set<std::string>{"fold_channels", "fold_constants", "join_products",
                                "derive_weights"}
              .contains(pass.name) &&
          pass.changed)
        ++counts_.found[pass.name];
    compare("with derived weights", wanted, reference::evaluate(loaded, with_weights(loaded, in)),
            tolerance, g, loaded);
    if (trains) train(g, in, tolerance);
    compile_in_16_bits(g);
    run(undropped, compiled, in);
  }

 private:
  void compare(std::string_view how, const Tensors& wanted, const Tensors& got, double tolerance,
               const Graph& g, const Graph& compiled) const {
    const std::string difference = first_difference(wanted, got, tolerance);
    EXPECT_EQ(difference, "") << how << ":\n" << print(g) << "\nbecame\n" << print(compiled);
  }

  /// The inputs and what the loader makes of the parameters.
  static Tensors with_weights(const Graph& g, Tensors in) {
    const Graph refresh = test::refresh_of(g);
    for (const NodeId id : refresh.inputs())
      in.try_emplace(refresh.input_name(id), RefTensor(refresh.type({id, 0})));
    for (auto& [name, t] : reference::evaluate(refresh, in))
      if (name.starts_with("update:")) in.insert_or_assign(name.substr(7), std::move(t));
    return in;
  }

  void train(const Graph& g, const Tensors& in, double tolerance) {
    const Tensors wanted = reference::evaluate(differentiate(g), in);
    if (!is_finite(wanted)) return;
    ++counts_.trained;
    PipelineOptions options;
    options.verify = true;
    options.loss = "loss";
    PipelineReport report;
    const Graph compiled = run_pipeline(g, backend_.target(), options, &report);
    for (const PassRecord& pass : report)
      if (pass.name == "match_loss_head" || pass.name == "join_loss_head")
        counts_.found[pass.name] += pass.changed;
    compare("for training", wanted, reference::evaluate(compiled, in), 10 * tolerance, g, compiled);
  }

  /// Every pass of 16 bits leaves a graph that holds; what it computes is rounded.
  void compile_in_16_bits(const Graph& g) const {
    PipelineOptions options;
    options.verify = true;
    options.precision = DType::bf16;
    options.parameter_dtype = DType::bf16;
    options.refresher = Refresher::loader;
    run_pipeline(g, backend_.target(), options);
    if (g.inputs(InputKind::parameter).empty()) return;
    options.parameter_dtype = DType::f32;
    options.refresher = Refresher::update;
    options.loss = "loss";
    options.optimizer = [](Graph& graph) { optim::attach_optimizer(graph, {}); };
    options.rematerialize.policy = RematPolicy::blocks;
    run_pipeline(g, backend_.target(), options);
  }

  /// On the CPU in f32, with the passes and without them.
  void run(const Graph& g, const Graph& compiled, const Tensors& in) {
    PipelineOptions plain;
    for (const std::string& name : optional_passes()) plain.disabled.insert(name);
    const Graph opened = run_pipeline(g, backend_.target(), plain);
    const Tensors wanted = outputs_of(opened, in), got = outputs_of(compiled, in);
    // A sum of squares of what is NaN or large says nothing more.
    compare("on the CPU", wanted, got, 2e-3, g, compiled);
    ++counts_.ran;
  }
  static Tensors outputs_of(const Graph& g, const Tensors& in) {
    const test::Bytes bytes = test::run_on_cpu(g, in);
    Tensors out;
    for (const Output& o : g.outputs())
      if (o.updates == kNoNode) out[o.name] = read_tensor(g.type(o.value), bytes.at(o.name).data());
    return out;
  }

  Counts& counts_;
  const Backend backend_;
};

constexpr int kAllFormulas = 5000, kAllAttention = 5000;

TEST(RandomFormulas, AreWhatTheInterpreterSays) {
  Counts counts;
  FormulaProof proof(counts);
  const int graphs = test::rounds(kAllFormulas, 150);
  for (uint32_t seed = 0; seed < static_cast<uint32_t>(graphs); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}; {}", seed, test::rerun()));
    const test::RandomFormulas random(seed);
    proof.check(random.graph(), random.inputs(seed), 1e-5, true);
    if (HasFailure()) return;
  }
  counts.expect({"layer_norm", "rms_norm", "gelu", "silu", "sigmoid", "match_loss_head",
                 "join_loss_head", "fold_channels", "fold_constants", "join_products",
                 "derive_weights", "simplify", "fuse", "schedule"});
}

TEST(RandomAttention, IsWhatTheInterpreterSays) {
  Counts counts;
  FormulaProof proof(counts);
  const int graphs = test::rounds(kAllAttention, 200);
  for (uint32_t seed = 0; seed < static_cast<uint32_t>(graphs); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}; {}", seed, test::rerun()));
    const test::RandomAttention random(seed);
    proof.check(random.graph(), random.inputs(seed), 1e-9, !random.has_large_masks());
    if (HasFailure()) return;
  }
  counts.expect({"match_attention", "not attention", "scale", "causal", "causal from a position",
                 "window", "lengths", "a boolean mask", "a mask", "an added mask", "dropout",
                 "k and v in one value", "k and v in two values", "k and v apart", "copied",
                 "heads joined", "heads share"});
}

}  // namespace
}  // namespace brrr
