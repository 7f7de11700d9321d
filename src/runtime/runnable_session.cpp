#include "runtime/runnable_session.h"

#include <algorithm>
#include <cstring>

#include "base/errors.h"
#include "base/memory.h"
#include "base/options.h"
#include "base/sha256.h"

namespace brrr {
namespace {

// What programs may take for themselves: this share of the weights and temporaries, or this.
constexpr int64_t kProgramShare = 8, kLeastForPrograms = int64_t{16} << 20;
// Bytes of an element of a RefTensor.
constexpr int64_t kKnownBytes = 8;

/// HostTensor or HostTensorView.
template <typename T>
Type type_of(const T& t) {
  return {t.dtype, t.shape};
}

RefTensor reference(const Type& type, std::span<const std::byte> bytes) {
  return read_tensor(type, bytes.data());
}
RefTensor reference(const HostTensor& t) { return reference(type_of(t), t.bytes); }

/// The dtype and the sizes of a tensor as part of a key.
void append_type(std::string& key, DType dtype, const Shape& shape) {
  key += static_cast<char>(dtype);
  key += static_cast<char>(shape.rank());
  for (int axis = 0; axis < shape.rank(); ++axis) {
    const int64_t size = shape.size(axis);
    key.append(reinterpret_cast<const char*>(&size), sizeof size);
  }
  key += ';';
}

/// The content of a tensor as part of a key: its bytes, or a digest where they are many.
template <typename T>
void append_content(std::string& key, const T& t) {
  constexpr size_t kMostInKey = 256;
  key += type_of(t).str();
  key += ':';
  if (t.bytes.size() > kMostInKey) {
    Sha256 sum;
    sum.update(t.bytes.data(), t.bytes.size());
    key += sum.finish_hex();
  } else {
    key.append(reinterpret_cast<const char*>(t.bytes.data()), t.bytes.size());
  }
  key += ';';
}

/// "batch 1, length 64"
std::string text_of(const std::vector<std::pair<std::string, int64_t>>& sizes) {
  if (sizes.empty()) return "the program";
  std::string text;
  for (const auto& [name, size] : sizes)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, size);
  return text;
}

PipelineOptions without_dump(PipelineOptions options) {
  options.dump_folder.clear();
  return options;
}

/// Throws UserError where the tensor is none that the port takes.
void check_tensor(const Port& port, const Type& type, const std::byte* data) {
  bool fits = type.dtype == port.dtype;
  if (port.has_shape && std::ssize(port.dims) != type.shape.rank()) fits = false;
  for (size_t i = 0; fits && i < port.dims.size(); ++i) {
    const int64_t size = port.dims[i].size;
    fits = size < 0 || size == type.shape.size(static_cast<int>(i));
  }
  if (!fits) user_error("the input '{}' must be {}; got {}", port.name, port.str(), type.str());
  for (int64_t i = 0; port.lowest && i < type.shape.elements(); ++i)
    if (const double number = load_as_double(type.dtype, data, i);
        number < static_cast<double>(*port.lowest))
      user_error("the input '{}' must be at least {}; got {}", port.name, *port.lowest, number);
}

std::string element_name(const std::string& list, size_t i) {
  return fmt::format("{}#{}", list, i);
}

/// The tensors of outputs under their names in a program: the inverse of values_of().
std::map<std::string, HostTensor> tensors_of(PortValues values) {
  std::map<std::string, HostTensor> tensors;
  for (auto& [name, value] : values)
    for (size_t i = 0; i < value.tensors.size(); ++i)
      tensors[value.kind == PortValue::Kind::tensor ? name : element_name(name, i)] =
          std::move(value.tensors[i]);
  return tensors;
}

/// The outputs out of the tensors that the last program gave.
PortValues values_of(const std::vector<std::string>& wanted,
                     const std::map<std::string, Listed>& lists,
                     std::map<std::string, HostTensor>& results) {
  PortValues values;
  for (const std::string& name : wanted) {
    const auto list = lists.find(name);
    if (list == lists.end()) {
      values[name] = std::move(results.at(name));
      continue;
    }
    PortValue& value = values[name];
    value.kind = list->second.is_none ? PortValue::Kind::none : PortValue::Kind::list;
    for (int64_t i = 0; i < list->second.count; ++i)
      value.tensors.push_back(std::move(results.at(element_name(name, static_cast<size_t>(i)))));
  }
  return values;
}

}  // namespace

