// brrr export: a model as one file that runs without its architecture's code.

#include <algorithm>

#include "backend/cpu/target.h"
#include "base/env.h"
#include "base/human.h"
#include "base/tell.h"
#include "base/temporary_folder.h"
#include "cli/commands.h"
#include "cli/export_gguf.h"
#include "cli/exported_decoder.h"
#include "cli/model_option.h"
#include "cli/pictures/export_state_dict.h"
#include "cli/runnable_option.h"
#include "folders/chat_template.h"
#include "folders/sentence_folder.h"
#include "formats/gguf/gguf_file.h"
#include "infer/model_source.h"
#include "models/greedy_decoder.h"
#include "modules/brrr_file.h"
#include "modules/onnx/export/verify_export.h"
#include "modules/onnx/onnx_module.h"
#include "modules/open_module.h"

namespace brrr::cli {

using infer::DecoderSettings;
using infer::kDecoderSettings;
using infer::settings_text;
namespace {

struct ExportOptions {
  std::string model;
  std::vector<std::string> adapter;  // merged into the model
  std::string format;                // "": as the name of the output says
  std::string output;
  std::string type;      // of a GGUF file; "": as the weights are stored
  int64_t length = 0;    // 0: the model's context
  int64_t generate = 0;  // 0: the forward pass; else the positions of a greedy decoder
  int64_t opset = 18;
  Precision dtype = Precision::fp32;
  int64_t threads = 0;  // 0: all
  bool external_data = false;
  bool kv_cache = false;
  bool verify = true;
  std::vector<std::string> sizes;   // NAME=N
  std::vector<std::string> inputs;  // NAME=FILE.npy
};

const OptionTable<ExportOptions>& export_table() {
  static const OptionTable<ExportOptions> table = [] {
    using O = ExportOptions;
    OptionTable<O> t;
    t.group("export");
    t.text(
        "model", &O::model, "MODEL",
        "run, checkpoint or model folder, or GGUF, ONNX or .brrr file (default: the newest run)");
    t.repeated("adapter", &O::adapter, false, "FOLDER[=SCALE]",
               "low-rank adapter to merge into the model first, with an optional factor of its "
               "scale; give the option once for each adapter: their changes are added",
               {"lora", "peft"});
    t.choice(
        "format", &O::format, {{"onnx"}, {"gguf"}, {"brrr"}, {"safetensors"}}, "NAME",
        "onnx: for any runtime; gguf: for llama.cpp; brrr: one file with the graph and the "
        "weights; safetensors: the state dict of a ResNet for torchvision or of "
        "an EfficientNet for timm or efficientnet_pytorch (default: as --output says, else brrr)");
    t.text("output", &O::output, "FILE",
           "the file to write (default: model.onnx, model.gguf or model.brrr)", {"outfile"});
    t.flag("verify", &O::verify,
           "run what was written and compare it with the model; --no-verify leaves it out");
    t.repeated("size", &O::sizes, false, "NAME=N",
               "fix a size of an ONNX or .brrr file that is exported again");
    t.repeated("input", &O::inputs, false, "NAME=FILE.npy",
               "make the value of an input part of what is exported");
    t.integer("threads", &O::threads, 0, 4096, "N", "threads (0: all)", {"num-threads"});
    t.group("ONNX");
    t.integer("opset", &O::opset, onnx::kOldestExport, onnx::kNewestExport, "N",
              "version of the operators", {"opset-version"});
    add_precision_row(
        t, "dtype", &O::dtype, PrecisionUse::storage,
        "what matrices are stored in: fp32, or bf16 or fp16, converted to fp32 where they are "
        "read",
        {"precision"});
    t.flag("external-data", &O::external_data,
           "write the weights to FILE.data beside the file (needed beyond 2 GB)",
           {"use-external-data-format"});
    t.flag("kv-cache", &O::kv_cache,
           "a decoder gets keys and values of earlier tokens as inputs (past_key_values) and gives "
           "them back (present)",
           {"use-cache", "use-past", "with-past"});
    t.group("GGUF");
    t.text("type", &O::type, "TYPE",
           "what matrices are stored in: " + gguf_types_text() +
               " (default: as the source stores them, "
               "Q8_0 for weights of integers)",
           {"outtype"});
    t.group("brrr");
    t.integer("length", &O::length, 0, int64_t{1} << 24, "N",
              "tokens of each text, fixed (default: any number)");
    t.integer("generate", &O::generate, 0, int64_t{1} << 24, "N",
              "export a greedy decoder with its tokenizer instead of the forward pass: a loop in "
              "the file that makes texts of up to N tokens, prompt included");
    return t;
  }();
  return table;
}

/// Throws UserError if the output would replace a file of another kind, or its weights a file that
/// does not belong to it.
void check_replaced(const ExportOptions& o) {
  std::error_code gone;
  const fs::file_type type = fs::symlink_status(o.output, gone).type();
  const fs::path data = onnx::data_file_of(o.output);
  if (type == fs::file_type::not_found) {
    if (o.external_data && fs::symlink_status(data, gone).type() != fs::file_type::not_found)
      user_error("{} is there without {}; name another --output", data.string(), o.output);
    return;
  }
  const auto is_one = [&] {
    if (type != fs::file_type::regular) return false;
    if (o.format == "brrr") return modules::is_brrr_file(o.output);
    if (o.format == "gguf") return io::is_gguf_file(o.output);
    try {
      onnx::File::load(o.output);
      return true;
    } catch (const UserError&) {
      return false;
    }
  };
  if (!is_one())
    user_error("{} is there and is no {} file; name another --output", o.output,
               o.format == "brrr"   ? ".brrr"
               : o.format == "gguf" ? "GGUF"
                                    : "ONNX");
}

/// Option names of other exporters, and the advice for each.
void refuse_foreign(const Arguments& args) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"task", "a model's folder says its task; for text-generation-with-past give --kv-cache"},
      {"fp16", "give --dtype fp16"},
      {"half", "give --dtype fp16"},
      {"bf16", "give --dtype bf16"},
      {"optimize", "the graph is optimised already; runtimes do the rest"},
      {"quantize", "weights of ONNX files are quantised by `brrr quantize`; for GGUF give --type"},
      {"int8", "weights of ONNX files are quantised by `brrr quantize`; for GGUF give --type Q8_0"},
      {"dynamic-axes", "sizes are open already; --size NAME=N fixes one"},
      {"dynamic-shapes", "sizes are open already; --size NAME=N fixes one"},
      {"batch-size", "batch and length are open in the file"},
      {"max-length", "batch and length are open in the file"},
      {"atol", "exports are verified within 1e-4, or 2e-2 in 16 bits; see --verify"},
      {"output-dir", "give --output FILE.onnx"},
      {"trust-remote-code", "no code of a folder is run"},
      {"framework", "leave it out"},
      {"device", "exports are made on the CPU; leave it out"}};
  for (const auto& [key, value] : args.given)
    for (const auto& [name, advice] : kNames)
      if (canonical_key(key) == name) usage_error("--{}: {}", name, advice);
}

