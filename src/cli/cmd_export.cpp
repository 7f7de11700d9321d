// brrr export: a model as one file that runs without its architecture's code.

#include <algorithm>

#include "base/tell.h"
#include "cli/commands.h"
#include "cli/model_option.h"
#include "models/greedy_decoder.h"
#include "modules/brrr_file.h"

namespace brrr::cli {
namespace {

struct ExportOptions {
  std::string model;
  std::string format = "brrr";
  std::string output;
  int64_t length = 0;    // 0: the model's context
  int64_t generate = 0;  // 0: the forward pass; else the positions of a greedy decoder
};

const OptionTable<ExportOptions>& export_table() {
  static const OptionTable<ExportOptions> table = [] {
    using O = ExportOptions;
    OptionTable<O> t;
    t.group("export");
    t.text("model", &O::model, "FOLDER",
           "run, checkpoint or model folder (default: the newest run)");
    t.choice("format", &O::format, {{"brrr"}}, "NAME",
             "brrr: one file with the graph and the weights");
    t.text("output", &O::output, "FILE", "the file to write (default: model.brrr)");
    t.integer("length", &O::length, 0, int64_t{1} << 24, "N",
              "tokens of a text (default: the model's context)");
    t.integer("generate", &O::generate, 0, int64_t{1} << 24, "N",
              "export a greedy decoder instead of the forward pass: a loop in the file that makes "
              "texts of up to N tokens, prompt included");
    return t;
  }();
  return table;
}

int run_export(const Arguments& args) {
  ExportOptions options;
  for (const auto& [key, value] : with_words(args, AlsoReads::nothing))
    export_table().set(options, export_table().find(key), value, "--" + canonical_key(key));
  if (options.output.empty()) options.output = "model.brrr";
  check_place(options.output);
  if (options.output.ends_with(".onnx"))
    usage_error("--output: {} would be a .brrr file; writing ONNX is not supported yet",
                options.output);
  if (options.length > 0 && options.generate > 0)
    usage_error("--length is of the forward pass, and --generate N says how long texts may get");
  std::error_code gone;
  const bool is_there = fs::symlink_status(options.output, gone).type() != fs::file_type::not_found;
  if (is_there && (!fs::is_regular_file(fs::symlink_status(options.output, gone)) ||
                   !modules::is_brrr_file(options.output)))
    user_error("{} is there and is no .brrr file; name another --output", options.output);
  const io::ModelFolder folder = open_named_model(options.model);
  const models::Model& model = *folder.definition;
  modules::BrrrProgram program;
  if (options.generate > 0) {
    program.graph = models::greedy_decoder(model, options.generate);
  } else {
    const int64_t length = options.length > 0 ? options.length : model.sizes().context;
    program.graph = model.forward(Dim::symbol("batch"), Dim(length));
  }
  program.about["model_type"] = model.architecture().name;
  // Weights are read in f32, whatever the folder holds.
  std::vector<std::vector<float>> rooms;
  for (const NodeId id : program.graph.inputs(InputKind::parameter)) {
    const std::string& name = program.graph.input_name(id);
    const Type& type = program.graph.type({id, 0});
    rooms.emplace_back(static_cast<size_t>(type.shape.elements()));
    folder.read(name, rooms.back());
    program.weights.push_back(
        {name, DType::f32, type.shape, std::as_bytes(std::span(rooms.back()))});
  }
  std::error_code ignored;
  const fs::path tokenizer = folder.folder / "tokenizer.json";
  if (fs::exists(tokenizer, ignored)) program.tokenizer = read_file(tokenizer);
  modules::write_brrr_file(options.output, program);
  const auto module = modules::open_brrr_file(options.output, true);
  tell("wrote {} ({}), {:.1f} MB; try: {} run {}\n", options.output, module->summary(),
       static_cast<double>(fs::file_size(options.output)) / 1e6, env::program(), options.output);
  return 0;
}

}  // namespace

Command export_command() {
  return {.name = "export",
          .summary = "write a model as one file that `brrr run` and the library run",
          .synopsis = "[FOLDER] [--output FILE] [--generate N] [options]",
          .notes =
              "A .brrr file is a safetensors file that also holds the graph: no code of the\n"
              "architecture is needed to run it.\n",
          .options = export_table().infos(),
          .run = run_export,
          .takes_positional = true};
}

}  // namespace brrr::cli