/// A tensor that goes into a program; its shape and bytes are those of a HostTensor or of a view.
struct RunnableSession::FedTensor {
  DType dtype;
  const Shape& shape;
  std::span<const std::byte> bytes;
  bool is_lent;  // see Call::Input

  FedTensor(const HostTensor& t)  // NOLINT(google-explicit-constructor)
      : dtype(t.dtype), shape(t.shape), bytes(t.bytes), is_lent(false) {}
  FedTensor(const HostTensorView& t)  // NOLINT(google-explicit-constructor)
      : dtype(t.dtype), shape(t.shape), bytes(t.bytes), is_lent(true) {}
};

const HostTensor& PortValue::tensor() const {
  if (kind != Kind::tensor) user_error("the value is a list of {} tensors", tensors.size());
  return tensors[0];
}

/// One program of a run.
struct RunnableSession::Segment {
  size_t program = 0;
  std::map<std::string, RefTensor> known;  // when its graph was built, and when it has run
  std::map<std::string, Listed> lists;
  std::vector<std::string> to_read;
  std::vector<std::string> inputs;
  struct Result {
    std::string name;
    Type type;
  };
  std::vector<Result> results;
};

RunnableSession::RunnableSession(std::shared_ptr<const Runnable> runnable, const Backend& backend,
                                 const RunnableOptions& options)
    : runnable_(std::move(runnable)),
      options_(options),
      engine_(backend, WrittenBy::loader),
      bindings_(engine_, {}, [this](const std::string& key) { segments_.erase(key); }) {
  engine_.use_weights(runnable_->weights(), options_.together);
}

RunnableSession::~RunnableSession() = default;

const Port& RunnableSession::input_named(const std::string& name) const {
  const auto& ports = runnable_->inputs();
  const auto port = std::ranges::find(ports, name, &Port::name);
  if (port != ports.end()) return *port;
  std::vector<std::string> names;
  for (const Port& p : ports) names.push_back(p.name);
  const std::string near = nearest(name, names);
  if (!near.empty()) user_error("there is no input '{}'; did you mean '{}'?", name, near);
  user_error("there is no input '{}'; there are: {}", name, fmt::join(names, ", "));
}

void RunnableSession::check_missing(
    const std::function<bool(const std::string& name)>& is_given) const {
  for (const Port& port : runnable_->inputs())
    if (!port.is_optional && !is_given(port.name))
      user_error("the input '{}' ({}) is missing", port.name, port.str());
}

void RunnableSession::check(const PortValues& inputs) const {
  for (const auto& [name, value] : inputs) {
    const Port& port = input_named(name);
    if (!port.is_tensor || value.kind != PortValue::Kind::tensor) continue;
    const HostTensor& t = value.tensors[0];
    check_tensor(port, type_of(t), t.bytes.data());
  }
  check_missing([&](const std::string& name) { return inputs.contains(name); });
}

void RunnableSession::check(const TensorViews& inputs) const {
  for (const auto& [name, t] : inputs)
    if (const Port& port = input_named(name); port.is_tensor)
      check_tensor(port, type_of(t), t.bytes.data());
  check_missing([&](const std::string& name) { return inputs.contains(name); });
}

int64_t RunnableSession::known_bytes() const {
  int64_t bytes = 0;
  for (const auto& [key, segment] : segments_)
    for (const auto& [name, tensor] : segment->known)
      bytes += static_cast<int64_t>(tensor.size()) * kKnownBytes;
  return bytes;
}

int64_t RunnableSession::left_for_values() const {
  if (engine_.limit() == 0) return 0;
  return std::max<int64_t>(1, engine_.limit() - engine_.forecast().total() - known_bytes());
}

void RunnableSession::check_room_to_read(const Segment& segment, const Results& results) const {
  // As the request has them, as their segment keeps them, as constants of the graph that is built,
  // as its values, and what an operator makes of them.
  constexpr int64_t kCopies = 5;
  const int64_t left = left_for_values();
  for (const std::string& name : segment.to_read) {
    const int64_t bytes = results.at(name).shape.elements() * kKnownBytes * kCopies;
    if (left > 0 && bytes > left)
      throw UserError(
          fmt::format("sizes depend on the values of '{}' ({}), which need {} while a "
                      "program is built for them, and {} are left",
                      name, type_of(results.at(name)).str(), memory_text(bytes), memory_text(left)),
          ExitCode::kNoMemory);
  }
}

