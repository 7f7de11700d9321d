#include "runtime/bindings.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/memory.h"

namespace brrr {

std::span<const size_t> Bindings::find(const std::string& key) const {
  const auto at = entries_.find(key);
  if (at == entries_.end()) return {};
  at->second.used = ++uses_;
  return at->second.programs;
}

std::span<const size_t> Bindings::get(const std::string& key, const std::string& name,
                                      const Compile& compile) {
  if (const auto found = find(key); !found.empty()) return found;
  std::vector<Program> fresh = compiled(compile());
  if (const int64_t limit = engine_.limit(); limit > 0 && engine_.allocated()) {
    if (const int64_t needed = bytes_alone(fresh); needed > limit)
      throw UserError(fmt::format("[bindings] {} needs {} ({} bytes), and the limit is {}", name,
                                  memory_text(needed), needed, memory_text(limit)),
                      ExitCode::kNoMemory);
    while (engine_.bytes_with(fresh) > limit && drop_oldest()) continue;
  }
  int64_t bytes = 0;
  for (const Program& program : fresh) bytes += program.own_bytes();
  while (budget_ > 0 && own_bytes() + bytes > budget_ && drop_oldest()) continue;
  Entry entry;
  entry.used = ++uses_;
  for (Program& program : fresh) entry.programs.push_back(engine_.add(std::move(program)));
  return entries_.insert_or_assign(key, std::move(entry)).first->second.programs;
}

std::vector<Program> Bindings::compiled(const std::vector<Graph>& graphs) const {
  std::vector<Program> programs;
  for (const Graph& graph : graphs) programs.emplace_back(graph, engine_.backend(), options_);
  return programs;
}

bool Bindings::fits_alone(const std::vector<Graph>& graphs) const {
  return engine_.limit() == 0 || bytes_alone(compiled(graphs)) <= engine_.limit();
}

std::vector<size_t> Bindings::programs() const {
  std::vector<size_t> all;
  for (const auto& [key, entry] : entries_)
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

void Bindings::drop(Entries::iterator entry) {
  for (const size_t id : entry->second.programs) engine_.remove(id);
  if (on_drop_) on_drop_(entry->first);
  entries_.erase(entry);
}

bool Bindings::drop_oldest() {
  const auto oldest =
      std::min_element(entries_.begin(), entries_.end(),
                       [](const auto& a, const auto& b) { return a.second.used < b.second.used; });
  if (oldest == entries_.end() || oldest->second.used >= pinned_from_) return false;
  drop(oldest);
  return true;
}

bool Bindings::drop_unpinned() {
  bool any = false;
  while (drop_oldest()) any = true;
  return any;
}

void Bindings::clear() {
  while (!entries_.empty()) drop(entries_.begin());
}

}  // namespace brrr
