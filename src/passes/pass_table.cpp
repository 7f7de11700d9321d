#include "passes/pass_table.h"

#include <utility>

#include "passes/layout/channels_last.h"
#include "passes/layout/winograd.h"
#include "passes/precision/fake_quantize.h"
#include "passes/precision/quantize_cache.h"
#include "passes/weights/gather_first.h"
#include "passes/weights/read_blocks.h"
#include "passes/weights/read_integers.h"

namespace brrr {
namespace {

using Context = const PassContext&;

bool always(Context) { return true; }
bool trains(Context c) { return !c.options.loss.empty(); }
bool infers(Context c) { return c.options.loss.empty(); }
bool optimizes(Context c) { return trains(c) && c.options.optimizer; }
bool is_mixed(Context c) { return c.options.precision != DType::f32; }
bool has_low_parameters(Context c) {
  return c.options.parameter_dtype != DType::f32 || c.options.base_dtype != DType::f32;
}
bool has_16_bits(Context c) { return is_mixed(c) || has_low_parameters(c); }
bool multiplies_8_bits(Context c) { return c.options.fp8; }
bool derives_weights(Context c) {
  const Refresher refresher = c.options.refresher;
  return (refresher == Refresher::loader || (refresher == Refresher::update && has_16_bits(c))) &&
         !c.options.disabled.contains("derive_weights");
}
LayoutChoice layout_choice(Context c) {
  const bool computes_f32 = !is_mixed(c) && c.options.quantization.bits == 0;
  return infers(c) && computes_f32 ? LayoutChoice::by_windows : LayoutChoice::always;
}
bool recomputes(Context c) {
  return trains(c) && c.options.rematerialize.policy != RematPolicy::none;
}
bool has_bias_gradients(Context c) {  // products of f32 operands are no faster for it
  return trains(c) && is_mixed(c) && !c.options.disabled.contains("fuse_epilogues");
}
bool lowers_products(Context c) { return c.options.matmul_precision != MatmulPrecision::highest; }

/// A pass that gives a graph and writes notes.
template <typename F>
std::function<PassResult(const Graph&, Context)> with_notes(F f) {
  return [f](const Graph& g, Context c) {
    PassResult result;
    result.graph = f(g, c, &result.notes);
    return result;
  };
}
/// One that looks at the graph alone, and one that also looks at the target.
template <typename F>
auto of_graph(F f) {
  return with_notes([f](const Graph& g, Context, Notes* notes) { return f(g, notes); });
}
template <typename F>
auto for_target(F f) {
  return with_notes([f](const Graph& g, Context c, Notes* notes) { return f(g, c.target, notes); });
}

/// What rematerialize counts on, which sees f32 products before matmul_precision does.
Rates rates_of_products(Context c) {
  const PipelineOptions& options = c.options;
  Rates rates = options.rematerialize.rates;
  const bool high = options.matmul_precision == MatmulPrecision::high;
  if (options.precision != DType::f32 || !lowers_products(c) || (high && c.target.has_tf32))
    return rates;
  rates.contraction_flops = rates.low_contraction_flops / (high ? 3 : 1);
  // Attention stays in f32.
  rates.attention_share *= options.rematerialize.rates.contraction_flops / rates.contraction_flops;
  return rates;
}

/// The table while it is written: passes that may be left out, and passes that must run.
struct TableWriter {
  std::vector<Pass> table;
  using Applies = std::function<bool(Context)>;
  using Run = std::function<PassResult(const Graph&, Context)>;

