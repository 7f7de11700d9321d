#pragma once
// Recurrent layers: LSTM (Hochreiter and Schmidhuber 1997, with forget gates) and GRU (Cho et al.
// 2014), as PyTorch computes them. What the input gives to the gates is computed before, as one
// product for all steps; the ops do what one step after the other has to do. Both mean a `loop`.
//
// Letters: T steps, B sequences, H hidden width.

#include "ir/graph.h"

namespace brrr {

struct LstmResults {
  Value outputs;       // [T, B, H]
  Value hidden, cell;  // [B, H], after the last step
  // What the derivative reads:
  Value activations;  // [T, B, 4 H]: the gates i, f, g and o behind their functions
  Value cells;        // [T, B, H]
};
/// gates: [T, B, 4 H], of the input, biases included, in the order i, f, g, o; weight: [4 H, H];
/// hidden, cell: [B, H]. With `reverse` the steps run from T - 1 to 0. Throws UserError for T = 0.
LstmResults lstm(Value gates, Value weight, Value hidden, Value cell, bool reverse = false);

struct GruResults {
  Value outputs;  // [T, B, H]
  Value hidden;   // [B, H]
  // What the derivative reads: r, z and n, and what r multiplies
  Value activations;  // [T, B, 4 H]
};
/// gates: [T, B, 3 H], of the input, in the order r, z, n, with the biases of the input and, of r
/// and z, those of the state, too; weight: [3 H, H]; bias: [H], what n's product with the state
/// gets before r multiplies it; hidden: [B, H].
GruResults gru(Value gates, Value weight, Value bias, Value hidden, bool reverse = false);

/// The sizes of a node of these ops.
struct RecurrentForm {
  int64_t steps = 0, batch = 0, width = 0;  // T, B, H
  bool reverse = false;

  /// The step that iteration i computes; what it begins with is that of iteration i - 1.
  int64_t step(int64_t i) const { return reverse ? steps - 1 - i : i; }
};

}  // namespace brrr
