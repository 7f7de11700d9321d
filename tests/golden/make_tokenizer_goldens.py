#!/usr/bin/env python3
"""Writes what Hugging Face's library `tokenizers` makes of texts, for tests/text/tokenizer_json_test.cpp.

    pip install tokenizers==0.23.3 numpy==2.4.6
    python3 tests/golden/make_tokenizer_goldens.py cases > tests/golden/tokenizer_cases.json
    python3 tests/golden/make_tokenizer_goldens.py folders DATA MODELS > tests/golden/tokenizer_folders.json

`cases`: small tokenizers, each with one part that is different, and the ids and the text of every one for the same
texts. `folders`: DATA/stories260K, MODELS/tokenizer-deepseek and MODELS/minilm (published tokenizers), with
hashes per thousand of 100,000 random texts and of DATA/sentences. The random texts are not stored: both sides
make them from random_text of make_bpe_goldens.py, with every code point that Unicode 14 does not assign replaced by one
that it does, and in every fourth text an added token in its middle. To see one block, one JSON per line:

    python3 tests/golden/make_tokenizer_goldens.py folders DATA MODELS --block stories260K 17

Needs a Python whose unicodedata knows Unicode 14 (3.11).
"""
import copy
import hashlib
import json
import os
import sys
import unicodedata

import tokenizers
from tokenizers import Tokenizer

from make_bpe_goldens import BLOCK_SIZE, BLOCKS, byte_letters, fnv, random_text

START = 0xCBF29CE484222325


# ---- folders

def assigned_ranges():
    """Closed ranges of the code points that Unicode 14 assigns, without surrogates and private use."""
    assert unicodedata.unidata_version == "14.0.0", unicodedata.unidata_version
    ranges = []
    for code in range(0x110000):
        if unicodedata.category(chr(code)) in ("Cn", "Cs", "Co"):
            continue
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return ranges


