"""Perplexity of GGUF files by Brrr and by llama.cpp on the same tokens and windows.

    build/peers/venv/bin/pip install xllamacpp numpy
    ./brrr export MODEL m.gguf --type Q8_0
    build/peers/venv/bin/python bench/peers/gguf_perplexity.py --text TEXT m.gguf ...

llama.cpp is the library inside the wheel xllamacpp, called through its C interface. Windows are those of
`brrr eval`: the text is tokenised with its begin token, cut into windows of the model's context (or --context),
the first token of each window is replaced by the begin token (as llama.cpp's perplexity does), and every token
but the first is predicted once. llama.cpp's own program scores only the second half of each window: the column
"second halves" has that number. Both run in their default precision; --precision fp32 is Brrr's with floats.
Prints one JSON line per file.
"""

import argparse
import ctypes as c
import glob
import json
import os
import pathlib
import subprocess
import tempfile

import numpy as np
import xllamacpp

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Params(c.Structure):
    """Larger than any parameter structure of llama.cpp: defaults come from the library, and a caller that passes
    more bytes on the stack than the callee reads does no harm."""

    _fields_ = [("n_ctx", c.c_uint32), ("n_batch", c.c_uint32), ("n_ubatch", c.c_uint32),
                ("rest", c.c_uint8 * 1012)]


class Batch(c.Structure):
    _fields_ = [("n_tokens", c.c_int32), ("token", c.POINTER(c.c_int32)), ("embd", c.c_void_p),
                ("pos", c.POINTER(c.c_int32)), ("n_seq_id", c.POINTER(c.c_int32)),
                ("seq_id", c.POINTER(c.POINTER(c.c_int32))), ("logits", c.POINTER(c.c_int8))]


def library():
    lib = c.CDLL(glob.glob(os.path.join(os.path.dirname(xllamacpp.__file__), "*.so"))[0])
    for name, result, arguments in [
        ("llama_model_default_params", Params, []),
        ("llama_context_default_params", Params, []),
        ("llama_model_load_from_file", c.c_void_p, [c.c_char_p, Params]),
        ("llama_init_from_model", c.c_void_p, [c.c_void_p, Params]),
        ("llama_model_get_vocab", c.c_void_p, [c.c_void_p]),
        ("llama_model_n_ctx_train", c.c_int32, [c.c_void_p]),
        ("llama_vocab_n_tokens", c.c_int32, [c.c_void_p]),
        ("llama_vocab_bos", c.c_int32, [c.c_void_p]),
        ("llama_vocab_get_add_bos", c.c_bool, [c.c_void_p]),
        ("llama_tokenize", c.c_int32, [c.c_void_p, c.c_char_p, c.c_int32, c.POINTER(c.c_int32), c.c_int32,
                                       c.c_bool, c.c_bool]),
        ("llama_batch_init", Batch, [c.c_int32, c.c_int32, c.c_int32]),
        ("llama_decode", c.c_int32, [c.c_void_p, Batch]),
        ("llama_get_logits_ith", c.POINTER(c.c_float), [c.c_void_p, c.c_int32]),
        ("llama_get_memory", c.c_void_p, [c.c_void_p]),
        ("llama_memory_clear", None, [c.c_void_p, c.c_bool]),
        ("llama_log_set", None, [c.c_void_p, c.c_void_p]),
    ]:
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


QUIET = c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)(lambda level, text, data: None)


def losses_of_llama(lib, path, text, context):
    """Mean losses over all positions and over the second halves of whole windows, and the number of tokens."""
    model = lib.llama_model_load_from_file(path.encode(), lib.llama_model_default_params())
    if not model:
        raise SystemExit(f"llama.cpp does not load {path}")
    vocab = lib.llama_model_get_vocab(model)
    context = context or lib.llama_model_n_ctx_train(model)
    params = lib.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = context
    run = lib.llama_init_from_model(model, params)
    add_begin, begin = lib.llama_vocab_get_add_bos(vocab), lib.llama_vocab_bos(vocab)
    room = (c.c_int32 * (len(text) + 8))()
    count = lib.llama_tokenize(vocab, text, len(text), room, len(room), True, False)
    ids = np.array(room[:count])
    batch = lib.llama_batch_init(context, 0, 1)
    size = lib.llama_vocab_n_tokens(vocab)
    total = halves = 0.0
    scored = scored_halves = 0
    for start in range(0, len(ids) - 1, context):
        window = ids[start:start + context].copy()
        targets = ids[start + 1:start + context + 1]
        if add_begin:
            window[0] = begin
        lib.llama_memory_clear(lib.llama_get_memory(run), True)
        batch.n_tokens = len(window)
        for i, token in enumerate(window):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = int(token), i, 1, 1
            batch.seq_id[i][0] = 0
        if lib.llama_decode(run, batch) != 0:
            raise SystemExit(f"llama.cpp fails at token {start} of {path}")
        for i, target in enumerate(targets):
            logits = np.ctypeslib.as_array(lib.llama_get_logits_ith(run, i), (size,)).astype(np.float64)
            top = logits.max()
            loss = top + np.log(np.exp(logits - top).sum()) - logits[target]
            total += loss
            scored += 1
            if len(window) == context and context // 2 <= i < context - 1:
                halves += loss
                scored_halves += 1
    return total / scored, halves / max(scored_halves, 1), scored


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--text", required=True)
    parser.add_argument("--bytes", type=int, default=0, help="of the text, from its beginning (0: all)")
    parser.add_argument("--context", type=int, default=0)
    parser.add_argument("--precision", default="")
    parser.add_argument("--brrr", default=str(ROOT / "brrr"))
    options = parser.parse_args()
    text = pathlib.Path(options.text).read_bytes()
    text = text[:options.bytes or len(text)]
    folder = tempfile.TemporaryDirectory()
    piece = pathlib.Path(folder.name) / "text.txt"
    piece.write_bytes(text)
    lib = library()
    lib.llama_log_set(QUIET, None)
    lib.llama_backend_init()
    for path in options.files:
        theirs, halves, tokens = losses_of_llama(lib, path, text, options.context)
        command = [options.brrr, "eval", "--model", path, "--text", str(piece), "--json"]
        command += ["--context", str(options.context)] if options.context else []
        command += ["--precision", options.precision] if options.precision else []
        ours = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(json.dumps(dict(file=os.path.basename(path), tokens=[ours["tokens"], tokens],
                              brrr=ours["perplexity"], llama_cpp=float(np.exp(theirs)),
                              ratio=float(np.exp(ours["loss"] - theirs)),
                              second_halves=float(np.exp(halves)))), flush=True)


if __name__ == "__main__":
    main()
