// brrr quantize: writes a model with integers in place of the weights of its linear layers, after
// a report of what that costs and gains on this machine.

#include <algorithm>

#include "base/env.h"
#include "base/human.h"
#include "base/tell.h"
#include "calibration/bit_budget.h"
#include "calibration/calibrator.h"
#include "cli/commands.h"
#include "cli/model_option.h"
#include "cli/quantize/onnx_quantize.h"
#include "cli/quantize/quantize_options.h"
#include "cli/quantize/report.h"
#include "cli/runnable_option.h"
#include "data/corpus.h"
#include "folders/sentence_folder.h"

namespace brrr::cli {
namespace {

/// Throws UserError where the output would be mixed with other files.
void check_output(const std::string& output) {
  std::error_code ignored;
  if (!fs::exists(output, ignored)) return;
  if (!fs::is_directory(output, ignored))
    user_error("--output: {} is a file; expected a new folder", output);
  if (!fs::is_empty(output, ignored))
    user_error("--output: {} holds files already; expected a new or an empty folder", output);
}

/// Throws UserError for a text that cannot be read, even where nothing is measured.
void check_text(const std::vector<std::string>& files) {
  if (files.empty()) return;
  io::CorpusOptions corpus;
  for (const std::string& file : files) corpus.text.emplace_back(file);
  io::find_corpus(corpus);
}

/// Opens the model for the task that its folder is used for.
io::ModelFolder open_for_quantising(const QuantizeOptions& o) {
  if (!module_files(o.model).file.empty())
    usage_error(
        "{}: expected a model folder or an ONNX file; .brrr files, and folders with one, are "
        "quantised while they are loaded: `brrr run --precision int8`",
        o.model);
  const bool has_modules = !o.model.empty() && fs::exists(fs::path(o.model) / "modules.json");
  const fs::path folder = has_modules ? fs::path(o.model) : find_named_model(o.model);
  const models::ModelPtr definition = has_modules ? nullptr : io::read_definition(folder);
  if (definition) refuse_pictures(*definition, folder, "quantised as a folder");
  if (definition && definition->adapted() != nullptr)
    user_error("{} is an adapter: merge it into its model first: `brrr merge {} --output FOLDER`",
               folder.string(), shell_word(folder.string()));
  io::OpenOptions open;
  open.reads_tokenizer = o.measure || is_calibrated(o);
  const io::SentenceSettings settings = io::read_sentence_settings(folder);
  if (settings.table)
    user_error("{} has a table of token vectors and no linear layers; expected an encoder",
               folder.string());
  std::error_code ignored;
  if (!settings.model.empty() && !fs::equivalent(settings.model, folder, ignored))
    user_error("{} has its encoder in a folder of its own; quantise that: `brrr quantize {}`",
               folder.string(), shell_word(settings.model.string()));
  if (io::read_definition(folder)->task().head == models::Head::embedding)
    open.task = settings.task;
  return io::open_model(folder, open);
}

std::vector<io::LinearLayer> kept_of(const std::vector<io::LinearLayer>& all,
                                     const std::vector<io::LinearLayer>& chosen) {
  std::vector<io::LinearLayer> kept;
  for (const io::LinearLayer& l : all)
    if (std::ranges::none_of(chosen,
                             [&](const io::LinearLayer& c) { return c.tensor == l.tensor; }))
      kept.push_back(l);
  return kept;
}

/// The calibration that the options ask for; null: none.
std::unique_ptr<calibration::Calibrator> calibrator_of(const QuantizeOptions& o,
                                                       const io::ModelFolder& model,
                                                       const std::vector<io::LinearLayer>& layers,
                                                       const infer::Memory& memory) {
  if (!is_calibrated(o)) return nullptr;
  return std::make_unique<calibration::Calibrator>(
      model, layers, calibration::calibration_text(model, o.calibration, o.calibration_tokens),
      memory);
}

/// How the integers are chosen. `calibrator` may be null, and outlives the result.
io::QuantizingOptions quantising_options(const QuantizeOptions& o,
                                         const io::FolderQuantization& quantization,
                                         calibration::Calibrator* calibrator) {
  io::QuantizingOptions how;
  if (o.dtype == "bf16") how.kept = io::QuantizingOptions::Kept::matrices_in_bf16;
  if (calibrator == nullptr) return how;
  if (o.smoothing > 0 && calibrator->places().empty())
    user_error(
        "--smoothing: no norm of {} is read by quantised linear layers alone, so that no channels "
        "can be divided by factors; leave it out",
        o.model);
  if (o.method == "awq")
    how.changes = calibrator->activation_aware_scaling(quantization.bits, quantization.group);
  else if (o.smoothing > 0)
    how.changes = calibrator->smoothing(o.smoothing);
  how.quantizer = o.method == "gptq"  ? calibrator->gptq({o.damping, o.act_order}, how.changes)
                  : o.method == "awq" ? calibrator->clipping(how.changes)
                                      : calibrator->nearest(how.changes);
  return how;
}

/// What to try with the new folder.
std::string next_command(const io::ModelFolder& model, const std::string& output) {
  const models::Head head = model.definition->task().head;
  const char* verb = head == models::Head::next_token     ? "generate"
                     : head == models::Head::embedding    ? "embed"
                     : head == models::Head::masked_token ? "fill-mask"
                                                          : "classify";
  return fmt::format("{} {} {}", env::program(), verb, shell_word(output));
}

/// The form of most layers.
io::IntegerGrid usual_form(const std::map<std::string, io::IntegerGrid>& forms) {
  std::map<std::pair<int64_t, int64_t>, int64_t> counts;
  for (const auto& [tensor, grid] : forms) ++counts[{grid.bits, grid.group}];
  const auto most = std::ranges::max_element(
      counts, [](const auto& a, const auto& b) { return a.second < b.second; });
  return {most->first.first, most->first.second};
}

int run_quantize(const Arguments& args) {
  const QuantizeOptions o = resolve_quantize(with_words(args, AlsoReads::text));
  use_threads(o.threads);
  if (is_onnx_file(o.model)) return quantize_onnx_file(o);
  refuse_without_file(o.inputs, o.sizes);
  check_output(o.output);
  check_text(o.text);
  const io::ModelFolder model = open_for_quantising(o);
  io::FolderQuantization quantization = quantization_of(o);
  const bool is_mixed = o.target_bits > 0;
  const std::vector<io::LinearLayer> layers = io::linear_layers(model);
  const std::vector<io::LinearLayer> chosen =
      io::chosen_layers(layers, o.keep, is_mixed ? 0 : quantization.group, model.folder.string());
  const infer::Memory memory{machine::memory_budget("cpu", o.memory_limit), "--no-measure", false,
                             false};
  const auto calibrator = calibrator_of(o, model, chosen, memory);
  std::map<std::string, io::IntegerGrid> forms;
  if (is_mixed) {
    forms = calibration::forms_under_budget(model, chosen, *calibrator, o.target_bits);
    const io::IntegerGrid usual = usual_form(forms);
    quantization.bits = usual.bits;
    quantization.group = usual.group;
  }
  io::QuantizingOptions how = quantising_options(o, quantization, calibrator.get());
  how.forms = std::move(forms);
  const io::QuantizedModel made(model, quantization, chosen, std::move(how));
  QuantizeReport report{
      model, made, kept_of(layers, chosen), std::nullopt, o.max_loss_increase, calibrator.get()};
  if (o.measure)
    report.measurements = measure_quantized(
        model, made, {.text = o.text, .precision = precision_of(quantization), .memory = memory});
  const bool is_written = !report.loses_too_much() || o.force;
  publish_report(o, o.json ? report_json(report, is_written ? o.output : "") : report_text(report),
                 report.warnings(), is_written);
  create_folder(o.output);
  made.write(o.output);
  tell("wrote {} ({:.1f} MB); try: {}\n", o.output, static_cast<double>(made.stored_bytes()) / 1e6,
       next_command(model, o.output));
  return 0;
}

}  // namespace

Command quantize_command() {
  return {
      .name = "quantize",
      .summary = "write a model with weights of 8 or 4 bits, after measuring what that costs",
      .synopsis =
          "MODEL|FILE.onnx --output FOLDER|FILE.onnx [--method dynamic|weight-only|static] [--bits "
          "8|4] "
          "[options]",
      .notes =
          "Quantises the linear layers of the blocks; embeddings, norms and the head stay as they\n"
          "are. First reports size, speed on this machine, loss and KL divergence of next tokens\n"
          "or similarity of vectors in fp32, bf16 and the new precision, and the error of each\n"
          "layer. The folder is in the form of\n"
          "compressed-tensors, which transformers loads; all verbs that run a model take it and\n"
          "compute in its precision. For an ONNX file, --method weight-only stores the\n"
          "weights of MatMul, Gemm, Conv, ConvTranspose, LSTM, GRU and RNN as integers and adds\n"
          "DequantizeLinear nodes; --method static also rounds the inputs of MatMul, Gemm and "
          "Conv\n"
          "to 8 bits (QDQ), in the ranges that they have on calibration inputs: --input\n"
          "NAME=FILE.npy, once for each run.\n",
      .options = quantize_option_table().infos(),
      .run = run_quantize,
      .takes_positional = true,
      .works_unread = true,
      .is_for_one_process = true};
}

}  // namespace brrr::cli
