#!/usr/bin/env python3
"""Writes src/text/tokenizer_unicode.h: the code points of \\p{L}, \\p{N} and \\s that GPT-2's split pattern asks for.

The tables are those of Unicode 16.0.0, the version inside tiktoken 0.14. Run with a Python whose unicodedata is
16.0.0 (3.14), or install the package: pip install unicodedata2==16.0.0. When tiktoken is importable, every code
point is compared with the class that tiktoken's own regular expressions give it; --check makes that a must.

    python3 scripts/make_unicode_tables.py [--check] > src/text/tokenizer_unicode.h
"""
import sys

try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata

UNICODE_VERSION = "16.0.0"
# The White_Space property (PropList.txt), which is what \s means in Unicode mode.
WHITE_SPACE = [*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F,
               0x3000]
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def classes():
    letters = {c for c in CODE_POINTS if unicodedata.category(chr(c)).startswith("L")}
    numbers = {c for c in CODE_POINTS if unicodedata.category(chr(c)).startswith("N")}
    return {"Letter": letters, "Number": numbers, "Space": set(WHITE_SPACE)}


def check_against_tiktoken(tables):
    import tiktoken
    ranks = {bytes([b]): b for b in range(256)}
    for name, pattern in (("Letter", r"\p{L}"), ("Number", r"\p{N}"), ("Space", r"\s")):
        encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        theirs = {c for c in CODE_POINTS if encoding.encode_ordinary(chr(c))}
        if theirs != tables[name]:
            sys.exit(f"{name}: {len(theirs ^ tables[name])} code points differ from tiktoken {tiktoken.__version__}, "
                     f"the first is U+{min(theirs ^ tables[name]):04X}")
    print(f"all classes agree with tiktoken {tiktoken.__version__}", file=sys.stderr)


def ranges(points):
    out = []
    for c in sorted(points):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def main():
    if unicodedata.unidata_version != UNICODE_VERSION:
        sys.exit(f"Unicode {UNICODE_VERSION} is needed, this Python has {unicodedata.unidata_version}: "
                 "pip install unicodedata2==16.0.0")
    tables = classes()
    try:
        check_against_tiktoken(tables)
    except ImportError:
        if "--check" in sys.argv:
            raise
    print("#pragma once")
    print(f"// Made by scripts/make_unicode_tables.py from Unicode {UNICODE_VERSION}; do not edit. Closed ranges of code")
    print("// points, ascending: general categories L* and N*, and the property White_Space.")
    print("\n#include <cstdint>\n\nnamespace brrr::io {\n")
    print("struct CodePointRange {\n  uint32_t first, last;\n};\n")
    print(f'inline constexpr const char* kUnicodeVersion = "{UNICODE_VERSION}";')
    print("// clang-format off")
    for name, points in tables.items():
        print(f"inline constexpr CodePointRange k{name}Ranges[] = {{")
        line = "   "
        for first, last in ranges(points):
            item = f" {{0x{first:X},0x{last:X}}},"
            if len(line) + len(item) > 100:
                print(line)
                line = "   "
            line += item
        print(line)
        print("};")
    print("// clang-format on\n\n}  // namespace brrr::io")


if __name__ == "__main__":
    main()