/// Throws UserError for options of the other formats.
void check_gguf(const ExportOptions& o, const ExportOptions& defaults) {
  if (o.opset != defaults.opset || o.external_data || o.kv_cache || o.length > 0 || o.generate > 0)
    usage_error(
        "--opset, --external-data and --kv-cache work only with ONNX files, --length and "
        "--generate with .brrr files; this is a GGUF file, as --format or --output says");
  if (o.dtype != defaults.dtype)
    usage_error("--dtype works only with ONNX files; for a GGUF file give --type");
  if (is_module_file(o.model))
    usage_error("{}: a GGUF file is written from a run, a model folder or a GGUF file", o.model);
}

ExportOptions export_options(const Arguments& args) {
  ExportOptions o;
  Arguments rest = args;
  rest.positional.clear();
  for (const std::string& word : args.positional) {
    std::error_code ignored;
    const bool is_first = o.model.empty() && rest.positional.empty();
    const bool is_output = is_module_file(word) || fs::path(word).extension() == ".gguf";
    if (!is_first && is_output && o.output.empty()) {
      o.output = word;  // MODEL FILE, as others have it
    } else if (is_module_file(word) && is_first) {
      if (!fs::exists(word, ignored)) usage_error("{}: there is no such file", word);
      o.model = word;
    } else {
      rest.positional.push_back(word);
    }
  }
  refuse_foreign(args);
  for (const auto& [key, value] : with_words(rest, AlsoReads::nothing))
    export_table().set(o, export_table().find(key), value, "--" + canonical_key(key));
  const std::string ending = fs::path(o.output).extension().string();
  if (!o.output.empty() && ending != ".onnx" && ending != ".brrr" && ending != ".gguf" &&
      ending != ".safetensors")
    usage_error(
        "--output: expected a name that ends in .onnx, .gguf, .brrr or .safetensors; got '{}'",
        o.output);
  if (o.format.empty())
    o.format = !ending.empty() ? ending.substr(1) : o.type.empty() ? "brrr" : "gguf";
  if (o.output.empty()) o.output = "model." + o.format;
  if (!o.output.ends_with("." + o.format))
    usage_error("--format {} and --output {} contradict each other; leave one of them out",
                o.format, o.output);
  check_place(o.output);
  if (o.length > 0 && o.generate > 0)
    usage_error(
        "--length fixes the texts of the forward pass; --generate N says how long texts may get");
  const ExportOptions defaults;
  if (o.format != "gguf" && !o.type.empty())
    usage_error(
        "--type works only with GGUF files; this is {} file, as --format or --output says{}",
        o.format == "onnx" ? "an ONNX" : "a ." + o.format,
        o.format == "onnx" ? "; --dtype says what its matrices are stored in" : "");
  if (o.format == "gguf") check_gguf(o, defaults);
  if (o.format == "onnx" && (o.length > 0 || o.generate > 0))
    usage_error("--{} works only with .brrr files; an ONNX file takes texts of any length",
                o.length > 0 ? "length" : "generate");
  if (o.format == "brrr" &&
      (o.opset != defaults.opset || o.dtype != defaults.dtype || o.external_data || o.kv_cache))
    usage_error(
        "--opset, --dtype, --external-data and --kv-cache work only with ONNX files; this is a "
        ".brrr "
        "file, as --format or --output says");
  if (!is_module_file(o.model) && !(o.sizes.empty() && o.inputs.empty()))
    usage_error("--size and --input work only with an ONNX or .brrr file that is exported again");
  check_replaced(o);
  return o;
}

