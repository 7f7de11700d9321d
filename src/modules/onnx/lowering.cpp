#include "modules/onnx/lowering.h"

#include <algorithm>

#include "base/errors.h"
#include "formats/onnx/packed_integers.h"
#include "ir/rewriter.h"
#include "modules/onnx/call.h"
#include "ops/ops.h"

namespace brrr::onnx {
namespace {

constexpr int64_t kMostLiteral = 256;  // elements of a constant that stands in the graph
constexpr int64_t kMostBound = 64;     // elements of an input whose value a binding may hold
constexpr int64_t kMostCopied = 4096;  // elements of a constant that a region gets a copy of
constexpr size_t kMostNodes = size_t{1} << 20;    // of a graph: loops are unrolled into it
constexpr size_t kMostLowered = size_t{1} << 18;  // nodes, those of functions for each call
constexpr size_t kDeepestCalls = 64;              // functions inside one another

/// A name that graphs can print: of others, letters are replaced.
std::string scope_name(std::string_view prefix, const NodeProto& node) {
  std::string name(prefix);
  name += node.name.empty() ? node.op_type : node.name;
  constexpr size_t kLongest = 120;
  if (name.size() > kLongest) name.erase(0, name.size() - kLongest);
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '.' && c != '-') c = '.';
  const size_t first = name.find_first_not_of('.');
  return first == std::string::npos ? std::string(node.op_type) : name.substr(first);
}

}  // namespace

// -- Lowering
// -------------------------------------------------------------------------------------

/// A region under construction, and what it reads of the graph around it.
struct Lowering::Capture {
  Build* outer;
  Build* inner;
  size_t inputs = 0;  // of the region so far
  std::vector<Value> captured;
  std::map<ValueId, Value> known;

  Value take(Value value, const Build::Weight& weight) {
    const auto [at, fresh] = known.try_emplace(value.id);
    if (!fresh) return at->second;
    const bool is_small = value.shape().elements() <= kMostCopied;
    if (is_small && outer->dependence(value.id) == Build::nothing) {
      const RefTensor copy = outer->evaluate(value.id, weight);
      return known[value.id] = constant_in(inner->graph, copy);
    }
    return take_as_input(value);
  }
  Value take_as_input(Value value) {
    captured.push_back(value);
    return known[value.id] = inner->graph.input(fmt::format("a{}", inputs++), Type(value.type()));
  }
};

Lowering::Lowering(const File& file, const GraphRequest& request, Weight weight, OnWeight on_weight)
    : file_(file),
      request_(request),
      weight_(std::move(weight)),
      on_weight_(std::move(on_weight)),
      build_(&main_) {
  main_.set_limit(request.memory);
}

LoweredGraph Lowering::run() {
  LoweredGraph lowered;
  std::set<std::string_view> inputs;
  for (const ValueInfo& info : file_.graph.inputs) {
    inputs.insert(info.name);
    declared_.emplace(info.name, info.type.element);
  }
  for (const auto& [name, type] : request_.data) {
    const Value v = main_.graph.input(name, type);
    // Shapes are vectors of integers; what is larger, or of floats, is data.
    const bool may_be_shape = !is_float(type.dtype) && type.shape.rank() <= 1;
    if (inputs.contains(name) && may_be_shape && type.shape.elements() <= kMostBound)
      main_.can_be_bound(v.id.node);
  }
  Names top;
  top.opsets = &file_.opsets;
  top.build = &main_;
  give_graph(file_.graph, top);
  std::vector<std::string_view> wanted(request_.wanted.begin(), request_.wanted.end());
  try {
    lower_nodes(file_.graph.nodes, top, wanted);
    for (const std::string_view name : wanted) {
      const Item* item = find(top, name);
      if (item == nullptr) user_error("{}: nothing gives the output '{}'", file_.what(), name);
      output(lowered, std::string(name), *item);
    }
  } catch (const Bind& bind) {
    lowered.to_bind = bind.inputs;
    return lowered;
  } catch (Cut& cut) {
    for (const auto& [name, item] : cut.handed) output(lowered, name, item);
    BRRR_CHECK(main_.graph.find_output(cut.name) != nullptr,
               "'{}' is to be read and is not handed on", cut.name);
    for (const auto& [name, item] : cut.constant)
      lowered.known.emplace(name, main_.evaluate(item.value.id, weight_));
    lowered.to_read = {cut.name};
  }
  lowered.graph = drop_dead(std::move(main_.graph));
  return lowered;
}