Graph RunnableSession::compiled(const Graph& graph, PipelineReport* report) {
  const Target& target = engine_.backend().target();
  if (!options_.compile) return decompose(graph, target);
  PipelineOptions passes = options_.passes;
  passes.dump_prefix = fmt::format("program{}_", built_);
  return run_pipeline(graph, target, passes, report);
}

RunnableSession::Segment* RunnableSession::find_or_build(const std::string& key,
                                                         const GraphRequest& request) {
  if (const auto at = segments_.find(key); at != segments_.end()) {
    bindings_.find(key);  // it is used now
    return at->second.get();
  }
  GraphRequest limited = request;
  limited.memory = left_for_values();
  LoweredGraph lowered = runnable_->lower(limited);
  if (!lowered.to_bind.empty()) {
    bool is_new = false;
    for (const std::string& name : lowered.to_bind) is_new |= bound_.insert(name).second;
    BRRR_CHECK(is_new, "the graph asks for the value of '{}' again", lowered.to_bind[0]);
    bindings_.clear();
    return nullptr;
  }
  PipelineReport report;
  const Graph graph = compiled(lowered.graph, options_.explain ? &report : nullptr);
  ++built_;
  if (options_.explain) notes_.push_back(notes_of(report));
  auto segment = std::make_unique<Segment>();
  segment->known = request.known;
  for (auto& [name, tensor] : lowered.known) segment->known.insert_or_assign(name, tensor);
  segment->lists = std::move(lowered.lists);
  segment->to_read = std::move(lowered.to_read);
  for (const NodeId id : graph.inputs())
    if (graph.role(id) == Role::data) segment->inputs.push_back(graph.input_name(id));
  for (const Output& out : graph.outputs())
    if (out.updates == kNoNode) segment->results.push_back({out.name, graph.type(out.value)});
  const auto add = [&] {
    if (options_.before_program) options_.before_program(engine_, graph);
    segment->program =
        bindings_.get(key, text_of(sizes_of(request)), [&] { return std::vector{graph}; })[0];
  };
  try {
    add();
  } catch (const UserError& e) {
    if (e.code() != ExitCode::kNoMemory) throw;
    // Programs of other runs may leave no room; without them there may be.
    const auto refuse = [&](const UserError& error) {
      if (error.code() != ExitCode::kNoMemory) throw error;
      throw UserError(error.what() + largest_that_fits(request), ExitCode::kNoMemory);
    };
    if (!bindings_.drop_unpinned()) refuse(e);
    try {
      add();
    } catch (const UserError& again) {
      refuse(again);
    }
  }
  return segments_.emplace(key, std::move(segment)).first->second.get();
}

RunnableSession::OpenSizes RunnableSession::sizes_of(const GraphRequest& request) const {
  OpenSizes sizes;
  for (const Port& port : runnable_->inputs()) {
    const auto given = request.data.find(port.name);
    if (given == request.data.end()) continue;
    for (size_t i = 0; i < port.dims.size(); ++i) {
      const PortDim& dim = port.dims[i];
      if (dim.size < 0 && !dim.name.empty() &&
          std::ranges::find(sizes, dim.name, &OpenSizes::value_type::first) == sizes.end())
        sizes.emplace_back(dim.name, given->second.shape.size(static_cast<int>(i)));
    }
  }
  return sizes;
}

// Bytes grow with the last open size (the length of texts): by bisection.
std::string RunnableSession::largest_that_fits(const GraphRequest& request) {
  OpenSizes sizes = sizes_of(request);
  if (sizes.empty() || !request.known.empty()) return "";
  auto& [axis, size] = sizes.back();
  const auto fits = [&, name = axis](int64_t tried) {
    GraphRequest smaller = request;
    smaller.memory = left_for_values();
    for (const Port& port : runnable_->inputs())
      if (const auto given = smaller.data.find(port.name); given != smaller.data.end())
        for (size_t i = 0; i < port.dims.size(); ++i)
          if (port.dims[i].size < 0 && port.dims[i].name == name)
            given->second.shape[static_cast<int>(i)] = Dim(tried);
    const Graph graph = run_pipeline(runnable_->lower(smaller).graph, engine_.backend().target(),
                                     without_dump(options_.passes));
    if (options_.before_program) options_.before_program(engine_, graph);
    return bindings_.fits_alone({graph});
  };
  int64_t most = 0, too_large = size;
  try {
    while (most + 1 < too_large) {
      const int64_t middle = most + (too_large - most) / 2;
      (fits(middle) ? most : too_large) = middle;
    }
  } catch (const UserError&) {
    return "";  // its graph takes no other size
  }
  size = most;
  return most > 0 ? "; the largest that fits is " + text_of(sizes)
                  : fmt::format("; no {} fits", axis);
}