std::map<std::string, HostTensor> known_inputs(const ExportOptions& o, const Runnable& module) {
  std::map<std::string, HostTensor> known;
  for (auto& [name, value] : read_inputs(o.inputs)) {
    if (std::ranges::find(module.inputs(), name, &Port::name) == module.inputs().end())
      usage_error("--input {}: the file has no such input", name);
    known.emplace(name, value.tensor());
  }
  return known;
}

onnx::TrialSource source_of(const ExportOptions& o) {
  if (!is_module_file(o.model))
    return infer::model_source(open_exchange_model(o.model, io::parse_adapters(o.adapter)),
                               o.kv_cache);
  if (o.kv_cache) usage_error("--kv-cache works only with a model's folder; got {}", o.model);
  const std::shared_ptr<const Runnable> module = modules::open_module(o.model);
  return onnx::module_source(module, read_sizes(o.sizes), known_inputs(o, *module));
}

/// Calls f() and adds the option that may help to the message of its UserError.
template <typename F>
auto with_advice(const ExportOptions& o, F&& f) {
  try {
    return f();
  } catch (const onnx::NeedsValue& error) {
    user_error("{}: --input {}=FILE.npy", error.what(), error.input());
  } catch (const onnx::SizesDiffer& error) {
    if (!is_module_file(o.model)) throw;
    user_error("{}; --size NAME=N fixes a size", error.what());
  }
}

/// "batch_size = 1, sequence_length = 4"
std::string sizes_text(const onnx::TrialSource& trial, const std::vector<int64_t>& sizes) {
  std::string text;
  for (size_t i = 0; i < sizes.size(); ++i)
    text += fmt::format("{}{} = {}", i == 0 ? "" : ", ", trial.source.sizes[i], sizes[i]);
  return text;
}

/// Runs the file at sizes that were not used to make it. Throws UserError if its results differ.
void verify_onnx(const ExportOptions& o, const onnx::TrialSource& trial, const fs::path& file) {
  constexpr double kNarrow = 2e-2, kWide = 1e-4;
  const std::shared_ptr<const Runnable> module = onnx::open_module(file);
  if (trial.unseen.empty())
    return tell("note: not verified, because the model refused all other sizes that were tried\n");
  double worst = 0;
  std::string tried;
  for (const std::vector<int64_t>& sizes : trial.unseen) {
    const std::string where = sizes_text(trial, sizes);
    const std::string at = where.empty() ? "" : fmt::format(" at {}", where);
    tried += (tried.empty() ? "" : "; ") + where;
    onnx::ExportDifference d;
    try {
      d = onnx::compare_export(trial.source, module, cpu::cpu_backend(), sizes,
                               trial.inputs(sizes));
    } catch (const UserError& error) {
      user_error("{} was not written, because it would not run{}: {}", o.output, at, error.what());
    }
    const bool is_narrow = d.has_16_bits || dtype_of_precision(o.dtype) != DType::f32;
    const double most = is_narrow ? kNarrow : kWide;
    if (!(d.largest <= most))
      user_error(
          "{} was not written, because its output '{}' would differ from the model's by "
          "{:.2g} of the largest element{}; expected at most {:g}",
          o.output, d.output, d.largest, at, most);
    if (!d.all_nan.empty())
      tell("note: the output '{}' is NaN everywhere{}, of the model as of the file\n", d.all_nan,
           at);
    worst = std::max(worst, d.largest);
  }
  tell("verified{}: the file gives what the model gives, within {:.1e} of the largest element\n",
       tried.empty() ? "" : " at " + tried, worst);
}

