// Any text as a graph: a UserError that names the line, or a graph that keeps every promise and
// that printing and parsing leave as it is.
#include <string_view>

#include "base/errors.h"
#include "ir/text.h"
#include "ops/ops.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace brrr;
  try {
    const Graph graph = parse({reinterpret_cast<const char*>(data), size}, find_op);
    verify(graph);
    const std::string text = print(graph);
    std::string again;
    try {
      again = print(parse(text, find_op));
    } catch (const UserError& e) {
      BRRR_CHECK(false, "printed, but not parsed: {}", e.what());
    }
    BRRR_CHECK(again == text);
    to_dot(graph);
  } catch (const UserError& e) {
    BRRR_CHECK(std::string_view(e.what()).starts_with("graph text, line "), "{}", e.what());
  }
  return 0;
}