class Texts:
    def __init__(self, ranges):
        self.codes = [code for first, last in ranges for code in range(first, last + 1)]
        self.assigned = set(self.codes)

    def text(self, index, added):
        codes = [ord(c) for c in random_text(index)]
        codes = [c if c in self.assigned else self.codes[c % len(self.codes)] for c in codes]
        text = "".join(map(chr, codes))
        if index % 4 == 3 and added:
            at = index * 7919 % (len(text) + 1)
            text = text[:at] + added[index // 4 % len(added)] + text[at:]
        return text


def hashes(tokenizer, texts):
    of_texts = of_ids = of_special = of_decoded = START
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        with_special = tokenizer.encode(text, add_special_tokens=True).ids
        decoded = tokenizer.decode(ids, skip_special_tokens=False)
        of_texts = fnv([ord(c) for c in text] + [0xFFFFFFFF], of_texts)
        of_ids = fnv(ids + [0xFFFFFFFF], of_ids)
        of_special = fnv(with_special + [0xFFFFFFFF], of_special)
        of_decoded = fnv([ord(c) for c in decoded] + [0xFFFFFFFF], of_decoded)
    return [f"{h:016x}" for h in (of_texts, of_ids, of_special, of_decoded)]


def sentences(data):
    out = []
    for name in ("editorials", "movies", "products", "tweets"):
        with open(os.path.join(data, "sentences", name + ".tsv"), encoding="utf-8", newline="") as f:
            out += [line.split("\t", 1)[1] for line in f.read().split("\n") if line]
    return out


def folders(data, models, wanted=None, block=None):
    ranges = assigned_ranges()
    texts = Texts(ranges)
    lines = sentences(data)
    out = {"made_by": "tests/golden/make_tokenizer_goldens.py", "tokenizers": tokenizers.__version__, "assigned": ranges,
           "sentences": len(lines), "folders": {}}
    for name, folder in (("stories260K", os.path.join(data, "stories260K")),
                         ("tokenizer-deepseek", os.path.join(models, "tokenizer-deepseek")),
                         ("minilm", os.path.join(models, "minilm"))):
        path = os.path.join(folder, "tokenizer.json")
        with open(path, "rb") as f:
            content = f.read()
        tokenizer = Tokenizer.from_file(path)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        added = [token["content"] for token in json.loads(content)["added_tokens"]]
        if wanted == name:
            for i in range(block * BLOCK_SIZE, (block + 1) * BLOCK_SIZE):
                text = texts.text(i, added)
                ids = tokenizer.encode(text, add_special_tokens=False)
                print(json.dumps({"index": i, "text": text, "ids": ids.ids, "tokens": ids.tokens,
                                  "decoded": tokenizer.decode(ids.ids, skip_special_tokens=False)}))
        if wanted is not None:
            continue
        out["folders"][name] = {
            "sha256": hashlib.sha256(content).hexdigest(),
            "random": [hashes(tokenizer, (texts.text(i, added) for i in range(b * BLOCK_SIZE, (b + 1) * BLOCK_SIZE)))
                       for b in range(BLOCKS)],
            "sentences": [hashes(tokenizer, lines[i:i + BLOCK_SIZE]) for i in range(0, len(lines), BLOCK_SIZE)],
        }
    if wanted is None:
        json.dump(out, sys.stdout, separators=(",", ":"))
        print()


# ---- cases

TEXTS = [
    "", " ", "  ", "a", "the cat", " the cat", "the  cat ", "The CAT'S hat, they'll sit\n\n  down.", "12345 1 22 x7y 4.5",
    "don't DON'T I'm we'RE", "a\tb\r\nc  \n d", "été  naïve", "日本語 の text", "zero\u200dwidth e\u0301", "\u00a0x\u3000y\u2028z",
    "\u180ex\u0085y", "½ ² ٣ Ⅷ", "!!! ?? ...x", "a-b-c--d", "--a--", "<s>the cat</s>", "x<tok>y", "x <tok> y", "x  <tok>  y",
    "<tok><tok>", "the<word>cat the <word> cat", "<word>", "the norm the", "a\x00b", "hathathat cat cat", "\u2581the\u2581cat", "😀 the 😀😀",
    "foo_bar fooBar HTTPServer", "x²y½z ⅧⅧ e\u0301e", "   lots   of   space   ", "ſ'ſ K",
]
LETTERS = {byte: letter for letter, byte in byte_letters().items()}
WORDS = ["the", " the", " cat", " hat", "cat", "hat", "'s", "'ll", "12", "345", "  ", "\n\n", "été", "日本"]


def merges_for(words, spell):
    """Merges that build each word from the left."""
    pairs = []
    for word in words:
        parts = spell(word)
        while len(parts) > 1:
            pair = [parts[0], parts[1]]
            if pair not in pairs:
                pairs.append(pair)
            parts = [parts[0] + parts[1]] + parts[2:]
    return pairs


def bytes_model():
    spell = lambda word: [LETTERS[b] for b in word.encode()]
    merges = merges_for(WORDS, spell)
    names = sorted(LETTERS.values()) + [a + b for a, b in merges]
    vocab = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": merges}


def characters_model(**more):
    merges = merges_for([w.replace(" ", "\u2581") for w in WORDS], list)
    letters = sorted({c for a, b in merges for c in a + b} | set("abcdefghijklmnopqrstuvwxyz.,!") | {"\u2581"})
    names = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + [a + b for a, b in merges] + letters
    vocab = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": True, "byte_fallback": True, "ignore_merges": False, "vocab": vocab, "merges": merges, **more}


def token(content, **flags):
    return {"content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True,
            **flags}


def byte_level(prefix=False, regex=True):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def split(regex, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: regex}, "behavior": behavior, "invert": invert}


def sequence(*parts):
    return {"type": "Sequence", "pretokenizers": list(parts)}


QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
            "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|"
            "\\s*[\r\n]+|\\s+(?!\\S)|\\s+"]
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
PREPEND = {"type": "Prepend", "prepend": "\u2581"}
BYTE_DECODER = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
LLAMA_DECODER = {"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
TEMPLATE = {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                       {"SpecialToken": {"id": "</s>", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]},
                               "</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]}}}


def metaspace(scheme, split):
    return {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": split}


def cases():
    """name: (base, parts that differ, members of the model that differ, added tokens)"""
    b, c = "bytes", "characters"
    out = {
        "gpt2": (b, {"pre_tokenizer": byte_level()}),
        "prefix space": (b, {"pre_tokenizer": byte_level(prefix=True)}),
        "no regex": (b, {"pre_tokenizer": byte_level(regex=False)}),
        "prefix space, no regex": (b, {"pre_tokenizer": byte_level(prefix=True, regex=False)}),
        "smollm": (b, {"pre_tokenizer": sequence({"type": "Digits", "individual_digits": True}, byte_level())}),
        "digits together": (b, {"pre_tokenizer": sequence({"type": "Digits", "individual_digits": False}, byte_level())}),
        "qwen": (b, {"pre_tokenizer": sequence(split(QWEN), byte_level(regex=False))}),
        "llama 3": (b, {"pre_tokenizer": sequence(split(LLAMA3), byte_level(regex=False)), "post_processor": {
            "type": "Sequence", "processors": [byte_level(), TEMPLATE]}}, {"ignore_merges": True}),
        "o200k": (b, {"pre_tokenizer": sequence(split(O200K), byte_level(regex=False))}),
        "deepseek": (b, {"pre_tokenizer": sequence(*[split(p) for p in DEEPSEEK], byte_level(regex=False))}),
        "split then prefix": (b, {"pre_tokenizer": sequence(split("-", kind="String"), byte_level(prefix=True))}),
        "lazy": (b, {"pre_tokenizer": sequence(split(r"[a-z]+?t|\d{2,3}?"), byte_level(regex=False))}),
        "possessive": (b, {"pre_tokenizer": sequence(split(r" ?+\p{L}++|\s++|(?>\d+)\.?"), byte_level(regex=False))}),
        "look behind": (b, {"pre_tokenizer": sequence(split(r"(?<=[a-z])(?=[A-Z])|(?<!t)h"), byte_level(regex=False))}),
        "anchors": (b, {"pre_tokenizer": sequence(split(r"^\S+|\S+$|\A.|.\z"), byte_level(regex=False))}),
        "ignore case": (b, {"pre_tokenizer": sequence(split(r"(?i)the|CAT|k|s"), byte_level(regex=False))}),
        "words": (b, {"pre_tokenizer": sequence(split(r"\w+|\W"), byte_level(regex=False))}),
        "digits and space": (b, {"pre_tokenizer": sequence(split(r"\d|\D\d|[\s]|[^\S\n]"), byte_level(regex=False))}),
        "escapes": (b, {"pre_tokenizer": sequence(split(r"\x61|\u0065|\x{e9}|[\x30-\x34]|\t|\.{,2}"), byte_level(regex=False))}),
        "empty matches": (b, {"pre_tokenizer": sequence(split(r"x*"), byte_level(regex=False))}),
        "nested groups": (b, {"pre_tokenizer": sequence(split(r"((t)h(e|a))+|(?:c|h)(at)"), byte_level(regex=False))}),
        "ignore merges": (b, {"pre_tokenizer": byte_level()}, {"ignore_merges": True}),
        "null decoder": (b, {"pre_tokenizer": byte_level(), "decoder": None}),
        "stories": (c, {"normalizer": {"type": "Sequence", "normalizers": [PREPEND, REPLACE]}, "post_processor": TEMPLATE}),
        "gemma": (c, {"normalizer": REPLACE, "pre_tokenizer": split(" ", "MergedWithPrevious", kind="String"),
                      "decoder": {"type": "Sequence", "decoders": LLAMA_DECODER["decoders"][:3]}}),
        "no byte fallback": (c, {"normalizer": REPLACE}, {"byte_fallback": False}),
        "no byte fallback, unknown apart": (c, {"normalizer": REPLACE}, {"byte_fallback": False, "fuse_unk": False}),
        "unknown left out": (c, {"normalizer": REPLACE}, {"byte_fallback": False, "unk_token": None}),
        "characters, ignore merges": (c, {"pre_tokenizer": metaspace("always", True)}, {"ignore_merges": True}),
        "strip three": (c, {"normalizer": REPLACE, "decoder": {"type": "Sequence", "decoders": [
            *LLAMA_DECODER["decoders"][:3], {"type": "Strip", "content": " ", "start": 3, "stop": 0}]}}),
        "strip tokens": (c, {"normalizer": REPLACE, "decoder": {"type": "Sequence", "decoders": [
            LLAMA_DECODER["decoders"][0], {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}}),
        "replace with more": (c, {"normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Replace", "pattern": {"String": "at"}, "content": "\u2581the"}, PREPEND, REPLACE]}}),
    }
    for scheme in ("always", "first", "never"):
        for splits in (True, False):
            out[f"metaspace {scheme} {splits}"] = (c, {"pre_tokenizer": metaspace(scheme, splits),
                                                       "decoder": metaspace(scheme, splits)})
    for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            out[f"{behavior} {invert}"] = (b, {"pre_tokenizer": sequence(split("-|[aeiou]", behavior, invert),
                                                                         byte_level(regex=False))})
    for flags in ({}, {"lstrip": True}, {"rstrip": True}, {"lstrip": True, "rstrip": True}, {"single_word": True},
                  {"normalized": True, "special": False}):
        name = "added " + " ".join(flags)
        added = [token("<tok>", **flags), token("<word>", **flags), token("norm", **flags), token("  ", **flags), token("hat", **flags)]
        out[name] = (b, {"pre_tokenizer": byte_level()}, {}, added)
        out["stories " + name] = (c, {"normalizer": {"type": "Sequence", "normalizers": [PREPEND, REPLACE]}}, {}, added)
    return out


def write_cases():
    models = {"bytes": bytes_model(), "characters": characters_model()}
    out = {"made_by": "tests/golden/make_tokenizer_goldens.py", "tokenizers": tokenizers.__version__, "models": models,
           "texts": TEXTS, "cases": []}
    for name, (base, parts, *more) in cases().items():
        model = {**copy.deepcopy(models[base]), **(more[0] if more else {})}
        added = [token("<s>"), token("</s>")] if base == "characters" else []
        added += more[1] if len(more) > 1 else []
        next_id = len(model["vocab"])
        listed = []
        for item in added:
            known = model["vocab"].get(item["content"])
            listed.append({"id": next_id if known is None else known, **item})
            next_id += known is None
        root = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": listed, "normalizer": None,
                "pre_tokenizer": None, "post_processor": None,
                "decoder": BYTE_DECODER if base == "bytes" else LLAMA_DECODER, **parts}
        tokenizer = Tokenizer.from_str(json.dumps({**root, "model": model}))
        results = []
        for text in TEXTS:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            special = tokenizer.encode(text, add_special_tokens=True).ids
            decoded = tokenizer.decode(ids, skip_special_tokens=False)
            shown = tokenizer.decode(special)
            # 0 where a value is the one before it (of the text: the text itself).
            results.append([ids, 0 if special == ids else special, 0 if decoded == text else decoded,
                            0 if shown == decoded else shown])
        out["cases"].append({"name": name, "base": base, "root": root, "model": more[0] if more else {}, "results": results})
    print("{" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':')) if k != 'cases' else '[' + chr(10) + (',' + chr(10)).join(json.dumps(x, separators=(',', ':')) for x in v) + ']'}"
                          for k, v in out.items()) + "}")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments == ["cases"]:
        write_cases()
    elif len(arguments) == 3 and arguments[0] == "folders":
        folders(*arguments[1:])
    elif len(arguments) == 6 and arguments[3] == "--block":
        folders(*arguments[1:3], arguments[4], int(arguments[5]))
    else:
        sys.exit(__doc__)
