#pragma once
// Runs the pass table (pass_table.h). After each pass the graph can be verified, timed and dumped,
// and each optional pass can be switched off by name.

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "passes/memory/rematerialize.h"
#include "passes/passes.h"
#include "passes/precision/cache_precision.h"
#include "passes/precision/precision.h"
#include "passes/ranks/shard.h"
#include "passes/weights/weight_choice.h"

namespace brrr {

struct PipelineOptions {
  /// Differentiate this scalar output; empty: inference.
  std::string loss;
  /// Called with the differentiated graph (outputs "grad:<parameter>"): the optimizer builds here.
  std::function<void(Graph&)> optimizer;
  /// bf16 or f16: mixed precision. f32: as the model is written.
  DType precision = DType::f32;
  bool fp8 = false;  // products of blocks in 8 bits, beside bf16
  /// What matrices are stored in: bf16 or f16 to have no f32 copy of them.
  DType parameter_dtype = DType::f32;
  /// The same for those that training leaves as they are.
  DType frozen_dtype = DType::f32;
  MatmulPrecision matmul_precision = MatmulPrecision::highest;
  WeightQuantization quantization;                  // of weights, with a loader
  WeightQuantization fake_quantization;             // quantization-aware training
  CachePrecision cache = CachePrecision::computed;  // of keys and values, in inference
  Rematerialize rematerialize;                      // where there is a loss
  Sharding sharding;                                // of parameters and states among ranks
  /// `update` where programs share parameters that change; `loader` for inference, whose parameters
  /// only load_parameters() writes and nobody reads back.
  Refresher refresher = Refresher::none;
  std::set<std::string> disabled;  // names of optional passes
  std::string dump_folder;         // writes NN_pass.txt after each pass when not empty
  std::string dump_prefix;         // names the program in the dump
  /// Verifies the graph after each pass; BRRR_VERIFY does it for every program.
  bool verify = false;
};

/// The options of a process that only reads its weights: products and weights in `precision` or
/// quantised, derived weights (panels) that a loader makes once, and a KV cache, if the graph has
/// one, in `cache`.
PipelineOptions for_inference(DType precision, const WeightQuantization& quantization = {},
                              CachePrecision cache = CachePrecision::computed);

/// Returns how --precision quantises. int8 and int4 (groups of 32 terms) quantise weights and the
/// rows that they multiply; int8-weight-only and int4-weight-only quantise weights alone; other
/// precisions quantise nothing.
Quantization quantization_of_precision(Precision precision);
/// The value of --precision whose bits and rows are these, whatever the groups; 8 or 4 bits.
Precision precision_of(const Quantization& quantization);

struct PassRecord {
  std::string name;
  double milliseconds = 0;
  size_t nodes = 0;  // after it
  bool changed = false;
  Notes notes;
};
using PipelineReport = std::vector<PassRecord>;
/// "PASS: NOTE" for every note.
Notes notes_of(const PipelineReport& report);

Graph run_pipeline(const Graph& graph, const Target& target, const PipelineOptions& options,
                   PipelineReport* report = nullptr);

/// The passes that --disable-pass may name.
std::vector<std::string> optional_passes();

}  // namespace brrr
