#!/usr/bin/env python3
"""Writes what `sentencepiece` and `tokenizers` make of texts, for tests/text/unigram_test.cpp and sentencepiece_test.cpp.

    pip install sentencepiece==0.2.3 tokenizers==0.23.3 protobuf numpy==2.4.6
    python3 tests/golden/make_sentencepiece_goldens.py parts > tests/golden/unigram_cases.json

`parts`: Unigram models and a charsmap, as `tokenizers` applies them, with hashes per thousand random texts. The random
texts are not stored: both sides make them from random_text of make_bpe_goldens.py, with every code point that Unicode 14
does not assign replaced by one that it does (the two sides know different versions of Unicode).

Needs a Python whose unicodedata knows Unicode 14 (3.11).
"""
import base64
import io
import json
import os
import sys
import tempfile

import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Tokenizer

from make_bpe_goldens import BLOCK_SIZE, fnv, random_text
from make_tokenizer_goldens import START, Texts, assigned_ranges

# What a charsmap replaces by what: white space, compositions, compatibility forms, what lies inside what.
RULES = {
    "\t": " ", "\n": " ", "\r": " ", "\r\n": "  ", "\u00a0": " ", "\u3000": " ", "\u200b": " ", "\u00ad": "", "\u200d": "",
    "e": "E", "e\u0301": "\u00e9", "e\u0301\u0323": "\u1eb9\u0301", "a\u0308": "\u00e4", "o\u0302\u0301": "\u1ed1",
    "\u00c4": "\u00e4", "\ufb01": "fi", "\u00bd": "1\u20442", "\u2163": "IV", "\ufdfa": "\u0635\u0644\u0649 \u0627\u0644\u0644\u0647",
    "\u304b\u3099": "\u304c", "\u1100\u1161": "\uac00", "\u1100\u1161\u11a8": "\uac01", "ab": "ba", "abc": "", "\u0391": "\u03b1",
    "\u0430\u0306": "\u04d1", "\u0600": "", "\u0600a": "x", "\u0627\u064b": "\u0627", "\u1f468\u200d": "m",
    **{chr(0xff01 + i): chr(0x21 + i) for i in range(94)}, **{chr(0x300 + i): "" for i in range(0, 0x70, 3)},
    **{chr(0x41 + i): chr(0x61 + i) for i in range(0, 26, 2)},
}


def words_of(first, count=1500):
    """Text to train on: the project's random texts with few characters beyond Latin, so that vocabularies stay small."""
    few = "\u65e5\u672c\u8a9e\u043f\u0440\u0438\u0432\u0435\u0442\u0627\u0628\u0301\U0001f600\u2581"
    return ["".join(c if ord(c) < 0x180 else few[ord(c) % len(few)] for c in random_text(i) if c != "\0")
            for i in range(first, first + count)]


def train(texts, rules=None, **options):
    out = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        if rules is not None:
            options["normalization_rule_tsv"] = os.path.join(folder, "rules.tsv")
            with open(options["normalization_rule_tsv"], "w") as f:
                for source, target in rules.items():
                    f.write("\t".join(" ".join(f"{ord(c):X}" for c in s) for s in (source, target)) + "\n")
        lines = [line for text in texts for line in text.replace("\r", "\n").split("\n") if line]
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=out, minloglevel=2, num_threads=1,
                                                 **options)
    return out.getvalue()


def proto(data):
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(data)
    return model


# ---- parts

def hash_per_block(blocks, make):
    """make(index): the text of the number and the numbers to hash."""
    out = []
    for block in range(blocks):
        of_texts = of_numbers = START
        for i in range(block * BLOCK_SIZE, (block + 1) * BLOCK_SIZE):
            text, numbers = make(i)
            of_texts = fnv([ord(c) for c in text] + [0xFFFFFFFF], of_texts)
            of_numbers = fnv(numbers + [0xFFFFFFFF], of_numbers)
        out.append([f"{of_texts:016x}", f"{of_numbers:016x}"])
    return out


def parts():
    ranges = assigned_ranges()
    texts = Texts(ranges)
    trained = proto(train(words_of(200_000), RULES, model_type="unigram", vocab_size=600))
    charsmap = trained.normalizer_spec.precompiled_charsmap
    normalizer = tokenizers.normalizers.Precompiled(charsmap)
    pieces = [[p.piece, p.score * 1.01] for p in trained.pieces]
    bytes_of = [[f"<0x{b:02X}>", -20.0] for b in range(256)]
    letters = "abcd\u2581 "
    ties = [["<unk>", 0.0]] + [[w, float(-len(w) - i % 3)] for i, w in enumerate(
        dict.fromkeys(a + b + c for a in letters for b in ["", *letters] for c in ["", *letters] if b or not c))]
    models = {
        "trained": {"unk_id": 0, "vocab": pieces, "byte_fallback": False},
        "trained, byte fallback": {"unk_id": 0, "vocab": pieces + bytes_of, "byte_fallback": True},
        "a byte is missing": {"unk_id": 0, "vocab": pieces[:100] + bytes_of[:200], "byte_fallback": True},
        "ties": {"unk_id": 0, "vocab": ties, "byte_fallback": False},
        "no scores": {"unk_id": 0, "vocab": [[p, 0.0] for p, _ in ties], "byte_fallback": False},
        # Unknown characters that are known together.
        "positive": {"unk_id": 1, "vocab": [["the", 30.0], ["<unk>", 20.0], ["zq", 25.0], ["<", 22.0], ["qz", 21.5]], "byte_fallback": False},
    }
    out = {"made_by": "tests/golden/make_sentencepiece_goldens.py", "tokenizers": tokenizers.__version__,
           "sentencepiece": sentencepiece.__version__, "assigned": ranges, "charsmap": base64.b64encode(charsmap).decode(),
           "normalized": hash_per_block(20, lambda i: (lambda t: (t, [ord(c) for c in normalizer.normalize_str(t)]))(texts.text(i, []))),
           "models": []}
    for name, model in models.items():
        tokenizer = Tokenizer.from_str(json.dumps({
            "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": None,
            "post_processor": None, "decoder": None, "model": {"type": "Unigram", **model}}))
        out["models"].append({"name": name, **model, "ids": hash_per_block(
            20, lambda i: (lambda t: (t, tokenizer.encode(t, add_special_tokens=False).ids))(few_letters(i) if i % 2 else texts.text(i, [])))})
    return out


def few_letters(index):
    """A text in which nearly everything is a token in several ways."""
    text = random_text(index)
    return "".join("abcdzq<\u2581 e"[ord(c) % 10] if ord(c) < 0x3000 else "<unk>the" if ord(c) % 4 else c for c in text if ord(c) > 0x20)


if __name__ == "__main__":
    if sys.argv[1:] == ["parts"]:
        print("{" + ",\n".join(f"{json.dumps(k)}:{json.dumps(v, separators=(',', ':'))}" for k, v in parts().items()) + "}")
    else:
        sys.exit(__doc__)
