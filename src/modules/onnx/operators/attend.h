#pragma once
// Attention as ONNX's operators and Microsoft's need it: what they share.

#include "modules/onnx/call.h"

namespace brrr::onnx {

/// What is added to scores, or hides them.
struct Attending {
  Value q, k, v;  // [B, H, T, D], [B, K, S, D], [B, K, S, Dv] where K divides H
  double scale = 1;
  bool causal = false;            // key <= query + offset
  std::optional<Value> offset;    // i32: [] or [B]; 0 without it
  std::optional<Value> keys;      // i32 [B]: only the first so many keys count
  int64_t left = -1, right = -1;  // a window around query + offset; -1: open
  std::optional<Value> mask;      // bool or float, broadcasting to [B, H, T, S]
  double masked = -INFINITY;      // what a score becomes where `mask` is false
  double softcap = 0;             // 0: none
  DType softmax_dtype = DType::f32;
  int scores_wanted = -1;  // which scores `Attended::scores` are; see `Attended`
};
struct Attended {
  Value y;  // [B, H, T, Dv]
  /// [B, H, T, S]: 0: products, 1: after softcap, 2: after the mask, 3: after softmax.
  std::optional<Value> scores;
};
/// A query that sees no key gives zeros.
Attended attend(const Attending& a);

/// [B, T, H D] -> [B, H, T, D] and back.
Value split_heads(Value x, int64_t heads);
Value join_heads(Value x);
/// Keys and values of fewer heads for as many heads as the queries have.
Value repeat_heads(Value x, int64_t heads);

/// x: [B, H, T, D] turned by angles whose cos and sin are [B, T, R / 2] or [T, R / 2]; columns
/// behind R stay.
Value turned(Value x, Value cos, Value sin, bool interleaved);

/// `past` [B, ..., S, ...] with rows from `first` [B] i64 on replaced by `update` along an axis
/// behind the first; `circular` goes on at the begin behind the end.
Value with_rows(Value past, Value update, Value first, int axis, bool circular);

}  // namespace brrr::onnx
