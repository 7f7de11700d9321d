#include "support/ptx_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <utility>

#include "support/ptx_text.h"

namespace brrr::test::ptx {
namespace {

struct Register {
  uint32_t at = Value::kNone;  // a place is given where it is used first
  int bits = 0;
};
struct Variable {
  char space = 0;  // as Decoder::space_of
  uint64_t address = 0;
};
/// Names of a block { ... }; `%r<9>` is a row of them.
struct Scope {
  std::map<std::string, Register, std::less<>> registers;
  std::map<std::string, std::pair<int, int>, std::less<>> rows;  // prefix: bits, how many
  std::map<std::string, Variable, std::less<>> variables;
};
struct Function {
  size_t body = 0;  // the token behind "{"
  std::vector<std::string> results, params;
};

class Parser final : public Decoder {
 public:
  /// `static_bytes`: of shared memory, known after a first parse where the body declares some.
  Parser(std::string_view text, std::string_view entry, uint32_t static_bytes)
      : tokens_(tokens_of(text)), static_bytes_(static_bytes) {
    program = &made_;
    made_.entry = entry;
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      made_.lines.emplace_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
  }

  Program&& run() {
    scopes_.emplace_back();
    module();
    if (entry_body_ == 0) throw Error(fmt::format("there is no kernel {}", made_.entry));
    made_.dynamic_shared = kFirstShared + static_bytes_;
    // As aligned as was asked for, and no more, so that who needs more is found out.
    const uint32_t step = dynamic_alignment_;
    made_.dynamic_shared = (made_.dynamic_shared + step - 1) / step * step;
    if (made_.dynamic_shared % (2 * step) == 0) made_.dynamic_shared += step;
    for (const std::string& name : dynamic_names_)
      scopes_[0].variables[name] = {'s', made_.dynamic_shared};
    at_ = entry_body_;
    body();
    for (const auto& [index, label] : branches_) {
      const auto found = labels_.find(label);
      if (found == labels_.end())
        throw Error(fmt::format("{}: no such label", made_.at(made_.code[index].line)));
      made_.code[index].target = found->second;
    }
    Statement s{"exit", {"exit"}, {}, made_.code.empty() ? 1 : made_.code.back().line};
    emit(s, Value::kNone, false);
    return std::move(made_);
  }

  // -- Decoder

  Value source(const Operand& o, int bits) override {
    if (o.kind == Operand::Kind::number) {
      uint64_t value = o.bits;
      if (o.float_bits != 0 && o.float_bits != bits) refuse("a float of another size");
      if (bits == 1) value = value != 0 ? kAllLanes : 0;
      return literal(value, bits);
    }
    if (o.kind != Operand::Kind::name) refuse("an operand that is no register");
    if (const Variable* v = variable(o.name)) return literal(v->address, bits);
    Register& r = reg(o.name);
    if (r.bits != bits) refuse(fmt::format("{} has {} bits instead of {}", o.name, r.bits, bits));
    reads_.push_back(r.at / 64);
    return {r.at};
  }
  Value destination(const Operand& o, int bits) override {
    if (o.kind == Operand::Kind::sink) return {};
    if (o.kind != Operand::Kind::name) refuse("a destination that is no register");
    Register& r = reg(o.name);
    if (r.bits != bits) refuse(fmt::format("{} has {} bits instead of {}", o.name, r.bits, bits));
    writes_.push_back(r.at / 64);
    return {r.at};
  }
  int bits_of(const Operand& o) const override {
    if (o.kind != Operand::Kind::name && o.kind != Operand::Kind::address) return 0;
    if (o.name.empty() || variable(o.name) != nullptr) return 0;
    return const_cast<Parser*>(this)->reg(o.name).bits;
  }
  Value address(const Operand& o) override {
    if (o.kind != Operand::Kind::address) refuse("an address was expected");
    now->offset = o.offset;
    if (o.name.empty()) return literal(0, 64);
    if (const Variable* v = variable(o.name)) return literal(v->address, 64);
    Register& r = reg(o.name);
    if (r.bits != 32 && r.bits != 64) refuse("an address of neither 32 nor 64 bits");
    reads_.push_back(r.at / 64);
    return {r.at};
  }
  char space_of(const Operand& o) const override {
    const Variable* v = variable(o.name);
    return v != nullptr ? v->space : '\0';
  }
  [[noreturn]] void refuse(const std::string& why) const override {
    throw Error(fmt::format("{}: {}", made_.at(line_), why));
  }

