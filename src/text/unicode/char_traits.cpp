#include "text/unicode/char_traits.h"

#include <algorithm>
#include <iterator>

#include "base/encoding/utf8.h"
#include "text/unicode/library_tables.h"
#include "text/unicode/script_tables.h"

namespace brrr::io {

const CharTraits& CharTraits::get() {
  static const CharTraits traits;
  return traits;
}

CharTraits::CharTraits() : traits_(0x110000) {
  const auto mark = [this](const auto& ranges, Trait trait) {
    for (const CodePointRange& range : ranges)
      for (uint32_t code = range.first; code <= range.last; ++code)
        traits_[code] = static_cast<uint8_t>(traits_[code] | trait);
  };
  mark(kAccentRanges, kAccent);
  mark(kNonspacingRanges, kNonspacing);
  mark(kControlRanges, kControl);
  mark(kChineseRanges, kChinese);
  mark(kPunctuationRanges, kPunctuation);
  mark(kWordRanges, kWord);
  mark(kNfdRanges, kMoves);
  mark(kNoFormRanges, kNoForm);
  page_has_capitals_[0x130 / 256] = true;
  for (const LowercaseRun& run : kLowercaseRuns)
    for (uint32_t page = run.first / 256; page <= run.last / 256; ++page)
      page_has_capitals_[page] = true;
}

int CharTraits::script(uint32_t code) {
  const auto* const behind =
      std::upper_bound(std::begin(kScriptRanges), std::end(kScriptRanges), code,
                       [](uint32_t c, const ScriptRange& range) { return c < range.first; });
  if (behind == std::begin(kScriptRanges) || code > behind[-1].last) return kNoScript;
  return behind[-1].script;
}

void CharTraits::append_lowercase(uint32_t code, std::string& out) const {
  if (code < traits_.size() && page_has_capitals_[code / 256]) {
    if (code == 0x130) {
      out += "i\xcc\x87";
      return;
    }
    // The last run that begins at or before the character.
    const auto* const behind =
        std::upper_bound(std::begin(kLowercaseRuns), std::end(kLowercaseRuns), code,
                         [](uint32_t c, const LowercaseRun& run) { return c < run.first; });
    if (behind != std::begin(kLowercaseRuns)) {
      const LowercaseRun& run = behind[-1];
      if (code <= run.last && (code - run.first) % run.step == 0)
        code = static_cast<uint32_t>(static_cast<int32_t>(code) + run.delta);
    }
  }
  append_utf8(out, code);
}

}  // namespace brrr::io
