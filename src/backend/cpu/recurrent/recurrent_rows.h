#pragma once
// The point-wise part of a step of LSTM and GRU, f32, rows of width H on one thread. Letters as in
// ops/recurrent.h; every tensor is [rows, ...], its rows one behind the other.

#include <cstdint>

namespace brrr::cpu {

struct RecurrentRows {
  /// sums: [rows, 4 H], becomes the activations. before: the cell, [rows, H]; cell may be before.
  void (*lstm)(float* sums, const float* before, float* cell, float* hidden, int64_t rows,
               int64_t width);
  struct LstmGrad {
    const float *activations, *cells;  // [rows, 4 H], [rows, H]
    const float* before;               // the cell before the step, [rows, H]
    const float *d_outputs, *d_hidden;
    float* d_cell;   // [rows, H], of the cell after the step, becomes that of the cell before
    float* d_gates;  // [rows, 4 H], may be the activations
  };
  void (*lstm_grad)(const LstmGrad& step, int64_t rows, int64_t width);

  /// gates, product: [rows, 3 H]; bias: [H]; before, hidden: [rows, H]; activations: [rows, 4 H].
  void (*gru)(const float* gates, const float* product, const float* bias, const float* before,
              float* activations, float* hidden, int64_t rows, int64_t width);
  struct GruGrad {
    const float* activations;  // [rows, 4 H]
    const float* before;       // the hidden state before the step, [rows, H]
    const float* d_outputs;
    float* d_hidden;  // [rows, H], becomes its part that does not pass through the product
    float *d_gates, *d_product;  // [rows, 3 H]
  };
  void (*gru_grad)(const GruGrad& step, int64_t rows, int64_t width);
};
/// Those of the instruction set in use.
const RecurrentRows& recurrent_rows();

}  // namespace brrr::cpu
