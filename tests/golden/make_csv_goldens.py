#!/usr/bin/env python3
"""Writes csv_tables.json: files of texts and labels as people have them, with the rows that pandas reads from them, for
tests/data/csv_test.cpp. Prints what Python's csv module reads from 20,000 random texts of separators, quotes and line
ends, as one hash for each separator; where all rows of a text have the same number of fields, pandas must read the same.

    pip install pandas==3.1.1 numpy==2.4.6
    python3 tests/golden/make_csv_goldens.py

The random texts are not stored: both sides make them from the generator of src/base/rng.h.
"""
import csv
import io
import json
import pathlib
import re

import pandas

from make_bpe_goldens import fnv, philox

TEXTS = 20000
START = 0xCBF29CE484222325
BOM = "\ufeff"

# Name, separator, content.
FILES = [
    ("plain.csv", ",", "text,label\ngood,pos\nbad,neg\n"),
    ("quotes.csv", ",", 'text,label\n"good, really","pos"\n"she said ""no""",neg\n"""",pos\n'),
    ("line_breaks.csv", ",", 'text,label\n"one\ntwo",pos\n"three\r\n\r\nfour",neg\nfive,pos\n'),
    ("bom.csv", ",", BOM + '"text","label"\n"good","pos"\nbad,neg\n'),
    ("windows.csv", ",", "text,label\r\ngood,pos\r\n\r\nbad,neg\r\n"),
    ("mac.csv", ",", 'text,label\rgood,pos\r"a\rb",neg\r'),
    ("semicolons.csv", ";", "text;label\nwell, yes;pos\nno, not that;neg\n1,5;neg\n"),
    ("tabs.csv", "\t", "text\tlabel\ngood, better\tpos\nbad; worse\tneg\n"),
    ("other_columns.csv", ",", "id,label,text,date\n1,pos,good,\n2,neg,bad,2024-01-01\n3,pos,,\n"),
    ("trailing.csv", ",", "text,label,\ngood,pos,\nbad,neg,\n"),
    ("trailing_two.csv", ";", "text;label;;\r\ngood;pos;;\r\nbad;neg;;\r\n"),
    ("short_rows.csv", ",", "text,label,note\ngood,pos\nbad,neg,yes\n"),
    ("inner_quotes.csv", ",", 'text,label\nthe 3" disk,pos\n"quoted" start,neg\n'),
    ("blanks.csv", ",", "text,label\n\n  good , pos\n   \nbad,neg\n\n"),
    ("no_end.csv", ",", 'text,label\ngood,"pos"\nbad,"neg"'),
    ("unicode.csv", ",", 'text,label\n"ein Satz, mit „Quotes“",pos\n"行\n二",neg\n'),
    ("other_separators.csv", ",", "text,label\na;b;c,pos\nd\te,neg\n"),
    ("no_ending", ",", "text,label\ngood,pos\nbad,neg\n"),
    ("no_ending_semicolons", ";", 'label;text\npos;"good; very"\nneg;bad\n'),
]


def table_of(name, separator, content):
    table = pandas.read_csv(io.BytesIO(content.encode()), sep=separator, dtype=str, keep_default_na=False,
                            encoding="utf-8-sig", engine="c", index_col=False).fillna("")
    return {"name": name, "content": content, "texts": table["text"].tolist(),
            "labels": [label.strip() for label in table["label"]]}


def pieces(separator):
    return ['"', '"', '""', separator, separator, "\n", "\r\n", "\r", "a", "b c", "é", "\t"]


def text_of(index, separator):
    words = philox(20240521, index, 8)
    some = pieces(separator)
    return "".join(some[word % len(some)] for word in words[1:2 + words[0] % 30])


def rows_of(text, separator):
    """The rows, or nothing when a quote is left open: it then takes the mark behind the text."""
    rows = list(csv.reader(io.StringIO(text + "\nEND", newline=""), delimiter=separator))
    return [row for row in rows[:-1] if row] if rows[-1] == ["END"] else None


def check_pandas(text, separator, rows):
    # Tables of two columns and more: pandas leaves out lines that the other reader takes for one empty field.
    # Behind an empty line that a carriage return alone ends, pandas loses an empty field.
    lone_return = re.search("\r(?!\n)", text)
    if not rows or len({len(row) for row in rows}) > 1 or len(rows[0]) < 2 or lone_return:
        return 0
    table = pandas.read_csv(io.StringIO(text, newline=""), sep=separator, header=None, dtype=str,
                            keep_default_na=False, engine="c")
    assert table.values.tolist() == rows, (text, table.values.tolist(), rows)
    return 1


path = pathlib.Path(__file__).parent / "csv_tables.json"
path.write_text(json.dumps([table_of(*file) for file in FILES], indent=1) + "\n")
for separator in ",;":
    state, compared, open_quotes = START, 0, 0
    for index in range(TEXTS):
        text = text_of(index, separator)
        rows = rows_of(text, separator)
        if rows is None:
            open_quotes += 1
            state = fnv([0xFFFFFFFD], state)
            continue
        compared += check_pandas(text, separator, rows)
        for row in rows:
            for field in row:
                state = fnv([*map(ord, field), 0xFFFFFFFF], state)
            state = fnv([0xFFFFFFFE], state)
    print(f"'{separator}': {state:#x}, {open_quotes} with an open quote, {compared} compared with pandas")
