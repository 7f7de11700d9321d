#include "models/brrr_file.h"

#include <algorithm>

#include "base/sha256.h"
#include "formats/json_file.h"
#include "ir/rewriter.h"
#include "ir/text.h"
#include "ops/control.h"
#include "ops/ops.h"

namespace brrr::models {
namespace {

using io::Json;

constexpr const char* kFormat = "brrr";
constexpr const char* kVersion = "1";
constexpr const char* kTokenizer = "tokenizer.json";
constexpr const char* kHeaderSum = "sha256.header";
constexpr const char* kDataSum = "sha256.data";

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

Port port_of(const std::string& name, const Type& type) {
  Port port;
  port.name = name;
  port.type = std::string(name_of(type.dtype));
  port.dtype = type.dtype;
  port.has_shape = true;
  for (const Dim& d : type.shape.dims())
    port.dims.push_back(d.is_symbol() ? PortDim{-1, d.name()} : PortDim{d.size(), ""});
  return port;
}

class BrrrModule final : public Module {
 public:
  BrrrModule(const fs::path& path, bool verify) : file_(path) {
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
    for (const Output& out : graph_.outputs()) {
      if (out.updates != kNoNode || out.gradient_of != kNoNode)
        user_error("{}: its graph updates a state; expected outputs only", file_.what());
      outputs_.push_back(port_of(out.name, graph_.type(out.value)));
    }
  }

  const std::vector<Port>& inputs() const override { return inputs_; }
  const std::vector<Port>& outputs() const override { return outputs_; }

  Lowered lower(const Request& request) const override {
    std::vector<std::pair<std::string, int64_t>> sizes;
    for (const NodeId id : graph_.inputs(InputKind::data)) {
      const std::string& name = graph_.input_name(id);
      const auto given = request.data.find(name);
      if (given == request.data.end()) user_error("the input '{}' is missing", name);
      bind(name, graph_.type({id, 0}), given->second, sizes);
    }
    Lowered lowered;
    lowered.graph = specialize(graph_, sizes);
    std::erase_if(lowered.graph.outputs(), [&](const Output& out) {
      return std::ranges::find(request.wanted, out.name) == request.wanted.end();
    });
    lowered.graph = drop_dead(std::move(lowered.graph));
    return lowered;
  }

  std::span<const std::byte> weight(std::string_view name) const override {
    return file_.get(name).bytes;
  }

  std::string summary() const override {
    const bool is_script = std::ranges::any_of(graph_.nodes(), [](const Node& n) {
      return n.op->runs_regions ||
             std::ranges::any_of(n.results, [](const Type& t) { return !t.shape.is_static(); });
    });
    std::string text = fmt::format("brrr {}, a {} of {} nodes", kVersion,
                                   is_script ? "script" : "trace", graph_.size());
    const auto type = file_.metadata().find("model_type");
    if (type != file_.metadata().end()) text += ", " + type->second;
    return text;
  }
  uint64_t file_bytes() const override {
    uint64_t bytes = 0;
    for (const io::TensorView& t : file_.tensors()) bytes += t.bytes.size();
    return bytes;
  }

 private:
  // Names of sizes take the sizes of what is given.
  static void bind(const std::string& input, const Type& declared, const Type& given,
                   std::vector<std::pair<std::string, int64_t>>& sizes) {
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
      if (known == sizes.end())
        sizes.emplace_back(dim.name(), size);
      else if (known->second != size)
        user_error("the input '{}' has the size {} for '{}', which is {} elsewhere", input, size,
                   dim.name(), known->second);
    }
    if (!fits) user_error("the input '{}' must be {}; got {}", input, declared.str(), given.str());
  }

  io::SafetensorsFile file_;
  Graph graph_;
  std::vector<Port> inputs_, outputs_;
};

}  // namespace

