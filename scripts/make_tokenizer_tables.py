#!/usr/bin/env python3
"""Writes src/text/unicode/library_tables.h and script_tables.h: what the library `tokenizers` knows of every code point.

Its parts rest on several versions of Unicode, from 8 to 17, so no single table would agree with it. Every code point is
shown to the library itself, and what it does is written down. Needs a Python whose unicodedata knows Unicode 14 (3.11).

    pip install tokenizers==0.23.3
    python3 scripts/make_tokenizer_tables.py > src/text/unicode/library_tables.h
    python3 scripts/make_tokenizer_tables.py scripts > src/text/unicode/script_tables.h
"""
import sys
import unicodedata

import tokenizers
from tokenizers import normalizers, pre_tokenizers

CODES = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def ranges(points):
    out = []
    for c in sorted(points):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def removed_by(normalizer):
    return {c for c in CODES if normalizer.normalize_str(chr(c)) == ""}


def parted_by(pre_tokenizer):
    return {c for c in CODES if len(pre_tokenizer.pre_tokenize_str("a" + chr(c) + "a")) == 3}


def bert(**flags):
    none = {"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False}
    return normalizers.BertNormalizer(**{**none, **flags})


def decomposition_sets():
    """The code points that NFD moves or changes, and those that the library's normal forms do not know."""
    nfd, forms = normalizers.NFD(), {n: getattr(normalizers, n)() for n in ("NFC", "NFD", "NFKC", "NFKD")}
    active, unknown = set(), set()
    for c in CODES:
        character = chr(c)
        # A mark on either side shows the combining class, up to what matters.
        sequences = [character, "a" + character + "\u0334", "a\u0345" + character, "a\u0345\u0327" + character]
        theirs = [nfd.normalize_str(s) for s in sequences]
        if theirs[0] != character or theirs[1] != sequences[1] or theirs[2] != sequences[2]:
            active.add(c)
        if unicodedata.category(character) == "Cn":
            if theirs[:3] != sequences[:3] or forms["NFKC"].normalize_str(character) != character:
                sys.exit(f"U+{c:04X} is not assigned in Unicode 14, but the library's normal forms know it")
            unknown.add(c)
        elif (theirs != [unicodedata.normalize("NFD", s) for s in sequences] or
              any(f.normalize_str(character) != unicodedata.normalize(n, character) for n, f in forms.items())):
            unknown.add(c)
            # What it is composed of, so that it is not composed either.
            if unicodedata.normalize("NFD", character) != character and theirs[0] == character:
                unknown |= {ord(part) for part in unicodedata.normalize("NFD", character)}
    return active, unknown


def lowercase():
    """(first, last, step, what to add) for runs of code points, and what becomes of the rest."""
    normalizer = normalizers.Lowercase()
    runs, others = [], {}
    for c in CODES:
        lower = normalizer.normalize_str(chr(c))
        if lower == chr(c):
            continue
        if len(lower) != 1:
            others[c] = lower
            continue
        delta = ord(lower) - c
        if runs and runs[-1][3] == delta:
            first, last, step, _ = runs[-1]
            gap = c - last
            if (first == last and gap <= 2) or gap == step:
                runs[-1] = [first, c, gap, delta]
                continue
        runs.append([c, c, 1, delta])
    if others != {0x130: "i\u0307"}:
        sys.exit(f"only U+0130 was expected to become more than one character: {others}")
    return runs


def scripts():
    """(first, last, number of a script) for what UnicodeScripts parts; the rest stays with what is before it."""
    pre_tokenizer = pre_tokenizers.UnicodeScripts()
    joined = lambda a, b: len(pre_tokenizer.pre_tokenize_str(chr(a) + chr(b))) == 1
    examples, runs = [ord("a"), 0x3B1], []
    for c in CODES:
        if all(joined(c, example) for example in examples[:2]):
            continue
        last = runs[-1][2] if runs else 0
        number = next((n for n in [last, *range(len(examples))] if joined(examples[n], c)), len(examples))
        if number == len(examples):
            examples.append(c)
        if runs and runs[-1][1] == c - 1 and runs[-1][2] == number:
            runs[-1][1] = c
        else:
            runs.append([c, c, number])
    return runs


def put_ranges(name, points, comment):
    print(f"// {comment}\ninline constexpr CodePointRange {name}[] = {{")
    put_lines([f"{{0x{a:X},0x{b:X}}}" for a, b in ranges(points)])


def put_lines(items):
    line = "   "
    for item in items:
        if len(line) + len(item) + 2 > 98:
            print(line)
            line = "   "
        line += " " + item + ","
    print(line + "\n};")


def write_scripts():
    print(f"""#pragma once
// Made by scripts/make_tokenizer_tables.py from the library tokenizers {tokenizers.__version__}; do not edit.
// Scripts as UnicodeScripts knows them, by number: closed ranges, ascending. Characters in none join any.

#include <cstdint>

namespace brrr::io {{

struct ScriptRange {{
  uint32_t first, last;
  int script;
}};

// clang-format off
inline constexpr ScriptRange kScriptRanges[] = {{""")
    put_lines([f"{{0x{a:X},0x{b:X},{n}}}" for a, b, n in scripts()])
    print("// clang-format on\n\n}  // namespace brrr::io")


def main():
    if sys.argv[1:] == ["scripts"]:
        write_scripts()
        return
    if unicodedata.unidata_version != "14.0.0":
        sys.exit(f"Unicode 14 is needed, this Python has {unicodedata.unidata_version}")
    punctuation = parted_by(pre_tokenizers.Punctuation("isolated"))
    if punctuation != parted_by(pre_tokenizers.BertPreTokenizer()) - set(map(ord, "\n")):
        sys.exit("Punctuation and BertPreTokenizer differ on what punctuation is")
    active, unknown = decomposition_sets()
    print(f"""#pragma once
// Made by scripts/make_tokenizer_tables.py from the library tokenizers {tokenizers.__version__}; do not edit.
// What its normalizers and pre-tokenizers do with each code point: closed ranges, ascending.

#include "text/tokenizer_unicode.h"

namespace brrr::io {{

struct LowercaseRun {{
  uint32_t first, last, step;
  int32_t delta;  // what is added to every step-th code point from `first` to `last`
}};

// clang-format off""")
    put_ranges("kAccentRanges", removed_by(normalizers.StripAccents()), "StripAccents removes them.")
    accents = bert(strip_accents=True)
    put_ranges("kNonspacingRanges", removed_by(accents), "BertNormalizer removes them as accents.")
    put_ranges("kControlRanges", removed_by(bert(clean_text=True)), "BertNormalizer's clean_text removes them.")
    put_ranges("kChineseRanges", {c for c in CODES if bert(handle_chinese_chars=True).normalize_str(chr(c)) != chr(c)},
               "BertNormalizer's handle_chinese_chars puts spaces around them.")
    put_ranges("kPunctuationRanges", punctuation, "Punctuation and BertPreTokenizer part a text at them.")
    word = pre_tokenizers.Whitespace()
    put_ranges("kWordRanges", {c for c in CODES if len(word.pre_tokenize_str("a" + chr(c) + "a")) == 1},
               "Whitespace takes them as characters of words.")
    put_ranges("kNfdRanges", active, "NFD decomposes them or moves them behind other marks.")
    put_ranges("kNoFormRanges", unknown, "The normal forms leave them alone, whatever newer versions of Unicode say.")
    print("// What Lowercase changes, but U+0130, which becomes \"i\\u0307\".")
    print("inline constexpr LowercaseRun kLowercaseRuns[] = {")
    put_lines([f"{{0x{a:X},0x{b:X},{step},{delta}}}" for a, b, step, delta in lowercase()])
    print("// clang-format on\n\n}  // namespace brrr::io")


if __name__ == "__main__":
    main()
