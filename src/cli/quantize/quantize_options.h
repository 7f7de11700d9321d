#pragma once
// What `brrr quantize` can be told.

#include <cstdint>
#include <string>
#include <vector>

#include "base/options.h"
#include "folders/quantized/compressed_tensors.h"
#include "passes/precision/precision.h"

namespace brrr::cli {

struct QuantizeOptions {
  std::string model;   // a folder, the name of a model or an ONNX file; "": the newest run
  std::string output;  // the folder or the ONNX file that is written
  std::string method;  // "": not given; resolve_quantize() fills it in
  int64_t bits = 8;
  int64_t group_size = 0;           // 0: the method's
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
