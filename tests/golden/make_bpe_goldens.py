#!/usr/bin/env python3
"""Writes bpe_gpt2.json: what tiktoken makes of hand-picked texts and of 100,000 random ones, for
tests/text/tokenizer_golden_test.cpp.

    pip install tiktoken==0.14.0 numpy
    python3 tests/golden/make_bpe_goldens.py FOLDER_WITH_GPT2_VOCAB_AND_MERGES > tests/golden/bpe_gpt2.json

The random texts are not stored: both sides make them from the counter-based generator of src/base/rng.h
(random_text below and in the test must stay the same, letter for letter). Per block of 1000 texts the file
keeps one hash of the texts (so that a wrong generator is told from a wrong tokenizer) and one of the ids. To see
the texts and ids of one block, one JSON per line:

    python3 tests/golden/make_bpe_goldens.py FOLDER --block 17
"""
import json
import os
import sys

import numpy as np

PATTERN = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
SEED = 20240521
BLOCKS, BLOCK_SIZE = 100, 1000
WRITTEN_OUT = [0, 1, 2, 3, 5, 8, 13, 21, 50000, 99999]
WORDS = [" the", " of", "Hello", " world", "ing", " Internationalization", "don't", "I'LL", "HTTP", " antidisestablish",
         "foo_bar", "://", "...", " ---", "==", "()", "};", "\r\n", "naïve", " Größe", "привет", " мир", "日本語", "한국어",
         "العربية", "हिन्दी", "ไทย", "👩‍👩‍👧", "🇩🇪", "e\u0301"]
CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'LL", "'r", "'", "''s", "\u2019s", " 's"]
NUMBERS = ["²", "½", "٣", "Ⅷ", "〇", "१", "𝟗", "①", "৳", "1,000", "3.14", "0x1F"]
SPACES = [0x20, 0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x85, 0xA0, 0x1680, 0x2000, 0x2001, 0x2002, 0x2003, 0x2004, 0x2005, 0x2006,
          0x2007, 0x2008, 0x2009, 0x200A, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000, 0x200B, 0x180E, 0xFEFF]
MARKS = [0x200D, 0xFE0F, 0x200C, 0x20E3]


def philox(seed, stream, blocks):
    """[4 * blocks] 32-bit words: Philox4x32, 7 rounds, key (seed, 0), counter (block, stream)."""
    mask = np.uint64(0xFFFFFFFF)
    c0 = np.arange(blocks, dtype=np.uint64)
    c1, c3 = np.zeros_like(c0), np.zeros_like(c0)
    c2 = np.full_like(c0, stream)
    k0, k1 = seed, 0
    for _ in range(7):
        p0, p1 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = ((p1 >> np.uint64(32)) ^ c1 ^ np.uint64(k0), p1 & mask,
                          (p0 >> np.uint64(32)) ^ c3 ^ np.uint64(k1), p0 & mask)
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=1).reshape(-1).tolist()


def code_point(r, low, count):
    """Code point `low + r % count`, stepping over the surrogates."""
    c = low + r % count
    return c + 0x800 if c >= 0xD800 else c


def random_text(index):
    words = iter(philox(SEED, index, 64))  # at most 1 + 11 * (2 + 8) words are read
    draw = lambda: next(words)
    out = []
    for _ in range(draw() % 12):
        kind = draw() % 18
        for _ in range(1 + draw() % 8):
            r = draw()
            if kind == 0:
                out.append(WORDS[r % len(WORDS)])
            elif kind == 1:
                out.append(CONTRACTIONS[r % len(CONTRACTIONS)])
            elif kind == 2:
                out.append(NUMBERS[r % len(NUMBERS)])
            elif kind == 3:
                out.append(chr(SPACES[r % len(SPACES)]))
            elif kind == 4:
                out.append(" ")
            elif kind == 5:
                out.append(chr(0x61 + r % 26))
            elif kind == 6:
                out.append(chr(0x20 + r % 95))
            elif kind == 7:
                out.append(chr(0x30 + r % 10))
            elif kind == 8:
                out.append(chr(r % 0x20) if r >> 31 else chr(0x7F + r % 0x21))
            elif kind == 9:
                out.append(chr(0x80 + r % 0x1D0))
            elif kind == 10:
                out.append(chr(0x300 + r % 0x70))
            elif kind == 11:
                out.append(chr(0x370 + r % 0x6D0))
            elif kind == 12:
                out.append(chr(0x3040 + r % 0xC0))
            elif kind == 13:
                out.append(chr(0x4E00 + r % 0x51A5))
            elif kind == 14:
                out.append(chr(MARKS[r >> 30] if r & 1 else 0x1F300 + (r >> 1) % 0x600))
            elif kind == 15:
                out.append(chr(0xAC00 + r % 0x2BA4))
            elif kind == 16:
                out.append(chr(code_point(r, 0, 0xF800)))
            else:
                out.append(chr(code_point(r, 0, 0x10F800)))
    return "".join(out)


