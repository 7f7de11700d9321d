#pragma once
// The menu of passes. Each is one pure function from graph to graph; pass_table.cpp alone holds the
// order. What a pass decides goes into its Notes, which --explain prints.

#include <functional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "ir/rewriter.h"

namespace brrr {

/// What a device is, as far as passes need to know.
struct Target {
  std::string name = "reference";
  int64_t alignment = 64;  // of every buffer, in bytes
  /// Products run best when their rows of k terms and columns are multiples of this; 1: any size is
  /// as good, because kernels pad inside (no copy of a weight for the sake of its size).
  int64_t product_multiple = 1;
  /// Whether products of f32 operands can be computed in tf32 (8 bits of exponent, 11 of mantissa).
  bool has_tf32 = false;
  /// Whether products in mixed precision round what is no gradient of a weight (activations, their
  /// gradients, logits) to 16 bits, as autocast does elsewhere: where moving it counts.
  bool rounds_activations = false;
  /// Whether the target has a kernel for the node as it stands (the reference interpreter not
  /// counted). Composites without one are decomposed.
  std::function<bool(const Graph&, NodeId)> runs = [](const Graph&, NodeId) { return false; };
  /// Whether it is faster to run the element-wise `reader` of a product on parts of it while they
  /// are in the cache than afterwards.
  std::function<bool(const Graph&, NodeId product, NodeId reader)> gains_by_epilogue =
      [](const Graph&, NodeId, NodeId) { return true; };
  /// Whether it is faster to sum an operand's rows while its product reads them (a weight's
  /// gradient, whose bias' gradient is that sum) than in a pass of its own.
  std::function<bool(const Graph&, NodeId product, NodeId sum)> gains_by_bias_gradient =
      [](const Graph&, NodeId, NodeId) { return true; };
  /// Whether the product would be computed at least as fast from a right operand in panels
  /// (base/panels.h).
  std::function<bool(const Graph&, NodeId)> reads_panels = [](const Graph&, NodeId) {
    return false;
  };
  /// Whether it is worth the memory: panels of weights that change with every step, and others of
  /// their transposes, so that products and loss heads of a training step need not make them.
  std::function<bool(const Graph&, NodeId)> gains_by_panels = [](const Graph&, NodeId) {
    return false;
  };
};

/// One line per decision of a pass.
using Notes = std::vector<std::string>;

/// Common subexpressions merged, algebra (x*1, x+0, double negation, transposes folded into matmul,
/// chains of reshape and cast), dead nodes dropped. Results are bit-identical, but for x+0 at x =
/// -0.
Graph simplify(const Graph& graph, Notes* notes = nullptr);

/// Layer norm, RMS norm, GELU (both forms), SiLU and sigmoid that are written out of simpler ops,
/// in any order of factors, become the op of that name: as files of other programs have them. What
/// a formula computes on the way and something else reads stays. Results are rounded elsewhere than
/// before.
Graph match_formulas(const Graph& graph, Notes* notes = nullptr);

/// softmax(q kᵀ) v becomes one attention node, however its scale, its mask and its dropout are
/// written (match_attention.cpp says which ways). It reads q, k and v in the values from which
/// slices, reshapes, transposes and repeated heads have made them (head_places.h), and writes its
/// heads side by side where a transpose would put them so. Before differentiate and autocast. Notes
/// say what was found and why a softmax before a product was left as it is. A causal mask by a
/// constant of -10000 or lower is taken as -inf.
Graph match_attention(const Graph& graph, Notes* notes = nullptr);

/// cross_entropy of a product that nothing else reads becomes one linear_cross_entropy node: no
/// logits. Notes say what was found, and why the logits of another cross_entropy are written out.
/// Where `round_logits`, the node rounds its logits to the dtype that its operands will have.
Graph match_loss_head(const Graph& graph, Notes* notes = nullptr, bool round_logits = false);

/// A linear_cross_entropy and its gradient become one node that computes the logits once, where the
/// gradient of the losses depends on neither (a mean, a sum). After differentiate.
Graph join_loss_head(const Graph& graph, Notes* notes = nullptr);

/// Appends the derivative of the scalar output `loss` with respect to every parameter, as outputs
/// named "grad:<parameter>" (Output::gradient_of). Backward nodes carry the scope of their forward
/// node, prefixed "backward:". A composite without its own vjp is differentiated through its
/// decomposition. Parameters that do not reach the loss get zeros. Throws UserError when the loss
/// is no scalar or depends on a parameter through an op that has no derivative.
Graph differentiate(const Graph& graph, const std::string& loss = "loss", Notes* notes = nullptr);

/// Ugly numbers: the contracted size and the columns of products with a weight become multiples of
/// Target::product_multiple by zeros that are cut off again (50257 -> 50304), where that adds at
/// most a tenth. Results are unchanged, gradients of the zeros are exactly zero. Before
/// differentiate.
Graph pad_dims(const Graph& graph, const Target& target, Notes* notes = nullptr);

/// Mixed precision: each op runs in `low` (bf16 or f16) or in f32 by its OpDef's policy, or follows
/// its operands (the widest of them); casts stand between. Parameters, state and outputs keep their
/// types, and constants take the dtype of what they meet. Before differentiate.
Graph autocast(const Graph& graph, DType low, Notes* notes = nullptr);

/// Parameters with two or more axes are stored in `low`, so that a product reads half the bytes.
/// For inference, and for training without f32 copies. What only moves them (embedding, slice)
/// moves them as they are; one that is an output is widened for it. Before autocast.
enum class LowParameters { all, of_base };  // of_base: those below adapters
Graph low_parameters(const Graph& graph, DType low, LowParameters which = LowParameters::all,
                     Notes* notes = nullptr);

/// Who makes derived weights (passes/weights/derived_weight.h) again when a parameter changes.
/// `update`: the optimizer's update in its program, and the engine when others wrote; the
/// parameters stay. `loader`: whoever loads parameters, once; the derived weights take their place.
/// `none`: every program makes its own.
enum class Refresher { none, update, loader };

/// Products of one left operand with matrices that are parameters and that nothing else reads
/// become one product with all of them side by side (q, k and v of Llama, gate and up): the left
/// operand is read once, and one large product is faster than several small ones. Where each of
/// them is read by its sum with a bias alone, the biases are joined too. A row's parts lie side by
/// side, so a single row's are views. For a loader, who puts the parameters together once. Bits
/// stay.
Graph join_products(const Graph& graph, Notes* notes = nullptr);

/// How products with weights multiply integers.
struct Quantization {
  int bits = 0;          // of weights: 8 or 4; 0: they stay floats
  int group = 0;         // terms that share a scale, a multiple of 8; 0: all of a column
  bool of_rows = false;  // rows of the left operand are quantised to 8 bits, too
  bool operator==(const Quantization&) const = default;
};

/// Products with parameters read these as integers in panels (base/integer_panels.h), where the
/// target has a kernel for it and the weight is no small one. For a loader, who quantises once.
Graph quantize_weights(const Graph& graph, const Target& target, const Quantization& quantization,
                       Notes* notes = nullptr);

/// Matrices below adapters that products alone read become integers in panels,
/// which the loader makes; products read floats that are made of them one matrix at a time. After
/// decompose.
Graph quantize_base(const Graph& graph, const Quantization& quantization, Notes* notes = nullptr);

/// Attention whose q, k or v is a slice of columns reads the columns where they lie: without the
/// copy. After join_products. A cast between the two moves in front of the slices where attention
/// reads all columns. Bits stay.
Graph read_columns(const Graph& graph, const Target& target, Notes* notes = nullptr);

/// Products and sums of a convolution's result with a number for each channel go into its weights
/// and its bias, where all of them are made of parameters and constants alone and nothing else
/// reads the result: a batch normalisation costs nothing then. For a loader, who makes the new
/// weights once. Results are rounded elsewhere than before.
Graph fold_channels(const Graph& graph, Notes* notes = nullptr);

/// Nodes on small literals, and on what was computed from them, become literals: files hold the
/// numbers of a normalisation apart, and whoever compiles or runs the graph need not see how they
/// are put together. Evaluated in fp64 and rounded once.
Graph fold_constants(const Graph& graph, Notes* notes = nullptr);

/// The optional pass that takes memory for time, and is left out first where a run does not fit.
inline constexpr std::string_view kWeightPanels = "weight_panels";
/// Products and loss heads read weights in packed panels (base/panels.h). If the parameter is kept
/// beside its panels, only 16-bit copies of f32 parameters are packed, where the reader is faster
/// with them. If the panels replace the parameter, every weight that products alone read is packed,
/// in one order; transposed panels also serve embedding lookups of a tied table. Runs before
/// derive_weights, which makes the panels inputs.
Graph weight_panels(const Graph& graph, const Target& target, Refresher refresher,
                    Notes* notes = nullptr);

/// What is computed from parameters alone becomes an input of Role::derived instead of nodes. With
/// an update that is what has fewer bits (a cast, or a quantised weight, its scale and its
/// transpose), and where the graph updates the parameter it also updates the derived weights: a
/// cast, in rows or in panels, as a further result of the optimizer's node where the target runs
/// that, anything else computed again from the new parameter. With a loader it is what takes the
/// place of parameters. Results stay bit-identical. After decompose, before rematerialize.
Graph derive_weights(const Graph& graph, const Target& target, Refresher refresher,
                     Notes* notes = nullptr);

/// What f32 products may be computed with, as torch.set_float32_matmul_precision: f32; tf32 where
/// the target has it, else the sum of three products of bf16 halves (about f32's digits less
/// three); or bf16 operands, with f32 sums in every case.
enum class MatmulPrecision { highest, high, medium };

/// Rewrites the f32 products, or allows tf32 in them, forward and backward alike. After decompose,
/// and after rematerialize, so that what a product reads in bf16 is no value to keep: the forward
/// pass does not share it with what comes behind it, unless simplify runs.
Graph matmul_precision(const Graph& graph, MatmulPrecision precision, const Target& target,
                       Notes* notes = nullptr);

/// A low-precision product that is only read as f32 (a weight gradient) gives its f32 accumulators,
/// unrounded; where `round_activations`, gradients of weights alone. After differentiate.
Graph keep_accumulators(const Graph& graph, Notes* notes = nullptr, bool round_activations = false);

/// The products of blocks in 8 bits (`--precision fp8`): activations and weights in e4m3, gradients
/// in e5m2, a scale for each tensor as it is, f32 weights quantised directly. The head, attention
/// and products whose sizes are no multiples of 16 stay in 16 bits. After autocast, differentiate
/// and keep_accumulators.
Graph fp8_products(const Graph& graph, Notes* notes = nullptr);

/// What training does and inference does not: dropout becomes its input.
Graph inference(const Graph& graph, Notes* notes = nullptr);

/// Replaces composites that the target does not run, until all that is left runs or is primitive.
Graph decompose(const Graph& graph, const Target& target, Notes* notes = nullptr);

/// The gradient of a bias, a sum over the rows of what a product reads for the gradient of the
/// weight, becomes a second result of that product, one `fused` node, where the target runs that
/// and gains by it. A sum that a cluster would make on the way stays: it costs nothing there.
/// Before fuse, which would keep GELU's derivative from the epilogue of its product for that sum.
Graph fuse_bias_gradients(const Graph& graph, const Target& target, Notes* notes = nullptr);

/// Element-wise chains, and rows with what surrounds them, become single `fused` nodes where the
/// target runs those. Nothing is computed twice but constants and broadcasts; never makes a cycle.
Graph fuse(const Graph& graph, const Target& target, Notes* notes = nullptr);

/// The element-wise node that reads a product (matmul, linear) becomes one `fused` node with it,
/// where the target runs that: GELU, its derivative, a cast, a sum of gradients are computed on
/// each part of the product as it is finished, if the target gains by that. What else reads the
/// product still finds it. After fuse.
Graph fuse_epilogues(const Graph& graph, const Target& target, Notes* notes = nullptr);

/// Reorders nodes so that fewer bytes live at once: a node whose results free more than they take
/// runs as soon as it can, leaves as late as they can. Values do not change.
Graph schedule(const Graph& graph, Notes* notes = nullptr);

/// Outputs (and next values of other states) that are the old value of a state which gets a new one
/// in the same run become copies, made before anything overwrites it. The last step before
/// memory_plan.
Graph save_old_states(const Graph& graph, Notes* notes = nullptr);

}  // namespace brrr
