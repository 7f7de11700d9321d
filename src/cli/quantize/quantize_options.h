#pragma once
// What `brrr quantize` can be told.

#include <cstdint>
#include <string>
#include <vector>

#include "base/options.h"
#include "folders/quantized/quantized_folder.h"
#include "passes/precision/precision.h"

namespace brrr::cli {

struct QuantizeOptions {
  std::string model;       // a folder, the name of a model or an ONNX file; "": the newest run
  std::string output;      // the folder or the ONNX file that is written
  std::string method;      // "": not given; resolve_quantize() fills it in
  int64_t bits = 0;        // 0: not given; resolve_quantize() fills it in
  int64_t group_size = 0;  // 0: the method's
  double target_bits = 0;  // of a weight on average, with scales; 0: bits for all
  std::vector<std::string> calibration;  // text files; empty: the default text
  int64_t calibration_tokens = 8192;
  double smoothing = 0;             // share of magnitude that moves to the weights; 0: none
  double damping = 0.01;            // of GPTQ
  bool act_order = true;            // of GPTQ
  std::string range = "minmax";     // of static: how the ranges of activations are chosen
  double percentile = 99.99;        // of static's percentile ranges
  std::vector<std::string> keep;    // layers that stay as they are
  std::string dtype = "as-stored";  // of matrices that are not quantised
  std::vector<std::string> text;    // held-out text; empty: the default text
  double max_loss_increase = 1;     // percent
  bool force = false;
  std::vector<std::string> inputs, sizes;  // of an ONNX file
  bool measure = true;
  bool json = false;
  std::string memory_limit;  // "6GiB"; "": what there is
  int64_t threads = 0;

  bool operator==(const QuantizeOptions&) const = default;
};

const OptionTable<QuantizeOptions>& quantize_option_table();

/// Whether rows of calibration decide what the integers are.
bool is_calibrated(const QuantizeOptions& options);

/// Whether inputs of calibration decide how an ONNX file's activations are rounded.
bool is_static(const QuantizeOptions& options);

/// Whether the model is an ONNX file, by its ending.
bool is_onnx_file(const std::string& model);

/// Throws UserError (exit 2) where the output is not named, and for bits or groups that the method
/// or the kind of model lacks.
QuantizeOptions resolve_quantize(const KeyValues& given);

/// The form of the folder that is written.
io::FolderQuantization quantization_of(const QuantizeOptions& options);

/// The value of --precision that computes the same while loading.
Precision precision_of(const io::FolderQuantization& quantization);

}  // namespace brrr::cli
