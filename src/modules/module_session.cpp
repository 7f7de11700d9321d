#include "modules/module_session.h"

#include <algorithm>
#include <cstring>

#include "base/errors.h"
#include "base/memory.h"
#include "base/sha256.h"

namespace brrr::modules {
namespace {

// What programs may take for themselves: this share of the weights and temporaries, or this.
constexpr int64_t kModuleShare = 8, kLeastForModule = int64_t{16} << 20;
// Bytes of an element of a RefTensor.
constexpr int64_t kKnownBytes = 8;
// Bytes of derived weights that are made by one program.
constexpr int64_t kMostTogether = int64_t{4} << 20;

Type type_of(const HostTensor& t) { return {t.dtype, t.shape}; }

RefTensor reference(const HostTensor& t) { return read_tensor(type_of(t), t.bytes.data()); }

/// The content of a tensor as part of a key: its bytes, or a digest where they are many.
void append_content(std::string& key, const HostTensor& t) {
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

/// The outputs out of the tensors that the last program gave.
ModuleValues values_of(const std::vector<std::string>& wanted,
                       const std::map<std::string, modules::Listed>& lists,
                       std::map<std::string, HostTensor>& results) {
  ModuleValues values;
  for (const std::string& name : wanted) {
    const auto list = lists.find(name);
    if (list == lists.end()) {
      values[name] = std::move(results.at(name));
      continue;
    }
    ModuleValue& value = values[name];
    value.kind = list->second.is_none ? ModuleValue::Kind::none : ModuleValue::Kind::list;
    for (int64_t i = 0; i < list->second.count; ++i)
      value.tensors.push_back(std::move(results.at(fmt::format("{}#{}", name, i))));
  }
  return values;
}

}  // namespace

const HostTensor& ModuleValue::tensor() const {
  if (kind != Kind::tensor) user_error("the value is a list of {} tensors", tensors.size());
  return tensors[0];
}

/// One program of a run, and those that can follow it.
struct ModuleSession::Segment {
  size_t program = 0;
  std::map<std::string, RefTensor> known;  // when its graph was built, and when it has run
  std::map<std::string, modules::Listed> lists;
  std::vector<std::string> to_read;
  std::vector<std::string> inputs;
  struct Result {
    std::string name;
    Type type;
  };
  std::vector<Result> results;
  Segments next;
  uint64_t used = 0;  // the run that used it last
};

ModuleSession::ModuleSession(std::shared_ptr<const modules::Module> module, const Backend& backend,
                             const ModuleOptions& options)
    : module_(std::move(module)),
      options_(options),
      engine_(backend, WrittenBy::loader),
      weights_(std::make_shared<WeightList>("the module's file")) {
  // A program for many small weights costs little more than one for each of them.
  engine_.use_weights(weights_, kMostTogether);
}

ModuleSession::~ModuleSession() = default;

void ModuleSession::check(const ModuleValues& inputs) const {
  const auto& ports = module_->inputs();
  for (const auto& [name, value] : inputs) {
    const auto port = std::ranges::find(ports, name, &modules::Port::name);
    if (port == ports.end()) {
      std::string names;
      for (const modules::Port& p : ports) names += (names.empty() ? "" : ", ") + p.name;
      user_error("there is no input '{}'; there are: {}", name, names);
    }
    if (!port->is_tensor || value.kind != ModuleValue::Kind::tensor) continue;
    const HostTensor& t = value.tensors[0];
    const Type type = type_of(t);
    bool fits = t.dtype == port->dtype;
    if (port->has_shape && std::ssize(port->dims) != type.shape.rank()) fits = false;
    for (size_t i = 0; fits && i < port->dims.size(); ++i) {
      const int64_t size = port->dims[i].size;
      fits = size < 0 || size == type.shape.size(static_cast<int>(i));
    }
    if (!fits) user_error("the input '{}' must be {}; got {}", name, port->str(), type.str());
    for (int64_t i = 0; port->lowest && i < t.shape.elements(); ++i)
      if (t.number(i) < static_cast<double>(*port->lowest))
        user_error("the input '{}' must be at least {}; got {}", name, *port->lowest, t.number(i));
  }
  for (const modules::Port& port : ports)
    if (!port.is_optional && !inputs.contains(port.name))
      user_error("the input '{}' ({}) is missing", port.name, port.str());
}

template <typename F>
void ModuleSession::each(const Segments& segments, const F& f) {
  for (const auto& [key, segment] : segments) {
    f(*segment);
    each(segment->next, f);
  }
}

size_t ModuleSession::programs() const {
  size_t count = 0;
  each(first_, [&](const Segment&) { ++count; });
  return count;
}

void ModuleSession::drop(Segments& segments, uint64_t last_use) {
  for (auto at = segments.begin(); at != segments.end();) {
    // What is behind a program was never used later than it.
    drop(at->second->next, last_use);
    if (at->second->used > last_use) {
      ++at;
      continue;
    }
    engine_.remove(at->second->program);
    at = segments.erase(at);
  }
}

void ModuleSession::forget_oldest() {
  int64_t bytes = 0;
  std::vector<uint64_t> uses;  // of the programs that this run did without
  each(first_, [&](const Segment& segment) {
    bytes += engine_.program(segment.program).own_bytes();
    if (segment.used < runs_) uses.push_back(segment.used);
  });
  if (uses.empty() || bytes <= std::max(kLeastForModule, engine_.arena_bytes() / kModuleShare))
    return;
  // Half of them at once, so that it is rarely necessary.
  const auto middle = uses.begin() + std::ssize(uses) / 2;
  std::nth_element(uses.begin(), middle, uses.end());
  drop(first_, *middle);
}

int64_t ModuleSession::known_bytes() const {
  int64_t bytes = 0;
  each(first_, [&](const Segment& segment) {
    for (const auto& [name, tensor] : segment.known)
      bytes += static_cast<int64_t>(tensor.size()) * kKnownBytes;
  });
  return bytes;
}

int64_t ModuleSession::left_for_values() const {
  if (engine_.limit() == 0) return 0;
  return std::max<int64_t>(1, engine_.limit() - engine_.forecast().total() - known_bytes());
}

void ModuleSession::check_room_to_read(const Segment& segment, const Results& results) const {
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

std::unique_ptr<ModuleSession::Segment> ModuleSession::build(modules::Request request) {
  request.memory = left_for_values();
  modules::Lowered lowered = module_->lower(request);
  if (!lowered.to_bind.empty()) {
    bool is_new = false;
    for (const std::string& name : lowered.to_bind) is_new |= bound_.insert(name).second;
    BRRR_CHECK(is_new, "the module asks for the value of '{}' again", lowered.to_bind[0]);
    drop(first_, runs_);
    return nullptr;
  }
  PipelineOptions p;
  p.precision = options_.precision;
  p.parameter_dtype = options_.precision;
  p.refresher = Refresher::loader;
  p.disabled = options_.disabled;
  for (const NodeId id : lowered.graph.inputs(InputKind::parameter)) {
    const std::string& name = lowered.graph.input_name(id);
    const Type& type = lowered.graph.type({id, 0});
    if (weights_->find(name) == nullptr)
      weights_->add({name, type.dtype, type.shape, module_->weight(name), type.storage});
  }
  p.dump_folder = options_.dump_folder;
  p.dump_prefix = fmt::format("program{}_", built_++);
  PipelineReport report;
  const Graph graph = options_.compile ? run_pipeline(lowered.graph, engine_.backend().target(), p,
                                                      options_.explain ? &report : nullptr)
                                       : decompose(lowered.graph, engine_.backend().target());
  if (options_.explain) notes_.push_back(notes_of(report));
  auto segment = std::make_unique<Segment>();
  segment->known = std::move(request.known);
  for (auto& [name, tensor] : lowered.known) segment->known.insert_or_assign(name, tensor);
  segment->lists = std::move(lowered.lists);
  segment->to_read = std::move(lowered.to_read);
  for (NodeId id : graph.inputs()) {
    const std::string& name = graph.input_name(id);
    if (graph.role(id) == Role::data) segment->inputs.push_back(name);
  }
  for (const Output& out : graph.outputs())
    segment->results.push_back({out.name, graph.type(out.value)});
  try {
    segment->program = add(graph);
  } catch (const UserError& e) {
    // Programs of other runs may leave no room; without them there may be.
    if (e.code() != ExitCode::kNoMemory || runs_ == 0) throw;
    drop(first_, runs_ - 1);
    segment->program = add(graph);
  }
  return segment;
}

size_t ModuleSession::add(const Graph& graph) {
  if (options_.before_program) options_.before_program(engine_, graph);
  return engine_.add(graph);
}

ModuleSession::Segment* ModuleSession::find_or_build(Segments& segments, const std::string& key,
                                                     const modules::Request& request,
                                                     bool& has_built) {
  const auto at = segments.find(key);
  if (at != segments.end()) return at->second.get();
  std::unique_ptr<Segment> built = build(request);
  if (built == nullptr) return nullptr;
  built->used = runs_;
  has_built = true;
  return segments.emplace(key, std::move(built)).first->second.get();
}

modules::Request ModuleSession::request_of(const ModuleValues& inputs,
                                           const std::vector<std::string>& wanted,
                                           Feed& feed) const {
  modules::Request request;
  request.wanted = wanted;
  if (wanted.empty())
    for (const modules::Port& port : module_->outputs()) request.wanted.push_back(port.name);
  for (const auto& [name, value] : inputs) {
    if (value.kind == ModuleValue::Kind::tensor) {
      feed[name] = &value.tensors[0];
      continue;
    }
    request.lists[name] = {std::ssize(value.tensors), value.kind == ModuleValue::Kind::none};
    for (size_t i = 0; i < value.tensors.size(); ++i)
      feed[fmt::format("{}#{}", name, i)] = &value.tensors[i];
  }
  return request;
}

std::string ModuleSession::begin(modules::Request& request, const Feed& feed) const {
  std::string key;
  for (const auto& [name, tensor] : feed) {
    key += name + '=';
    if (bound_.contains(name)) {
      append_content(key, *tensor);
      request.known.emplace(name, reference(*tensor));
    } else {
      key += type_of(*tensor).str() + ';';
      request.data.emplace(name, type_of(*tensor));
    }
  }
  for (const auto& [name, list] : request.lists)
    key += fmt::format("{}#{}{};", name, list.count, list.is_none ? " none" : "");
  for (const std::string& name : request.wanted) key += '>' + name;
  return key;
}

std::string ModuleSession::go_on(modules::Request& request, const Segment& segment,
                                 const Results& results) const {
  std::string key;
  request.known = segment.known;
  request.lists = segment.lists;
  request.data.clear();
  for (const std::string& name : segment.to_read) {
    append_content(key, results.at(name));
    request.known.insert_or_assign(name, reference(results.at(name)));
  }
  for (const auto& [name, tensor] : results)
    if (!request.known.contains(name)) request.data.emplace(name, type_of(tensor));
  return key;
}

ModuleSession::Results ModuleSession::execute(Segment& segment, const Feed& feed,
                                              Timeline* timeline) {
  if (!engine_.allocated()) engine_.allocate();
  segment.used = runs_;
  last_.push_back(segment.program);
  for (const std::string& name : segment.inputs) {
    const auto given = feed.find(name);
    BRRR_CHECK(given != feed.end(), "nothing gives '{}'", name);
    engine_.set_input(segment.program, name, std::span<const std::byte>(given->second->bytes));
  }
  engine_.run(segment.program, timeline);
  Results results;
  for (const Segment::Result& result : segment.results) {
    HostTensor& t = results[result.name];
    t.dtype = result.type.dtype;
    t.shape = result.type.shape;
    const auto bytes = engine_.read_output(segment.program, result.name, room_);
    t.bytes.assign(bytes.begin(), bytes.end());
  }
  return results;
}

bool ModuleSession::prepare(const ModuleValues& inputs, const std::vector<std::string>& wanted) {
  check(inputs);
  for (;;) {
    Feed feed;
    modules::Request request = request_of(inputs, wanted, feed);
    const std::string key = begin(request, feed);
    bool has_built = false;
    if (const Segment* segment = find_or_build(first_, key, request, has_built)) {
      last_ = {segment->program};
      return segment->to_read.empty();
    }
  }
}

ModuleValues ModuleSession::run(const ModuleValues& inputs, const std::vector<std::string>& wanted,
                                Timeline* timeline) {
  check(inputs);
  last_.clear();
  ++runs_;
  Feed feed;
  modules::Request request = request_of(inputs, wanted, feed);
  // The first program is found by what goes in, a later one by what was read.
  Segments* segments = &first_;
  std::string key = begin(request, feed);
  Results results;  // what `feed` points to behind the first program
  bool has_built = false;
  for (;;) {
    Segment* segment = find_or_build(*segments, key, request, has_built);
    if (segment == nullptr) return run(inputs, wanted, timeline);
    Results next = execute(*segment, feed, timeline);
    if (segment->to_read.empty()) {
      ModuleValues values = values_of(request.wanted, segment->lists, next);
      if (has_built) forget_oldest();
      return values;
    }
    check_room_to_read(*segment, next);
    key = go_on(request, *segment, next);
    results = std::move(next);
    feed.clear();
    for (const auto& [name, tensor] : results) feed.emplace(name, &tensor);
    segments = &segment->next;
  }
}

}  // namespace brrr::modules
