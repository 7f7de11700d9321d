#include "modules/module_session.h"

#include <algorithm>
#include <cstring>

#include "base/errors.h"

namespace brrr::modules {
namespace {

// What programs may take for themselves: this share of the weights and temporaries, or this.
constexpr int64_t kModuleShare = 8, kLeastForModule = int64_t{16} << 20;

Type type_of(const HostTensor& t) { return {t.dtype, t.shape}; }

RefTensor reference(const HostTensor& t) { return read_tensor(type_of(t), t.bytes.data()); }

void append_bytes(std::string& key, const HostTensor& t) {
  key += type_of(t).str();
  key += ':';
  key.append(reinterpret_cast<const char*>(t.bytes.data()), t.bytes.size());
  key += ';';
}

}  // namespace

const HostTensor& ModuleValue::tensor() const {
  if (kind != Kind::tensor) user_error("the value is a list of {} tensors", tensors.size());
  return tensors[0];
}

/// One program of a run, and those that can follow it.
struct ModuleSession::Segment {
  size_t program = 0;
  modules::Request request;  // what it was built for
  modules::Lowered lowered;  // but for its graph
  std::vector<std::string> inputs;
  struct Result {
    std::string name;
    Type type;
  };
  std::vector<Result> results;
  Segments next;
  uint64_t used = 0;
};

ModuleSession::ModuleSession(std::shared_ptr<const modules::Module> module, const Backend& backend,
                             const ModuleOptions& options)
    : module_(std::move(module)), options_(options), engine_(backend) {}

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
  }
  for (const modules::Port& port : ports)
    if (!port.is_optional && !inputs.contains(port.name))
      user_error("the input '{}' ({}) is missing", port.name, port.str());
}

size_t ModuleSession::programs() const {
  size_t count = 0;
  const auto add = [&](const auto& self, const Segments& segments) -> void {
    for (const auto& [key, segment] : segments) {
      ++count;
      self(self, segment->next);
    }
  };
  add(add, first_);
  return count;
}

int64_t ModuleSession::own_bytes(const Segments& segments) const {
  int64_t bytes = 0;
  for (const auto& [key, segment] : segments)
    bytes += engine_.program(segment->program).own_bytes() + own_bytes(segment->next);
  return bytes;
}

void ModuleSession::drop(Segments& segments) {
  for (auto& [key, segment] : segments) {
    drop(segment->next);
    engine_.remove(segment->program);
  }
  segments.clear();
}

// The chains of programs that were used longest ago go, until the others are small enough.
void ModuleSession::forget_oldest() {
  const int64_t most = std::max(kLeastForModule, engine_.arena_bytes() / kModuleShare);
  while (first_.size() > 1 && own_bytes(first_) > most) {
    const auto oldest =
        std::ranges::min_element(first_, {}, [](const auto& entry) { return entry.second->used; });
    drop(oldest->second->next);
    engine_.remove(oldest->second->program);
    first_.erase(oldest);
  }
}

std::unique_ptr<ModuleSession::Segment> ModuleSession::build(const modules::Request& request) {
  auto segment = std::make_unique<Segment>();
  segment->request = request;
  segment->lowered = module_->lower(request);
  if (!segment->lowered.to_bind.empty()) return segment;
  PipelineOptions p;
  p.precision = options_.precision;
  p.parameter_dtype = options_.precision;
  p.refresher = Refresher::loader;
  p.disabled = options_.disabled;
  const Graph& lowered = segment->lowered.graph;
  const Graph graph =
      options_.compile ? run_pipeline(lowered, engine_.backend().target(), p) : Graph(lowered);
  for (NodeId id : graph.inputs()) {
    const std::string& name = graph.input_name(id);
    if (graph.role(id) == Role::data) segment->inputs.push_back(name);
    // Weights in their own form stay where they are, in the file.
    if (graph.role(id) != Role::parameter || engine_.find_state(name) != nullptr) continue;
    const std::span<const std::byte> bytes = module_->weight(name);
    const auto address = reinterpret_cast<uintptr_t>(bytes.data());
    const bool is_aligned = address % bytes_of(graph.type({id, 0}).dtype) == 0;
    if (is_aligned && engine_.device().is_host() &&
        std::ssize(bytes) == graph.type({id, 0}).bytes())
      engine_.lend_state(name, bytes);
  }
  for (const Output& out : graph.outputs())
    segment->results.push_back({out.name, graph.type(out.value)});
  const size_t before = engine_.states().size();
  segment->program = engine_.add(graph);
  const bool is_first = !engine_.allocated();
  if (is_first) engine_.allocate();
  load_new_states(is_first ? 0 : before);
  segment->lowered.graph = Graph();
  return segment;
}

