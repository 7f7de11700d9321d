"""What Q4_K, Q5_K and Q6_K lose of a model's weights by Brrr's quantizer and by ggml's own.

    build/peers/venv/bin/pip install xllamacpp gguf numpy safetensors
    build/peers/venv/bin/python bench/peers/gguf_quantisers.py [FILE.safetensors]

Writes small Llamas whose matrices are normal, heavy-tailed (Student's t with 3 degrees of freedom) and, where a
file is named, cut from the matrices of its layers; exports each with `brrr export --type`, and quantises the same
matrices with ggml_quantize_chunk of the library inside xllamacpp (without an importance matrix). Prints the root
mean square of the losses over that of the weights, and the ratio; below 1 Brrr loses less. The variable BRRR names
another program than ./brrr.
"""

import ctypes
import glob
import os
import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy as np
import xllamacpp
from safetensors.numpy import load_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
WIDTH, MLP, LAYERS, VOCABULARY = 256, 512, 8, 512


def quantizer():
    lib = ctypes.CDLL(glob.glob(os.path.join(os.path.dirname(xllamacpp.__file__), "*.so"))[0])
    quantize = lib.ggml_quantize_chunk
    quantize.restype = ctypes.c_size_t
    quantize.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p] + [ctypes.c_int64] * 3 + [ctypes.c_void_p]
    return quantize


def by_ggml(quantize, values, tensor):
    row = int(tensor.shape[0])
    room = np.zeros(tensor.n_bytes, np.uint8)
    quantize(int(tensor.tensor_type), values.ctypes.data, room.ctypes.data, 0, len(values) // row, row, None)
    return gguf.dequantize(room.reshape(len(values) // row, -1), tensor.tensor_type).reshape(-1)


def write_model(path, make):
    w = gguf.GGUFWriter(path, "llama")
    w.add_context_length(64)
    w.add_embedding_length(WIDTH)
    w.add_block_count(LAYERS)
    w.add_feed_forward_length(MLP)
    w.add_head_count(4)
    w.add_head_count_kv(4)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    w.add_token_list([f"t{i}" for i in range(VOCABULARY)])
    w.add_token_scores([0.0] * VOCABULARY)
    w.add_token_types([gguf.TokenType.CONTROL] * VOCABULARY)
    shapes = {"token_embd": (VOCABULARY, WIDTH)}
    for i in range(LAYERS):
        shapes |= {f"blk.{i}.{name}": (WIDTH, WIDTH) for name in ("attn_q", "attn_k", "attn_v", "attn_output")}
        shapes |= {f"blk.{i}.{name}": (MLP, WIDTH) for name in ("ffn_gate", "ffn_up")}
        shapes[f"blk.{i}.ffn_down"] = (WIDTH, MLP)
        for name in ("attn_norm", "ffn_norm"):
            w.add_tensor(f"blk.{i}.{name}.weight", np.ones(WIDTH, np.float32))
    w.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    for name, shape in shapes.items():
        w.add_tensor(name + ".weight", np.ascontiguousarray(make(shape).astype(np.float32)))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def sources(argv):
    random = np.random.default_rng(0)
    yield "normal", lambda shape: random.standard_normal(shape) * 0.05
    yield "heavy-tailed", lambda shape: random.standard_t(3, shape) * 0.02
    if len(argv) > 1:
        matrices = [v.ravel() for name, v in sorted(load_file(argv[1]).items())
                    if v.ndim == 2 and "embed" not in name]
        values, at = np.concatenate(matrices), [0]

        def cut(shape):
            at[0] += int(np.prod(shape))
            return np.take(values, range(at[0] - int(np.prod(shape)), at[0]), mode="wrap").reshape(shape)

        yield pathlib.Path(argv[1]).parent.name, cut


def main():
    quantize = quantizer()
    program = os.environ.get("BRRR", str(ROOT / "brrr"))
    with tempfile.TemporaryDirectory() as folder:
        plain, made = folder + "/plain.gguf", folder + "/made.gguf"
        for name, make in sources(sys.argv):
            write_model(plain, make)
            weights = {t.name: np.array(t.data, np.float32).reshape(-1) for t in gguf.GGUFReader(plain).tensors}
            for kind in ("Q4_K_M", "Q5_K_M"):
                subprocess.run([program, "export", plain, made, "--type", kind], check=True, capture_output=True)
                sums = {}
                for t in gguf.GGUFReader(made).tensors:
                    if t.tensor_type == gguf.GGMLQuantizationType.F32:
                        continue
                    x = weights[t.name].astype(np.float64)
                    ours = gguf.dequantize(t.data, t.tensor_type).reshape(-1) - x
                    theirs = by_ggml(quantize, weights[t.name], t) - x
                    total = sums.setdefault(t.tensor_type.name, np.zeros(3))
                    total += [(ours**2).sum(), (theirs**2).sum(), (x**2).sum()]
                for block, (ours, theirs, norm) in sorted(sums.items()):
                    print(f"{name:14} {kind} {block}: brrr {np.sqrt(ours / norm):.5f}, "
                          f"ggml {np.sqrt(theirs / norm):.5f}, ratio {np.sqrt(ours / theirs):.4f}", flush=True)


if __name__ == "__main__":
    main()