void write_brrr_file(const fs::path& path, const BrrrProgram& program) {
  io::Metadata metadata = program.about;
  metadata["format"] = kFormat;
  metadata["brrr_version"] = kVersion;
  metadata["graph"] = print(program.graph);
  Json inputs = Json::array(), outputs = Json::array();
  for (const NodeId id : program.graph.inputs(InputKind::data))
    inputs.push_back(program.graph.input_name(id));
  for (const Output& out : program.graph.outputs()) outputs.push_back(out.name);
  metadata["inputs"] = inputs.dump();
  metadata["outputs"] = outputs.dump();
  std::vector<io::TensorView> tensors = program.weights;
  if (!program.tokenizer.empty())
    tensors.push_back(
        {kTokenizer, DType::u8, {std::ssize(program.tokenizer)}, bytes_of_text(program.tokenizer)});
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

std::shared_ptr<const Module> open_brrr_file(const fs::path& path, bool verify) {
  return std::make_shared<BrrrModule>(path, verify);
}

// -- a decoder in a file
// --------------------------------------------------------------------------

Graph greedy_decoder(const Model& model, int64_t capacity) {
  const Graph step = model.decode({1, 1, capacity, DType::f32});
  Graph g;
  const Value prompt = g.input("prompt", {Dim::symbol("length")}, DType::i32);
  const Value most = g.input("max_new_tokens", {}, DType::i32);
  const auto number = [](Graph& in, int64_t value) { return scalar(in, value, DType::i32); };
  const Value prompt_length = sum(full(g, prompt.shape(), 1, DType::i32), {0});
  // Positions that are computed: the last of them gives the last token.
  const Value last = minimum(prompt_length + most - number(g, 1), number(g, capacity - 1));

  Graph body;
  size_t inputs = 0;
  const auto next_input = [&](const Type& type) {
    return body.input(fmt::format("a{}", inputs++), Type(type));
  };
  const Value i = next_input({DType::i32, {}});
  const Value token = next_input({DType::i32, {1, 1}});
  std::vector<Value> carried{full(g, {1, 1}, 0, DType::i32)}, captured;
  // Inputs of the step: caches are carried, parameters captured.
  std::vector<Value> given(step.size());
  for (const NodeId id : step.inputs(InputKind::state)) {
    const Type& type = step.type({id, 0});
    given[id] = next_input(type);
    carried.push_back(full(g, type.shape, 0, type.dtype));
  }
  const Value prompt_inside = next_input(prompt.type());
  const Value length_inside = next_input({DType::i32, {}}),
              last_inside = next_input({DType::i32, {}});
  captured = {prompt, prompt_length, last};
  for (const NodeId id : step.inputs(InputKind::parameter)) {
    const Type& type = step.type({id, 0});
    given[id] = next_input(type);
    captured.push_back(g.input(step.input_name(id), type, Role::parameter));
  }
  const Value one = number(body, 1);
  const Value of_prompt = gather(prompt_inside, minimum(i, length_inside - one), 0);
  const Value in = where(less(i, length_inside), reshape(of_prompt, {1, 1}), token);
  given[step.find_input("tokens")] = in;
  given[step.find_input("position")] = i;
  // The step's nodes, on these values.
  std::vector<std::vector<Value>> mapped(step.size());
  const auto value_of = [&](ValueId v) { return mapped[v.node][v.port]; };
  for (NodeId id = 0; id < step.size(); ++id) {
    if (step.is_input(id)) {
      mapped[id] = {given[id]};
      continue;
    }
    std::vector<ValueId> operands;
    for (const ValueId operand : step.node(id).operands) operands.push_back(value_of(operand).id);
    body.set_scope(step.scope_of(id));
    const NodeId copy = body.add_copy(step.node(id), operands);
    for (uint32_t port = 0; port < step.node(id).results.size(); ++port)
      mapped[id].push_back(body.value(copy, port));
  }
  body.set_scope("");
  const Value logits = value_of(step.find_output("logits")->value);
  const Value next = reshape(cast(argmax(logits, 1), DType::i32), {1, 1});
  Value ends = full(body, {1, 1}, 0, DType::boolean);
  for (const int32_t end : model.text_ends().ends)
    ends = logical_or(ends, equal(next, number(body, end)));
  const Value behind_prompt = less_equal(length_inside, i + one);
  const Value stops = logical_and(reshape(ends, {}), behind_prompt);
  body.output("0", logical_and(less(i + one, last_inside), logical_not(stops)));
  size_t outputs = 1;
  body.output(std::to_string(outputs++), next);
  for (const NodeId id : step.inputs(InputKind::state)) {
    const auto update = std::ranges::find(step.outputs(), id, &Output::updates);
    BRRR_CHECK(update != step.outputs().end(), "a cache that no step changes");
    body.output(std::to_string(outputs++), value_of(update->value));
  }
  body.output(std::to_string(outputs++), reshape(next, {}));

  const LoopResults out =
      loop(less(number(g, 0), last), Region(body), carried, captured, {capacity, false});
  // Token k is that of the prompt, or what iteration k - 1 gave.
  const Value place = iota(g, {capacity}, 0, DType::i32);
  const Value count = out.iterations + number(g, 1);
  const Value from_prompt = gather(prompt, minimum(place, prompt_length - number(g, 1)), 0);
  const Value made = gather(out.stacked[0], maximum(place - number(g, 1), number(g, 0)), 0);
  const Value tokens = where(less(place, prompt_length), from_prompt, made);
  g.output("tokens", where(less(place, count), tokens, number(g, 0)));
  g.output("count", minimum(count, number(g, capacity)));
  return g;
}

}  // namespace brrr::models
