#!/usr/bin/env python3
"""Prints what Python's csv module reads from 20,000 random texts of tabs, quotes and line ends, as one hash for each way
of reading quotes, for tests/data/tsv_test.cpp. Where all rows of a text have the same number of fields, pandas, which
Hugging Face's loader for csv files calls, must read the same.

    pip install pandas==3.1.1 numpy==2.4.6
    python3 tests/golden/make_tsv_goldens.py

The texts are not stored: both sides make them from the generator of src/base/rng.h.
"""
import csv
import io

import pandas

from make_bpe_goldens import fnv, philox

TEXTS = 20000
PIECES = ['"', '"', '""', "\t", "\t", "\n", "\r\n", "a", "b c", "é"]
START = 0xCBF29CE484222325


def text_of(index):
    words = philox(20240521, index, 8)
    return "".join(PIECES[word % len(PIECES)] for word in words[1:2 + words[0] % 30])


def rows_of(text, quoting):
    """The rows, or nothing when a quote is left open: it then takes the mark behind the text."""
    rows = list(csv.reader(io.StringIO(text + "\nEND", newline=""), delimiter="\t", quoting=quoting))
    return [row for row in rows[:-1] if row] if rows[-1] == ["END"] else None


def check_pandas(text, quoting, rows):
    # Tables of two columns and more: pandas leaves out lines that the other reader takes for one empty field.
    if not rows or len({len(row) for row in rows}) > 1 or len(rows[0]) < 2:
        return 0
    table = pandas.read_csv(io.StringIO(text, newline=""), sep="\t", header=None, dtype=str, keep_default_na=False,
                            quoting=quoting, engine="c")
    assert table.values.tolist() == rows, (text, table.values.tolist(), rows)
    return 1


for name, quoting in (("csv", csv.QUOTE_MINIMAL), ("none", csv.QUOTE_NONE)):
    state, compared, open_quotes = START, 0, 0
    for index in range(TEXTS):
        text = text_of(index)
        rows = rows_of(text, quoting)
        if rows is None:
            open_quotes += 1
            state = fnv([0xFFFFFFFD], state)
            continue
        compared += check_pandas(text, quoting, rows)
        for row in rows:
            for field in row:
                state = fnv([*map(ord, field), 0xFFFFFFFF], state)
            state = fnv([0xFFFFFFFE], state)
    print(f"{name}: {state:#x}, {open_quotes} with an open quote, {compared} compared with pandas")
