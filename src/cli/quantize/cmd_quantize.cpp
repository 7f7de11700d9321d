// brrr quantize: writes a model with integers in place of the weights of its linear layers, after
// a report of what that costs and gains on this machine.

#include <algorithm>

#include "base/env.h"
#include "base/human.h"
#include "base/tell.h"
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
  io::OpenOptions open;
  open.reads_tokenizer = o.measure;
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

/// What to try with the new folder.
std::string next_command(const io::ModelFolder& model, const std::string& output) {
  const models::Head head = model.definition->task().head;
  const char* verb = head == models::Head::next_token     ? "generate"
                     : head == models::Head::embedding    ? "embed"
                     : head == models::Head::masked_token ? "fill-mask"
                                                          : "classify";
  return fmt::format("{} {} {}", env::program(), verb, shell_word(output));
}

int run_quantize(const Arguments& args) {
  const QuantizeOptions o = resolve_quantize(with_words(args, AlsoReads::text));
  use_threads(o.threads);
  if (is_onnx_file(o.model)) return quantize_onnx_file(o);
  refuse_without_file(o.inputs, o.sizes);
  check_output(o.output);
  check_text(o.text);
  const io::ModelFolder model = open_for_quantising(o);
  const io::FolderQuantization quantization = quantization_of(o);
  const std::vector<io::LinearLayer> layers = io::linear_layers(model);
  const std::vector<io::LinearLayer> chosen =
      io::chosen_layers(layers, o.keep, quantization.group, model.folder.string());
  const io::QuantizedModel made(model, quantization, chosen,
                                o.dtype == "bf16" ? io::QuantizedModel::Kept::matrices_in_bf16
                                                  : io::QuantizedModel::Kept::as_stored);
  QuantizeReport report{model, made, kept_of(layers, chosen), std::nullopt, o.max_loss_increase};
  if (o.measure)
    report.measurements = measure_quantized(
        model, made,
        {.text = o.text,
         .precision = precision_of(quantization),
         .memory = {machine::memory_budget("cpu", o.memory_limit), "--no-measure", false, false}});
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
          "MODEL|FILE.onnx --output FOLDER|FILE.onnx [--method dynamic|weight-only] [--bits 8|4] "
          "[options]",
      .notes =
          "Quantises the linear layers of the blocks; embeddings, norms and the head stay as they\n"
          "are. First reports size, speed on this machine, loss and KL divergence of next tokens\n"
          "or similarity of vectors in fp32, bf16 and the new precision, and the error of each\n"
          "layer. The folder is in the form of\n"
          "compressed-tensors, which transformers loads; all verbs that run a model take it and\n"
          "compute in its precision. For an ONNX file, --method weight-only stores the\n"
          "weights of MatMul and Gemm as integers and adds DequantizeLinear nodes.\n",
      .options = quantize_option_table().infos(),
      .run = run_quantize,
      .takes_positional = true,
      .works_unread = true};
}

}  // namespace brrr::cli
