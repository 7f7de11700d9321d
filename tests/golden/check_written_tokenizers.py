#!/usr/bin/env python3
"""Checks that `transformers` reads the tokenizers that Brrr makes, with the same ids and the same text.

    pip install transformers==5.24.0 numpy==2.4.6
    python3 tests/golden/check_written_tokenizers.py build/release/src/brrr

Makes a character, a byte and a BPE tokenizer of random texts, and compares 300 texts. Nothing is stored: the tests hold
Brrr's reader of tokenizer.json, which the goldens of make_tokenizer_goldens.py prove, against what is written.
"""
import json
import os
import subprocess
import sys
import tempfile

from transformers import AutoTokenizer

from make_bpe_goldens import random_text


def run(brrr, *arguments, text=""):
    done = subprocess.run([brrr, *arguments], input=text.encode(), stdout=subprocess.PIPE, check=True)
    return done.stdout.decode()


def main(brrr):
    # Text with many control characters is taken for no text.
    texts = ["".join(c for c in random_text(i) if c == "\t" or c.isprintable()) for i in range(300)]
    texts[7] += "<|endoftext|>"
    with tempfile.TemporaryDirectory() as folder:
        corpus = os.path.join(folder, "corpus.txt")
        with open(corpus, "w", encoding="utf-8", newline="") as f:
            f.write("".join(texts) * 2)
        places = {kind: os.path.join(folder, kind) for kind in ("char", "byte", "bpe")}
        run(brrr, "data", "train-tokenizer", "--kind", "char", "--text", corpus, "--output-dir", places["char"])
        run(brrr, "data", "train-tokenizer", "--vocab-size", "1000", "--text", corpus, "--output-dir", places["bpe"])
        run(brrr, "data", "prepare", "--text", corpus, "--tokenizer", "byte", "--output-dir", places["byte"])
        for kind, place in places.items():
            tokenizer = AutoTokenizer.from_pretrained(place)
            for index, text in enumerate(texts):
                lines = json.loads(run(brrr, "data", "encode", "--tokenizer", place, "--json", text=text))["ids"]
                ids = [i for line in lines for i in line]
                assert ids == tokenizer.encode(text, add_special_tokens=False), (kind, index, text)
                assert tokenizer.decode(ids) == text, (kind, index, text)
            print(f"{kind}: {len(texts)} texts, {len(tokenizer)} tokens, end of text {tokenizer.eos_token}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
