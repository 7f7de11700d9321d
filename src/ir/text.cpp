#include "ir/text.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <map>
#include <set>
#include <utility>

#include "base/errors.h"

namespace brrr {
namespace {

std::string id_text(const Graph& graph, ValueId v) {
  const bool parameter = graph.is_input(v.node) && graph.input_kind(v.node) == InputKind::parameter;
  std::string text = (parameter ? "%p" : "%") + std::to_string(v.node);
  if (v.port > 0) text += "." + std::to_string(v.port);
  return text;
}

std::string escaped(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n')
      out += "\\n";
    else
      out += c;
  }
  return out;
}

}  // namespace

std::string print_node(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  std::string types;
  for (const Type& t : node.results) types += (types.empty() ? "" : ", ") + t.str();
  if (node.results.size() != 1) types = "(" + types + ")";
  std::string operands;
  for (const ValueId& v : node.operands)
    operands += (operands.empty() ? "" : ", ") + id_text(graph, v);
  std::string line =
      fmt::format("{} : {} = {}({})", id_text(graph, {id, 0}), types, node.op->name, operands);
  if (!node.attrs.empty()) line += " " + node.attrs.str();
  if (!graph.scope_of(id).empty()) line += " @" + graph.scope_of(id);
  return line;
}

std::string print(const Graph& graph) {
  std::string out;
  for (NodeId id = 0; id < graph.size(); ++id) out += print_node(graph, id) + "\n";
  for (const Output& o : graph.outputs()) {
    if (o.updates == kNoNode && o.gradient_of == kNoNode) {
      out += fmt::format("output \"{}\" {}\n", escaped(o.name), id_text(graph, o.value));
      continue;
    }
    const bool updates = o.updates != kNoNode;
    out += fmt::format("{} {} <- {}\n", updates ? "update" : "gradient",
                       id_text(graph, {updates ? o.updates : o.gradient_of, 0}),
                       id_text(graph, o.value));
  }
  return out;
}

namespace {

class Parser {
 public:
  Parser(std::string_view text, const OpLookup& lookup) : text_(text), lookup_(lookup) {}

  Graph run() {
    parse_lines();
    return std::move(graph_);
  }
  /// The text is one line of attributes in braces.
  Attrs run_attributes() {
    if (!next_line() || !accept("{")) fail("expected attributes in braces");
    Attrs attrs = accept("}") ? Attrs() : attributes();
    skip_spaces();
    if (at_ != line_.size()) fail("expected the end of the attributes");
    return attrs;
  }