// allocate() orders the states, so that all are new then.
void ModuleSession::load_new_states(size_t before) {
  for (size_t i = before; i < engine_.states().size(); ++i) {
    const StateInfo state = engine_.states()[i];
    if (state.is_lent) continue;
    const auto load = [&](std::string_view name, std::span<std::byte> to) {
      const std::span<const std::byte> bytes = module_->weight(name);
      BRRR_CHECK(bytes.size() == to.size(), "the weight '{}' has {} bytes, not {}", name,
                 bytes.size(), to.size());
      std::memcpy(to.data(), bytes.data(), to.size());
    };
    if (state.kind() == InputKind::parameter) {
      engine_.fill_state(state.name, [&](std::span<std::byte> to) { load(state.name, to); });
    } else if (const DerivedWeight* derived = engine_.derived_weight(state)) {
      engine_.make_weight(
          state, [&](size_t k, std::span<std::byte> to) { load(derived->sources[k], to); });
    }
  }
}

ModuleValues ModuleSession::run(const ModuleValues& inputs,
                                const std::vector<std::string>& wanted) {
  check(inputs);
  std::map<std::string, HostTensor> feed;
  modules::Request request;
  request.wanted = wanted;
  if (wanted.empty())
    for (const modules::Port& port : module_->outputs()) request.wanted.push_back(port.name);
  for (const auto& [name, value] : inputs) {
    if (value.kind == ModuleValue::Kind::tensor) {
      feed[name] = value.tensors[0];
      continue;
    }
    request.lists[name] = {std::ssize(value.tensors), value.kind == ModuleValue::Kind::none};
    for (size_t i = 0; i < value.tensors.size(); ++i)
      feed[fmt::format("{}#{}", name, i)] = value.tensors[i];
  }
  last_.clear();
  ++runs_;
  Segments* segments = &first_;
  std::string key;
  for (;;) {
    // The first program is found by what goes in, a later one by what was read.
    const auto first_key = [&] {
      std::string text;
      request.data.clear();
      request.known.clear();
      for (const auto& [name, tensor] : feed) {
        text += name + '=';
        if (bound_.contains(name)) {
          append_bytes(text, tensor);
          request.known.emplace(name, reference(tensor));
        } else {
          text += type_of(tensor).str() + ';';
          request.data.emplace(name, type_of(tensor));
        }
      }
      for (const auto& [name, list] : request.lists)
        text += fmt::format("{}#{}{};", name, list.count, list.is_none ? " none" : "");
      for (const std::string& name : request.wanted) text += '>' + name;
      return text;
    };
    if (segments == &first_) key = first_key();
    auto at = segments->find(key);
    if (at == segments->end()) {
      std::unique_ptr<Segment> built = build(request);
      if (const auto& to_bind = built->lowered.to_bind; !to_bind.empty()) {
        // All programs are built anew, for these values.
        bool is_new = false;
        for (const std::string& name : to_bind) is_new |= bound_.insert(name).second;
        BRRR_CHECK(is_new, "the module asks for the value of '{}' again", to_bind[0]);
        drop(first_);
        return run(inputs, wanted);
      }
      at = segments->emplace(key, std::move(built)).first;
    }
    Segment& segment = *at->second;
    segment.used = runs_;
    last_.push_back(segment.program);
    for (const std::string& name : segment.inputs) {
      const auto given = feed.find(name);
      BRRR_CHECK(given != feed.end(), "nothing gives '{}'", name);
      engine_.set_input(segment.program, name, std::span<const std::byte>(given->second.bytes));
    }
    engine_.run(segment.program);
    std::map<std::string, HostTensor> results;
    for (const Segment::Result& result : segment.results) {
      HostTensor& t = results[result.name];
      t.dtype = result.type.dtype;
      t.shape = result.type.shape;
      const auto bytes = engine_.read_output(segment.program, result.name, room_);
      t.bytes.assign(bytes.begin(), bytes.end());
    }
    if (segment.lowered.to_read.empty()) {
      ModuleValues out;
      for (const std::string& name : request.wanted) {
        const auto list = segment.lowered.lists.find(name);
        if (list == segment.lowered.lists.end()) {
          out[name] = std::move(results.at(name));
          continue;
        }
        ModuleValue& value = out[name];
        value.kind = list->second.is_none ? ModuleValue::Kind::none : ModuleValue::Kind::list;
        for (int64_t i = 0; i < list->second.count; ++i)
          value.tensors.push_back(std::move(results.at(fmt::format("{}#{}", name, i))));
      }
      if (segments == &first_) forget_oldest();
      return out;
    }
    modules::Request next;
    next.wanted = request.wanted;
    next.known = segment.request.known;
    next.lists = segment.lowered.lists;
    for (const auto& [name, tensor] : segment.lowered.known)
      next.known.insert_or_assign(name, tensor);
    key.clear();
    for (const std::string& name : segment.lowered.to_read) {
      append_bytes(key, results.at(name));
      next.known.insert_or_assign(name, reference(results.at(name)));
    }
    for (const auto& [name, tensor] : results)
      if (!next.known.contains(name)) next.data.emplace(name, type_of(tensor));
    request = std::move(next);
    feed = std::move(results);
    segments = &segment.next;
  }
}

}  // namespace brrr::modules
