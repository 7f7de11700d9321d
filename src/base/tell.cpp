#include "base/tell.h"

#include <cstdio>
#include <mutex>
#include <utility>

namespace brrr {
namespace {

std::recursive_mutex g_mutex;  // a sink may say something itself
std::function<void(std::string_view)> g_sink;

}  // namespace

void tell_text(std::string_view text) {
  const std::lock_guard lock(g_mutex);
  if (g_sink) return g_sink(text);
  if (std::fwrite(text.data(), 1, text.size(), stderr) < text.size()) std::clearerr(stderr);
  std::fflush(stderr);
}

void set_tell_sink(std::function<void(std::string_view)> sink) {
  const std::lock_guard lock(g_mutex);
  g_sink = std::move(sink);
}

bool has_tell_sink() {
  const std::lock_guard lock(g_mutex);
  return static_cast<bool>(g_sink);
}

}  // namespace brrr