/// A folder beside the output in which files are made and checked before they get their names.
class Workplace {
 public:
  explicit Workplace(const fs::path& output) : folder_(temporary_beside(output)), output_(output) {
    remove_dead_temporaries(output.has_parent_path() ? output.parent_path() : ".");
    create_own_folder(folder_);
    write_cache_file(folder_ / kTemporaryMark, "");
  }
  Workplace(const Workplace&) = delete;
  Workplace& operator=(const Workplace&) = delete;
  ~Workplace() { remove_marked_folder(folder_, kTemporaryMark); }
  fs::path file() const { return folder_ / output_.filename(); }
  /// Moves them to their final names and removes a data file that is no longer used.
  void finish() const {
    const fs::path data = onnx::data_file_of(file()), old = onnx::data_file_of(output_);
    std::error_code error;
    if (fs::exists(data, error)) fs::rename(data, old, error);
    if (!error) fs::rename(file(), output_, error);
    if (error) user_error("{}: cannot be written: {}", output_.string(), error.message());
  }

 private:
  fs::path folder_, output_;
};

int export_onnx(const ExportOptions& o) {
  onnx::ExportOptions how;
  how.opset = o.opset;
  how.storage = dtype_of_precision(o.dtype);
  onnx::TrialSource trial;
  const auto model = with_advice(o, [&] {
    trial = source_of(o);
    trial.source.producer_version = BRRR_VERSION;
    return onnx::export_trying(trial, how);
  });
  if (!o.external_data && onnx::is_too_large(model->model()))
    user_error(
        "{} would be larger than the 2 GiB that an ONNX file can be; --external-data writes "
        "the weights into a file beside it",
        o.output);
  const Workplace place(o.output);
  onnx::write_model(place.file(), model->model(),
                    o.external_data ? onnx::Placement::external : onnx::Placement::inside);
  const auto written = onnx::File::load(place.file());
  if (o.verify) verify_onnx(o, trial, place.file());
  place.finish();
  tell("wrote {} (ONNX, opset {}, {}), {:.1f} MB{}; try: {} run {}\n", o.output, o.opset,
       counted(std::ssize(written->graph.nodes), "node"),
       static_cast<double>(written->bytes()) / 1e6,
       o.external_data ? " with " + onnx::data_file_of(o.output).filename().string() : "",
       env::program(), o.output);
  return 0;
}

/// The program of a file for the sizes that are fixed.
modules::BrrrProgram program_of_file(const onnx::TrialSource& trial) {
  if (!trial.source.sizes.empty())
    user_error("a .brrr file of an ONNX file has fixed sizes; give {} with --size NAME=N",
               fmt::join(trial.source.sizes, ", "));
  modules::BrrrProgram program;
  program.graph = trial.source.graph({});
  return program;
}

/// The files of a folder that say how texts become tokens, and how answers are made of them; those
/// of a GGUF file are made.
std::map<std::string, std::string> text_files_of(const fs::path& folder) {
  if (io::is_gguf_file(folder)) {
    const TemporaryFolder made("brrr-texts");
    io::load_tokenizer(folder)->save(made.path());
    return text_files_of(made.path());
  }
  std::map<std::string, std::string> files;
  const auto take = [&](const std::string& name) {
    std::error_code ignored;
    if (fs::is_regular_file(folder / name, ignored)) files.emplace(name, read_file(folder / name));
  };
  for (const std::string_view name : io::tokenizer_file_names()) take(std::string(name));
  // Two of them only say more of a tokenizer.
  if (files.size() == files.count("tokenizer_config.json") + files.count("special_tokens_map.json"))
    return {};
  take("chat_template.jinja");
  take(io::kGenerationConfig);
  return files;
}

