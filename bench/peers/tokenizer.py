#!/usr/bin/env python3
"""Encoding: Brrr against tiktoken (GPT-2) or Hugging Face's tokenizers, one thread each, in turns, on the same texts.

    cmake -S . -B build -DBRRR_BENCH=ON && cmake --build build --target bench_tokenizer
    BRRR_DATA=FOLDER python3 bench/peers/tokenizer.py [--binary build/bench/bench_tokenizer] [--rounds 11] [--folder DIR]

FOLDER holds gpt2/vocab.json, gpt2/merges.txt, shakespeare/input.txt and sentences/. The peer is installed into a
throw-away virtual environment. Both must give the same ids, or nothing is reported.

Without --folder the peer is tiktoken, timed from str to list of ids (encode_ordinary), Brrr from bytes to ids. The texts:
Shakespeare repeated 10 times; a mixture of scripts (Greek, Cyrillic, Arabic, Hindi, CJK, Hangul, emoji, code, numbers)
drawn at random from 4,000 made-up words a script, 8 MB; and the same with every word new, where remembering words
cannot help.

With --folder DIR, which holds a tokenizer.json, the peer is `tokenizers`, timed from a list of str (encode_batch_fast, its
fastest way, parallelism off). The texts: the sentences one by one, Shakespeare line by line, and Shakespeare whole.

With --model FILE, a tokenizer.model or a tekken.json, the peer is the library whose file it is, on the same texts:
`sentencepiece` (encode of a list of str with num_threads=1), or `tiktoken` (encode_ordinary; Llama 3's file, and tekken's,
whose ids mistral-common moves behind the special tokens).
"""
import argparse
import base64
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import venv

PEERS = ["tiktoken==0.14.0", "tokenizers==0.22.1", "sentencepiece==0.2.3"]


def run_in_throw_away_environment():
    with tempfile.TemporaryDirectory(prefix="brrr-peers-") as folder:
        venv.create(folder, with_pip=True)
        python = os.path.join(folder, "bin", "python")
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PEERS], check=True)
        sys.exit(subprocess.run([python, *sys.argv]).returncode)


SCRIPTS = [  # first code point, how many, longest word, joined by
    (0x61, 26, 9, " "), (0xE0, 31, 7, " "), (0x3B1, 25, 9, " "), (0x430, 32, 10, " "), (0x627, 36, 8, " "), (0x905, 50, 7, " "),
    (0x4E00, 3000, 12, "\u3002"), (0x3042, 80, 10, "\u3001"), (0xAC00, 11172, 5, " "), (0x1F600, 80, 2, " "), (0x21, 15, 4, " "),
    (0x30, 10, 6, ", "),
]


def made_up_word(rng, script):
    first, count, longest, _ = script
    return "".join(chr(first + rng.randrange(count)) for _ in range(rng.randint(1, longest)))


def mixed_text(size, fresh):
    rng = random.Random(7)
    known = [[made_up_word(rng, script) for _ in range(4000)] for script in SCRIPTS]
    out, length = [], 0
    while length < size:
        which = rng.randrange(len(SCRIPTS))
        joint = SCRIPTS[which][3]
        words = [made_up_word(rng, SCRIPTS[which]) if fresh else known[which][min(int(rng.paretovariate(0.8)), 4000) - 1]
                 for _ in range(rng.randint(3, 12))]
        out.append(joint.join(words) + rng.choice([". ", "\n", "\n\n", "  ", "? "]))
        length += len(out[-1].encode())
    return "".join(out)