  Pass& may(const char* name, const char* when, Applies applies, PassOrder order, const char* file,
            const char* doc, Run run) {
    table.push_back({name, true, when, applies, std::move(order), file, doc, std::move(run)});
    return table.back();
  }
  Pass& must(const char* name, const char* when, Applies applies, PassOrder order, const char* file,
             const char* doc, Run run) {
    table.push_back({name, false, when, applies, std::move(order), file, doc, std::move(run)});
    return table.back();
  }
  void simplify(const char* when, Applies applies) {
    may("simplify", when, applies, {.before = {Fact::fused}}, "passes/simplify.cpp",
        "Merges common subexpressions, removes dead nodes, folds transposes into products, and "
        "replaces a sum of padded slices by a concat.",
        of_graph(brrr::simplify))
        .enters_regions = true;
  }
};

void write_before_differentiation(TableWriter& t) {
  using enum Fact;
  t.simplify("always", always);
  t.may("match_formulas", "always", always, {.before = {cast, differentiated, decomposed}},
        "passes/match/match_formulas.cpp",
        "Replaces layer norm, RMS norm, GELU and SiLU that are written out by one node each.",
        of_graph(match_formulas))
      .enters_regions = true;
  t.may("match_attention", "always", always, {.before = {cast, differentiated, decomposed}},
        "passes/match/match_attention.cpp",
        "Replaces softmax(q kᵀ) v by one attention node, however its scale, mask and dropout are "
        "written.",
        of_graph(match_attention))
      .enters_regions = true;
  t.may("match_loss_head", "always", always, {.before = {cast, differentiated, decomposed}},
        "passes/match/match_loss_head.cpp",
        "Fuses the last product and its cross-entropy into one node: logits exist for one chunk of "
        "rows at a time.",
        with_notes([](const Graph& g, Context c, Notes* notes) {
          return match_loss_head(g, notes, c.target.rounds_activations);
        }));
  t.may(
      "fold_channels",
      "inference whose parameters are written once, unless derive_weights is disabled",
      [](Context c) {
        return infers(c) && c.options.refresher == Refresher::loader && derives_weights(c);
      },
      {.before = {cast, decomposed}}, "passes/match/fold_channels.cpp",
      "Takes factors and summands of channels into the weights and the bias of the convolution in "
      "front: batch normalisation.",
      of_graph(fold_channels));
  t.may(
      "fold_constants", "inference whose parameters are written once",
      [](Context c) { return infers(c) && c.options.refresher == Refresher::loader; },
      {.before = {cast, decomposed}}, "passes/match/fold_constants.cpp",
      "Computes what small literals alone give.", of_graph(fold_constants));
  t.may("channels_last", "always", always, {.before = {cast, differentiated, decomposed}},
        "passes/layout/channels_last.cpp",
        "Lets pictures lie with channels last between convolutions, where the target has kernels "
        "for it; in f32 inference where windows of several elements do a quarter of the work.",
        with_notes([](const Graph& g, Context c, Notes* notes) {
          return channels_last(g, c.target, layout_choice(c), notes);
        }));
  t.must(
      "fake_quantize", "--qat", [](Context c) { return c.options.fake_quantization.bits != 0; },
      {.before = {cast, differentiated, decomposed}}, "passes/precision/fake_quantize.cpp",
      "Rounds weights of linear layers, and the rows that they multiply, to what their integers "
      "will hold.",
      with_notes([](const Graph& g, Context c, Notes* notes) {
        return fake_quantize_products(g, c.options.fake_quantization, notes);
      }));
  t.may("pad_dims", "always", always, {.before = {cast, differentiated, decomposed}},
        "passes/pad_dims.cpp",
        "Pads the sizes of products with weights, with zeros, to multiples that suit the target.",
        for_target(pad_dims));
  t.must("low_parameters",
         "--param-dtype is bf16, training of an adapter in bf16, or inference in 16 bits",
         has_low_parameters, {.before = {cast, differentiated}},
         "passes/weights/low_parameters.cpp", "Stores matrices in 16 bits, without an f32 copy.",
         with_notes([](const Graph& g, Context c, Notes* notes) {
           if (c.options.parameter_dtype != DType::f32)
             return low_parameters(g, c.options.parameter_dtype, LowParameters::all, notes);
           return low_parameters(g, c.options.base_dtype, LowParameters::of_base, notes);
         }));
  t.must("autocast", "--precision is bf16, fp16 or fp8", is_mixed,
         {.before = {differentiated}, .gives = {cast}}, "passes/precision/autocast.cpp",
         "Runs products and attention in 16 bits, norms and losses in f32, and every other op in "
         "the dtype of its operands.",
         with_notes([](const Graph& g, Context c, Notes* notes) {
           return autocast(g, c.options.precision, notes);
         }))
      .enters_regions = true;
}

void write_gradients(TableWriter& t) {
  using enum Fact;
  t.must("inference", "inference", infers, {.before = {differentiated, decomposed}},
         "passes/inference.cpp", "Removes dropout.", of_graph(inference))
      .enters_regions = true;
  t.must("differentiate", "training", trains,
         {.before = {accumulating, in_8_bits, decomposed}, .gives = {differentiated}},
         "passes/differentiate.cpp",
         "Adds the backward graph from the derivative of each op; each gradient becomes an output "
         "that names its parameter.",
         with_notes([](const Graph& g, Context c, Notes* notes) {
           return differentiate(g, c.options.loss, notes);
         }));
  t.must(
      "shard", "training on several ranks with --zero 1, 2 or 3, and its evaluations",
      [](Context c) { return c.options.sharding.divides(); },
      {.before = {updating, accumulating, decomposed}}, "passes/ranks/shard.cpp",
      "Divides parameters among ranks and gathers them where they are read.",
      with_notes([](const Graph& g, Context c, Notes* notes) {
        return shard(g, c.options.sharding, notes);
      }));
  t.must("optimizer", "training with an optimizer", optimizes,
         {.needs = {differentiated}, .before = {accumulating, decomposed}, .gives = {updating}},
         "optim/optimizer.cpp",
         "Consumes the gradients: sums them over micro-batches, clips them, and updates every "
         "parameter and its states.",
         with_notes([](Graph g, Context c, Notes*) {
           c.options.optimizer(g);
           return g;
         }));
  t.may("join_loss_head", "training", trains,
        {.needs = {differentiated}, .before = {accumulating, decomposed}},
        "passes/match/match_loss_head.cpp",
        "Fuses the loss head and its gradient into one node that computes the logits once.",
        of_graph(join_loss_head));
  t.may("keep_accumulators", "parameters or products are in 16 bits", has_16_bits,
        {.before = {in_8_bits, decomposed}, .gives = {accumulating}},
        "passes/precision/autocast.cpp",
        "Lets a product output f32, unrounded, if its result is read in f32; on a GPU only "
        "gradients of weights.",
        with_notes([](const Graph& g, Context c, Notes* notes) {
          return keep_accumulators(g, notes, c.target.rounds_activations);
        }));
  t.must("fp8_products", "--precision is fp8", multiplies_8_bits,
         {.needs = {cast}, .before = {decomposed}, .gives = {in_8_bits}},
         "passes/precision/fp8_products.cpp",
         "Converts the products of blocks to 8 bits, with one scale for each tensor.",
         of_graph(fp8_products));
}

void write_weights(TableWriter& t) {
  using enum Fact;
  t.must("decompose", "always", always, {.before = {fused}, .gives = {decomposed}},
         "passes/decompose.cpp", "Decomposes composite ops for which the target has no kernel.",
         for_target(decompose))
      .enters_regions = true;
  t.simplify("always", always);
  t.may("gather_first", "inference", infers,
        {.needs = {decomposed}, .before = {deriving_weights, fused}},
        "passes/weights/gather_first.cpp",
        "Gathers rows of a table of integers before it makes floats of them.",
        of_graph(gather_first));
  t.may(
      "read_integers",
      "inference whose parameters are written once, unless derive_weights is disabled",
      [](Context c) { return c.options.refresher == Refresher::loader && derives_weights(c); },
      {.needs = {decomposed}, .before = {deriving_weights}}, "passes/weights/read_integers.cpp",
      "Lets products read weights that a file has in 8 or 4 bits as they are, with their scales.",
      with_notes([](const Graph& g, Context c, Notes* notes) {
        return read_integers(g, c.target, c.options.quantization, notes);
      }));
  t.may(
      "join_products",
      "inference whose parameters are written once, unless derive_weights is disabled",
      [](Context c) { return c.options.refresher == Refresher::loader && derives_weights(c); },
      {.needs = {decomposed}, .before = {deriving_weights}}, "passes/weights/join_products.cpp",
      "Merges products that multiply the same rows by parameters, such as q, k and v of Llama, "
      "into one, where these are quantised alike and do not lie in blocks.",
      with_notes([](const Graph& g, Context c, Notes* notes) {
        return join_quantized_products(g, c.options.quantization, notes);
      }));
  t.may(
      "read_columns", "same as join_products",
      [](Context c) { return c.options.refresher == Refresher::loader && derives_weights(c); },
      {.needs = {decomposed}, .before = {fused}}, "passes/match/read_columns.cpp",
      "Lets attention read q, k and v where they lie as columns of one value.",
      for_target(read_columns));
  t.must(
      "quantize_base", "training of an adapter with --load-in-4bit or --load-in-8bit",
      [](Context c) {
        return c.options.base_quantization.bits != 0 || c.options.refresher == Refresher::update;
      },
      {.needs = {decomposed}, .before = {deriving_weights}}, "passes/weights/quantize_base.cpp",
      "Stores the weights of the base as integers, and makes floats of a matrix in front of each "
      "product.",
      with_notes([](const Graph& g, Context c, Notes* notes) {
        return quantize_base(g, c.options.base_quantization, notes);
      }));
  t.must(
      "quantize_weights",
      "inference with --precision int8, int4 and their weight-only forms, or of a quantised folder",
      [](Context c) {
        return c.options.refresher == Refresher::loader && c.options.quantization.bits != 0;
      },
      {.needs = {decomposed}, .before = {deriving_weights}}, "passes/weights/quantize_weights.cpp",
      "Turns weights of products into integers with a scale for each column or group.",
      with_notes([](const Graph& g, Context c, Notes* notes) {
        return quantize_chosen_weights(g, c.target, c.options.quantization, notes);
      }));
  t.must(
      "quantize_cache", "inference with --kv-cache int8",
      [](Context c) { return infers(c) && c.options.cache == CachePrecision::int8; },
      {.needs = {decomposed}, .before = {fused}}, "passes/precision/quantize_cache.cpp",
      "Stores keys and values in 8 bits, with a scale for each head and token.",
      for_target(brrr::quantize_cache));
  t.may("weight_panels", "same as derive_weights, unless that is disabled", derives_weights,
        {.needs = {decomposed}, .before = {deriving_weights}}, "passes/weights/weight_panels.cpp",
        "Lets products and loss heads read weights in panels.",
        with_notes([](const Graph& g, Context c, Notes* notes) {
          return weight_panels(g, c.target, c.options.refresher, notes);
        }));
  t.may(
      "winograd", "same as window_panels",
      [](Context c) { return c.options.refresher == Refresher::loader && derives_weights(c); },
      {.needs = {decomposed}, .before = {deriving_weights}}, "passes/layout/winograd.cpp",
      "Computes 3 x 3 convolutions of f32 pictures with channels last by Winograd's algorithm, "
      "where that is faster.",
      for_target(winograd));
  t.may(
      "window_panels",
      "inference whose parameters are written once, unless derive_weights is disabled",
      [](Context c) { return c.options.refresher == Refresher::loader && derives_weights(c); },
      {.needs = {decomposed}, .before = {deriving_weights}}, "passes/layout/channels_last.cpp",
      "Lets convolutions of pictures with channels last read weights in panels.",
      for_target(window_panels));
  t.must(
      "read_blocks", "inference of a file with weights in blocks (GGUF), in its own precision",
      [](Context c) {
        return c.options.refresher == Refresher::loader && c.options.quantization.blocks != nullptr;
      },
      {.needs = {decomposed}, .before = {deriving_weights}}, "passes/weights/read_blocks.cpp",
      "Lets panels and embeddings be made of the blocks of a file as they lie.",
      with_notes([](const Graph& g, Context c, Notes* notes) {
        return read_blocks(g, c.target, *c.options.quantization.blocks, notes);
      }));
  t.may("derive_weights",
        "inference whose parameters are written once; training and its evaluations, with "
        "parameters or products in 16 bits",
        derives_weights,
        {.needs = {decomposed}, .before = {recomputing, fused}, .gives = {deriving_weights}},
        "passes/weights/derive_weights.cpp",
        "Turns values that are computed from parameters alone into inputs: in training the update "
        "recomputes them, and in inference they replace the parameters.",
        with_notes([](const Graph& g, Context c, Notes* notes) {
          return derive_weights(g, c.target, c.options.refresher, notes);
        }));
}

void write_memory_and_fusion(TableWriter& t) {
  using enum Fact;
  t.must("rematerialize", "training with --rematerialize other than none", recomputes,
         {.needs = {differentiated, decomposed},
          .before = {lowering_products, fused, with_epilogues, scheduled},
          .gives = {recomputing}},
         "passes/memory/rematerialize.cpp",
         "Discards forward values and recomputes them in the backward pass. A budget applies to "
         "the graph that the rest of this table makes.",
         with_notes([](const Graph& g, Context c, Notes* notes) {
           Rematerialize options = c.options.rematerialize;
           options.rates = rates_of_products(c);
           return rematerialize(g, options, notes, c.finish);
         }));
  t.must("matmul_precision", "--float32-matmul-precision is high or medium", lowers_products,
         {.needs = {decomposed}, .before = {fused, with_epilogues}, .gives = {lowering_products}},
         "passes/precision/matmul_precision.cpp",
         "Computes f32 products from bf16 operands, from three products of bf16 halves, or in "
         "tf32.",
         with_notes([](const Graph& g, Context c, Notes* notes) {
           return matmul_precision(g, c.options.matmul_precision, c.target, notes);
         }))
      .enters_regions = true;
  // One cast for forward and backward, which rematerialize wants to have each for itself.
  t.simplify("matmul_precision runs and rematerialize does not",
             [](Context c) { return lowers_products(c) && !recomputes(c); });
  t.may("fuse_bias_gradients",
        "training with products in 16 bits, unless fuse_epilogues is disabled", has_bias_gradients,
        {.needs = {differentiated, decomposed}, .before = {fused, with_epilogues}},
        "passes/fusion/fuse_bias_gradients.cpp",
        "Computes the gradient of a bias as a second result of the product that computes the "
        "gradient of the weight.",
        for_target(fuse_bias_gradients));
  t.may("fuse", "always", always,
        {.needs = {decomposed}, .before = {with_epilogues, scheduled}, .gives = {fused}},
        "passes/fusion/fuse.cpp",
        "Fuses element-wise chains, and ops on rows with the element-wise ops around them.",
        for_target(fuse))
      .enters_regions = true;
  t.may(
       "fuse_epilogues", "always", always,
       {.needs = {decomposed}, .before = {scheduled}, .gives = {with_epilogues}},
       "passes/fusion/fuse_epilogues.cpp",
       "Fuses the element-wise node that reads a product or a convolution into it, as an epilogue.",
       for_target(fuse_epilogues))
      .enters_regions = true;
  t.may("schedule", "always", always, {.needs = {decomposed}, .gives = {scheduled}},
        "passes/memory/schedule.cpp", "Reorders nodes so that those that free memory run early.",
        of_graph(schedule))
      .enters_regions = true;
}

}  // namespace

std::string_view name_of(Fact fact) {
  constexpr std::string_view kNames[] = {
      "cast",           "differentiated",   "updating",    "accumulating",      "in_8_bits",
      "decomposed",     "deriving_weights", "recomputing", "lowering_products", "fused",
      "with_epilogues", "scheduled"};
  return kNames[static_cast<size_t>(fact)];
}

std::span<const Pass> pass_table() {
  static const std::vector<Pass> table = [] {
    TableWriter t;
    write_before_differentiation(t);
    write_gradients(t);
    write_weights(t);
    write_memory_and_fusion(t);
    return t.table;
  }();
  return table;
}

}  // namespace brrr
