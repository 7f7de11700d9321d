#include "text/patterns/split_pattern.h"
#include "base/threads/thread_local.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/encoding/utf8.h"
#include "base/errors.h"
#include "formats/json_file.h"

namespace brrr::io {
namespace {

// Steps of backtracking for one place where a match may begin. A sane pattern takes a few for each
// character that it reads; one that doubles with every character takes more than this after 25.
constexpr uint32_t kMostMatchSteps = 20'000'000;
constexpr uint32_t kMostHeapKib = 64 * 1024;
constexpr size_t kLeastJitStack = 64 * 1024, kMostJitStack = 16 * 1024 * 1024;

std::string pcre2_message(int code) {
  PCRE2_UCHAR8 text[256];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

template <auto Free>
struct Pcre2Free {
  template <typename T>
  void operator()(T* p) const {
    Free(p);
  }
};

/// What a thread needs to match; it serves all patterns.
struct Matcher {
  std::unique_ptr<pcre2_match_data, Pcre2Free<pcre2_match_data_free>> data{
      pcre2_match_data_create(1, nullptr)};
  std::unique_ptr<pcre2_match_context, Pcre2Free<pcre2_match_context_free>> context{
      pcre2_match_context_create(nullptr)};
  std::unique_ptr<pcre2_jit_stack, Pcre2Free<pcre2_jit_stack_free>> stack{
      pcre2_jit_stack_create(kLeastJitStack, kMostJitStack, nullptr)};

  Matcher() {
    if (!data || !context) throw std::bad_alloc();
    pcre2_set_match_limit(context.get(), kMostMatchSteps);
    pcre2_set_depth_limit(context.get(), kMostMatchSteps);
    pcre2_set_heap_limit(context.get(), kMostHeapKib);
    if (stack) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};

}  // namespace

SplitPattern::SplitPattern(std::string_view source, PatternSyntax syntax, const std::string& where)
    : source_(source), where_(where), syntax_(std::move(syntax)) {
  int error = 0;
  size_t offset = 0;
  const std::unique_ptr<pcre2_compile_context, Pcre2Free<pcre2_compile_context_free>> context(
      pcre2_compile_context_create(nullptr));
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_code* const code =
      pcre2_compile(as_bytes(syntax_.pcre2.data()), syntax_.pcre2.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &offset, context.get());
  if (code == nullptr)
    user_error("{}: the pattern {} cannot be compiled: {}", where, in_quotes(source),
               pcre2_message(error));
  code_ = std::shared_ptr<const void>(
      code, [](const void* p) { pcre2_code_free(static_cast<pcre2_code*>(const_cast<void*>(p))); });
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // where it fails, the interpreter matches
}

SplitPattern SplitPattern::regex(std::string_view pattern, const std::string& where) {
  return SplitPattern(pattern, read_pattern(pattern, where), where);
}

SplitPattern SplitPattern::literal(std::string_view text, const std::string& where) {
  std::string escaped;
  for (const char c : text) {
    const bool plain = static_cast<uint8_t>(c) >= 0x80 || (c >= '0' && c <= '9') || c == ' ' ||
                       ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
    if (!plain) escaped += '\\';
    escaped += c;
  }
  return regex(escaped, where);
}

std::optional<std::pair<size_t, size_t>> SplitPattern::find(std::string_view text,
                                                            size_t from) const {
  BRRR_THREAD_LOCAL const Matcher matcher;
  const int found =
      pcre2_match(static_cast<const pcre2_code*>(code_.get()), as_bytes(text.data()), text.size(),
                  from, PCRE2_NO_UTF_CHECK, matcher.data.get(), matcher.context.get());
  if (found == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (found < 0)
    user_error(
        "{}: the pattern {} takes too long or too much memory for a text of {} bytes ({}); "
        "tokenizers from a trusted source have no such pattern",
        where_, in_quotes(source_), text.size(), pcre2_message(found));
  const size_t* const ends = pcre2_get_ovector_pointer(matcher.data.get());
  return std::pair{ends[0], ends[1]};
}

}  // namespace brrr::io