void Lowering::output(LoweredGraph& lowered, const std::string& name, const Item& item) {
  if (item.is_tensor()) {
    main_.graph.output(name, item.value);
    return;
  }
  const auto count = static_cast<int64_t>(item.items.size());
  lowered.lists[name] = {count, item.kind == Item::Kind::none};
  for (int64_t i = 0; i < count; ++i)
    output(lowered, fmt::format("{}#{}", name, i), item.items[static_cast<size_t>(i)]);
}

bool Lowering::is_given(const std::string& qualified) const {
  return request_.data.contains(qualified) || request_.known.contains(qualified) ||
         request_.lists.contains(qualified);
}

Item Lowering::given(const std::string& qualified) {
  if (const auto known = request_.known.find(qualified); known != request_.known.end())
    return constant_in(main_.graph, known->second);
  if (const auto list = request_.lists.find(qualified); list != request_.lists.end()) {
    if (list->second.is_none) return {};
    std::vector<Item> items;
    for (int64_t i = 0; i < list->second.count; ++i)
      items.push_back(given(fmt::format("{}#{}", qualified, i)));
    return Item::list(std::move(items));
  }
  const auto declared = declared_.find(qualified);
  return {main_.graph.value(main_.graph.find_input(qualified)),
          declared == declared_.end() ? ElementType::undefined : declared->second};
}

Value Lowering::captured(Value value) {
  size_t level = 0;
  if (value.graph != &main_.graph)
    while (level < captures_.size() && value.graph != &captures_[level++]->inner->graph) continue;
  for (; level < captures_.size(); ++level) value = captures_[level]->take(value, weight_);
  return value;
}

Item Lowering::here(const Item& item) {
  Item mine = item;
  if (mine.is_tensor() && mine.value.graph != &build_->graph) mine.value = captured(mine.value);
  for (Item& inner : mine.items) inner = here(inner);
  return mine;
}

const Item* Lowering::find(Names& names, std::string_view name) {
  for (Names* scope = &names; scope != nullptr; scope = scope->outer) {
    auto at = scope->items.find(name);
    if (at == scope->items.end()) {
      const std::string qualified = scope->qualified(name);
      const auto tensor = scope->initializers.find(name);
      Item item;
      if (is_given(qualified))
        item = given(qualified);
      else if (tensor != scope->initializers.end())
        item = constant(*tensor->second, qualified);
      else
        continue;
      // A value of this region must not become one of the graph around it.
      if (scope->build != build_) {
        names.passed.emplace(name, qualified);
        return &(names.items[name] = here(item));
      }
      at = scope->items.emplace(name, here(item)).first;
    }
    // What an outer graph gives is read through the regions between.
    if (scope == &names && (!at->second.is_tensor() || at->second.value.graph == &build_->graph))
      return &at->second;
    names.passed.emplace(name, scope->source(name));
    return &(names.items[name] = here(at->second));
  }
  return nullptr;
}

Value Lowering::constant(const RefTensor& tensor) { return constant_in(build_->graph, tensor); }

Item Lowering::constant(const TensorProto& tensor, const std::string& name) {
  const std::optional<DType> dtype = dtype_of(tensor.type);
  if (!dtype)
    throw Unsupported(fmt::format("{}: the tensor '{}' of {} is not supported", file_.what(), name,
                                  onnx::name_of(tensor.type)));
  const Type type{*dtype, Shape(tensor.dims)};
  if (tensor.elements() <= kMostLiteral)
    return {constant_in(build_->graph, read_tensor(type, tensor.bytes.data())), tensor.type};
  const auto [at, fresh] = weights_.try_emplace(name);
  if (fresh) {
    on_weight_(name, tensor);
    at->second = main_.graph.input(name, type, Role::parameter);
  }
  const bool is_here = at->second.graph == &build_->graph;
  return {is_here ? at->second : captured(at->second), tensor.type};
}

const RefTensor* Lowering::known_or_null(const Value& value) {
  return known_or_null(*build_, value);
}

const RefTensor* Lowering::known_or_null(Build& build, const Value& value) const {
  if (build.dependence(value.id) != Build::nothing) return nullptr;
  return &build.evaluate(value.id, weight_);
}

const RefTensor& Lowering::known(const Value& value, const std::string& qualified_name) {
  if (const RefTensor* tensor = known_or_null(value)) return *tensor;
  if (!captures_.empty()) throw RegionCut{};
  if (main_.dependence(value.id) == Build::small_inputs)
    throw Bind{main_.small_inputs_of(value.id)};
  throw Cut{qualified_name, {}, {}};
}

std::string_view Lowering::text(std::string s) {
  texts_.push_back(std::make_unique<std::string>(std::move(s)));
  return *texts_.back();
}

