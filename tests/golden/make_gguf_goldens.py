#!/usr/bin/env python3
"""Write tests/golden/gguf_blocks.safetensors: what gguf-py makes of random blocks of every type.

    python3 tests/golden/make_gguf_goldens.py        (needs gguf, numpy, safetensors)

The bytes of the blocks are made by a counter (SplitMix64), as tests/formats/block_types_test.cpp
makes them again; scales that would be infinite or NaN are made finite. A golden holds the values of
the first 4,096 elements of each type, and in its metadata the SHA-256 of the values of the first
20,000 and of the first 1,000,000 blocks; and, of the types that Brrr writes, the SHA-256 of 20,000
blocks that gguf-py makes of random floats.
"""

import hashlib
import pathlib

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from safetensors.numpy import save_file

GOLDEN = pathlib.Path(__file__).parent / "gguf_blocks.safetensors"
# Bytes of a block at which an f16 lies.
HALVES = {
    "F16": [0],
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "IQ4_NL": [0],
    "IQ4_XS": [0],
}
TYPES = [*HALVES, "F32", "BF16", "MXFP4"]
WRITTEN = ["F32", "F16", "BF16", "Q4_0", "Q5_0", "Q5_1", "Q8_0"]
FEW, MANY, PIECE, SHOWN = 20_000, 1_000_000, 20_000, 4096


def random_bytes(begin, count, seed):
    """Bytes [begin, begin + count) of the stream of a seed; both are multiples of 8."""
    with np.errstate(over="ignore"):
        at = np.arange(begin // 8, (begin + count) // 8, dtype=np.uint64)
        z = (at + np.uint64(seed << 40)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return (z ^ (z >> np.uint64(31))).view(np.uint8)


def blocks_of(name, begin, count):
    kind = GGMLQuantizationType[name]
    width = GGML_QUANT_SIZES[kind][1]
    blocks = random_bytes(begin * width, count * width, int(kind)).reshape(count, width).copy()
    for at in HALVES.get(name, []):
        infinite = (blocks[:, at + 1] & 0x7C) == 0x7C
        blocks[infinite, at + 1] &= 0xBF
    if name in ("F32", "BF16"):  # the exponent 255 becomes 127
        infinite = ((blocks[:, -1] & 0x7F) == 0x7F) & (blocks[:, -2] >= 0x80)
        blocks[infinite, -1] &= 0xBF
    if name == "MXFP4":
        blocks[blocks[:, 0] == 255, 0] = 127
    return blocks


def values_of(name, begin, count):
    blocks = blocks_of(name, begin, count)
    return np.ascontiguousarray(quants.dequantize(blocks, GGMLQuantizationType[name])).reshape(-1)


def random_values(name, count):
    """Floats that are exact in both languages, some of them zeros, some halves of a step."""
    words = random_bytes(0, count * 8, 100 + int(GGMLQuantizationType[name])).view(np.uint64)
    values = ((words >> np.uint64(40)).astype(np.int64) - (1 << 23)).astype(np.float32)
    values = np.ldexp(values, -20 - (words & np.uint64(15)).astype(np.int32))
    values[(words >> np.uint64(4)) % np.uint64(16) == 0] = 0
    return values.astype(np.float32)


def main():
    goldens, hashes = {}, {}
    for name in WRITTEN:
        kind = GGMLQuantizationType[name]
        values = random_values(name, FEW * GGML_QUANT_SIZES[kind][0]).reshape(FEW, -1)
        values[7] = 0
        blocks = np.ascontiguousarray(quants.quantize(values, kind))
        hashes[name + ".written"] = hashlib.sha256(blocks.tobytes()).hexdigest()
    for name in TYPES:
        digest = hashlib.sha256()
        for begin in range(0, MANY, PIECE):
            values = values_of(name, begin, PIECE)
            assert values.dtype == np.float32 and np.isfinite(values).all() or name == "MXFP4"
            digest.update(values.tobytes())
            if begin == 0:
                goldens[name] = values[:SHOWN].copy()
            if begin + PIECE == FEW:
                hashes[name + ".few"] = digest.copy().hexdigest()
        hashes[name + ".many"] = digest.hexdigest()
        print(name, hashes[name + ".few"][:12], hashes[name + ".many"][:12])
    save_file(goldens, GOLDEN, metadata=hashes)


if __name__ == "__main__":
    main()
