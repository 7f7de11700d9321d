#include "text/unicode/normal_forms.h"

#include <utf8proc.h>

#include <algorithm>

#include "base/encoding/utf8.h"
#include "base/errors.h"
#include "text/unicode/char_traits.h"

namespace brrr::io {
namespace {

// The longest decomposition, U+FDFA's, has 18 code points.
constexpr size_t kLongestDecomposition = 32;

void append_decomposition(uint32_t code, int options, std::vector<int32_t>& codes) {
  const size_t before = codes.size();
  codes.resize(before + kLongestDecomposition);
  int boundary_class = 0;
  const auto count = utf8proc_decompose_char(
      static_cast<int32_t>(code), codes.data() + before, kLongestDecomposition,
      static_cast<utf8proc_option_t>(options), &boundary_class);
  BRRR_CHECK(count >= 0 && count <= static_cast<utf8proc_ssize_t>(kLongestDecomposition));
  codes.resize(before + static_cast<size_t>(count));
}

int combining_class(int32_t code) { return utf8proc_get_property(code)->combining_class; }

}  // namespace

void append_decomposed(uint32_t code, std::vector<int32_t>& codes) {
  append_decomposition(code, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, codes);
}

void order_marks(std::vector<int32_t>& codes) {
  const auto is_mark = [](int32_t code) { return combining_class(code) != 0; };
  for (auto begin = codes.begin(); begin != codes.end();) {
    begin = std::find_if(begin, codes.end(), is_mark);
    const auto end = std::find_if_not(begin, codes.end(), is_mark);
    if (end - begin > 1)
      std::stable_sort(
          begin, end, [](int32_t a, int32_t b) { return combining_class(a) < combining_class(b); });
    begin = end;
  }
}

std::string normal_form(std::string_view text, NormalForm form) {
  const bool compose = form == NormalForm::nfc || form == NormalForm::nfkc;
  const bool compatible = form == NormalForm::nfkc || form == NormalForm::nfkd;
  const int options = UTF8PROC_STABLE | (compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                      (compatible ? UTF8PROC_COMPAT : 0);
  std::string out;
  out.reserve(text.size() + text.size() / 8);
  std::vector<int32_t> run;
  const auto finish_run = [&] {
    if (run.empty()) return;
    order_marks(run);
    auto length = static_cast<utf8proc_ssize_t>(run.size());
    if (compose)
      length =
          utf8proc_normalize_utf32(run.data(), length, static_cast<utf8proc_option_t>(options));
    BRRR_CHECK(length >= 0 && length <= static_cast<utf8proc_ssize_t>(run.size()));
    for (utf8proc_ssize_t i = 0; i < length; ++i)
      append_utf8(out, static_cast<uint32_t>(run[static_cast<size_t>(i)]));
    run.clear();
  };
  const CharTraits& traits = CharTraits::get();
  const uint8_t* p = as_bytes(text.data());
  const uint8_t* const end = p + text.size();
  while (p < end) {
    const DecodedChar c = decode_utf8(p, end);
    // An ASCII character may be composed with what follows it, and with nothing before it.
    const bool begins_run = c.code < 0x80;
    if (begins_run || c.code == kInvalidByte || traits.has(c.code, CharTraits::kNoForm)) {
      finish_run();
      if (begins_run && p + 1 < end && p[1] >= 0x80)
        run.push_back(static_cast<int32_t>(c.code));
      else
        out.append(reinterpret_cast<const char*>(p), c.bytes);
    } else {
      append_decomposition(c.code, options, run);
    }
    p += c.bytes;
  }
  finish_run();
  return out;
}

}  // namespace brrr::io