void Lowering::keep(Names& names, std::string_view name, Item item) {
  names.items[name] = std::move(item);
  names.kept.insert(name);
}

Item Lowering::take_kept(Names& names, std::string_view name) {
  Item item = std::move(names.items[name]);
  names.items.erase(name);
  names.kept.erase(name);
  return item;
}

// -- nodes
// ----------------------------------------------------------------------------------------

// Names that a node reads, those that graphs inside it read included.
const std::vector<std::string_view>& Lowering::reads_of(const NodeProto& node) {
  const auto [at, fresh] = reads_.try_emplace(&node);
  if (!fresh) return at->second;
  std::vector<std::string_view> reads(node.inputs);
  for (const AttributeProto& a : node.attributes) {
    if (!a.graph) continue;
    for (const NodeProto& inner : a.graph->nodes) {
      const std::vector<std::string_view>& more = reads_of(inner);
      reads.insert(reads.end(), more.begin(), more.end());
    }
    for (const ValueInfo& out : a.graph->outputs) reads.push_back(out.name);
  }
  return reads_[&node] = std::move(reads);
}

std::vector<bool> Lowering::needed_nodes(const std::vector<NodeProto>& nodes, const Names& names,
                                         const std::vector<std::string_view>& wanted) {
  std::set<std::string_view> needs(wanted.begin(), wanted.end());
  std::vector<bool> needed(nodes.size());
  for (size_t i = nodes.size(); i-- > 0;) {
    for (const std::string_view out : nodes[i].outputs)
      if (!out.empty() && needs.contains(out) && !is_given(names.qualified(out))) needed[i] = true;
    if (!needed[i]) continue;
    for (const std::string_view name : reads_of(nodes[i])) needs.insert(name);
  }
  return needed;
}

bool Lowering::is_small_constant(const Item& item) {
  return item.is_tensor() && item.value.shape().elements() <= kMostCopied &&
         main_.dependence(item.value.id) == Build::nothing;
}

void Lowering::hand_on(Cut& cut, const std::vector<NodeProto>& nodes, size_t from, Names& names,
                       const std::vector<std::string_view>& wanted,
                       const std::vector<bool>& needed) {
  std::unordered_map<std::string_view, const NodeProto*> producers;
  for (size_t i = 0; i < from; ++i)
    for (const std::string_view out : nodes[i].outputs) producers.emplace(out, &nodes[i]);
  const auto hand = [&](std::string_view name) {
    if (name.empty() || names.passed.contains(name)) return;
    const std::string qualified = names.qualified(name);
    // What was given and nothing has read yet goes on, too.
    if (is_given(qualified)) find(names, name);
    const auto at = names.items.find(name);
    if (at == names.items.end()) return;
    const auto producer = producers.find(name);
    const bool is_of_file = !is_given(qualified) && !names.kept.contains(name) &&
                            (producer != producers.end() ? reads_of(*producer->second).empty()
                                                         : names.initializers.contains(name));
    if (is_of_file) return;  // the next graph makes it anew
    // What was known stays known: what it was computed from is not handed on.
    if (is_small_constant(at->second))
      cut.constant.emplace(qualified, at->second);
    else
      cut.handed.emplace(qualified, at->second);
  };
  for (size_t i = from; i < nodes.size(); ++i)
    if (needed[i]) std::ranges::for_each(reads_of(nodes[i]), hand);
  std::ranges::for_each(wanted, hand);
  for (const std::string_view name : names.kept) hand(name);
}

void Lowering::lower_nodes(const std::vector<NodeProto>& nodes, Names& names,
                           const std::vector<std::string_view>& wanted) {
  const std::vector<bool> needed = needed_nodes(nodes, names, wanted);
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (!needed[i]) continue;
    try {
      lower_node(nodes[i], names);
    } catch (Cut& cut) {
      hand_on(cut, nodes, i, names, wanted, needed);
      throw;
    }
  }
}

const FunctionProto* Lowering::find_function(const NodeProto& node) const {
  for (const FunctionProto& f : file_.functions)
    if (f.name == node.op_type && f.domain == node.domain && f.overload == node.overload) return &f;
  return nullptr;
}

