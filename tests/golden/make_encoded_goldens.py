#!/usr/bin/env python3
"""Prints hashes of what Hugging Face's library `transformers` makes of rated sentences with the tokenizer of
MODELS/minilm: texts, pairs and words with tags, cut to some lengths, for tests/data/encode_labelled_test.cpp.

    pip install transformers==5.24.0 tokenizers==0.23.3 numpy
    python3 tests/golden/make_encoded_goldens.py MODELS DATA

Tags are given to tokens as transformers' run_ner does: a word's first token has its tag, all others none.
"""
import os
import sys

from transformers import AutoTokenizer

from make_bpe_goldens import fnv

START = 0xCBF29CE484222325


def rows_of(path):
    with open(path, encoding="utf-8", newline="\n") as file:
        return [line.rstrip("\n").split("\t")[1] for line in file if line.strip()]


def show(name, rows):
    state = START
    for row in rows:
        for numbers in row:
            state = fnv([*(n & 0xFFFFFFFF for n in numbers), 0xFFFFFFFF], state)
    print(name, f"{state:#x}")


tokenizer = AutoTokenizer.from_pretrained(os.path.join(sys.argv[1], "minilm"))
texts = rows_of(os.path.join(sys.argv[2], "sentences", "movies.tsv"))
for length in (16, 64):
    encoded = [tokenizer(text, truncation=True, max_length=length) for text in texts]
    show(f"texts {length}:", [(e["input_ids"], e["token_type_ids"]) for e in encoded])
    encoded = [tokenizer(a, b, truncation=True, max_length=length) for a, b in zip(texts, texts[1:])]
    show(f"pairs {length}:", [(e["input_ids"], e["token_type_ids"]) for e in encoded])
    rows = []
    for text in texts:
        words = [word for word in text.split(" ") if word]
        encoded = tokenizer(words, is_split_into_words=True, truncation=True, max_length=length)
        before, tags = None, []
        for word in encoded.word_ids():
            tags.append(word * word % 7 if word is not None and word != before else -1)
            before = word
        rows.append((encoded["input_ids"], tags))
    show(f"words {length}:", rows)
