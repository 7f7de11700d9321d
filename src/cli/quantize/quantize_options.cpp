#include "cli/quantize/quantize_options.h"

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
  if (o.dtype != QuantizeOptions{}.dtype)
    usage_error(
        "--dtype is for a model folder; what is not quantised of an ONNX file stays as it "
        "is");
}

}  // namespace

bool is_onnx_file(const std::string& model) {
  return is_module_file(model) && ascii_lowercase(fs::path(model).extension().string()) == ".onnx";
}

const OptionTable<QuantizeOptions>& quantize_option_table() {
  static const OptionTable<QuantizeOptions> table = [] {
    using O = QuantizeOptions;
    OptionTable<O> t;
    t.group("model");
    t.text("model", &O::model, "FOLDER",
           "run, checkpoint or model folder, ONNX file, or ORG/NAME[@REVISION] of the Hugging Face "
           "Hub, "
           "downloaded where its cache does not have it (default: the newest run)",
           {"model-name-or-path"});
    t.text("output", &O::output, "FOLDER", "new folder, or ONNX file, for the quantised model",
           {"output-dir", "o"});
    t.group("quantisation");
    t.choice(
        "method", &O::method, {{"dynamic", "w8a8"}, {"weight-only", "weight_only"}}, "NAME",
        "dynamic: weights and the rows that they multiply as integers; weight-only: weights "
        "alone, which multiply rows in 16 bits (default: dynamic for a folder, weight-only for an "
        "ONNX file)");
    t.integer("bits", &O::bits, 4, 8, "N", "bits of a weight: 8, or with --method weight-only 4");
    t.integer("group-size", &O::group_size, 0, 128, "N",
              "with 4 bits: inputs of a layer that share a scale, 32, 64 or 128 (0: 32)",
              {"group_size"});
    t.list("keep", &O::keep, true, "NAME,...",
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
  if (is_onnx) refuse_options_of_folders(o);
  if (o.method.empty()) o.method = is_onnx ? "weight-only" : "dynamic";
  if (o.bits != 8 && o.bits != 4) usage_error("--bits {}: expected 8 or 4", o.bits);
  io::check_method(quantization_of(o));
  if (o.output.empty())
    usage_error("expected --output FOLDER, a new folder for the model, or FILE.onnx");
  return o;
}

}  // namespace brrr::cli