void Lowering::lower_node(const NodeProto& node, Names& names) {
  Call call(*this, node, names);
  if (++lowered_ > kMostLowered)
    call.fail("more than {} nodes are lowered with those of functions and loops", kMostLowered);
  if (build_->graph.size() > kMostNodes)
    call.fail("the graph has more than {} nodes here; a loop that is unrolled is too long",
              kMostNodes);
  for (const std::string_view out : node.outputs)
    if (!out.empty() && names.items.contains(out) && !is_given(names.qualified(out)))
      call.fail("'{}' is given twice", out);
  for (const std::string_view in : node.inputs)
    if (!in.empty() && find(names, in) == nullptr)
      call.fail("it reads '{}', which nothing before it gives", in);
  const OperatorRow* row = find_operator(node.domain, node.op_type, call.opset());
  const FunctionProto* function = row == nullptr ? find_function(node) : nullptr;
  if (row == nullptr && function == nullptr)
    call.refuse("this operator (opset {}{}{}) is unknown", call.opset(),
                node.domain.empty() ? "" : " of ", node.domain);
  if (row != nullptr) {
    const size_t fewest = fewest_operands(node.domain, node.op_type);
    // What Loop and Scan leave blank has a meaning.
    const bool may_be_blank = node.op_type == "Loop" || node.op_type == "Scan";
    bool has_blank = false;
    for (size_t i = 0; i < std::min(fewest, node.inputs.size()); ++i)
      has_blank |= node.inputs[i].empty() && !may_be_blank;
    if (node.inputs.size() < fewest || has_blank)
      call.fail("expected at least {} operands; got {}{}", fewest, node.inputs.size(),
                has_blank ? ", one of them left out" : "");
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (!call.has(i) || !call.item(i).is_tensor()) continue;
      const std::string problem =
          rank_problem(node.domain, node.op_type, i, call.in(i).shape().rank());
      if (!problem.empty())
        call.fail("operand {} ('{}') {}; got {}", i, node.inputs[i], problem,
                  call.in(i).type().str());
    }
  }
  const Scope scope(build_->graph, scope_name(names.prefix, node));
  try {
    if (function != nullptr)
      call_function(*function, node, names);
    else
      row->lower(call);
    keep_range(node, names);
  } catch (const UserError& e) {
    const bool says_where = std::string_view(e.what()).starts_with(file_.what());
    if (e.code() == ExitCode::kNoMemory || says_where) throw;
    if (dynamic_cast<const Unsupported*>(&e) != nullptr) call.refuse("{}", e.what());
    call.fail("{}", e.what());
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception&) {
    // Whoever wrote the file broke a promise that the operator's function counts on.
    call.fail("its operands and attributes do not fit together ({} operands: {})",
              node.inputs.size(), call.operand_types());
  }
}

// What only moves integers of 2 and 4 bits gives such integers.
void Lowering::keep_range(const NodeProto& node, Names& names) {
  const Item* first =
      node.inputs.empty() || node.inputs[0].empty() ? nullptr : find(names, node.inputs[0]);
  if (first == nullptr || !first->is_tensor() || !narrow_integer(first->element)) return;
  for (const std::string_view out : node.outputs) {
    const auto at = names.items.find(out);
    if (at == names.items.end() || !at->second.is_tensor()) continue;
    Item& item = at->second;
    if (item.element == ElementType::undefined && item.value.dtype() == first->value.dtype())
      item.element = first->element;
  }
}

void Lowering::call_function(const FunctionProto& function, const NodeProto& node, Names& names) {
  if (calls_.size() >= kDeepestCalls || std::ranges::find(calls_, &function) != calls_.end())
    user_error("{}: the function {} calls itself, or functions lie more than {} deep", file_.what(),
               function.name, kDeepestCalls);
  Names inner;
  const std::string_view first = node.outputs.empty() ? node.name : node.outputs[0];
  inner.prefix = fmt::format("{}{}/", names.prefix, first);
  inner.opsets = function.opsets.empty() ? names.opsets : &function.opsets;
  inner.build = build_;
  inner.call = &node;
  inner.function = &function;
  inner.caller = &names;
  for (size_t i = 0; i < function.inputs.size(); ++i) {
    const bool is_there = i < node.inputs.size() && !node.inputs[i].empty();
    inner.items[function.inputs[i]] = is_there ? *find(names, node.inputs[i]) : Item();
    inner.passed.emplace(function.inputs[i], is_there ? names.source(node.inputs[i]) : "");
  }
  calls_.push_back(&function);
  struct Pop {
    std::vector<const FunctionProto*>& calls;
    ~Pop() { calls.pop_back(); }
  } pop{calls_};
  std::vector<std::string_view> wanted;
  for (size_t i = 0; i < node.outputs.size() && i < function.outputs.size(); ++i)
    if (!node.outputs[i].empty()) wanted.push_back(function.outputs[i]);
  lower_nodes(function.nodes, inner, wanted);
  for (size_t i = 0; i < node.outputs.size() && i < function.outputs.size(); ++i) {
    if (node.outputs[i].empty()) continue;
    const Item* item = find(inner, function.outputs[i]);
    if (item == nullptr)
      user_error("{}: nothing gives the output '{}' of the function {}", file_.what(),
                 function.outputs[i], function.name);
    const Item copy = *item;
    names.items[node.outputs[i]] = copy;
  }
}