 private:
  // -- names
  const Variable* variable(const std::string& name) const {
    for (size_t k = scopes_.size(); k-- > 0;) {
      const auto found = scopes_[k].variables.find(name);
      if (found != scopes_[k].variables.end()) return &found->second;
      if (k == first_scope_ && k > 0) k = 1;  // a function sees itself and the module
    }
    return nullptr;
  }
  uint32_t place(int bits) {
    const uint32_t at = made_.register_bytes;
    made_.register_bytes += bits == 1 ? 64 : static_cast<uint32_t>(bits) * 4;
    return at;
  }
  Register& reg(const std::string& name) {
    for (size_t k = scopes_.size(); k-- > first_scope_;) {
      Scope& scope = scopes_[k];
      auto found = scope.registers.find(name);
      if (found == scope.registers.end()) {
        size_t digits = name.size();
        while (digits > 0 && std::isdigit(static_cast<unsigned char>(name[digits - 1])) != 0)
          --digits;
        const auto row = scope.rows.find(name.substr(0, digits));
        if (digits == name.size() || row == scope.rows.end() ||
            std::atoi(name.c_str() + digits) >= row->second.second)
          continue;
        found = scope.registers.emplace(name, Register{Value::kNone, row->second.first}).first;
      }
      if (found->second.at == Value::kNone) found->second.at = place(found->second.bits);
      return found->second;
    }
    static const char* const kSpecial[] = {
        "%tid.x",   "%tid.y",   "%tid.z",    "%ntid.x",   "%ntid.y",   "%ntid.z", "%ctaid.x",
        "%ctaid.y", "%ctaid.z", "%nctaid.x", "%nctaid.y", "%nctaid.z", "%laneid"};
    for (const char* special : kSpecial)
      if (name == special) {
        Register& r = scopes_[0].registers[name];
        if (r.at == Value::kNone) {
          r = {place(32), 32};
          made_.special[name] = r.at;
        }
        return r;
      }
    refuse(fmt::format("unknown name {}", name));
  }

  // -- tokens

  const Token& peek(size_t further = 0) const {
    static const Token kEnd{"", 0};
    return at_ + further < tokens_.size() ? tokens_[at_ + further] : kEnd;
  }
  const Token& next() {
    if (at_ >= tokens_.size()) throw Error("the text ends too early");
    line_ = tokens_[at_].line;
    return tokens_[at_++];
  }
  bool take(std::string_view text) {
    if (peek().text != text) return false;
    next();
    return true;
  }
  void expect(std::string_view text) {
    if (!take(text)) {
      line_ = peek().line;
      refuse(fmt::format("'{}' instead of '{}'", peek().text, text));
    }
  }
  int64_t integer() {
    const bool negative = take("-");
    const std::string text = next().text;
    size_t used = 0;
    uint64_t value = 0;
    try {
      value = std::stoull(text, &used, 0);
    } catch (const std::exception&) {
      used = 0;
    }
    if (used < text.size() && text.substr(used) == "U") used = text.size();
    if (used == 0 || used != text.size()) refuse(fmt::format("'{}' is no number", text));
    return negative ? -static_cast<int64_t>(value) : static_cast<int64_t>(value);
  }

  // -- the module

