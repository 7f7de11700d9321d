#include "runtime/bindings.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/memory.h"

namespace brrr {

std::string Binding::str() const { return fmt::format("batch {}, length {}", batch, length); }

std::span<const size_t> Bindings::find(const Binding& binding) const {
  const auto at = entries_.find(binding);
  if (at == entries_.end()) return {};
  at->second.used = ++uses_;
  return at->second.programs;
}

std::span<const size_t> Bindings::get(const Binding& binding, const Compile& compile) {
  if (const auto found = find(binding); !found.empty()) return found;
  std::vector<Program> fresh = compiled(binding, compile);
  if (engine_.limit() > 0 && engine_.allocated()) {
    if (const int64_t needed = bytes_alone(fresh); needed > engine_.limit())
      refuse(binding, needed, compile);
    while (engine_.bytes_with(fresh) > engine_.limit()) drop_oldest();
  }
  int64_t bytes = 0;
  for (const Program& program : fresh) bytes += program.own_bytes();
  while (budget_ > 0 && !entries_.empty() && own_bytes() + bytes > budget_) drop_oldest();
  Entry& entry = entries_[binding];
  entry.used = ++uses_;
  for (Program& program : fresh) entry.programs.push_back(engine_.add(std::move(program)));
  return entry.programs;
}

std::vector<Program> Bindings::compiled(const Binding& binding, const Compile& compile) const {
  std::vector<Program> programs;
  for (const Graph& graph : compile(binding))
    programs.emplace_back(graph, engine_.backend(), options_);
  return programs;
}

std::vector<size_t> Bindings::programs() const {
  std::vector<size_t> all;
  for (const auto& [binding, entry] : entries_)
    all.insert(all.end(), entry.programs.begin(), entry.programs.end());
  return all;
}

int64_t Bindings::own_bytes() const {
  int64_t bytes = 0;
  for (const size_t id : programs()) bytes += engine_.program(id).own_bytes();
  return bytes;
}

int64_t Bindings::bytes_alone(std::span<const Program> fresh) const {
  return engine_.bytes_with(fresh, programs());
}

// Bytes grow with the length: the largest that fits, by bisection.
void Bindings::refuse(const Binding& binding, int64_t needed, const Compile& compile) const {
  const int64_t limit = engine_.limit();  // compiling may set it anew
  int64_t fits = 0, too_long = binding.length;
  while (fits + 1 < too_long) {
    const int64_t middle = fits + (too_long - fits) / 2;
    const std::vector<Program> tried = compiled({binding.batch, middle}, compile);
    (bytes_alone(tried) <= engine_.limit() ? fits : too_long) = middle;
  }
  throw UserError(fmt::format("[bindings] {} needs {} ({} bytes), and the limit is {}; {}",
                              binding.str(), memory_text(needed), needed, memory_text(limit),
                              fits > 0 ? fmt::format("the largest that fits is {}",
                                                     Binding{binding.batch, fits}.str())
                                       : fmt::format("no length fits at batch {}", binding.batch)),
                  ExitCode::kNoMemory);
}

void Bindings::drop_oldest() {
  const auto oldest =
      std::min_element(entries_.begin(), entries_.end(),
                       [](const auto& a, const auto& b) { return a.second.used < b.second.used; });
  BRRR_CHECK(oldest != entries_.end(), "there is no binding to drop");
  for (const size_t id : oldest->second.programs) engine_.remove(id);
  entries_.erase(oldest);
}

}  // namespace brrr