 private:
  bool next_line() {
    if (next_ >= text_.size()) return false;
    const size_t end = std::min(text_.find('\n', next_), text_.size());
    line_ = text_.substr(next_, end - next_);
    at_ = 0;
    ++line_number_;
    next_ = end + 1;
    skip_spaces();
    return true;
  }
  /// "backward:h.3.attn", as ScopeInfo::text has it.
  void set_scope(std::string_view text) {
    constexpr std::pair<std::string_view, Phase> kPrefixes[] = {{"backward:", Phase::backward},
                                                                {"recompute:", Phase::recompute},
                                                                {"optimizer:", Phase::optimizer}};
    if (text == "optimizer") return void(graph_.set_scope("", Phase::optimizer));
    for (const auto& [prefix, phase] : kPrefixes)
      if (text.starts_with(prefix))
        return void(graph_.set_scope(text.substr(prefix.size()), phase));
    graph_.set_scope(text);
  }
  /// To the end of the text, or behind the brace that ends a region.
  void parse_lines() {
    while (next_line()) {
      if (depth_ > 0 && accept("}")) return;
      if (at_ < line_.size() && line_[at_] != '#') parse_line_or_fail();
    }
    if (depth_ > 0) fail("a region is not closed");
  }
  Region region() {
    expect("{");
    skip_spaces();
    if (at_ != line_.size()) fail("the nodes of a region begin on the next line");
    if (++depth_ > kMostNested) fail("regions are nested more than {} deep", kMostNested);
    Graph outer = std::exchange(graph_, {});
    std::set<NodeId> outer_updated = std::exchange(updated_, {});
    parse_lines();
    --depth_;
    updated_ = std::move(outer_updated);
    Region out(std::exchange(graph_, std::move(outer)));
    if (!out.problem().empty()) fail("this is not a region: {}", out.problem());
    return out;
  }

  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
    user_error("{}{}, column {}: {}", kPrefix, line_number_, at_ + 1,
               fmt::format(format, std::forward<Args>(args)...));
  }
  void skip_spaces() {
    while (at_ < line_.size() && is_space(line_[at_])) ++at_;
  }
  static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r'; }
  bool accept(std::string_view token) {
    skip_spaces();
    if (line_.substr(at_, token.size()) != token) return false;
    at_ += token.size();
    return true;
  }
  void expect(std::string_view token) {
    if (!accept(token)) fail("expected '{}'", token);
  }
  static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  }
  std::string_view word() {
    skip_spaces();
    const size_t begin = at_;
    while (at_ < line_.size() && is_word(line_[at_])) ++at_;
    if (at_ == begin) fail("expected a name");
    return line_.substr(begin, at_ - begin);
  }
  int64_t integer() {
    skip_spaces();
    int64_t value = 0;
    const auto [end, error] =
        std::from_chars(line_.data() + at_, line_.data() + line_.size(), value);
    if (error != std::errc()) fail("expected an integer");
    at_ = static_cast<size_t>(end - line_.data());
    return value;
  }
  std::string quoted() {
    expect("\"");
    std::string out;
    while (at_ < line_.size() && line_[at_] != '"') {
      char c = line_[at_++];
      if (c == '\\') {
        if (at_ >= line_.size()) break;
        c = line_[at_++];
        if (c == 'n') c = '\n';
      }
      out += c;
    }
    if (at_ >= line_.size()) fail("a string is not closed");
    ++at_;
    return out;
  }
  Shape shape() {
    expect("[");
    Shape out;
    if (accept("]")) return out;
    do {
      skip_spaces();
      if (at_ < line_.size() && line_[at_] >= '0' && line_[at_] <= '9')
        out.push_back(Dim(integer()));
      else
        out.push_back(Dim::symbol(word()));
    } while (accept(","));
    expect("]");
    return out;
  }
  DType dtype() {
    const std::string_view name = word();
    const auto found = dtype_from_name(name);
    if (!found) fail("'{}' is not a dtype", name);
    return *found;
  }
  Type type() {
    const DType d = dtype();
    Type type{d, shape()};
    if (at_ < line_.size() && line_[at_] == '/') {
      ++at_;
      const std::string_view name = word();
      const auto storage = storage_from_name(name);
      if (!storage) fail("'{}' is not a storage", name);
      type.storage = *storage;
    }
    return type;
  }
  ValueId value() {
    expect("%");
    accept("p");
    const int64_t id = integer();
    ValueId v;
    v.port = 0;
    if (at_ < line_.size() && line_[at_] == '.') {
      ++at_;
      const int64_t port = integer();
      if (port < 0 || port > 1'000'000) fail("port {} is out of range", port);
      v.port = static_cast<uint32_t>(port);
    }
    if (id < 0 || static_cast<uint64_t>(id) >= graph_.size())
      fail("%{} is not defined above{}", id,
           depth_ == 0 ? "" : " in this region, which reads the outside through operands alone");
    v.node = static_cast<NodeId>(id);
    if (v.port >= graph_.node(v.node).results.size())
      fail("%{} has {} results", id, graph_.node(v.node).results.size());
    return v;
  }
  /// The rest of a list of integers, or of numbers of which every one has a '.', an exponent or a
  /// name.
  AttrValue list() {
    const size_t end = line_.find(')', at_);
    const bool is_real =
        end != std::string_view::npos &&
        line_.substr(at_, end - at_).find_first_of(".en") != std::string_view::npos;
    std::vector<int64_t> integers;
    std::vector<uint64_t> naturals;  // the same values as long as none is negative
    std::vector<double> reals;
    bool is_wide = false, has_negative = false;  // wide: an int64_t cannot hold it
    if (accept(")")) return integers;
    do {
      if (is_real) {
        reals.push_back(real());
        continue;
      }
      skip_spaces();
      const AttrValue value = any_integer(number_token());
      const auto* natural = std::get_if<uint64_t>(&value);
      is_wide = is_wide || natural != nullptr;
      naturals.push_back(natural ? *natural : static_cast<uint64_t>(std::get<int64_t>(value)));
      integers.push_back(static_cast<int64_t>(naturals.back()));
      if (natural == nullptr && integers.back() < 0) has_negative = true;
    } while (accept(","));
    expect(")");
    if (is_real) return reals;
    if (is_wide && has_negative) fail("a list of 64-bit integers with and without a sign");
    if (is_wide) return naturals;
    return integers;
  }
  std::string_view number_token() {
    const size_t begin = at_;
    while (at_ < line_.size() && line_[at_] != ',' && line_[at_] != ')' && line_[at_] != '}' &&
           line_[at_] != ' ')
      ++at_;
    return line_.substr(begin, at_ - begin);
  }
  /// The token, which has just been read, as an int64_t, or as a uint64_t where it needs one.
  AttrValue any_integer(std::string_view token) {
    const char* const end = token.data() + token.size();
    int64_t value = 0;
    uint64_t natural = 0;
    const auto [rest, error] = std::from_chars(token.data(), end, value);
    if (error == std::errc() && rest == end) return value;
    const auto [wide_rest, wide_error] = std::from_chars(token.data(), end, natural);
    if (wide_error == std::errc() && wide_rest == end) return natural;
    at_ -= token.size();
    if (error == std::errc::result_out_of_range) fail("'{}' does not fit 64 bits", token);
    fail("expected an integer");
  }
  double real() {
    skip_spaces();
    const std::string token(number_token());
    char* end = nullptr;
    const double number = std::strtod(token.c_str(), &end);
    if (token.empty() || end != token.c_str() + token.size()) {
      at_ -= token.size();
      fail("'{}' is not a number", token);
    }
    return number;
  }
  AttrValue attr_value() {
    skip_spaces();
    if (at_ >= line_.size()) fail("expected a value");
    const char c = line_[at_];
    if (c == '"') return quoted();
    if (c == '[') return shape();
    if (c == '{') return region();
    if (c == '(') {
      ++at_;
      return list();
    }
    const size_t begin = at_;
    while (at_ < line_.size() && line_[at_] != ',' && line_[at_] != '}' && line_[at_] != ' ') ++at_;
    const std::string token(line_.substr(begin, at_ - begin));
    if (token == "true") return true;
    if (token == "false") return false;
    if (auto d = dtype_from_name(token)) return *d;
    if (!token.empty() && token.find_first_not_of("-0123456789") == std::string::npos)
      return any_integer(line_.substr(begin, at_ - begin));
    char* end = nullptr;
    const double number = std::strtod(token.c_str(), &end);
    if (token.empty() || end != token.c_str() + token.size()) {
      at_ = begin;
      fail("'{}' is not an attribute value", token);
    }
    return number;
  }
  /// To the brace that ends them.
  Attrs attributes() {
    Attrs attrs;
    do {
      const std::string key(word());
      expect("=");
      attrs.set(key, attr_value());
    } while (accept(","));
    expect("}");
    return attrs;
  }
  // Whatever the graph itself refuses (a name taken twice, a bad symbol) gets its line too.
  void parse_line_or_fail() {
    try {
      parse_line();
    } catch (const UserError& e) {
      if (std::string_view(e.what()).starts_with(kPrefix)) throw;
      fail("{}", e.what());
    }
  }
  void parse_line() {
    if (accept("output ")) {
      const std::string name = quoted();
      graph_.output(name, graph_.value(value()));
    } else if (accept("update ")) {
      const ValueId state = value();
      expect("<-");
      const ValueId v = value();
      if (!graph_.is_input(state.node) || graph_.input_kind(state.node) == InputKind::data)
        fail("only parameters and state are updated");
      if (graph_.type(state) != graph_.type(v)) fail("the update has another type");
      if (!updated_.insert(state.node).second)
        fail("'{}' is updated twice", graph_.input_name(state.node));
      graph_.update(graph_.value(state), graph_.value(v));
    } else if (accept("gradient ")) {
      const ValueId parameter = value();
      expect("<-");
      const ValueId v = value();
      if (!graph_.is_input(parameter.node) ||
          graph_.input_kind(parameter.node) != InputKind::parameter)
        fail("only parameters have gradients");
      graph_.gradient(graph_.value(parameter), graph_.value(v));
    } else {
      parse_node();
    }
    skip_spaces();
    if (at_ != line_.size()) fail("expected the end of the line");
  }
  void parse_node() {
    expect("%");
    accept("p");
    const int64_t id = integer();
    if (id != static_cast<int64_t>(graph_.size()))
      fail("expected node %{}, nodes are numbered in order", graph_.size());
    expect(":");
    std::vector<Type> types;
    if (accept("(")) {
      if (!accept(")")) {
        do types.push_back(type());
        while (accept(","));
        expect(")");
      }
    } else {
      types.push_back(type());
    }
    expect("=");
    const std::string name(word());
    const OpDef* op = name == "input" ? &input_op() : lookup_(name);
    if (op == nullptr) fail("there is no op '{}'", name);
    expect("(");
    std::vector<ValueId> operands;
    if (!accept(")")) {
      do operands.push_back(value());
      while (accept(","));
      expect(")");
    }
    Attrs attrs = accept("{") ? attributes() : Attrs();
    if (accept("@")) {
      const size_t begin = at_;
      while (at_ < line_.size() && !is_space(line_[at_])) ++at_;
      set_scope(line_.substr(begin, at_ - begin));
    } else {
      graph_.set_scope("");
    }
    if (op == &input_op()) {
      const std::string input_name = attrs.get_or<std::string>("name", "");
      if (graph_.find_input(input_name) != kNoNode)
        fail("the input name '{}' is taken", input_name);
    }
    const NodeId added = graph_.add(*op, operands, std::move(attrs));
    if (graph_.node(added).results != types) {
      std::string inferred;
      for (const Type& t : graph_.node(added).results) inferred += " " + t.str();
      fail("the types do not agree with what {} infers:{}", name, inferred);
    }
    graph_.set_scope("");
  }

  static constexpr std::string_view kPrefix = "graph text, line ";
  static constexpr int kMostNested = 16;
  std::string_view text_;
  size_t next_ = 0;  // where the next line begins
  const OpLookup& lookup_;
  std::set<NodeId> updated_;
  Graph graph_;
  std::string_view line_;
  size_t at_ = 0;
  int line_number_ = 0;
  int depth_ = 0;  // of the region that is being read
};

}  // namespace