  void module() {
    while (at_ < tokens_.size()) {
      const std::string word = next().text;
      if (word == ".version") {
        next();
      } else if (word == ".target") {
        next();
        while (take(",")) next();
      } else if (word == ".address_size") {
        if (next().text != "64") refuse("addresses of another size");
      } else if (word == ".visible" || word == ".weak" || word == ".extern") {
        is_extern_ = word == ".extern";
        continue;
      } else if (word == ".entry") {
        kernel();
      } else if (word == ".func") {
        function();
      } else if (word == ".global" || word == ".const" || word == ".shared") {
        declare(word == ".shared" ? 's' : 'g');
      } else {
        refuse(fmt::format("unknown directive {}", word));
      }
      is_extern_ = false;
    }
  }
  void skip_body() {
    for (int depth = 1; depth > 0;) {
      const std::string& text = next().text;
      depth += text == "{" ? 1 : text == "}" ? -1 : 0;
    }
  }
  /// ( .param .u64 a, .param .align 64 .b8 b[128] )
  std::vector<Param> formals() {
    std::vector<Param> list;
    if (!take("(")) return list;
    uint32_t offset = 0;
    while (!take(")")) {
      expect(".param");
      Param p;
      uint32_t bytes = 0, alignment = 0;
      while (peek().text.starts_with(".")) {
        const std::string word = next().text;
        if (word == ".align") {
          alignment = static_cast<uint32_t>(integer());
        } else if (word == ".ptr") {  // of what it points to
          while (peek().text.starts_with("."))
            if (next().text == ".align") integer();
        } else if ((bytes = bytes_of_type(word)) == 0) {
          refuse(fmt::format("unknown type {}", word));
        }
      }
      p.name = next().text;
      p.alignment = std::max(alignment, bytes);
      if (take("[")) {
        bytes *= static_cast<uint32_t>(integer());
        expect("]");
        p.alignment = std::max(alignment, 1u);
      }
      p.bytes = bytes;
      p.offset = offset = (offset + p.alignment - 1) / p.alignment * p.alignment;
      offset += bytes;
      list.push_back(p);
      take(",");
    }
    return list;
  }
  void kernel() {
    const bool is_wanted = next().text == made_.entry;
    const std::vector<Param> params = formals();
    while (!take("{")) {
      const std::string word = next().text;
      if (word != ".maxntid" && word != ".minnctapersm" && word != ".reqntid" && word != ".maxnreg")
        refuse(fmt::format("unknown directive {}", word));
      const auto first = static_cast<uint32_t>(integer());
      uint32_t all = first;
      while (take(",")) all *= static_cast<uint32_t>(integer());
      if (is_wanted && word.ends_with("ntid")) made_.most_threads = all;
    }
    if (is_wanted) {
      made_.params = params;
      for (const Param& p : params) {
        scopes_[0].variables[p.name] = {'p', p.offset};
        made_.param_bytes = p.offset + p.bytes;
      }
      entry_body_ = at_;
    }
    skip_body();
  }
  void function() {
    Function f;
    for (const Param& p : formals()) f.results.push_back(p.name);
    const std::string name = next().text;
    for (const Param& p : formals()) f.params.push_back(p.name);
    if (take(";")) return;
    while (take(".noinline")) continue;
    expect("{");
    f.body = at_;
    functions_[name] = f;
    skip_body();
  }
  /// .align 4 .b8 name[24] = {65, 144};
  void declare(char space) {
    uint32_t alignment = 0, bytes = 0;
    while (peek().text.starts_with(".")) {
      const std::string word = next().text;
      if (word == ".align")
        alignment = static_cast<uint32_t>(integer());
      else if ((bytes = bytes_of_type(word)) == 0)
        refuse(fmt::format("unknown type {}", word));
    }
    alignment = std::max(alignment, std::max(bytes, 1u));
    do {
      const std::string name = next().text;
      const uint32_t element = bytes;
      uint64_t count = 1;
      while (take("[")) {
        count *= peek().text == "]" ? 0 : static_cast<uint64_t>(integer());
        expect("]");
      }
      const auto size = static_cast<uint32_t>(element * count);
      Variable v{space, 0};
      if (space == 's' && is_extern_) {
        dynamic_alignment_ = std::max(dynamic_alignment_, alignment);
        dynamic_names_.push_back(name);
      } else if (space == 's') {
        uint32_t& used = made_.static_shared_bytes;
        used = (used + alignment - 1) / alignment * alignment;
        v.address = kFirstShared + used;
        used += size;
      } else if (space == 'l') {
        uint32_t& used = made_.local_bytes;
        used = (used + alignment - 1) / alignment * alignment;
        v.address = used;
        used += size;
      } else {
        made_.globals.push_back(std::make_unique<std::byte[]>(size + alignment));
        auto start = reinterpret_cast<uint64_t>(made_.globals.back().get());
        start = (start + alignment - 1) / alignment * alignment;
        v.address = start;
      }
      if (take("=")) initialise(v.address, element, size);
      scopes_.back().variables[name] = v;
    } while (take(","));
    expect(";");
  }
  void initialise(uint64_t at, uint32_t element, uint32_t size) {
    auto* to = reinterpret_cast<std::byte*>(at);
    uint32_t done = 0;
    const bool is_list = take("{");
    do {
      const Operand o = number();
      if (done + element > size) refuse("too many values");
      std::memcpy(to + done, &o.bits, element);
      done += element;
    } while (is_list && take(","));
    if (is_list) expect("}");
  }

