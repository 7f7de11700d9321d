#pragma once
// The tables of filters. A filter gets its own name, for several share a function.

#include <span>
#include <string>
#include <string_view>

#include "text/jinja/builtins.h"

namespace brrr::jinja {

struct Filter {
  std::string_view name;
  Value (*call)(Work& work, const std::string& name, const Value& input, const Given& given);
};

std::span<const Filter> text_filters();
std::span<const Filter> number_filters();
std::span<const Filter> list_filters();
/// Those that return iterators, and that read lists by groups.
std::span<const Filter> iterating_filters();

/// What a path like "function.name" or "0.role" leads to; `fallback` (or null) where a step leads
/// nowhere.
Value follow(Work& work, Value value, const Value& path, const Value* fallback = nullptr);
/// By what texts are compared that differ in case alone.
Value without_case(Work& work, const Value& value, bool ignores);
/// The items in the order of their keys; equal keys keep their order.
std::vector<Value> sorted(Work& work, const std::vector<Value>& items,
                          const std::vector<Value>& keys, bool backwards);

}  // namespace brrr::jinja