Graph parse(std::string_view text, const OpLookup& lookup) { return Parser(text, lookup).run(); }

Attrs parse_attrs(std::string_view text) {
  const size_t begin = text.find_first_not_of(' ');
  if (begin == std::string_view::npos) return {};
  const std::string whole = text[begin] == '{' ? std::string(text) : fmt::format("{{{}}}", text);
  return Parser(whole, [](std::string_view) { return nullptr; }).run_attributes();
}

std::string to_dot(const Graph& graph) {
  std::string out = "digraph brrr {\n  rankdir=TB; node [shape=box, fontname=\"monospace\"];\n";
  std::map<std::string, std::vector<NodeId>> by_scope;
  for (NodeId id = 0; id < graph.size(); ++id) by_scope[graph.scope_of(id)].push_back(id);
  int cluster = 0;
  for (const auto& [scope, ids] : by_scope) {
    if (!scope.empty())
      out += fmt::format("  subgraph cluster_{} {{ label=\"{}\";\n", cluster++, escaped(scope));
    for (NodeId id : ids) {
      const Node& node = graph.node(id);
      std::string label =
          graph.is_input(id) ? escaped(graph.input_name(id)) : std::string(node.op->name);
      for (const Type& t : node.results) label += "\\n" + t.str();
      out += fmt::format("    n{} [label=\"{}\"{}];\n", id, label,
                         graph.is_input(id) ? ", style=rounded" : "");
    }
    if (!scope.empty()) out += "  }\n";
  }
  for (NodeId id = 0; id < graph.size(); ++id)
    for (const ValueId& v : graph.node(id).operands)
      out += fmt::format("  n{} -> n{};\n", v.node, id);
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    const Output& o = graph.outputs()[i];
    out += fmt::format("  o{} [label=\"{}\", shape=ellipse];\n  n{} -> o{};\n", i, escaped(o.name),
                       o.value.node, i);
  }
  return out + "}\n";
}

