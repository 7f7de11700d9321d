#!/usr/bin/env python3
"""Writes how the library `tokenizers` splits texts by regular expressions, for tests/text/pattern_golden_test.cpp.

    pip install tokenizers==0.23.3
    python3 tests/golden/make_pattern_goldens.py > tests/golden/patterns.json

The patterns are Oniguruma's: HAND has one of each construct, RANDOM a sample of random ones. `splits` has the pieces
of every text of `texts`, as Split(Regex(pattern), "isolated") gives them, and `replaced` the texts with every match
replaced by "<>".
"""
import json

from tokenizers import Regex, normalizers, pre_tokenizers

HAND = r"""
\p{Punct}
\p{Alnum}+
[[:punct:]]+
[[:^punct:]]+
[[:alpha:]]+|[[:digit:]]
[[:word:]]+
\p{Word}+
\w+
[\w]+
[^\w]
\W+
\p{Letter}+
\p{Uppercase_Letter}\p{lowercase letter}*
\p{^L}+
\P{^N}
\p{Han}+
\p{Greek}|\p{Common}
\p{LC}+
\bfoo|x\b
\Bo
\bé
\h+
\H+
[\h\-]+
(?m).+
(?m:a.b)|.
(?-m:.)
(?x) a \d # a comment
 | z +
(?x)[ b]+
(?#note)a+
(?i)B|k
(?i:b(?-i)C)|z
a(?i)b|c
(a)\1?
(z)(?:x|\1)
(?<n>z)\k<n>
(?'n'o)(o)\k'n'?
(o)\k<-1>
(a|b)(c|d)?\2
\R
\X
\N+
\O
a\K1
\G.
[a-z&&[^aeiou]]+
[^a-z&&b-d]+
[a-c[x-z]]+
[a-c&&^b]
[[^a]&&[^b]]
[]a]
[a-]
[^]]
[\b]
a++|o*+
(?>z+)z?
\w{2}+
\d{1,3}+
z{2,}?
a{2}?
o+??
(?:oo)**
a{,2}
\141|\x7A|\u00e9|\x{3042}|\o{172}|\cJ|\C-M
\Z|^z
$|\A.
(?<=a|oo)[1_]
(?<!ab)1
(?=\p{L})\X|\s+(?!\S)|\s
"""