  // -- a kernel's body

  void body() {
    scopes_.emplace_back();
    const size_t outside = scopes_.size();
    while (scopes_.size() >= outside) statement();
  }
  void statement() {
    const std::string word = next().text;
    if (word == "{") {
      scopes_.emplace_back();
    } else if (word == "}") {
      scopes_.pop_back();
    } else if (word == ".reg") {
      registers();
    } else if (word == ".shared") {
      declare('s');
    } else if (word == ".local" || word == ".param") {
      declare('l');
    } else if (word == ".pragma") {
      // Advice to the assembler; but what a load does not need nobody needs to have written.
      const std::string text = next().text, used = "\"used_bytes_mask ";
      if (text.starts_with(used))
        used_bytes_ = static_cast<uint32_t>(std::stoul(text.substr(used.size())));
      else if (text != "\"nounroll\"")
        refuse("unknown pragma");
      expect(";");
    } else if (peek().text == ":") {
      next();
      if (!labels_.emplace(instance_ + word, made_.code.size()).second) refuse("a label twice");
    } else {
      instruction(word);
    }
  }
  void registers() {
    const std::string type = next().text;
    const int bits = type == ".pred" ? 1 : static_cast<int>(bytes_of_type(type)) * 8;
    if (bits != 1 && bits != 16 && bits != 32 && bits != 64)
      refuse(fmt::format("registers of type {}", type));
    do {
      const std::string name = next().text;
      if (take("<")) {
        scopes_.back().rows[name] = {bits, static_cast<int>(integer())};
        expect(">");
      } else {
        scopes_.back().registers[name] = {Value::kNone, bits};
      }
    } while (take(","));
    expect(";");
  }
  Operand number() {
    Operand o;
    o.kind = Operand::Kind::number;
    const std::string& text = peek().text;
    if (text.size() > 2 && text[0] == '0' && (text[1] == 'f' || text[1] == 'F')) {
      o.bits = std::stoull(text.substr(2), nullptr, 16), o.float_bits = 32;
      next();
    } else if (text.size() > 2 && text[0] == '0' && (text[1] == 'd' || text[1] == 'D')) {
      o.bits = std::stoull(text.substr(2), nullptr, 16), o.float_bits = 64;
      next();
    } else {
      o.bits = static_cast<uint64_t>(integer());
    }
    return o;
  }
  Operand operand() {
    Operand o;
    if (take("{")) {
      o.kind = Operand::Kind::list;
      while (!take("}")) {
        o.items.push_back(operand());
        take(",");
      }
      return o;
    }
    if (take("[")) {
      o.kind = Operand::Kind::address;
      if (!is_number()) o.name = next().text;
      if (o.name.empty()) o.offset = integer();
      if (take("+")) o.offset = integer();
      if (take(",")) o.items.push_back(operand());
      expect("]");
      return o;
    }
    if (is_number()) return number();
    o.is_negated = take("!");
    o.name = next().text;
    if (o.name == "_") o.kind = Operand::Kind::sink;
    if (take("|")) {
      Operand pair;
      pair.kind = Operand::Kind::pair;
      pair.items = {o, operand()};
      return pair;
    }
    return o;
  }
  bool is_number() const {
    const std::string& text = peek().text;
    return text == "-" || (!text.empty() && std::isdigit(static_cast<unsigned char>(text[0])) != 0);
  }
  void instruction(std::string word) {
    uint32_t guard = Value::kNone;
    bool is_negated = false;
    if (word == "@") {
      is_negated = take("!");
      const Register& r = reg(next().text);
      if (r.bits != 1) refuse("a guard that is no predicate");
      guard = r.at;
      reads_.push_back(guard / 64);
      word = next().text;
    }
    Statement s;
    s.opcode = word;
    s.line = line_;
    for (size_t begin = 0; begin <= word.size();) {
      const size_t end = std::min(word.find('.', begin), word.size());
      s.parts.push_back(word.substr(begin, end - begin));
      begin = end + 1;
    }
    if (s.parts[0] == "call") {
      if (guard != Value::kNone) refuse("a call under a guard");
      return call();
    }
    if (!take(";")) {
      do s.operands.push_back(operand());
      while (take(","));
      expect(";");
    }
    line_ = s.line;
    if (s.is("ret") && !return_label_.empty()) {
      s = {"bra", {"bra"}, {{}}, s.line};
      s.operands[0].name = return_label_;
    }
    if (s.is("bra")) {
      branches_.emplace_back(made_.code.size(), instance_ + s.operands.at(0).name);
      s.operands.clear();
    }
    emit(s, guard, is_negated);
  }
  void emit(const Statement& s, uint32_t guard, bool is_negated) {
    Instruction made;
    made.line = s.line;
    made.guard = guard;
    made.guard_is_negated = is_negated;
    made.is_aligned = s.has("aligned");
    made.used_bytes = std::exchange(used_bytes_, ~0u);
    now = &made;
    made.list = static_cast<uint32_t>(made_.lists.size());
    try {
      if (!decode_predicates(*this, s) && !decode_arithmetic(*this, s) &&
          !decode_conversion(*this, s) && !decode_memory(*this, s) && !decode_control(*this, s) &&
          !decode_matrix(*this, s) && !decode_async(*this, s))
        refuse(fmt::format("unknown instruction {}", s.opcode));
    } catch (const std::out_of_range&) {
      refuse(fmt::format("{} operands are not what it has", s.operands.size()));
    }
    made.first_read = static_cast<uint32_t>(made_.registers_of.size());
    made.reads = static_cast<uint32_t>(reads_.size());
    made.writes = static_cast<uint32_t>(writes_.size());
    made_.registers_of.insert(made_.registers_of.end(), reads_.begin(), reads_.end());
    made_.registers_of.insert(made_.registers_of.end(), writes_.begin(), writes_.end());
    reads_.clear();
    writes_.clear();
    made_.code.push_back(made);
  }
  /// The function's instructions stand where it is called; its parameters are the caller's.
  void call() {
    std::vector<std::string> results, params;
    const auto names = [&](std::vector<std::string>& list) {
      if (!take("(")) return;
      while (!take(")")) {
        list.push_back(next().text);
        take(",");
      }
    };
    names(results);
    if (!results.empty()) expect(",");
    const std::string name = next().text;
    if (take(",")) names(params);
    expect(";");
    const auto found = functions_.find(name);
    if (found == functions_.end()) refuse(fmt::format("unknown function {}", name));
    const Function& f = found->second;
    if (f.results.size() != results.size() || f.params.size() != params.size())
      refuse(fmt::format("{} has other parameters", name));
    if (calls_ > 1000) refuse("a function that calls itself");
    Scope bound;
    const auto bind = [&](const std::vector<std::string>& formal,
                          const std::vector<std::string>& actual) {
      for (size_t k = 0; k < formal.size(); ++k) {
        const Variable* v = variable(actual[k]);
        if (v == nullptr) refuse(fmt::format("unknown name {}", actual[k]));
        bound.variables[formal[k]] = *v;
      }
    };
    bind(f.results, results);
    bind(f.params, params);
    const size_t back = at_, first = first_scope_;
    const std::string instance = instance_, label = return_label_;
    instance_ = fmt::format("{}:", ++calls_);
    return_label_ = "return";
    scopes_.push_back(std::move(bound));
    first_scope_ = scopes_.size() - 1;
    at_ = f.body;
    body();
    labels_[instance_ + return_label_] = static_cast<uint32_t>(made_.code.size());
    scopes_.pop_back();
    instance_ = instance;
    return_label_ = label;
    first_scope_ = first;
    at_ = back;
  }

  std::vector<Token> tokens_;
  Program made_;
  size_t at_ = 0, entry_body_ = 0, first_scope_ = 0;
  uint32_t static_bytes_, line_ = 1, used_bytes_ = ~0u, dynamic_alignment_ = 16;
  bool is_extern_ = false;
  std::vector<std::string> dynamic_names_;
  std::vector<Scope> scopes_;
  std::map<std::string, Function> functions_;
  std::map<std::string, uint32_t> labels_;
  std::vector<std::pair<size_t, std::string>> branches_;
  std::vector<uint32_t> reads_, writes_;
  std::string instance_, return_label_;
  int calls_ = 0;
};

}  // namespace

std::unique_ptr<Program> parse(std::string_view text, std::string_view entry) {
  auto program = std::make_unique<Program>(Parser(text, entry, 0).run());
  if (const uint32_t bytes = program->static_shared_bytes; bytes != 0)
    program = std::make_unique<Program>(Parser(text, entry, bytes).run());
  return program;
}

}  // namespace brrr::test::ptx