def gpt2(folder):
    import tiktoken
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in printable]
    letters = {**{chr(b): b for b in printable}, **{chr(256 + i): b for i, b in enumerate(rest)}}
    with open(os.path.join(folder, "vocab.json"), encoding="utf-8") as f:
        vocab = json.load(f)
    end = vocab.pop("<|endoftext|>")
    ranks = {bytes(letters[c] for c in name): i for name, i in vocab.items()}
    # tiktoken's own, faster spelling of GPT-2's pattern.
    pattern = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
    return tiktoken.Encoding("gpt2", pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": end})


def fnv(ids):
    h = 0xCBF29CE484222325
    for i in ids:
        h = ((h ^ i) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{h:016x}"


def line(name, seconds, megabytes):
    rates = sorted(megabytes / s for s in seconds)
    print(f"  {name:9} {statistics.median(rates):8.1f} MB/s   (min {rates[0]:.1f}, max {rates[-1]:.1f})")
    return statistics.median(rates)


def compare(name, text, binary, folder, peer, encode, rounds, how="1"):
    """encode(text): the ids that the peer makes, and how many seconds it took."""
    data = text.encode()
    with tempfile.NamedTemporaryFile(suffix=".txt") as f:
        f.write(data)
        f.flush()
        ours = subprocess.Popen([binary, folder, f.name, how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                env={**os.environ, "OMP_NUM_THREADS": "1"})
        load = ours.stdout.readline().split()[1]
        our_seconds, peer_seconds = [], []
        for _ in range(rounds + 1):
            ours.stdin.write("\n")
            ours.stdin.flush()
            seconds, tokens, ids_hash = ours.stdout.readline().split()
            our_seconds.append(float(seconds))
            ids, seconds = encode(text)
            peer_seconds.append(seconds)
        ours.stdin.close()
        ours.wait()
    if len(ids) != int(tokens) or fnv(ids) != ids_hash:
        sys.exit(f"{name}: the ids differ: {len(ids)} from {peer}, {tokens} from Brrr")
    print(f"{name}: {len(data) / 1e6:.1f} MB, {tokens} tokens, identical ids; {rounds} rounds in turns after one warm-up")
    first = len(data) / 1e6 / our_seconds[0]
    ours_rate = line("brrr", our_seconds[1:], len(data) / 1e6)
    peer_rate = line(peer, peer_seconds[1:], len(data) / 1e6)
    print(f"  ratio {ours_rate / peer_rate:.1f}x; brrr's first, cold pass {first:.1f} MB/s; loading the vocabulary {load} ms")


def against_tiktoken(arguments, data, shakespeare):
    folder = os.path.join(data, "gpt2")
    encoding = gpt2(folder)

    def encode(text):
        start = time.perf_counter()
        ids = encoding.encode_ordinary(text)
        return ids, time.perf_counter() - start

    for name, text in (("shakespeare x10", shakespeare * 10), ("mixed Unicode", mixed_text(8_000_000, False)),
                       ("mixed Unicode, every word new", mixed_text(8_000_000, True))):
        compare(name, text, arguments.binary, folder, "tiktoken", encode, arguments.rounds)


def sentences_of(data):
    lines = []
    for name in ("editorials", "movies", "products", "tweets"):
        with open(os.path.join(data, "sentences", name + ".tsv"), encoding="utf-8", newline="") as f:
            lines += [line.split("\t", 1)[1] for line in f.read().split("\n") if line]
    return "\n".join(lines)


def against_tokenizers(arguments, data, shakespeare):
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(os.path.join(arguments.folder, "tokenizer.json"))
    tokenizer.no_truncation()  # files of encoder models may say otherwise
    tokenizer.no_padding()
    sentences = sentences_of(data)

    def encode(text, how):
        parts = text.split("\n") if how == "lines" else [text]
        start = time.perf_counter()
        encodings = tokenizer.encode_batch_fast(parts, add_special_tokens=False)
        seconds = time.perf_counter() - start
        return [i for e in encodings for i in e.ids], seconds

    for name, text, how in (("sentences, one by one", sentences, "lines"), ("shakespeare, line by line", shakespeare, "lines"),
                            ("shakespeare, whole", shakespeare, "1")):
        compare(name, text, arguments.binary, arguments.folder, "tokenizers", lambda t: encode(t, how), arguments.rounds, how)


LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def peer_of(path):
    """The name of the library, a function from a list of str to a list of lists of ids, and the id of its first token."""
    import tiktoken
    with open(path, "rb") as f:
        content = f.read()
    if path.endswith(".json"):
        root = json.loads(content)
        first = root["config"]["default_num_special_tokens"]
        vocab = root["vocab"][:root["config"]["default_vocab_size"] - first]
        encoding = tiktoken.Encoding("tekken", pat_str=root["config"]["pattern"], special_tokens={},
                                     mergeable_ranks={base64.b64decode(v["token_bytes"]): v["rank"] for v in vocab})
        return "tiktoken", lambda texts: [encoding.encode_ordinary(t) for t in texts], first
    first_line = content.split(b"\n", 1)[0].split()
    if len(first_line) == 2 and first_line[1].isdigit():
        encoding = tiktoken.Encoding("llama3", pat_str=LLAMA3, special_tokens={}, mergeable_ranks={
            base64.b64decode(line.split()[0]): int(line.split()[1]) for line in content.split(b"\n") if line})
        return "tiktoken", lambda texts: [encoding.encode_ordinary(t) for t in texts], 0
    import sentencepiece
    processor = sentencepiece.SentencePieceProcessor(model_proto=content)
    return "sentencepiece", lambda texts: processor.encode(texts, num_threads=1), 0


def against_its_library(arguments, data, shakespeare):
    name, encode_all, first = peer_of(arguments.model)

    def encode(text, how):
        parts = text.split("\n") if how == "lines" else [text]
        start = time.perf_counter()
        ids = encode_all(parts)
        seconds = time.perf_counter() - start
        return [first + i for part in ids for i in part], seconds

    for what, text, how in (("sentences, one by one", sentences_of(data), "lines"), ("shakespeare, line by line", shakespeare, "lines"),
                            ("shakespeare, whole", shakespeare, "1")):
        compare(what, text, arguments.binary, arguments.model, name, lambda t: encode(t, how), arguments.rounds, how)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/bench/bench_tokenizer")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--folder", help="a folder with tokenizer.json")
    parser.add_argument("--model", help="a tokenizer.model or tekken.json")
    arguments = parser.parse_args()
    if not os.path.exists(arguments.binary):
        sys.exit(f"{arguments.binary} is missing; build it:\n{__doc__.split(chr(10) * 2)[1]}")
    if "BRRR_DATA" not in os.environ:
        sys.exit("BRRR_DATA is not set; it names the folder with gpt2/, shakespeare/ and sentences/")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    needed = ["tokenizers"] if arguments.folder else ["tiktoken", "sentencepiece"] if arguments.model else ["tiktoken"]
    if any(importlib.util.find_spec(name) is None for name in needed):
        run_in_throw_away_environment()
    data = os.environ["BRRR_DATA"]
    with open(os.path.join(data, "shakespeare", "input.txt"), encoding="utf-8") as f:
        shakespeare = f.read()
    (against_tokenizers if arguments.folder else against_its_library if arguments.model else against_tiktoken)(arguments, data, shakespeare)


if __name__ == "__main__":
    main()