// -- graphs inside nodes
// --------------------------------------------------------------------------

Names Lowering::inner_names(Names& outside, const std::string& part) const {
  Names inner;
  inner.outer = &outside;
  inner.prefix = fmt::format("{}{}/", outside.prefix, part);
  inner.opsets = outside.opsets;
  inner.build = build_;
  inner.call = outside.call;
  inner.function = outside.function;
  inner.caller = outside.caller;
  return inner;
}

void Lowering::give_graph(const GraphProto& graph, Names& names) const {
  for (const TensorProto& t : graph.initializers) names.initializers.emplace(t.name, &t);
  if (!graph.sparse_initializers.empty())
    throw Unsupported(fmt::format("{}: sparse constants ('{}') are not supported", file_.what(),
                                  graph.sparse_initializers[0].values.name));
}

std::vector<Item> Lowering::outputs_of(const GraphProto& graph, Names& names) {
  std::vector<std::string_view> wanted;
  for (const ValueInfo& out : graph.outputs) wanted.push_back(out.name);
  lower_nodes(graph.nodes, names, wanted);
  std::vector<Item> items;
  for (const std::string_view name : wanted) {
    const Item* item = find(names, name);
    if (item == nullptr)
      user_error("{}: nothing gives the output '{}' of the graph '{}'", file_.what(), name,
                 graph.name);
    items.push_back(*item);
  }
  return items;
}

std::vector<Item> Lowering::lower_in_place(const GraphProto& graph, Names& outside,
                                           const std::string& part,
                                           const std::vector<Passed>& inputs) {
  Names inner = inner_names(outside, part);
  give_graph(graph, inner);
  for (size_t i = 0; i < graph.inputs.size() && i < inputs.size(); ++i) {
    inner.items[graph.inputs[i].name] = inputs[i].item;
    inner.passed.emplace(graph.inputs[i].name, inputs[i].source);
  }
  return outputs_of(graph, inner);
}

std::optional<Lowering::RegionParts> Lowering::lower_region(const GraphProto& graph, Names& outside,
                                                            const std::string& part,
                                                            const std::vector<Type>& types,
                                                            const RegionInputs& inputs,
                                                            const std::vector<Value>& captured) {
  RegionParts parts;
  parts.build = std::make_shared<Build>();
  parts.build->set_limit(request_.memory);
  Capture capture{build_, parts.build.get(), 0, {}, {}};
  Build* const outer = build_;
  struct Restore {
    Lowering& l;
    Build* outer;
    ~Restore() {
      l.build_ = outer;
      l.captures_.pop_back();
    }
  };
  build_ = parts.build.get();
  captures_.push_back(&capture);
  const Restore restore{*this, outer};
  Names inner = inner_names(outside, part);
  give_graph(graph, inner);
  std::vector<Value> given;
  for (const Type& type : types)
    given.push_back(build_->graph.input(fmt::format("a{}", capture.inputs++), type));
  for (const Value& v : captured) capture.take_as_input(v);
  try {
    const std::vector<Item> items =
        inputs ? inputs(given) : std::vector<Item>(given.begin(), given.end());
    for (size_t i = 0; i < graph.inputs.size() && i < items.size(); ++i)
      inner.items[graph.inputs[i].name] = items[i];
    for (const Item& item : outputs_of(graph, inner)) {
      if (!item.is_tensor()) return std::nullopt;
      parts.outputs.push_back(item.value);
    }
  } catch (const RegionCut&) {
    return std::nullopt;
  } catch (const UserError& error) {
    if (error.code() == ExitCode::kNoMemory) throw;
    // A branch that is not taken need not fit. Where it is taken, it is wrong in place, too.
    return std::nullopt;
  }
  parts.captured = capture.captured;
  return parts;
}

void Lowering::capture_also(RegionParts& parts, const std::vector<Value>& captured) {
  for (const Value& v : captured) {
    if (std::ranges::any_of(parts.captured, [&](const Value& c) { return c.id == v.id; })) continue;
    const size_t inputs = parts.build->graph.inputs().size();
    parts.build->graph.input(fmt::format("a{}", inputs), Type(v.type()));
    parts.captured.push_back(v);
  }
}

}  // namespace brrr::onnx
