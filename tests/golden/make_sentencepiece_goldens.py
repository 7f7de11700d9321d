#!/usr/bin/env python3
"""Writes what `sentencepiece`, `tokenizers`, `tiktoken` and `mistral-common` make of texts, for tests in tests/text.

    pip install sentencepiece==0.2.3 tokenizers==0.23.3 tiktoken==0.14.0 mistral-common==1.13.1 protobuf numpy==2.4.6
    python3 tests/golden/make_sentencepiece_goldens.py parts > tests/golden/unigram_cases.json
    python3 tests/golden/make_sentencepiece_goldens.py models DATA MODELS > tests/golden/tokenizer_models.json

`parts` (unigram_test.cpp): Unigram models and a charsmap, as `tokenizers` applies them. `models` (tokenizer_models_test.cpp):
small models that SentencePiece's trainer makes, which are stored, and published ones, which are not (MODELS/tokenizer-mistral,
MODELS/tokenizer-llama3), with hashes per thousand of 100,000 random texts and of DATA/sentences. The random texts are not
stored: both sides make them from random_text of make_bpe_goldens.py, with every code point that Unicode 14 does not assign
replaced by one that it does (the two sides know different versions of Unicode), and, in `models`, with the name of a
special or user-defined token in the middle of every fourth. To see one block, one JSON per line:

    python3 tests/golden/make_sentencepiece_goldens.py models DATA MODELS --block mistral-v3 17

Needs a Python whose unicodedata knows Unicode 14 (3.11).
"""
import base64
import hashlib
import io
import json
import os
import sys
import tempfile

import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Tokenizer

from make_bpe_goldens import BLOCK_SIZE, BLOCKS, fnv, random_text
from make_tokenizer_goldens import START, Texts, assigned_ranges, sentences

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


# ---- models

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
USER_DEFINED = ["<mask>", "\u2581\u2581", "the", "a b", "d", "e\u0301", "\U0001f600", "don't", "\u2581of"]


class SentencePiece:
    def __init__(self, data):
        self.processor = sentencepiece.SentencePieceProcessor(model_proto=data)
        self.encode = self.processor.encode
        self.decode = self.processor.decode
        self.added = [p.piece for p in proto(data).pieces if p.type in (2, 3, 4)]


class Llama3:
    def __init__(self, data):
        import tiktoken
        ranks = {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in data.split(b"\n") if line}
        encoding = tiktoken.Encoding("llama3", pat_str=LLAMA3, mergeable_ranks=ranks, special_tokens={})
        self.encode = encoding.encode_ordinary
        self.decode = encoding.decode
        self.added = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|reserved_special_token_250|>"]


class Tekken:
    def __init__(self, path):
        from mistral_common.tokens.tokenizers.tekken import Tekkenizer
        tokenizer = Tekkenizer.from_file(path)
        self.encode = lambda text: tokenizer.encode(text, bos=False, eos=False)
        self.decode = tokenizer.decode
        self.added = ["<s>", "</s>", "[INST]", "<SPECIAL_999>"]


def model_hashes(model, texts):
    of_texts = of_ids = of_decoded = START
    for text in texts:
        ids = model.encode(text)
        of_texts = fnv([ord(c) for c in text] + [0xFFFFFFFF], of_texts)
        of_ids = fnv(ids + [0xFFFFFFFF], of_ids)
        of_decoded = fnv([ord(c) for c in model.decode(ids)] + [0xFFFFFFFF], of_decoded)
    return [f"{h:016x}" for h in (of_texts, of_ids, of_decoded)]


def models(data, folder, wanted=None, block=None):
    words = words_of(300_000)
    trained = {
        "unigram": train(words, RULES, model_type="unigram", vocab_size=600, user_defined_symbols=USER_DEFINED),
        "bpe": train(words, model_type="bpe", vocab_size=900, byte_fallback=True, normalization_rule_name="identity",
                     remove_extra_whitespaces=False, user_defined_symbols=USER_DEFINED),
    }
    mistral = os.path.join("tokenizer-mistral", "")
    published = {"llama3": "tokenizer-llama3/tokenizer.model", "mistral-v1": mistral + "tokenizer.model.v1",
                 "mistral-v3": mistral + "mistral_instruct_tokenizer_240323.model.v3", "tekken": mistral + "tekken_240911.json"}
    texts = Texts(assigned_ranges())
    lines = sentences(data)
    out = {"made_by": "tests/golden/make_sentencepiece_goldens.py", "sentencepiece": sentencepiece.__version__,
           "sentences": len(lines), "models": {}}
    for name in [*trained, *published]:
        entry = {}
        if name in trained:
            content = trained[name]
            entry["model"] = base64.b64encode(content).decode()
        else:
            path = os.path.join(folder, published[name])
            with open(path, "rb") as f:
                content = f.read()
            entry = {"file": published[name], "sha256": hashlib.sha256(content).hexdigest()}
        model = Llama3(content) if name == "llama3" else Tekken(path) if name == "tekken" else SentencePiece(content)
        if wanted == name:
            for i in range(block * BLOCK_SIZE, (block + 1) * BLOCK_SIZE):
                text = texts.text(i, model.added)
                ids = model.encode(text)
                print(json.dumps({"index": i, "text": text, "ids": ids, "decoded": model.decode(ids)}))
        if wanted is not None:
            continue
        entry["added"] = model.added
        entry["random"] = [model_hashes(model, (texts.text(i, model.added) for i in range(b * BLOCK_SIZE, (b + 1) * BLOCK_SIZE)))
                           for b in range(BLOCKS)]
        entry["sentences"] = [model_hashes(model, lines[i:i + BLOCK_SIZE]) for i in range(0, len(lines), BLOCK_SIZE)]
        out["models"][name] = entry
    if wanted is None:
        json.dump(out, sys.stdout, separators=(",", ":"))
        print()


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments == ["parts"]:
        print("{" + ",\n".join(f"{json.dumps(k)}:{json.dumps(v, separators=(',', ':'))}" for k, v in parts().items()) + "}")
    elif len(arguments) == 3 and arguments[0] == "models":
        models(*arguments[1:])
    elif len(arguments) == 6 and arguments[3] == "--block":
        models(*arguments[1:3], arguments[4], int(arguments[5]))
    else:
        sys.exit(__doc__)