RANDOM = r"""
(?im-x)|\z\P{Other_Letter}
[^\D_]\p{ID_Start}{2}?1*
\.日*?
(?>\S|\P{XDigit}[^AB[:^word:]]*)
 (?-i:!*+)
\W{1,2}+\t|_{1,2}\p{uppercase-letter}\B
\n{1,2}?
\p{Cyrillic}++\X|.
\n*+1{,2}
\N\n{1,2}?
[[:^digit:]\P{Punct}]*\u00e9[\P{P}&&0-9一-龥]{2}
[^[C[:^alpha:]]日[:^lower:]]*+
a{1,2}\S{2}|\141(?<!a)_
(?<n>[^!é[^!]])(?<![a-c])|\x61\k<n>
\w{,2}1{2,}?
[_]{2,}|\W+?+[\P{Han}][^ßc]*?
\Z
[^1一-龥]{,2}\p{Han}
\.(?<=[a-c])|\P{Any}\u00e9|\n*
é+?é\p{LC}{1,2}+
日?
\G[\Da-c[:^upper:]]\P{Currency_Symbol}
[^[:blank:]B]{2}ß\p{Ll}??|\X[^\-[2日[a]]] |\z
(?<=^)\z|\d\z
(\A)\W\1
b{1,2}!{1,2}|\x{3001}??\P{Uppercase_Letter}
\p{N}
[3[:cntrl:]&&A-Z\P{M}](\B)
\O+|\.|\R
\b
(?:$\.){2,}?\b\z
\x{3001}{1,2}\x{3001}{1,2}?[\p{Any}cé]
\p{Separator}(\P{Space}??(é(?:\Ha)))
\P{Han}*\u00e9++[2]{2,}
[0-9&&\S\P{Ll}]{2}?|$
\$[\P{Blank}]+?|[_\]a-zA-Z](?i)\D
\D{2}\d| |\u00e9\x61(?<!\s)
[^,\P{Cntrl}c](?m)\A
[\p{^L}]++|\z
(日{2,})\k<-1>\t*
-[\H&&\P{Graph}] {2}?+
(日[\p{Ll}[:graph:]])(?m)\P{Decimal_Number}*?\1
c{1,2}+[\x61-\x63\S]?+\p{Symbol}+?
\n\h*(?<!\s)|(?!\.+\$)[\s\hb]|\nc??*\x61+
 ?+!(?:b)+?
c\P{Currency_Symbol}{1,2}
!*+\P{Lower}{1,2}+
\h+?b|\.?+
\cJ\B|\P{Uppercase}\x61(?im:\u00e9)++
(?:[B一-龥&&[^[:upper:]一-龥]一-龥]?+(?-i:-++1))?b
(?![\H]|_?+)
[0-9[:^alnum:]²]
\G(?x)|\p{Mark}+?[2[[a\W]A&&\s]²]?
(?im-x)|\p{P}*|[^a-zA-Z\h]
\p{^Lu}{2}é?+|\p{Lowercase_Letter}??\P{Upper} 
[!][^[\w&&c]]?+[^\P{Lowercase}[\p{Common}]]
(?>(\B\P{L}1*?)c??|!)+\P{Nd}{,2}\w?+
(a)\O{1,2}?|(?>(?im-x))*\Z\1
[[^1\x61-\x63[:punct:]&&,_]]\P{Z}
(?x)[\H\H](?<=\p{L})
\u00e9{2}?|\p{Separator}\X
[\S[A\h[:cntrl:]&&\wa]]{1,2}a[\P{Digit}]
(-*?\P{Punct}{1,2}+\R)_{2}\S
日\$|[\p{Currency_Symbol}]{1,2}|[\s]\u00e9(?>a)
[\D\p{Letter}[^.]]{1,2}?
b!|[^\P{Nd}][^²一-龥A&&[^a-c]0-9]+?
b?日+?| \p{Any}
(\p{Common}\B\p{Lowercase})\p{LC}[A-Z,[!²]]+\1
_{1,2}+[^[\P{Digit}]]{1,2}\$*?
\P{Lowercase_Letter} 
[B\b][[:upper:]]|\W日{1,2}?_
[\W\p{P}]
[\W\P{Alphabetic}]*?.|\Z
(?<n>\p{Alphabetic}(?:[^30-9\t]))\$\k<n>
( )+\.(?x: \x{3001}(?<=\p{L})\P{ID_Start})
(?<n>\p{ASCII}[à-ÿ])\x61[\d]|(?<!\s)\k<n>
\p{Lowercase}\x61é
\P{ID_Start}{2}?
A+?\n*\P{uppercase-letter}
[\p{Math_Symbol}\]a-c]{1,2}?\.?
[3.A-Z](?mx-i:(?<=^)[^\Dß\p{Latin}]{2,}_)\H
$(\P{L}{2}\t){2}?+|c{2}?[^[:xdigit:]]*?
\G\p{Digit}++[\p{Punct}日\w]
\P{Ll}{1,2}?\X(?i)
\p{Graph}*|.++1*+
[^日_]-++*|\p{Upper}\cJ{2,}?[[:^word:]1]*+
[A\-[\w]]++-(?x)|\P{Inherited}+|!{,2}
(^\P{Blank}*++[à-ÿ_])\k<-1>\P{XDigit}
\P{uppercase-letter}[10-9]
\S|[.\P{Space}\x61-\x63]\.
\b[^[:^ascii:]]{1,2}c{2,}|A\S
(?x)(?=[^_\s\t]\P{Alpha}é)
\p{Han}[b[:graph:]]{1,2}?
\P{S}[ [:^digit:]]\h??
A|_*+\P{Emoji}|![\p{Alpha}]?+
([^3![:^xdigit:]]{,2}){2,}A
\Z(?-i:\.{2,}\n{1,2}?c{2,})*?
[_[日]à-ÿ]日|(?mx-i:$日*|\P{Nd}{2,}é{2,})\141
\${2,}|\x61+?\P{han}{2,}?
(?<!ab)
\p{Uppercase}{2}|(\t{2})
1|[[:word:]一-龥&&[:cntrl:]\P{Separator}]\A
[[[:^space:]\P{Blank}]A-Z0-9]{2,}c[^ßC.]
\P{Letter}\W\h|-\${2}?_
[[:^print:]a-zA-Z]\A
[一-龥[[^\ta\W][:print:]]\w]
(日??\u00e9{2})\t\P{XDigit}(?!A{2}?|\x{3001})\1
\t*+日?[²[:^upper:][:^print:]]{2,}?
"""

TEXTS = [
    "a1-B c\n\tfoo_bar ÉéΣ 日本 x!y ²٣\r\nzz 0xAF\x0b\u2028q", "zzxab1 aab+c=d €^ KK oo1 accdd", "e\u0301👍🏽👍👨‍👩‍👧🇩🇪🇫🇷a\u0e33 ǆ ½3、々。\u3042", "",
    " \t ", "ab\nAB.Ab]a-z",
]


def main():
    patterns = HAND.strip("\n").split("\n") + RANDOM.strip("\n").split("\n")
    # A pattern may hold a line break.
    at = patterns.index("(?x) a \\d # a comment")
    patterns[at:at + 2] = ["\n".join(patterns[at:at + 2])]
    splits = []
    for pattern in patterns:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        replace = normalizers.Replace(Regex(pattern), "<>")
        splits.append({"pattern": pattern, "pieces": [[piece for piece, _ in split.pre_tokenize_str(text)] for text in TEXTS],
                       "replaced": [replace.normalize_str(text) for text in TEXTS]})
    print(json.dumps({"texts": TEXTS, "splits": splits}, ensure_ascii=False, indent=None, separators=(",", ":")).replace('{"pattern"', '\n{"pattern"'))


main()