/// The tokens that end a text, as `brrr generate` takes them.
std::vector<int32_t> ends_of_text(const io::ModelFolder& folder, bool has_tokenizer) {
  std::vector<int32_t> ends = folder.generation.ends_of_text;
  if (ends.empty()) ends = folder.definition->text_ends().ends;
  if (!has_tokenizer) return ends;
  const int32_t end = io::load_tokenizer(folder.folder)->end_of_text();
  const bool ends_turns = io::ChatTemplate::read(folder.folder).has_value();
  if (end >= 0 && (ends.empty() || ends_turns) && std::ranges::find(ends, end) == ends.end())
    ends.push_back(end);
  return ends;
}

modules::BrrrProgram program_of_model(const ExportOptions& o, const io::ModelFolder& folder) {
  const models::Model& model = *folder.definition;
  modules::BrrrProgram program;
  program.files = text_files_of(folder.folder);
  if (o.generate > 0) {
    const DecoderSettings settings{.ends_of_text = ends_of_text(folder, !program.files.empty()),
                                   .stop_strings = folder.generation.stop_strings,
                                   .max_new_tokens = folder.generation.max_new_tokens};
    program.graph = models::greedy_decoder(model, o.generate, settings.ends_of_text);
    program.most["length"] = o.generate;  // a longer prompt would be cut
    program.lowest["max_new_tokens"] = 0;
    if (program.files.empty())
      tell("note: {} has no tokenizer, so that the file takes and gives token ids alone\n",
           folder.folder.string());
    else
      program.files[kDecoderSettings] = settings_text(settings);
  } else {
    const Dim length = o.length > 0 ? Dim(o.length) : Dim::symbol("length");
    program.graph = model.forward(Dim::symbol("batch"), length);
    if (o.length == 0) program.most["length"] = model.sizes().context;
  }
  program.about["model_type"] = model.architecture().name;
  return program;
}

int export_brrr(const ExportOptions& o) {
  modules::BrrrProgram program;
  std::function<std::span<const std::byte>(std::string_view)> weight;
  if (is_module_file(o.model)) {
    const onnx::TrialSource trial = with_advice(o, [&] { return source_of(o); });
    program = with_advice(o, [&] { return program_of_file(trial); });
    weight = trial.source.weight;
  } else {
    const std::shared_ptr<const io::ModelFolder> folder =
        open_exchange_model(o.model, io::parse_adapters(o.adapter));
    program = program_of_model(o, *folder);
    weight = [weights = std::make_shared<infer::FolderWeights>(folder)](std::string_view name) {
      return weights->get(name);
    };
  }
  for (const NodeId id : program.graph.inputs(InputKind::parameter)) {
    const std::string& name = program.graph.input_name(id);
    const Type& type = program.graph.type({id, 0});
    program.weights.push_back({name, type.dtype, type.shape, weight(name)});
  }
  modules::write_brrr_file(o.output, program);
  const auto module = modules::open_brrr_file(o.output, o.verify);
  const bool makes_text = o.generate > 0 && !program.files.empty();
  tell("wrote {} ({}), {:.1f} MB; try: {} {} {}\n", o.output, module->summary(),
       static_cast<double>(fs::file_size(o.output)) / 1e6, env::program(),
       makes_text ? "generate --model" : "run", o.output);
  return 0;
}

int run_export(const Arguments& args) {
  const ExportOptions options = export_options(args);
  use_threads(options.threads);
  if (is_module_file(options.model) && !options.adapter.empty())
    usage_error("--adapter needs a model's folder; got {}", options.model);
  if (options.format == "gguf")
    return export_gguf(options.model, options.adapter, options.type, options.output);
  if (options.format == "safetensors") return export_state_dict(options.model, options.output);
  return options.format == "onnx" ? export_onnx(options) : export_brrr(options);
}

}  // namespace

Command export_command() {
  return {
      .name = "export",
      .summary = "write a model as one file: ONNX for any runtime, GGUF for llama.cpp, or .brrr",
      .synopsis = "[MODEL] [--output FILE.onnx|FILE.gguf|FILE.brrr] [options]",
      .notes =
          "An ONNX file has the inputs and outputs that transformers' users know (input_ids,\n"
          "attention_mask, ...) and takes any batch, and any length up to the model's context.\n"
          "It is run and compared before it gets its name. A .brrr file is a safetensors file\n"
          "that also holds the graph: no code of the architecture is needed to run it. A GGUF "
          "file\n"
          "holds the weights with the tokenizer and the chat template, quantised as --type says;\n"
          "its exact size is printed before it is written.\n",
      .options = export_table().infos(),
      .run = run_export,
      .takes_positional = true,
      .is_for_one_process = true};
}

}  // namespace brrr::cli