VECTORS = [
    "", "Hello world", " hello", "hello", "Hello, world!", "Hello world ", "  Hello  world  ", " ", "  ", "   ", "\n",
    "\n\n", " \n", "\n ", "\r\n", "\t\tx", "a\n\n\nb", "a \n \n b", "x   ", "x\n   ", "   x", " \u00a0x", "\u00a0 x",
    "\u3000日本", "a\u2028b", "a\u0085b", "a\u0085\u0085 b", "a\u200bb", "\u180ex", "\ufeffHello", "\ufeff", "a\ufeff b",
    "I'm you're he's we'd they'll I've don't", "I'M YOU'RE HE'S WE'D THEY'LL I'VE DON'T", "'s", "'S", " 's", "''s", "'",
    "' s", "'tis 'twas", "x'sy", "'llama", "'Re", "it\u2019s", "rock'n'roll", "'rE 're've'll'd'm't's", "\n's", "1's", "é's",
    "0", "00", "000", "0000", "1234567890", "3.14159", "1,234,567", "² ½ ٣ Ⅷ 〇", "x²", "10²³", "٣٤٥", "½cup", "१२३", "a1b2",
    "😀", "👍🏽", "👩‍👩‍👧‍👦", "🇩🇪🇫🇷", "☃\ufe0f", "1\ufe0f\u20e3", " 😀 😀", "x😀y", "今天天气很好", "日本語のテキスト", "한국어 텍스트", "ｆｕｌｌｗｉｄｔｈ", "「引用」",
    "السلام عليكم", "שלום עולם", "हिन्दी में", "ภาษาไทย", "e\u0301", "é", "n\u0303o", "a\u0300\u0301\u0302", "\u0301", " \u0301",
    "zero\u200dwidth", "\u200d", "\u200e\u200f", "\u00adsoft", "\x00", "a\x00b", "\x00\x00\x00", "\x01\x02\x1f\x7f",
    "\x1b[31mred\x1b[0m", "\b\f\v", "\x1c\x1d\x1e\x1f x", "\u2060", "\ue000\uf8ff", "\ufffd", "\uffff", "\U0010ffff", "\U000e0001",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢", "𐍈𐌰", "𠀀𠀁", "\U0001e900", "ßẞſ", "ǅ", "ʰª", "ﬁ", "Ⅻ", "_underscore_", "snake_case", "CamelCase", "a-b", "a--b",
    "...", "!!!???", "!'s", "(((", "<|endoftext|>", " <|endoftext|> ", "<|endoftext|", "Ġ", "Ċ", "https://example.com/?q=1&r=2",
    "for (int i = 0; i < n; ++i) {\n    x[i] = 0;\n}\n", "if x:\n\tpass\n", "#include <vector>", "\\n", "\"quoted\"", "`code`",
    "$100", "100%", "C++", "C#", "a@b.c", "ALLCAPS", "supercalifragilisticexpialidocious", " SolidGoldMagikarp",
    " petertodd", "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n",
    " " * 100, "\n" * 100, "a" * 500, "ab" * 300, "中" * 120, "!" * 300, " \t" * 40 + "x", "\u00a0" * 33 + "x", "0" * 300,
    "'" * 50, "é" * 90, "\u0301" * 90, "\U0001f600" * 60, "x " * 200, "a\u00a0" * 20, "The quick brown fox" + " " * 7,
]


def byte_letters():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in printable]
    return {**{chr(b): b for b in printable}, **{chr(256 + i): b for i, b in enumerate(rest)}}


def gpt2(folder):
    """tiktoken's encoding from GPT-2's own two files; the ranks are the ids of the tokens."""
    import tiktoken  # not needed by make_tokenizer_goldens.py, which shares random_text
    letters = byte_letters()
    with open(os.path.join(folder, "vocab.json"), encoding="utf-8") as f:
        vocab = json.load(f)
    with open(os.path.join(folder, "merges.txt"), encoding="utf-8") as f:
        merges = [line.split(" ") for line in f.read().split("\n")[1:] if line]
    end = vocab.pop("<|endoftext|>")
    ranks = {bytes(letters[c] for c in name): i for name, i in vocab.items()}
    for rank, (left, right) in enumerate(merges):
        assert vocab[left + right] == 256 + rank, "ids must follow the order of the merges"
    return tiktoken.Encoding("gpt2", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": end})


def fnv(numbers, h):
    for n in numbers:
        h = ((h ^ n) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def main():
    if len(sys.argv) not in (2, 4):
        sys.exit(__doc__)
    import tiktoken
    encoding = gpt2(sys.argv[1])
    if len(sys.argv) == 4:
        for i in range(int(sys.argv[3]) * BLOCK_SIZE, (int(sys.argv[3]) + 1) * BLOCK_SIZE):
            text = random_text(i)
            print(json.dumps({"index": i, "text": text, "ids": encoding.encode_ordinary(text)}))
        return
    item = lambda text: json.dumps({"text": text, "ids": encoding.encode_ordinary(text)}, separators=(",", ":"))
    print(f'{{"made_by": "tests/golden/make_bpe_goldens.py", "tiktoken": "{tiktoken.__version__}", "seed": {SEED},')
    print('"vectors": [\n' + ",\n".join(item(text) for text in VECTORS) + "\n],")
    print('"written_out": {\n' + ",\n".join(f'"{i}": {item(random_text(i))}' for i in WRITTEN_OUT) + "\n},")
    texts, hash_of_tokens = 0, 0xCBF29CE484222325
    for i in range(50256):
        try:
            text = encoding.decode_single_token_bytes(i).decode("utf-8")
        except UnicodeDecodeError:
            continue
        texts += 1
        hash_of_tokens = fnv(encoding.encode_ordinary(text), hash_of_tokens)
    print(f'"tokens": {{"texts": {texts}, "ids": "{hash_of_tokens:016x}"}},')
    blocks = []
    for block in range(BLOCKS):
        texts = ids = 0xCBF29CE484222325
        for i in range(block * BLOCK_SIZE, (block + 1) * BLOCK_SIZE):
            text = random_text(i)
            encoded = encoding.encode_ordinary(text)
            assert encoding.decode(encoded) == text
            texts = fnv([ord(c) for c in text] + [0xFFFFFFFF], texts)
            ids = fnv(encoded + [0xFFFFFFFF], ids)
        blocks.append(f'["{texts:016x}", "{ids:016x}"]')
    print('"blocks": [\n' + ",\n".join(blocks) + "\n]}")


if __name__ == "__main__":
    main()
