// brrr export: a model as one file that runs without its architecture's code.

#include <algorithm>

#include "backend/cpu/target.h"
#include "base/tell.h"
#include "cli/commands.h"
#include "cli/export_source.h"
#include "cli/model_option.h"
#include "cli/module_option.h"
#include "models/greedy_decoder.h"
#include "modules/brrr_file.h"
#include "modules/onnx/export/verify_export.h"
#include "modules/onnx/onnx_module.h"

namespace brrr::cli {
namespace {

struct ExportOptions {
  std::string model;
  std::string format;  // "": as the name of the output says
  std::string output;
  int64_t length = 0;    // 0: the model's context
  int64_t generate = 0;  // 0: the forward pass; else the positions of a greedy decoder
  int64_t opset = 18;
  std::string dtype = "fp32";
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
    t.text("model", &O::model, "MODEL",
           "run, checkpoint or model folder, ONNX file or .brrr file (default: the newest run)");
    t.choice("format", &O::format, {{"onnx"}, {"brrr"}}, "NAME",
             "onnx: for any runtime; brrr: one file with the graph and the weights (default: as "
             "--output says, else brrr)");
    t.text("output", &O::output, "FILE", "the file to write (default: model.onnx or model.brrr)");
    t.flag("verify", &O::verify,
           "run what was written and compare it with the model; --no-verify leaves it out");
    t.list("size", &O::sizes, false, "NAME=N",
           "fix a size of an ONNX or .brrr file that is exported again");
    t.list("input", &O::inputs, false, "NAME=FILE.npy",
           "make the value of an input part of what is exported");
    t.group("ONNX");
    t.integer("opset", &O::opset, onnx::kOldestExport, onnx::kNewestExport, "N",
              "version of the operators");
    t.choice("dtype", &O::dtype, precision_choices(), "NAME",
             "what matrices are stored in: fp32, or bf16 or fp16, converted to fp32 where they are "
             "read");
    t.flag("external-data", &O::external_data,
           "write the weights to FILE.data beside the file (needed beyond 2 GB)");
    t.flag("kv-cache", &O::kv_cache,
           "a decoder gets keys and values of earlier tokens as inputs (past_key_values) and gives "
           "them back (present)");
    t.group("brrr");
    t.integer("length", &O::length, 0, int64_t{1} << 24, "N",
              "tokens of each text, fixed (default: any number)");
    t.integer("generate", &O::generate, 0, int64_t{1} << 24, "N",
              "export a greedy decoder instead of the forward pass: a loop in the file that makes "
              "texts of up to N tokens, prompt included");
    return t;
  }();
  return table;
}

/// What is at the place of the output must be such a file, too.
void check_replaced(const ExportOptions& o) {
  std::error_code gone;
  const fs::file_type type = fs::symlink_status(o.output, gone).type();
  if (type == fs::file_type::not_found) return;
  const auto is_one = [&] {
    if (type != fs::file_type::regular) return false;
    if (o.format == "brrr") return modules::is_brrr_file(o.output);
    try {
      onnx::File::load(o.output);
      return true;
    } catch (const UserError&) {
      return false;
    }
  };
  if (!is_one())
    user_error("{} is there and is no {} file; name another --output", o.output,
               o.format == "brrr" ? ".brrr" : "ONNX");
}

ExportOptions export_options(const Arguments& args) {
  ExportOptions o;
  Arguments rest = args;
  for (const std::string& word : args.positional)
    if (is_module_file(word)) {
      if (!o.model.empty()) usage_error("expected one model; got '{}' and '{}'", o.model, word);
      o.model = word;
      std::erase(rest.positional, word);
    }
  for (const auto& [key, value] : with_words(rest, AlsoReads::nothing))
    export_table().set(o, export_table().find(key), value, "--" + canonical_key(key));
  if (o.format.empty()) o.format = o.output.ends_with(".onnx") ? "onnx" : "brrr";
  if (o.output.empty()) o.output = "model." + o.format;
  if (o.format == "brrr" && o.output.ends_with(".onnx"))
    usage_error("--format brrr would write a .brrr file to {}", o.output);
  check_place(o.output);
  if (o.length > 0 && o.generate > 0)
    usage_error("--length is of the forward pass, and --generate N says how long texts may get");
  const ExportOptions defaults;
  if (o.format == "onnx" && (o.length > 0 || o.generate > 0))
    usage_error("--{} is of .brrr files; an ONNX file takes texts of any length",
                o.length > 0 ? "length" : "generate");
  if (o.format == "brrr" &&
      (o.opset != defaults.opset || o.dtype != defaults.dtype || o.external_data || o.kv_cache))
    usage_error(
        "--opset, --dtype, --external-data and --kv-cache are of ONNX files; got --format brrr");
  if (!is_module_file(o.model) && !(o.sizes.empty() && o.inputs.empty()))
    usage_error("--size and --input are of ONNX and .brrr files that are exported again");
  check_replaced(o);
  return o;
}

std::map<std::string, HostTensor> known_inputs(const ExportOptions& o,
                                               const modules::Module& module) {
  std::map<std::string, HostTensor> known;
  for (auto& [name, value] : read_inputs(o.inputs)) {
    if (std::ranges::find(module.inputs(), name, &modules::Port::name) == module.inputs().end())
      usage_error("--input {}: the file has no such input", name);
    known.emplace(name, value.tensor());
  }
  return known;
}

ExportedSource source_of(const ExportOptions& o) {
  if (is_module_file(o.model)) {
    const std::shared_ptr<const modules::Module> module = modules::open_module(o.model);
    if (o.kv_cache) usage_error("--kv-cache is of a model's folder");
    return export_source(module, read_sizes(o.sizes), known_inputs(o, *module));
  }
  return export_source(std::make_shared<const io::ModelFolder>(open_named_model(o.model)),
                       o.kv_cache);
}

/// Runs the file at sizes that its making has not seen.
void verify_onnx(const ExportOptions& o, const ExportedSource& e) {
  constexpr double kNarrow = 2e-2, kWide = 1e-4;
  const double most = o.dtype == "fp32" ? kWide : kNarrow;
  const auto module = onnx::open_module(o.output);
  double worst = 0;
  for (const std::vector<int64_t>& sizes : e.unseen) {
    onnx::ExportDifference d;
    try {
      d = onnx::compare_export(e.source, module, cpu::cpu_backend(), sizes, e.inputs(sizes));
    } catch (const UserError& error) {
      user_error("{} was written, but does not run for {} = {}: {}", o.output,
                 fmt::join(e.source.sizes, ", "), fmt::join(sizes, ", "), error.what());
    }
    if (!(d.largest <= most))
      user_error(
          "{} was written, but its output '{}' differs from the model's by {:.2g} of the "
          "largest element, more than {:g}",
          o.output, d.output, d.largest, most);
    worst = std::max(worst, d.largest);
  }
  tell("verified: the file gives what the model gives, within {:.1e} of the largest element\n",
       worst);
}

int export_onnx(const ExportOptions& o) {
  ExportedSource e = source_of(o);
  onnx::ExportOptions how;
  how.opset = o.opset;
  how.storage = dtype_of_precision(o.dtype);
  const auto model = export_for_open_sizes(e, how);
  onnx::write_model(o.output, model->model(),
                    o.external_data ? onnx::Placement::external : onnx::Placement::inside);
  const auto written = onnx::File::load(o.output);
  tell("wrote {} (ONNX, opset {}, {} nodes), {:.1f} MB{}\n", o.output, o.opset,
       written->graph.nodes.size(), static_cast<double>(written->bytes()) / 1e6,
       o.external_data ? " with " + onnx::data_file_of(o.output).filename().string() : "");
  if (o.verify) verify_onnx(o, e);
  return 0;
}

int export_brrr(const ExportOptions& o) {
  modules::BrrrProgram program;
  std::vector<std::vector<float>> rooms;
  std::shared_ptr<const void> holds;
  if (is_module_file(o.model)) {
    const ExportedSource e = source_of(o);
    if (!e.source.sizes.empty())
      user_error("a .brrr file of an ONNX file has fixed sizes; give {} with --size NAME=N",
                 fmt::join(e.source.sizes, ", "));
    program.graph = e.source.graph({});
    for (const NodeId id : program.graph.inputs(InputKind::parameter)) {
      const std::string& name = program.graph.input_name(id);
      const Type& type = program.graph.type({id, 0});
      program.weights.push_back({name, type.dtype, type.shape, e.source.weight(name)});
    }
    holds = std::make_shared<ExportedSource>(e);
  } else {
    const io::ModelFolder folder = open_named_model(o.model);
    const models::Model& model = *folder.definition;
    if (o.generate > 0) {
      program.graph = models::greedy_decoder(model, o.generate);
      // A longer prompt would be cut.
      program.most["length"] = o.generate;
    } else {
      const Dim length = o.length > 0 ? Dim(o.length) : Dim::symbol("length");
      program.graph = model.forward(Dim::symbol("batch"), length);
      if (o.length == 0) program.most["length"] = model.sizes().context;
    }
    program.about["model_type"] = model.architecture().name;
    // Weights are read in f32, whatever the folder holds.
    for (const NodeId id : program.graph.inputs(InputKind::parameter)) {
      const std::string& name = program.graph.input_name(id);
      const Type& type = program.graph.type({id, 0});
      rooms.push_back(values_of(folder, name, type));
      program.weights.push_back(
          {name, DType::f32, type.shape, std::as_bytes(std::span(rooms.back()))});
    }
    std::error_code ignored;
    const fs::path tokenizer = folder.folder / "tokenizer.json";
    if (fs::exists(tokenizer, ignored)) program.tokenizer = read_file(tokenizer);
  }
  modules::write_brrr_file(o.output, program);
  const auto module = modules::open_brrr_file(o.output, o.verify);
  tell("wrote {} ({}), {:.1f} MB; try: {} run {}\n", o.output, module->summary(),
       static_cast<double>(fs::file_size(o.output)) / 1e6, env::program(), o.output);
  return 0;
}

int run_export(const Arguments& args) {
  const ExportOptions options = export_options(args);
  return options.format == "onnx" ? export_onnx(options) : export_brrr(options);
}

}  // namespace

Command export_command() {
  return {.name = "export",
          .summary = "write a model as one file: ONNX for any runtime, or .brrr",
          .synopsis = "[MODEL] [--output FILE.onnx|FILE.brrr] [options]",
          .notes =
              "An ONNX file has the inputs and outputs that transformers' users know (input_ids,\n"
              "attention_mask, ...) and takes any batch and length. A .brrr file is a safetensors\n"
              "file that also holds the graph: no code of the architecture is needed to run it.\n",
          .options = export_table().infos(),
          .run = run_export,
          .takes_positional = true};
}

}  // namespace brrr::cli
