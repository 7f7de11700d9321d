#include "cli/quantize/quantize_options.h"

#include <algorithm>

#include "base/encoding/ascii.h"
#include "cli/runnable_option.h"
#include "folders/quantized/quantized_model.h"
#include "machine/device.h"
#include "passes/pipeline.h"

namespace brrr::cli {
namespace {

constexpr int64_t kUsualGroup = 32;

/// Throws UserError (exit 2) for options that do nothing for an ONNX file.
void refuse_options_of_folders(const QuantizeOptions& o) {
  if (!o.text.empty())
    usage_error(
        "--text is for a model folder; outputs of an ONNX file are compared on --input "
        "NAME=FILE.npy");
  if (is_calibrated(o))
    usage_error(
        "--method gptq, --method awq, --smoothing and --target-bits are for a model folder; an "
        "ONNX file takes --method weight-only or static");
  if (o.dtype != QuantizeOptions{}.dtype)
    usage_error(
        "--dtype is for a model folder; what is not quantised of an ONNX file stays as it "
        "is");
}

/// Whether an option is among those that were given, under any of its names.
bool is_among(const KeyValues& given, const char* name) {
  return std::ranges::any_of(given, [&](const auto& option) {
    return &quantize_option_table().find(option.first) == &quantize_option_table().find(name);
  });
}

/// Throws UserError (exit 2) for options of calibration that the method does not read.
void check_calibration(const QuantizeOptions& o, const KeyValues& given) {
  for (const char* name : {"act-order", "damping"})
    if (o.method != "gptq" && is_among(given, name)) usage_error("--{} is for --method gptq", name);
  for (const char* name : {"calibration", "calibration-tokens"})
    if (!is_calibrated(o) && is_among(given, name))
      usage_error("--{} is for --method gptq, --method awq, --smoothing and --target-bits", name);
}

/// Throws UserError (exit 2) for --method static where it cannot be, and its options without it.
void check_static(const QuantizeOptions& o, const KeyValues& given, bool is_onnx) {
  const auto is_given = [&](const char* name) { return is_among(given, name); };
  if (!is_static(o)) {
    for (const char* name : {"range", "percentile"})
      if (is_given(name)) usage_error("--{} is for --method static", name);
    return;
  }
  if (!is_onnx)
    usage_error(
        "--method static is for an ONNX file; a model folder takes --method dynamic, which finds "
        "the ranges of rows while it runs");
  if (o.bits != 8) usage_error("--method static: expected --bits 8; got {}", o.bits);
  if (is_given("percentile") && o.range != "percentile")
    usage_error("--percentile is for --range percentile; got --range {}", o.range);
}

}  // namespace

bool is_calibrated(const QuantizeOptions& o) {
  return o.method == "gptq" || o.method == "awq" || o.smoothing > 0 || o.target_bits > 0;
}

bool is_static(const QuantizeOptions& o) { return o.method == "static"; }

bool is_onnx_file(const std::string& model) {
  return is_module_file(model) && ascii_lowercase(fs::path(model).extension().string()) == ".onnx";
}

const OptionTable<QuantizeOptions>& quantize_option_table() {
  static const OptionTable<QuantizeOptions> table = [] {
    using O = QuantizeOptions;
    OptionTable<O> t;
    t.group("model");
    t.text("model", &O::model, "FOLDER",
           "run, checkpoint or model folder, GGUF or ONNX file, or ORG/NAME[@REVISION] of the "
           "Hugging Face Hub, downloaded where its cache does not have it (default: the newest "
           "run)",
           {"model-name-or-path"});
    t.text("output", &O::output, "FOLDER", "new folder, or ONNX file, for the quantised model",
           {"output-dir", "o"});
    t.group("quantisation");
    t.choice(
        "method", &O::method,
        {{"dynamic", "w8a8"}, {"weight-only", "weight_only"}, {"static", "qdq"}, {"gptq"}, {"awq"}},
        "NAME",
        "dynamic: weights and the rows that they multiply as integers; weight-only: weights "
        "alone, which multiply rows in 16 bits; static: of an ONNX file, weights and the inputs of "
        "products, in ranges seen on --input; gptq, awq: weight-only, with integers that change "
        "the outputs on a calibration text least (default: dynamic for a folder, weight-only for "
        "an ONNX file)");
    t.integer("bits", &O::bits, 4, 8, "N",
              "bits of a weight: 8, or weight-only 4 (default: 4 for gptq and awq, else 8)");
    t.integer("group-size", &O::group_size, 0, 128, "N",
              "with 4 bits: inputs of a layer that share a scale, 32, 64 or 128 (0: 32)",
              {"group_size"});
    t.real("target-bits", &O::target_bits, {.low = 0, .high = 9}, "X",
           "bits of a weight on average, scales included: each layer gets 4 bits in groups of 128, "
           "64 or 32, or 8 bits, where its outputs gain most (0: --bits for all layers)",
           {"target_bits"});
    t.real("smoothing", &O::smoothing, {.low = 0, .high = 1}, "X",
           "SmoothQuant: the share of the magnitude of outlying channels that moves from rows to "
           "weights, usually 0.5 (0: none)",
           {"smoothing-strength"});
    t.flag("act-order", &O::act_order,
           "gptq: round inputs with large activations first; the file needs no order for it",
           {"desc-act", "actorder"});
    t.real("damping", &O::damping, {.low = 1e-6, .high = 1}, "X",
           "gptq: what is added to the diagonal of the inputs' products, as a share of its mean",
           {"damp-percent", "dampening-frac"});
    t.list("calibration", &O::calibration, false, "FILE...",
           "text that gptq, awq and --smoothing look at (default: the beginning of tiny "
           "Shakespeare); for an encoder, one text per line",
           {"dataset", "calibration-text"});
    t.integer("calibration-tokens", &O::calibration_tokens, 256, int64_t{1} << 24, "N",
              "tokens of that text to run the model on, spread over it");
    t.choice("range", &O::range, {{"minmax", "min-max"}, {"percentile"}, {"entropy", "kl"}}, "NAME",
             "static: the range of an activation: minmax, all its values; percentile, all but "
             "outliers; entropy, that of the smallest KL divergence",
             {"calibration-method", "calibrate-method"});
    t.real("percentile", &O::percentile, {.low = 50, .high = 100}, "P",
           "static: percent of the values that --range percentile covers");
    t.repeated(
        "keep", &O::keep, true, "NAME,...",
        "layers to keep as they are: the name of a layer, a part of names (down_proj), a block "
        "(h.0), or an initializer or a node of an ONNX file",
        {"ignore"});
    t.choice("dtype", &O::dtype, {{"as-stored"}, {"bf16", "bfloat16"}}, "NAME",
             "what embeddings and other matrices of a folder that are not quantised are stored in");
    t.group("measurements");
    t.list("text", &O::text, false, "FILE...",
           "held-out text to measure the loss of a folder on; for an encoder, one text per line "
           "(default: the "
           "end of tiny Shakespeare)");
    t.real("max-loss-increase", &O::max_loss_increase, {.low = 0, .high = 1e6}, "X%",
           "refuse to write a model whose loss increases by more, or, for an encoder, whose mean "
           "cosine with the fp32 vectors is more below 1 (percent)")
        .set = [](O& o, const std::string& text) {
      const std::string number = text.ends_with('%') ? text.substr(0, text.size() - 1) : text;
      o.max_loss_increase = parse_real(number, {.low = 0, .high = 1e6});
    };
    t.flag("force", &O::force, "write the model even if its loss increases by more");
    t.flag("measure", &O::measure, "measure speed and quality first; --no-measure writes at once");
    add_input_rows(t);
    t.group("running");
    t.flag("json", &O::json, "one JSON object with the report on standard output");
    machine::add_memory_row(t);
    t.integer("threads", &O::threads, 0, 4096, "N",
              "threads (0: as many as OMP_NUM_THREADS or the processors allow)", {"num-threads"});
    return t;
  }();
  return table;
}

io::FolderQuantization quantization_of(const QuantizeOptions& o) {
  io::FolderQuantization q;
  q.bits = o.bits;
  q.dynamic = o.method == "dynamic";
  q.group = o.bits == 4 && o.group_size == 0 ? kUsualGroup : o.group_size;
  return q;
}

Precision precision_of(const io::FolderQuantization& q) {
  return brrr::precision_of(Quantization{.bits = static_cast<int>(q.bits), .of_rows = q.dynamic});
}

QuantizeOptions resolve_quantize(const KeyValues& given) {
  QuantizeOptions o;
  const auto& table = quantize_option_table();
  for (const auto& [key, value] : given)
    table.set(o, table.find(key), value, "--" + canonical_key(key));
  const bool is_onnx = is_onnx_file(o.model);
  if (o.target_bits > 0) {
    if (o.bits != 0 || o.group_size != 0)
      usage_error("--target-bits chooses bits and groups; leave --bits and --group-size out");
    if (o.method.empty()) o.method = "weight-only";
    if (o.method == "dynamic")
      usage_error(
          "--target-bits: the method dynamic has weights of 8 bits; expected --method "
          "weight-only, gptq or awq");
    o.bits = 4;
  }
  const bool chooses = o.method == "gptq" || o.method == "awq";
  if (o.bits == 0) o.bits = chooses ? 4 : 8;
  if (o.method == "awq" && o.smoothing > 0)
    usage_error("--smoothing: --method awq chooses factors of its own; use one of the two");
  if (is_onnx) refuse_options_of_folders(o);
  check_static(o, given, is_onnx);
  check_calibration(o, given);
  if (o.method.empty()) o.method = is_onnx ? "weight-only" : "dynamic";
  if (o.bits != 8 && o.bits != 4) usage_error("--bits {}: expected 8 or 4", o.bits);
  io::check_method(quantization_of(o));
  if (o.output.empty())
    usage_error("expected --output FOLDER, a new folder for the model, or FILE.onnx");
  return o;
}

}  // namespace brrr::cli