GraphRequest RunnableSession::request_of(const PortValues& inputs,
                                         const std::vector<std::string>& wanted, Feed& feed) const {
  GraphRequest request;
  request.wanted = outputs_of(wanted);
  for (const auto& [name, value] : inputs) {
    if (value.kind == PortValue::Kind::tensor) {
      feed.emplace(name, value.tensors[0]);
      continue;
    }
    request.lists[name] = {std::ssize(value.tensors), value.kind == PortValue::Kind::none};
    for (size_t i = 0; i < value.tensors.size(); ++i)
      feed.emplace(element_name(name, i), value.tensors[i]);
  }
  return request;
}

GraphRequest RunnableSession::request_of(const TensorViews& inputs,
                                         const std::vector<std::string>& wanted, Feed& feed) const {
  GraphRequest request;
  request.wanted = outputs_of(wanted);
  for (const auto& [name, tensor] : inputs) feed.emplace(name, tensor);
  return request;
}

std::vector<std::string> RunnableSession::outputs_of(const std::vector<std::string>& wanted) const {
  if (!wanted.empty()) return wanted;
  std::vector<std::string> names;
  for (const Port& port : runnable_->outputs()) names.push_back(port.name);
  return names;
}

std::string RunnableSession::key_of(const GraphRequest& request, const Feed& feed) const {
  std::string key;
  for (const auto& [name, tensor] : feed) {
    key += name;
    key += bound_.contains(name) ? '=' : ':';
    if (bound_.contains(name))
      append_content(key, tensor);
    else
      append_type(key, tensor.dtype, tensor.shape);
  }
  for (const auto& [name, list] : request.lists)
    key += fmt::format("{}#{}{};", name, list.count, list.is_none ? " none" : "");
  for (const std::string& name : request.wanted) (key += '>') += name;
  return key;
}

void RunnableSession::bind(GraphRequest& request, const Feed& feed) const {
  for (const auto& [name, tensor] : feed)
    if (bound_.contains(name))
      request.known.emplace(name, reference(type_of(tensor), tensor.bytes));
    else
      request.data.emplace(name, type_of(tensor));
}

std::string RunnableSession::go_on(GraphRequest& request, const std::string& key,
                                   const Segment& segment, const Results& results) const {
  std::string next = key + '\n';
  request.known = segment.known;
  request.lists = segment.lists;
  request.data.clear();
  for (const std::string& name : segment.to_read) {
    append_content(next, results.at(name));
    request.known.insert_or_assign(name, reference(results.at(name)));
  }
  for (const auto& [name, tensor] : results)
    if (!request.known.contains(name)) request.data.emplace(name, type_of(tensor));
  return next;
}

void RunnableSession::allocate() {
  engine_.allocate();
  bindings_.set_budget(std::max(kLeastForPrograms, engine_.arena_bytes() / kProgramShare));
  engine_.load_weights();
}

void RunnableSession::execute(Segment& segment, const Feed& feed, Timeline* timeline) {
  if (!engine_.allocated()) allocate();
  last_.push_back(segment.program);
  Call call{segment.program, {}, {}};
  for (const std::string& name : segment.inputs) {
    const auto given = feed.find(name);
    BRRR_CHECK(given != feed.end(), "nothing gives '{}'", name);
    call.inputs.push_back({name, given->second.bytes, given->second.is_lent});
  }
  engine_.run(std::span(&call, 1), timeline);
}

RunnableSession::Results RunnableSession::results_of(const Segment& segment, Results spare) {
  Results results;
  for (const Segment::Result& result : segment.results) {
    HostTensor& t = results[result.name];
    if (const auto before = spare.find(result.name); before != spare.end())
      t = std::move(before->second);
    t.dtype = result.type.dtype;
    t.shape = result.type.shape;
    const auto bytes = engine_.read_output(segment.program, result.name, room_);
    t.bytes.assign(bytes.begin(), bytes.end());
  }
  return results;
}

