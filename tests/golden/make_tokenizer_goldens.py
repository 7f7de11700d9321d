#!/usr/bin/env python3
"""Writes what Hugging Face's library `tokenizers` makes of texts, for tests/text/tokenizer_json_test.cpp.

    pip install tokenizers==0.22.1 numpy==2.4.6
    python3 tests/golden/make_tokenizer_goldens.py cases > tests/golden/tokenizer_cases.json
    python3 tests/golden/make_tokenizer_goldens.py folders DATA MODELS > tests/golden/tokenizer_folders.json
    python3 tests/golden/make_tokenizer_goldens.py trained DATA > tests/golden/tokenizer_trained.json

`cases`: small tokenizers, each with one part that is different, and the ids and the text of every one for the same
texts. `folders`: DATA/stories260K, MODELS/tokenizer-deepseek and MODELS/minilm (published tokenizers), with
hashes per thousand of 100,000 random texts and of DATA/sentences. The random texts are not stored: both sides
make them from random_text of make_bpe_goldens.py, with every code point that Unicode 14 does not assign replaced by one
that it does, and in every fourth text an added token in its middle. `trained`: tokenizers that the
library's own trainers make of DATA/shakespeare, with hashes of 20,000 random texts. To see one block of a folder, one JSON per line:

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
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

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


def folders(data, published, wanted=None, block=None):
    ranges = assigned_ranges()
    texts = Texts(ranges)
    lines = sentences(data)
    out = {"made_by": "tests/golden/make_tokenizer_goldens.py", "tokenizers": tokenizers.__version__, "assigned": ranges,
           "sentences": len(lines), "folders": {}}
    for name, folder in (("stories260K", os.path.join(data, "stories260K")),
                         ("tokenizer-deepseek", os.path.join(published, "tokenizer-deepseek")),
                         ("minilm", os.path.join(published, "minilm"))):
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


# ---- trained

TRAINED_BLOCKS = 20


def trained(data):
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "unigram_cases.json")) as f:
        charsmap = json.load(f)["charsmap"]
    path = os.path.join(data, "shakespeare", "input.txt")
    with open(path, encoding="utf-8") as f:
        lines = f.read().split("\n")[:20000]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

    def make(model, trainer, normalizer, pre_tokenizer, decoder, post_processor):
        tokenizer = Tokenizer(model)
        tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder = normalizer, pre_tokenizer, decoder
        tokenizer.train_from_iterator(lines, trainer)
        # What the Python side cannot say, and what the ids of the special tokens are needed for.
        root = json.loads(tokenizer.to_str())
        root["post_processor"] = post_processor
        return root

    bert = {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
    roots = {
        "wordpiece": make(models.WordPiece(unk_token="[UNK]"), trainers.WordPieceTrainer(vocab_size=1200, special_tokens=special, show_progress=False),
                          normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(), bert),
        "unigram": make(models.Unigram(), trainers.UnigramTrainer(vocab_size=900, special_tokens=special, unk_token="[UNK]", show_progress=False),
                        normalizers.NFKD(), pre_tokenizers.Metaspace(), decoders.Metaspace(), bert),
        "bpe with affixes": make(models.BPE(unk_token="[UNK]", continuing_subword_prefix="##", end_of_word_suffix="</w>"),
                                 trainers.BpeTrainer(vocab_size=900, special_tokens=special, continuing_subword_prefix="##",
                                                     end_of_word_suffix="</w>", show_progress=False),
                                 normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()]), pre_tokenizers.Whitespace(),
                                 decoders.BPEDecoder(), bert),
    }
    # As XLM-RoBERTa has it.
    roots["unigram"]["normalizer"] = {"type": "Sequence", "normalizers": [
        {"type": "Precompiled", "precompiled_charsmap": charsmap}, {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]}
    texts = Texts(assigned_ranges())
    out = {"made_by": "tests/golden/make_tokenizer_goldens.py", "tokenizers": tokenizers.__version__, "trained": {}}
    for name, root in roots.items():
        tokenizer = Tokenizer.from_str(json.dumps(root))
        out["trained"][name] = {"file": root, "random": [
            hashes(tokenizer, (texts.text(i, special) for i in range(b * BLOCK_SIZE, (b + 1) * BLOCK_SIZE))) for b in range(TRAINED_BLOCKS)]}
    json.dump(out, sys.stdout, separators=(",", ":"))
    print()


# ---- cases

TEXTS = [
    "", " ", "  ", "a", "the cat", " the cat", "the  cat ", "The CAT'S hat, they'll sit\n\n  down.", "12345 1 22 x7y 4.5",
    "don't DON'T I'm we'RE", "a\tb\r\nc  \n d", "été  naïve", "日本語 の text", "zero\u200dwidth e\u0301", "\u00a0x\u3000y\u2028z",
    "\u180ex\u0085y", "½ ² ٣ Ⅷ", "!!! ?? ...x", "a-b-c--d", "--a--", "<s>the cat</s>", "x<tok>y", "x <tok> y", "x  <tok>  y",
    "<tok><tok>", "the<word>cat the <word> cat", "<word>", "the norm the", "a\x00b", "hathathat cat cat", "\u2581the\u2581cat", "😀 the 😀😀",
    "foo_bar fooBar HTTPServer", "x²y½z ⅧⅧ e\u0301e", "   lots   of   space   ", "ſ'ſ K",
    "The  <TOK>, [the]CATS! hat-cat_hat…the\t", "ÀÉÎ İI ΑΣ ΣΑΣ ǅ a\u0323\u0302b \u1e69", "ﬁ ﷺ ①² ｱﾞ 가각 \u1100\u1161\u11a8 \u212b \u0344",
    "\x01\x0b\x7f\u00ad\u200bthe\ufeff\ufffdcat\r\n\u2581", "do not can't cat 's , the . hat ? n't", "漢字かなカナｶﾅ한글абвгαβγ the", "<pad>the<pad>|||cat|hat</w>",
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


def words_model(**more):
    pieces = ["the", "cat", "hat", "na", "\u00e9", "t", "h", "c", "a", "e", "s", "'", ",", ".", "!", "?", "-", "_", "1", "2", "22", "日", "本", "not", "do",
              "don", "can", "n", "iv", "ete", "ἀ", "σ", "ß", "i", "tok", "T", "C", "A", "H", "THE", "\u0120the", "\u0120"]
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + pieces + ["##" + p for p in pieces[:-2]] + ["##ς", "##ive", "##s"]
    return {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 12,
            "vocab": {name: i for i, name in enumerate(dict.fromkeys(names))}, **more}


def levels_model():
    names = ["<unk>", "<s>", "</s>", "the", "cat", "hat", ",", "The", " the", "don", "t", "'", "日本語"]
    return {"type": "WordLevel", "unk_token": "<unk>", "vocab": {name: i for i, name in enumerate(names)}}


def affixes_model(letters, prefix, suffix):
    """BPE over words whose last character and whose characters behind the first are spelled differently."""
    alphabet = sorted(set("thecatsdon12ée'.,日本") if not letters else LETTERS.values())
    spelled = list(dict.fromkeys([p + c + s for p in ("", prefix) for c in alphabet for s in ("", suffix)]))
    merges, vocab = [], ["<unk>", "<s>", "</s>", *spelled]
    for word in ("the", "cat", "cats", "hat"):
        parts = [("" if i == 0 else prefix) + c + (suffix if i == len(word) - 1 else "") for i, c in enumerate(word)]
        while len(parts) > 1:
            made = parts[0] + parts[1][len(prefix):]
            if [parts[0], parts[1]] not in merges:
                merges.append([parts[0], parts[1]])
            vocab.append(made)
            parts = [made] + parts[2:]
    return {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": prefix or None,
            "end_of_word_suffix": suffix or None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {name: i for i, name in enumerate(dict.fromkeys(vocab))}, "merges": merges}


def unigram_model():
    scores = [["<unk>", 0.0], ["<s>", 0.0], ["</s>", 0.0], ["\u2581", -3.5]]
    for i, piece in enumerate(["the", "\u2581the", "\u2581cat", "cat", "hat", "\u2581hat", "s", "t", "h", "e", "c", "a", "n", "d", "o", "'", ",", ".", "1", "2", "日本", "語", "é"]):
        scores.append([piece, -2.0 - 0.37 * i])
    return {"type": "Unigram", "unk_id": 0, "byte_fallback": False, "vocab": scores}


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
        out["words " + name] = ("words", {**BERT, "decoder": WORDS_DECODER}, {}, [token("[CLS]"), token("[SEP]"), *added])
    more_cases(out)
    return out


BERT_NORMALIZER = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
WORDS_DECODER = {"type": "WordPiece", "prefix": "##", "cleanup": True}
BERT = {"normalizer": BERT_NORMALIZER, "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}}
SPECIAL = [token("[PAD]"), token("[UNK]"), token("[CLS]"), token("[SEP]"), token("[MASK]", lstrip=True)]


# Bases of BPE with affixes: in byte letters, what begins the name of a character inside a word, what ends its last.
AFFIXES = {"clip": (True, "", "</w>"), "ends": (False, "", "</w>"), "beginnings": (False, "##", ""), "both": (False, "@@", "</w>")}


def more_cases(out):
    w, l, c, b, u = "words", "levels", "characters", "bytes", "unigram"
    words = {**BERT, "decoder": WORDS_DECODER}
    out["bert"] = (w, words, {}, SPECIAL)
    out["bert, no cleanup"] = (w, {**words, "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": False}}, {}, SPECIAL)
    for flag, value in (("clean_text", False), ("handle_chinese_chars", False), ("strip_accents", False), ("strip_accents", True),
                        ("lowercase", False)):
        out[f"bert {flag} {value}"] = (w, {**words, "normalizer": {**BERT_NORMALIZER, flag: value}}, {}, SPECIAL)
    out["bert cased, accents go"] = (w, {**words, "normalizer": {**BERT_NORMALIZER, "lowercase": False, "strip_accents": True}})
    out["bert, other prefix"] = (w, words, {"continuing_subword_prefix": ""})
    out["bert, short words"] = (w, words, {"max_input_chars_per_word": 3})
    out["words in byte letters"] = (w, {**words, "normalizer": None, "pre_tokenizer": byte_level()})
    for kind in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "ByteLevel"):
        out[f"normalizer {kind}"] = (b if kind != "ByteLevel" else c, {"normalizer": {"type": kind}, **(
            {"pre_tokenizer": byte_level()} if kind != "ByteLevel" else {})}, {} if kind != "ByteLevel" else {"byte_fallback": False})
    for left in (True, False):
        for right in (True, False):
            out[f"normalizer Strip {left} {right}"] = (b, {"normalizer": {"type": "Strip", "strip_left": left, "strip_right": right},
                                                           "pre_tokenizer": byte_level()})
    regex = lambda pattern, content: {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}
    out["replace pattern"] = (b, {"normalizer": {"type": "Sequence", "normalizers": [regex(" {2,}", " "), regex(r"[\d]+|(?<=a)t", "<\\1>")]},
                                  "pre_tokenizer": byte_level()})
    out["replace empty matches"] = (c, {"normalizer": regex("x*", "-")})
    out["albert"] = (u, {"normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Replace", "pattern": {"String": "``"}, "content": "\""}, {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"},
        regex(" {2,}", " ")]}, "pre_tokenizer": metaspace("always", True), "decoder": metaspace("always", True), "post_processor": TEMPLATE})
    out["t5"] = (u, {"pre_tokenizer": sequence({"type": "WhitespaceSplit"}, metaspace("always", True)), "decoder": metaspace("always", True)})
    out["unigram bytes"] = (u, {"pre_tokenizer": metaspace("first", False), "decoder": LLAMA_DECODER}, {
        "byte_fallback": True, "vocab": unigram_model()["vocab"] + [[f"<0x{byte:02X}>", -9.0] for byte in range(256)]})
    for name, parts in {
            "Whitespace": [{"type": "Whitespace"}], "WhitespaceSplit": [{"type": "WhitespaceSplit"}],
            "CharDelimiterSplit": [{"type": "CharDelimiterSplit", "delimiter": "a"}], "FixedLength": [{"type": "FixedLength", "length": 3}],
            "scripts": [{"type": "UnicodeScripts"}], "words, scripts": [{"type": "WhitespaceSplit"}, {"type": "UnicodeScripts"}],
            "digits, words": [{"type": "Digits", "individual_digits": True}, {"type": "Whitespace"}],
            "words, digits": [{"type": "WhitespaceSplit"}, {"type": "Digits", "individual_digits": False}, {"type": "Punctuation"}],
            "letters, then split": [byte_level(regex=False), split("\u0120", "MergedWithNext", kind="String")],
            "words, metaspace first": [{"type": "WhitespaceSplit"}, metaspace("first", True)],
            "metaspace, words": [metaspace("always", False), {"type": "WhitespaceSplit"}, split("a", "Isolated")],
            **{f"punctuation {behavior}": [{"type": "Punctuation", "behavior": behavior}] for behavior in (
                "Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")}}.items():
        last = name == "letters, then split"
        out[f"pre {name}"] = (b if not last else c, {"pre_tokenizer": sequence(*parts, *([] if last else [byte_level(regex=False)]))},
                              {} if not last else {"byte_fallback": False})
        out[f"levels {name}"] = (l, {"pre_tokenizer": sequence(*parts), "decoder": None})
    for name, (letters, prefix, suffix) in AFFIXES.items():
        pre = sequence(split(r"'s|'t|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+", "Removed", True), byte_level(regex=False)) if letters else {"type": "BertPreTokenizer"}
        normalizer = {"type": "Sequence", "normalizers": [{"type": "NFC"}, regex(r"\s+", " "), {"type": "Lowercase"}]} if letters else None
        parts = {"normalizer": normalizer, "pre_tokenizer": pre, "decoder": {"type": "BPEDecoder", "suffix": suffix or "</w>"},
                 "post_processor": {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1], "trim_offsets": False, "add_prefix_space": False}}
        for fuse in (False, True):
            out[f"{name} {fuse}"] = (name, parts, {"fuse_unk": fuse})
    replace = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
    for name, decoders in {
            "ctc": [{"type": "CTC", "pad_token": "t", "word_delimiter_token": "h", "cleanup": True}],
            "ctc, no cleanup": [{"type": "CTC", "pad_token": "t", "word_delimiter_token": "h", "cleanup": False}],
            "strip behind fuse": [replace, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 2}],
            "replace behind fuse": [replace, {"type": "Fuse"}, {"type": "Replace", "pattern": {"Regex": r"\s+(?=c)|[aeiou]"}, "content": "-"}],
            "replace in tokens": [{"type": "Replace", "pattern": {"Regex": "[th]+"}, "content": "*"}],
            "bytes, then words": [{"type": "ByteFallback"}, {"type": "WordPiece", "prefix": "a", "cleanup": True}],
            "metaspace, then words": [metaspace("always", True), {"type": "WordPiece", "prefix": "a", "cleanup": False}],
            "bytes, then metaspace": [{"type": "ByteFallback"}, {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}],
            "bpe": [{"type": "BPEDecoder", "suffix": "e"}]}.items():
        out[f"decoder {name}"] = (c, {"normalizer": REPLACE, "decoder": {"type": "Sequence", "decoders": decoders}})
    out["decoder byte level, then strip"] = (b, {"pre_tokenizer": byte_level(), "decoder": {"type": "Sequence", "decoders": [
        BYTE_DECODER, {"type": "Strip", "content": "t", "start": 2, "stop": 1}]}})
    out["roberta"] = (b, {"pre_tokenizer": byte_level(prefix=True), "post_processor": {
        "type": "RobertaProcessing", "sep": ["b", 2], "cls": ["a", 1], "trim_offsets": True, "add_prefix_space": True}},
        {}, [token("<mask>", lstrip=True)])
    out["roberta in a sequence"] = (b, {"pre_tokenizer": byte_level(prefix=True), "post_processor": {"type": "Sequence", "processors": [
        byte_level(), {"type": "RobertaProcessing", "sep": ["b", 2], "cls": ["a", 1], "trim_offsets": True, "add_prefix_space": True}]}})
    out["template with types"] = (w, {**words, "post_processor": {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 7}}, {"Sequence": {"id": "A", "type_id": 2}}, {"SpecialToken": {"id": "[SEP]", "type_id": 3}}],
        "pair": [{"Sequence": {"id": "B", "type_id": 1}}, {"SpecialToken": {"id": "[SEP]", "type_id": 4}}, {"Sequence": {"id": "A", "type_id": 5}}],
        "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2, 4], "tokens": ["[CLS]", "[MASK]"]},
                           "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]}}}}, {}, SPECIAL)


# ---- inputs

PAIRS = [("", None), ("the cat", None), ("the cats hat naive", None), ("the cat", "a hat"), ("the cat the hat the cat", "a hat"), ("a", "the cat the hat the cat"),
         ("", "the"), ("the cats cats", "the cats cats"), (["the", "cats", "", " ", "a hat", "[MASK]"], None), (["the"], ["cats", "unknown 日本"]), ([], ["a"])]
LONGEST = [None, 3, 4, 5, 6, 7, 8, 11]


def inputs(tokenizer, root):
    """For each pair and length: ids, types, words, texts, what was left out; 0 where the library refuses or ignores it."""
    out = []
    for strategy, direction in (("longest_first", "right"), ("longest_first", "left"), ("only_first", "right"), ("only_second", "left")):
        for first, second in PAIRS:
            for longest in LONGEST if second is not None else LONGEST[:6]:
                tokenizer.no_truncation()
                texts = (first,) if second is None else (first, second)
                words = isinstance(first, list)
                whole = tokenizer.encode(*texts, is_pretokenized=words)
                added = sum(i is None for i in whole.sequence_ids)
                if longest is not None:
                    if longest <= added or (strategy == "only_second" and second is None):
                        continue
                    tokenizer.enable_truncation(longest, strategy=strategy, direction=direction)
                elif strategy != "longest_first" or direction == "left":
                    continue
                try:
                    e = tokenizer.encode(*texts, is_pretokenized=words)
                except Exception:
                    out.append([strategy, direction, first, second, longest, 0])
                    continue
                none = lambda values: [-1 if v is None else v for v in values]
                out.append([strategy, direction, first, second, longest,
                            [e.ids, e.type_ids, none(e.word_ids), none(e.sequence_ids), len(whole.ids) - len(e.ids)]])
    return out


def write_cases():
    bases = {"bytes": bytes_model(), "characters": characters_model(), "words": words_model(), "levels": levels_model(), "unigram": unigram_model(),
             **{name: affixes_model(*affixes) for name, affixes in AFFIXES.items()}}
    out = {"made_by": "tests/golden/make_tokenizer_goldens.py", "tokenizers": tokenizers.__version__, "models": bases,
           "texts": TEXTS, "inputs": [], "cases": []}
    for name, (base, parts, *more) in cases().items():
        model = {**copy.deepcopy(bases[base]), **(more[0] if more else {})}
        added = [token("<s>"), token("</s>")] if base in ("characters", "unigram") else []
        added += more[1] if len(more) > 1 else []
        known_ids = model["vocab"] if isinstance(model["vocab"], dict) else {name: i for i, (name, _) in enumerate(model["vocab"])}
        next_id = len(known_ids)
        listed = []
        for item in added:
            known = known_ids.get(item["content"])
            listed.append({"id": next_id if known is None else known, **item})
            next_id += known is None
        root = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": listed, "normalizer": None,
                "pre_tokenizer": None, "post_processor": None,
                "decoder": BYTE_DECODER if base == "bytes" else LLAMA_DECODER, **parts}
        tokenizer = Tokenizer.from_str(json.dumps({**root, "model": model}))
        results = []
        for text in TEXTS:
            try:
                ids = tokenizer.encode(text, add_special_tokens=False).ids
                special = tokenizer.encode(text, add_special_tokens=True).ids
                decoded = tokenizer.decode(ids, skip_special_tokens=False)
                shown = tokenizer.decode(special)
            except BaseException as error:  # the library panics: null
                print(f"{name}: {text!r}: {error}", file=sys.stderr)
                results.append(None)
                continue
            # 0 where a value is the one before it (of the text: the text itself).
            results.append([ids, 0 if special == ids else special, 0 if decoded == text else decoded,
                            0 if shown == decoded else shown])
        if name in ("bert", "roberta", "template with types", "t5", "gpt2", "metaspace first True", "words added lstrip"):
            out["inputs"].append({"name": name, "results": inputs(tokenizer, root)})
        out["cases"].append({"name": name, "base": base, "root": root, "model": more[0] if more else {}, "results": results})
    print("{" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':')) if k not in ('cases', 'inputs') else '[' + chr(10) + (',' + chr(10)).join(json.dumps(x, separators=(',', ':')) for x in v) + ']'}"
                          for k, v in out.items()) + "}")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments == ["cases"]:
        write_cases()
    elif len(arguments) == 2 and arguments[0] == "trained":
        trained(arguments[1])
    elif len(arguments) == 3 and arguments[0] == "folders":
        folders(*arguments[1:])
    elif len(arguments) == 6 and arguments[3] == "--block":
        folders(*arguments[1:3], arguments[4], int(arguments[5]))
    else:
        sys.exit(__doc__)
