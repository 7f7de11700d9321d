#include "infer/module_embedder.h"

#include <algorithm>
#include <array>

#include "models/encoder.h"
#include "models/exchange_names.h"
#include "passes/pipeline.h"

namespace brrr::infer {
namespace {

namespace exchange_names = models::exchange_names;
using modules::Port;

constexpr std::array kKnownInputs{exchange_names::kIds, exchange_names::kMask,
                                  exchange_names::kTypes, exchange_names::kPositions};
constexpr std::array kTokenOutputs{exchange_names::kLastHidden, "token_embeddings"};
// What lies beside an output while it is pooled: a copy in the graph, and its masked form.
constexpr int64_t kCopiesOfOutputs = 3;

std::string names_of(const std::vector<Port>& ports) {
  std::string names;
  for (const Port& port : ports)
    names += (names.empty() ? "" : ", ") + port.name + " " + port.str();
  return names.empty() ? "none" : names;
}

const Port* find_port(const std::vector<Port>& ports, std::string_view name) {
  const auto at = std::ranges::find(ports, name, &Port::name);
  return at == ports.end() ? nullptr : &*at;
}

double number_of(std::string_view input, const EncoderRow& row, size_t token) {
  const bool is_real = token < row.ids.size();
  if (input == exchange_names::kIds) return is_real ? row.ids[token] : 0;
  if (input == exchange_names::kMask) return is_real ? 1 : 0;
  if (input == exchange_names::kPositions) return static_cast<double>(token);
  return is_real && token < row.types.size() ? row.types[token] : 0;
}

}  // namespace

ModuleEmbedder::ModuleEmbedder(const std::shared_ptr<const modules::Module>& module,
                               const Backend& backend, const ModuleEmbedderOptions& options)
    : module_(module),
      options_(options),
      runner_(module, backend, options.how, options.memory, options.beside, kCopiesOfOutputs),
      pooling_(backend),
      bindings_(pooling_) {
  find_ports();
  find_width();
}

void ModuleEmbedder::find_ports() {
  for (const Port& port : module_->inputs()) {
    if (std::ranges::find(kKnownInputs, port.name) == kKnownInputs.end()) {
      if (port.is_optional) continue;
      user_error("{}: it has the input '{}'; an encoder's inputs are {}", options_.name, port.name,
                 fmt::join(kKnownInputs, ", "));
    }
    if (!port.is_tensor || (port.has_shape && port.dims.size() != 2))
      user_error("{}: its input '{}' is {}; expected [batch, sequence]", options_.name, port.name,
                 port.str());
    inputs_.push_back(port);
    if (!port.has_shape) continue;
    if (port.dims[0].size >= 0) fixed_batch_ = port.dims[0].size;
    if (port.dims[1].size >= 0) fixed_length_ = port.dims[1].size;
  }
  if (find_port(inputs_, exchange_names::kIds) == nullptr)
    user_error("{}: it has no input '{}'; its inputs are: {}", options_.name, exchange_names::kIds,
               names_of(module_->inputs()));
  if (fixed_batch_) options_.batch_size = std::min(options_.batch_size, *fixed_batch_);
  if (fixed_length_) options_.context = std::min(options_.context, *fixed_length_);
  if (options_.batch_size < 1 || options_.context < 1)
    user_error("{}: its input '{}' is {}, which has no room for a text", options_.name,
               exchange_names::kIds, find_port(inputs_, exchange_names::kIds)->str());
  const auto& outputs = module_->outputs();
  is_pooled_ = find_port(outputs, "sentence_embedding") != nullptr;
  if (is_pooled_) output_ = "sentence_embedding";
  for (const char* name : kTokenOutputs)
    if (output_.empty() && find_port(outputs, name) != nullptr) output_ = name;
  if (!output_.empty()) return;
  for (const Port& port : outputs) {
    if (!port.has_shape || port.dims.size() != 3) continue;
    if (!output_.empty())
      user_error(
          "{}: its outputs '{}' and '{}' could both be vectors of tokens; expected one that is "
          "named sentence_embedding, {}",
          options_.name, output_, port.name, fmt::join(kTokenOutputs, " or "));
    output_ = port.name;
  }
  if (output_.empty())
    user_error("{}: none of its outputs holds vectors of texts or tokens: {}", options_.name,
               names_of(outputs));
}

void ModuleEmbedder::find_width() {
  const std::array<int32_t, 1> id{0};
  const EncoderRow row{id, {}};
  const size_t first = 0;
  const Batch batch = batch_of(std::span(&row, 1), std::span(&first, 1));
  // The first run of all: it is refused here where it does not fit.
  runner_.prepare(batch.inputs, {output_});
  const modules::ModuleValues values = runner_.run(batch.inputs, {output_});
  const Shape& shape = values.begin()->second.tensor().shape;
  if (shape.rank() != (is_pooled_ ? 2 : 3))
    user_error("{}: its output '{}' has the shape {}; expected {}", options_.name, output_,
               shape.str(), is_pooled_ ? "[batch, width]" : "[batch, sequence, width]");
  width_ = shape.size(shape.rank() - 1) * (is_pooled_ ? 1 : std::ssize(options_.task.pooling));
}

ModuleEmbedder::Batch ModuleEmbedder::batch_of(std::span<const EncoderRow> rows,
                                               std::span<const size_t> chosen) const {
  Batch batch;
  const int64_t count = fixed_batch_.value_or(std::ssize(chosen));
  const int64_t length =
      fixed_length_.value_or(padded_length(std::ssize(rows[chosen[0]].ids), options_.context));
  // Rows that fill a batch of fixed size are copies of the first.
  const auto row_at = [&](int64_t i) -> const EncoderRow& {
    return rows[chosen[i < std::ssize(chosen) ? static_cast<size_t>(i) : 0]];
  };
  for (int64_t i = 0; i < count; ++i)
    batch.lengths.push_back(static_cast<int32_t>(row_at(i).ids.size()));
  for (const Port& port : inputs_) {
    HostTensor tensor(port.dtype, {count, length});
    for (int64_t i = 0; i < count; ++i)
      for (int64_t t = 0; t < length; ++t)
        store_from_double(port.dtype, tensor.bytes.data(), i * length + t,
                          number_of(port.name, row_at(i), static_cast<size_t>(t)));
    batch.inputs.emplace(port.name, std::move(tensor));
  }
  return batch;
}

void ModuleEmbedder::run(std::span<const EncoderRow> rows, const OnRow& on_row) {
  for (const EncoderRow& row : rows) {
    if (row.ids.empty()) user_error("a text has no tokens; expected at least one");
    if (std::ssize(row.ids) > options_.context)
      user_error("a text has {} tokens, more than the model's limit of {}", row.ids.size(),
                 options_.context);
  }
  run_in_batches(rows, options_.batch_size,
                 [&](std::span<const size_t> chosen) { run_batch(rows, chosen, on_row); });
}

void ModuleEmbedder::run_batch(std::span<const EncoderRow> rows, std::span<const size_t> chosen,
                               const OnRow& on_row) {
  const Batch batch = batch_of(rows, chosen);
  const modules::ModuleValues values = runner_.run(batch.inputs, {output_});
  const std::span<const float> vectors = pooled(values.begin()->second.tensor(), batch.lengths);
  const auto width = static_cast<size_t>(width_);
  for (size_t i = 0; i < chosen.size(); ++i) on_row(chosen[i], vectors.subspan(i * width, width));
}

std::span<const float> ModuleEmbedder::pooled(const HostTensor& output,
                                              std::span<const int32_t> lengths) {
  const auto batch = std::ssize(lengths);
  const Shape& shape = output.shape;
  // A vector that the file pooled is the only token of its text.
  const int64_t length = is_pooled_ ? 1 : shape.rank() == 3 ? shape.size(1) : 0;
  const int64_t width = shape.size(shape.rank() - 1);
  if (shape.elements() != batch * length * width ||
      width_ != width * (is_pooled_ ? 1 : std::ssize(options_.task.pooling)))
    user_error("{}: its output '{}' has the shape {} for {} texts", options_.name, output_,
               shape.str(), batch);
  const auto elements = static_cast<size_t>(shape.elements());
  floats_.resize(elements);
  for (size_t i = 0; i < elements; ++i)
    floats_[i] = static_cast<float>(
        load_as_double(output.dtype, output.bytes.data(), static_cast<int64_t>(i)));
  std::vector<int32_t> counts(lengths.begin(), lengths.end());
  for (int32_t& count : counts) count = std::min(count, static_cast<int32_t>(length));
  const auto compile = [&](const Binding& b) {
    models::Task task = options_.task;
    if (is_pooled_) task.pooling = {models::Pooling::cls};
    Graph g;
    const Value x = g.input("tokens", {b.batch, b.length, width}, DType::f32);
    models::EncoderRows rows;
    rows.lengths = g.input("lengths", {b.batch}, DType::i32);
    g.output("vectors", models::pooled(x, rows, task));
    PipelineOptions p;
    std::vector<Graph> graphs;
    graphs.push_back(run_pipeline(g, pooling_.backend().target(), p));
    return graphs;
  };
  const size_t program = bindings_.get({batch, length}, compile)[0];
  if (!pooling_.allocated()) pooling_.allocate();
  Call call{program, {}, {}};
  call.set("tokens", std::span<const float>(floats_));
  call.set("lengths", std::span<const int32_t>(counts));
  pooling_.run(std::span(&call, 1));
  const auto bytes = pooling_.read_output(program, "vectors", room_);
  return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
}

}  // namespace brrr::infer