template <typename Inputs>
bool RunnableSession::prepare_for(const Inputs& inputs, const std::vector<std::string>& wanted) {
  check(inputs);
  for (;;) {
    Feed feed;
    GraphRequest request = request_of(inputs, wanted, feed);
    const std::string key = key_of(request, feed);
    bind(request, feed);
    if (const Segment* segment = find_or_build(key, request)) {
      last_ = {segment->program};
      return segment->to_read.empty();
    }
  }
}

bool RunnableSession::prepare(const PortValues& inputs, const std::vector<std::string>& wanted) {
  return prepare_for(inputs, wanted);
}

bool RunnableSession::prepare(const TensorViews& inputs, const std::vector<std::string>& wanted) {
  return prepare_for(inputs, wanted);
}

// The first program is found by what goes in, a later one also by what was read.
RunnableSession::Segment* RunnableSession::run_chain(GraphRequest& request, Feed& feed,
                                                     Timeline* timeline) {
  last_.clear();
  bindings_.pin();
  std::string key = key_of(request, feed);
  // A program that is there needs no request.
  if (!segments_.contains(key)) bind(request, feed);
  for (;;) {
    Segment* segment = find_or_build(key, request);
    if (segment == nullptr) return nullptr;
    execute(*segment, feed, timeline);
    if (segment->to_read.empty()) return segment;
    Results next = results_of(*segment);
    check_room_to_read(*segment, next);
    key = go_on(request, key, *segment, next);
    results_ = std::move(next);
    feed.clear();
    for (const auto& [name, tensor] : results_) feed.emplace(name, tensor);
  }
}

PortValues RunnableSession::run(const PortValues& inputs, const std::vector<std::string>& wanted,
                                Timeline* timeline) {
  PortValues outputs;
  run_into(outputs, inputs, wanted, timeline);
  return outputs;
}

void RunnableSession::run_into(PortValues& outputs, const PortValues& inputs,
                               const std::vector<std::string>& wanted, Timeline* timeline) {
  check(inputs);
  for (;;) {
    Feed feed;
    GraphRequest request = request_of(inputs, wanted, feed);
    const std::vector<std::string> names = request.wanted;
    const Segment* const last = run_chain(request, feed, timeline);
    if (last == nullptr) continue;
    Results results = results_of(*last, tensors_of(std::move(outputs)));
    results_.clear();
    outputs = values_of(names, last->lists, results);
    return;
  }
}

void RunnableSession::run_views(const TensorViews& inputs, const std::vector<std::string>& wanted,
                                const SeeOutput& see) {
  check(inputs);
  for (;;) {
    Feed feed;
    GraphRequest request = request_of(inputs, wanted, feed);
    const std::vector<std::string> names = request.wanted;
    const Segment* const last = run_chain(request, feed, nullptr);
    if (last == nullptr) continue;
    for (const std::string& name : names) {
      if (const auto list = last->lists.find(name); list != last->lists.end())
        user_error("the output '{}' is a list of {} tensors", name, list->second.count);
      const auto result = std::ranges::find(last->results, name, &Segment::Result::name);
      BRRR_CHECK(result != last->results.end(), "the program gives no '{}'", name);
      see(name, result->type, engine_.read_output(last->program, name, room_));
    }
    results_.clear();
    return;
  }
}

OutputView RunnableSession::run_in_place(const PortValues& inputs,
                                         const std::vector<std::string>& wanted,
                                         Timeline* timeline) {
  check(inputs);
  for (;;) {
    Feed feed;
    GraphRequest request = request_of(inputs, wanted, feed);
    const Segment* const last = run_chain(request, feed, timeline);
    if (last == nullptr) continue;
    BRRR_CHECK(last->results.size() == 1, "a run in place has one output; this one has {}",
               last->results.size());
    const Segment::Result& result = last->results[0];
    if (result.type.dtype != DType::f32)
      user_error("the output '{}' is {}; expected f32", result.name, result.type.str());
    const auto bytes = engine_.read_output(last->program, result.name, room_);
    return {result.type.shape,
            {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)}};
  }
}

}  // namespace brrr
