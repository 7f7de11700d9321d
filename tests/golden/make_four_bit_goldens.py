#!/usr/bin/env python3
"""Writes four_bit.safetensors: matrices of floats, the codes of NF4 and FP4 that are nearest to
them, the scales and the values that these stand for.

The codes are computed here, by the published tables (Dettmers et al. 2023, appendix E; bitsandbytes)
and the nearest value in float64 of the float32 quotient. Where bitsandbytes is installed its
quantisation and dequantisation on the CPU have to agree, but for elements halfway between two
values and for the sign of zero.

    python3 tests/golden/make_four_bit_goldens.py
"""
import json
import pathlib
import struct

import numpy as np

BLOCK = 64
NF4 = np.array([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
                -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
                0.07958029955625534, 0.16093020141124725, 0.24611230194568634,
                0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
                0.7229568362236023, 1.0], np.float32)
_FP4 = np.array([0, 0.0625, 8, 12, 4, 6, 2, 3], np.float32) / np.float32(12)
FP4 = np.concatenate([_FP4, -_FP4])
TABLES = {"nf4": NF4, "fp4": FP4}


def quantise(x, table):
    blocks = x.reshape(-1, BLOCK)
    scales = np.abs(blocks).max(1)
    shares = np.where(scales[:, None] > 0, blocks / np.maximum(scales, 1e-38)[:, None], 0)
    distance = np.abs(shares[:, :, None].astype(np.float64) - table.astype(np.float64))
    codes = distance.argmin(2)
    values = (table[codes] * scales[:, None]).astype(np.float32)
    return codes.astype(np.uint8).reshape(x.shape), scales.astype(np.float32).reshape(
        x.shape[0], -1), values.reshape(x.shape)


def check_with_bitsandbytes(kind, x, scales, values):
    try:
        import bitsandbytes.functional as bnb
        import torch
    except ImportError:
        return print("bitsandbytes is not installed: not compared")
    packed, state = bnb.quantize_4bit(torch.from_numpy(x), blocksize=BLOCK, quant_type=kind)
    theirs = bnb.dequantize_4bit(packed, state).numpy().reshape(x.shape)
    maxima = state.absmax.float().numpy().reshape(scales.shape)
    table = state.code.float().numpy()
    assert (table == TABLES[kind]).all(), (table, TABLES[kind])
    assert (maxima == scales).all()
    print(kind, "elements that differ from bitsandbytes:", int((theirs != values).sum()), "of",
          x.size)


def write(path, tensors):
    names = {np.dtype("float32"): "F32", np.dtype("uint8"): "U8"}
    header, body = {}, b""
    for name, t in tensors.items():
        data = np.ascontiguousarray(t).tobytes()
        header[name] = {"dtype": names[t.dtype], "shape": list(t.shape),
                        "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def main():
    rng = np.random.default_rng(7)
    x = rng.standard_normal((48, 192)).astype(np.float32)
    x[0] *= 1e-6
    x[1] *= 1e6
    x[2, :BLOCK] = 0
    x[3] = 0.25  # one value
    x[4] = np.linspace(-1, 1, 192, dtype=np.float32)
    x[5] = rng.standard_t(2, 192).astype(np.float32)  # outliers
    tensors = {"x": x}
    for kind, table in TABLES.items():
        codes, scales, values = quantise(x, table)
        check_with_bitsandbytes(kind, x, scales, values)
        tensors |= {f"{kind}.codes": codes, f"{kind}.scales": scales, f"{kind}.values": values}
    write(pathlib.Path(__file__).parent / "four_bit.safetensors", tensors)


if __name__ == "__main__":
    main()
