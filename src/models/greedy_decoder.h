#pragma once
// Decoding as part of a graph, for files that hold a whole program.

#include <span>

#include "models/model.h"

namespace brrr::models {

/// A greedy decoder as one graph: a loop over tokens, the cache its carried values. Inputs:
/// "prompt" i32[length], "max_new_tokens" i32[]. Outputs: "tokens" i32[capacity], the prompt and
/// what follows it, zeros behind; "count" i32[], how many there are. It ends behind a token that
/// ends texts (one of `ends`), when max_new_tokens have come, and when the capacity is reached.
/// Below 0 max_new_tokens counts as 0. A prompt must not be longer than the capacity: whoever
/// writes the graph into a file says so there.
Graph greedy_decoder(const Model& model, int64_t capacity, std::span<const int32_t> ends);

}  // namespace brrr::models
