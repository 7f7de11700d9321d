#pragma once
// AdamW on blocks of 256 elements whose moments are 8-bit codes (ops/quantized/dynamic_code.h).

#include <cstdint>

#include "backend/cpu/updates/optimizer_rows.h"

namespace brrr::cpu {

/// `count` blocks of 256 elements, one after the other; a block has one scale for each moment.
/// Everything that is written may lie over what is read of the same name.
struct CodeBlocks {
  const float *param, *grad;
  const uint8_t *m, *v;
  const float *m_scale, *v_scale;
  float* new_param;
  uint8_t *new_m, *new_v;
  float *new_m_scale, *new_v_scale;
  int64_t count;
};

struct Optimizer8bitRows {
  void (*adamw)(const AdamwStep& step, const CodeBlocks& blocks);
  /// The nearest codes of n numbers in [-1, 1], or in [0, 1]. Within a few roundings of halfway
  /// between two codes it may be either.
  void (*encode)(const float* x, bool is_signed, uint8_t* codes, int64_t n);
  /// The numbers of n codes.
  void (*decode)(const uint8_t* codes, bool is_signed, float* x, int64_t n);
};
const Optimizer8bitRows& optimizer_8bit_rows();

}  // namespace brrr::cpu