void verify(const Graph& graph) {
  std::set<std::string> names;
  for (NodeId id = 0; id < graph.size(); ++id) {
    const Node& node = graph.node(id);
    BRRR_CHECK(node.op != nullptr, "node %{} has no op", id);
    for (const ValueId& v : node.operands) {
      BRRR_CHECK(v.node < id, "%{} ({}) reads %{}, which comes later", id, node.op->name, v.node);
      BRRR_CHECK(v.port < graph.node(v.node).results.size(), "%{} reads port {} of %{}", id, v.port,
                 v.node);
    }
    for (const auto& [name, value] : node.attrs)
      if (const auto* region = std::get_if<Region>(&value)) {
        BRRR_CHECK(region->problem().empty(), "the region '{}' of %{} ({}): {}", name, id,
                   node.op->name, region->problem());
        verify(region->graph());
      }
    const std::vector<Type> in = operand_types(graph, node);
    const std::vector<Type> expected = node.op->infer(InferContext{*node.op, in, node.attrs});
    BRRR_CHECK(expected == node.results, "the types of {} are not what infer says",
               print_node(graph, id));
    check_storage(*node.op, in, node.results);
    if (graph.is_input(id))
      BRRR_CHECK(names.insert(graph.input_name(id)).second, "two inputs are named '{}'",
                 graph.input_name(id));
  }
  std::set<NodeId> updated;
  for (const Output& o : graph.outputs()) {
    BRRR_CHECK(
        o.value.node < graph.size() && o.value.port < graph.node(o.value.node).results.size(),
        "output '{}' reads a value that does not exist", o.name);
    if (o.gradient_of != kNoNode)
      BRRR_CHECK(o.gradient_of < graph.size() && graph.is_input(o.gradient_of) &&
                     graph.input_kind(o.gradient_of) == InputKind::parameter,
                 "output '{}' is the gradient of something that is not a parameter", o.name);
    if (o.updates == kNoNode) continue;
    BRRR_CHECK(o.updates < graph.size() && graph.is_input(o.updates) &&
                   graph.input_kind(o.updates) != InputKind::data,
               "output '{}' updates something that is not a state", o.name);
    BRRR_CHECK(graph.type({o.updates, 0}) == graph.type(o.value), "update of '{}' changes its type",
               o.name);
    BRRR_CHECK(updated.insert(o.updates).second, "'{}' is updated twice", o.name);
  }
}

}  // namespace brrr
