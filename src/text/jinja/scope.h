#pragma once
// Variables by name. A scope sees those around it; what is set stays in the innermost.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/builtins.h"

namespace brrr::jinja {

class Scope {
 public:
  explicit Scope(const Scope* outer) : outer_(outer) {}
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  const Value* find(std::string_view name, Work& work) const {
    for (const Scope* scope = this; scope; scope = scope->outer_) {
      work.spend(1 + scope->variables_.size() / 8);
      for (const auto& [known, value] : scope->variables_)
        if (known == name) return &value;
    }
    return nullptr;
  }
  void set(const std::string& name, Value value, Work& work) {
    work.spend(1 + variables_.size() / 8);
    for (auto& [known, old] : variables_)
      if (known == name) {
        old = std::move(value);
        return;
      }
    variables_.emplace_back(name, std::move(value));
  }

 private:
  const Scope* outer_;
  std::vector<std::pair<std::string, Value>> variables_;
};

/// Macros and the scopes that they were defined in, the innermost last.
using Homes = std::vector<std::pair<const Macro*, Scope*>>;

/// A scope that forgets its macros when it ends.
class InnerScope : public Scope {
 public:
  InnerScope(const Scope* outer, Homes& homes)
      : Scope(outer), homes_(homes), count_(homes.size()) {}
  InnerScope(const InnerScope&) = delete;
  InnerScope& operator=(const InnerScope&) = delete;
  ~InnerScope() { homes_.resize(count_); }

 private:
  Homes& homes_;
  size_t count_;
};

}  // namespace brrr::jinja
