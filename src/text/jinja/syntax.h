#pragma once
// A template as a tree of statements and expressions. It does not change once it is parsed.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace brrr::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

/// What a call, a filter or a test is given.
struct Arguments {
  std::vector<ExprPtr> places;
  std::vector<std::pair<std::string, ExprPtr>> names;
  ExprPtr list, dict;  // *list, **dict; null where they are absent
};

struct Expr {
  enum class Kind {
    constant,     // value
    name,         // text
    list,         // parts
    tuple,        // parts
    dict,         // parts: key, value, key, value, ...
    attribute,    // parts[0].text
    item,         // parts[0][parts[1]]
    slice,        // parts[0][parts[1]:parts[2]:parts[3]], null where nothing stands
    call,         // parts[0](arguments)
    filter,       // parts[0]|text(arguments)
    test,         // parts[0] is text(arguments)
    negate,       // not parts[0]
    minus,        // -parts[0]
    plus,         // +parts[0]
    binary,       // parts[0] text parts[1]: + - * / // % **
    concat,       // parts, joined as text
    both,         // parts[0] and parts[1]
    either,       // parts[0] or parts[1]
    compare,      // parts[0] operators[0] parts[1] operators[1] parts[2] ...
    conditional,  // parts[1] if parts[0] else parts[2], which may be null
  };
  Kind kind = Kind::constant;
  size_t at = 0;
  int depth = 1;  // expressions inside one another
  std::string text;
  Value value;
  std::vector<ExprPtr> parts;
  std::vector<std::string> operators;
  Arguments arguments;
};

struct Stmt;
using Body = std::vector<std::unique_ptr<Stmt>>;

/// What is assigned: a name, an attribute of a namespace, or several of them.
struct Target {
  std::string name;
  std::string attribute = {};  // of the namespace `name`; "": the name itself
  bool unpacks = false;        // `a, b` and `a,`: the parts
  std::vector<Target> parts = {};
};

/// A macro, or the body of a `call` block.
struct Macro {
  std::string name;
  std::vector<std::string> parameters = {};
  std::vector<ExprPtr> defaults = {};  // of the last parameters
  Body body = {};
  // Whether the body mentions these names, which then hold what no parameter takes.
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
};

struct Stmt {
  enum class Kind {
    data,        // text
    print,       // value
    condition,   // branches, otherwise
    loop,        // for target in value if test [recursive]: body; otherwise
    set,         // target = value
    capture,     // target = body through filter
    macro,       // macro
    call,        // value is the call, macro what `caller` is
    filter,      // body through filter
    with,        // assigned, body
    generation,  // body
    leave,       // break
    next,        // continue
  };
  Kind kind = Kind::data;
  size_t at = 0;
  std::string text;
  Target target;
  ExprPtr value, test;
  bool recursive = false;
  /// A chain of filters whose innermost input is null: what a block gives.
  ExprPtr filter;
  std::vector<std::pair<ExprPtr, Body>> branches;
  std::vector<std::pair<Target, ExprPtr>> assigned;
  Body body, otherwise;
  Macro macro;
};

}  // namespace brrr::jinja
