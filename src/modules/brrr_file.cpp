#include "modules/brrr_file.h"

#include <algorithm>

#include "base/human.h"
#include "base/options.h"
#include "base/sha256.h"
#include "formats/json_file.h"
#include "ir/rewriter.h"
#include "ir/text.h"
#include "ops/ops.h"

namespace brrr::modules {
namespace {

using io::Json;

constexpr const char* kFormat = "brrr";
constexpr const char* kVersion = "1";
constexpr const char* kFiles = "files";
// The one file that programs kept before the entry `files` named them.
constexpr const char* kTokenizer = "tokenizer.json";
constexpr const char* kHeaderSum = "sha256.header";
constexpr const char* kDataSum = "sha256.data";
constexpr const char* kMost = "most.";      // and the name of a size
constexpr const char* kLowest = "lowest.";  // and the name of an input

std::span<const std::byte> bytes_of_text(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/// Everything that the header says but its own sum.
std::string header_sum(const io::Metadata& metadata, std::vector<io::TensorView> tensors) {
  Sha256 sum;
  const auto add = [&](std::string_view text) {
    sum.update(fmt::format("{}:", text.size()));
    sum.update(text);
  };
  for (const auto& [key, value] : metadata) {
    if (key == kHeaderSum) continue;
    add(key);
    add(value);
  }
  std::ranges::sort(tensors, {}, &io::TensorView::name);
  for (const io::TensorView& t : tensors) {
    add(t.name);
    add(Type{t.dtype, t.shape}.str());
  }
  return sum.finish_hex();
}

std::string data_sum(std::vector<io::TensorView> tensors) {
  std::ranges::sort(tensors, {}, &io::TensorView::name);
  Sha256 sum;
  for (const io::TensorView& t : tensors) sum.update(t.bytes.data(), t.bytes.size());
  return sum.finish_hex();
}

Json names_of_inputs(const Graph& graph) {
  Json names = Json::array();
  for (const NodeId id : graph.inputs(InputKind::data)) names.push_back(graph.input_name(id));
  return names;
}
Json names_of_outputs(const Graph& graph) {
  Json names = Json::array();
  for (const Output& out : graph.outputs()) names.push_back(out.name);
  return names;
}

class BrrrModule final : public Runnable {
 public:
  BrrrModule(const fs::path& path, bool verify)
      : weights_(std::make_shared<io::SafetensorsFile>(path)), file_(*weights_) {
    const io::Metadata& about = file_.metadata();
    const auto entry = [&](const char* key) -> const std::string& {
      const auto at = about.find(key);
      if (at == about.end()) user_error("{}: the entry '{}' is missing", file_.what(), key);
      return at->second;
    };
    if (entry("brrr_version") != kVersion)
      user_error("{}: it is of version {}; known is version {}", file_.what(),
                 entry("brrr_version"), kVersion);
    if (entry(kHeaderSum) != header_sum(about, file_.tensors()))
      user_error("{}: its header is damaged: SHA-256 differs from what it was written with",
                 file_.what());
    if (verify && entry(kDataSum) != data_sum(file_.tensors()))
      user_error("{}: its weights are damaged: SHA-256 differs from what it was written with",
                 file_.what());
    try {
      graph_ = parse(entry("graph"), find_op);
    } catch (const UserError& e) {
      user_error("{}: {}", file_.what(), e.what());
    }
    for (const NodeId id : graph_.inputs()) {
      const std::string& name = graph_.input_name(id);
      const Type& type = graph_.type({id, 0});
      if (!type.storage.is_plain())
        user_error("{}: the input '{}' is {}; expected one that lies in rows", file_.what(), name,
                   type.str());
      if (graph_.role(id) == Role::data) {
        inputs_.push_back(port_of(name, type));
        continue;
      }
      if (graph_.role(id) != Role::parameter)
        user_error("{}: its graph has the input '{}', which is neither data nor a parameter",
                   file_.what(), name);
      const io::TensorView& weight = file_.get(name);
      if (Type{weight.dtype, weight.shape} != type)
        user_error("{}: the weight '{}' is {}; its graph wants {}", file_.what(), name,
                   Type{weight.dtype, weight.shape}.str(), type.str());
    }
    check_names("inputs", names_of_inputs(graph_));
    check_names("outputs", names_of_outputs(graph_));
    for (const auto& [key, value] : about) {
      if (key.starts_with(kMost)) take_most(key, value);
      if (key.starts_with(kLowest)) take_lowest(key, value);
    }
    take_file_names();
    for (const Output& out : graph_.outputs()) {
      if (out.updates != kNoNode || out.gradient_of != kNoNode)
        user_error("{}: its graph updates a state; expected outputs only", file_.what());
      outputs_.push_back(port_of(out.name, graph_.type(out.value)));
    }
  }

  const std::vector<Port>& inputs() const override { return inputs_; }
  const std::vector<Port>& outputs() const override { return outputs_; }

  LoweredGraph lower(const GraphRequest& request) const override {
    std::vector<std::pair<std::string, int64_t>> sizes;
    for (const NodeId id : graph_.inputs(InputKind::data)) {
      const std::string& name = graph_.input_name(id);
      const auto given = request.data.find(name);
      if (given == request.data.end()) user_error("the input '{}' is missing", name);
      bind(name, graph_.type({id, 0}), given->second, sizes);
    }
    LoweredGraph lowered;
    lowered.graph = with_outputs(specialize(graph_, sizes), request.wanted);
    return lowered;
  }

  std::shared_ptr<const WeightSource> weights() const override { return weights_; }
  std::map<std::string, std::string> files() const override {
    std::map<std::string, std::string> files;
    for (const std::string& name : files_) {
      const std::span<const std::byte> bytes = file_.get(name).bytes;
      files.emplace(name, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    }
    return files;
  }

  std::string summary() const override {
    const bool is_script = std::ranges::any_of(graph_.nodes(), [](const Node& n) {
      return n.op->runs_regions ||
             std::ranges::any_of(n.results, [](const Type& t) { return !t.shape.is_static(); });
    });
    std::string text = fmt::format("brrr {}, a {} of {}", kVersion, is_script ? "script" : "trace",
                                   counted(graph_.size(), "node"));
    const auto type = file_.metadata().find("model_type");
    if (type != file_.metadata().end()) text += ", " + type->second;
    return text;
  }

 private:
  /// Whether the header names what the graph has.
  void check_names(const char* key, const Json& names) const {
    const auto at = file_.metadata().find(key);
    if (at == file_.metadata().end() || at->second != names.dump())
      user_error("{}: its header does not name the {} of its graph, {}", file_.what(), key,
                 names.dump());
  }
  int64_t integer_of(const std::string& key, const std::string& value) const {
    try {
      return parse_integer(value, 0, INT64_MAX);
    } catch (const UserError& error) {
      user_error("{}: the entry '{}': {}", file_.what(), key, error.what());
    }
  }
  void take_most(const std::string& key, const std::string& value) {
    const int64_t most = integer_of(key, value);
    for (Port& port : inputs_)
      for (PortDim& dim : port.dims)
        if (dim.size < 0 && kMost + dim.name == key) dim.most = most;
  }
  void take_lowest(const std::string& key, const std::string& value) {
    const auto port =
        std::ranges::find(inputs_, key.substr(std::string_view(kLowest).size()), &Port::name);
    if (port == inputs_.end()) user_error("{}: the entry '{}' names no input", file_.what(), key);
    port->lowest = integer_of(key, value);
  }
  /// Which tensors are files; their names go to a folder when they are read.
  void take_file_names() {
    const auto entry = file_.metadata().find(kFiles);
    if (entry == file_.metadata().end()) {
      const auto is_tokenizer = [](const io::TensorView& t) { return t.name == kTokenizer; };
      if (std::ranges::any_of(file_.tensors(), is_tokenizer)) files_ = {kTokenizer};
      return;
    }
    const Json names = io::parse_json(entry->second, file_.what() + ", entry 'files'");
    if (!names.is_array()) user_error("{}: the entry 'files' must be a list", file_.what());
    for (const Json& name : names) {
      const std::string text = name.is_string() ? name.get<std::string>() : "";
      if (text.empty() || text == "." || text == ".." || text.find('/') != std::string::npos ||
          text.find('\0') != std::string::npos)
        user_error("{}: the entry 'files' has {}; expected names without folders", file_.what(),
                   io::describe(name));
      if (const io::TensorView& t = file_.get(text); t.dtype != DType::u8 || t.shape.rank() != 1)
        user_error("{}: the file '{}' is {}; expected bytes", file_.what(), text,
                   Type{t.dtype, t.shape}.str());
      files_.push_back(text);
    }
  }
  void check_most(const Port& input, size_t axis, int64_t size) const {
    const PortDim& dim = input.dims[axis];
    if (dim.most >= 0 && size > dim.most)
      user_error(
          "the input '{}' has the size {} for '{}'; the file takes at most {}: give "
          "less, or export the model for more",
          input.name, size, dim.name, dim.most);
  }

  // Names of sizes take the sizes of what is given.
  void bind(const std::string& input, const Type& declared, const Type& given,
            std::vector<std::pair<std::string, int64_t>>& sizes) const {
    bool fits = declared.dtype == given.dtype && declared.shape.rank() == given.shape.rank();
    for (int axis = 0; fits && axis < declared.shape.rank(); ++axis) {
      const Dim& dim = declared.shape[axis];
      const int64_t size = given.shape.size(axis);
      if (!dim.is_symbol()) {
        fits = dim.size() == size;
        continue;
      }
      const auto known =
          std::ranges::find(sizes, dim.name(), &std::pair<std::string, int64_t>::first);
      check_most(*find_port(inputs_, input), static_cast<size_t>(axis), size);
      if (known == sizes.end())
        sizes.emplace_back(dim.name(), size);
      else if (known->second != size)
        user_error("the input '{}' has the size {} for '{}', which is {} elsewhere", input, size,
                   dim.name(), known->second);
    }
    if (!fits) user_error("the input '{}' must be {}; got {}", input, declared.str(), given.str());
  }

  std::shared_ptr<const io::SafetensorsFile> weights_;
  const io::SafetensorsFile& file_;
  Graph graph_;
  std::vector<Port> inputs_, outputs_;
  std::vector<std::string> files_;
};

}  // namespace

void write_brrr_file(const fs::path& path, const BrrrProgram& program) {
  io::Metadata metadata = program.about;
  metadata["format"] = kFormat;
  metadata["brrr_version"] = kVersion;
  metadata["graph"] = print(program.graph);
  for (const auto& [name, size] : program.most) metadata[kMost + name] = std::to_string(size);
  for (const auto& [name, number] : program.lowest)
    metadata[kLowest + name] = std::to_string(number);
  metadata["inputs"] = names_of_inputs(program.graph).dump();
  metadata["outputs"] = names_of_outputs(program.graph).dump();
  std::vector<io::TensorView> tensors = program.weights;
  Json files = Json::array();
  for (const auto& [name, text] : program.files) {
    files.push_back(name);
    tensors.push_back({name, DType::u8, {std::ssize(text)}, bytes_of_text(text)});
  }
  metadata[kFiles] = files.dump();
  metadata[kDataSum] = data_sum(tensors);
  metadata[kHeaderSum] = header_sum(metadata, tensors);
  io::write_safetensors(path, tensors, metadata);
}

bool is_brrr_file(const fs::path& path) {
  constexpr size_t kLengthBytes = 8;
  const MappedFile file(path);
  const std::string_view text = file.text();
  // Behind the length comes the header, whose first key is that of the metadata.
  return text.size() > kLengthBytes + 1 && text[kLengthBytes] == '{' &&
         text.substr(kLengthBytes, 4096).find("\"brrr_version\"") != std::string_view::npos;
}

std::shared_ptr<const Runnable> open_brrr_file(const fs::path& path, bool verify) {
  return std::make_shared<BrrrModule>(path, verify);
}

}  // namespace brrr::modules
