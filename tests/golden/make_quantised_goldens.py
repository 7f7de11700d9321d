#!/usr/bin/env python3
"""Write tests/golden/quantised_models.safetensors: what ONNX Runtime makes of quantised files.

    BRRR_MODELS=FOLDER python3 tests/golden/make_quantised_goldens.py

The taggers of $BRRR_MODELS/tashkeel see letters that a generator draws; a golden holds the letters
and every output. MiniLM with 8-bit weights sees sentences in pairs of like meaning; a golden holds
the tokens and the mean of each sentence.
"""

import os
import pathlib

import numpy as np
import onnxruntime
import tokenizers
from safetensors.numpy import save_file

MODELS = pathlib.Path(os.environ["BRRR_MODELS"])
GOLDEN = pathlib.Path(__file__).parent / "quantised_models.safetensors"
TAGGERS = {"bilstm": 54, "rawi": 302, "rawi_v2": 236, "rawi_v3": 236, "rawi_ensemble": 236}
SENTENCES = [
    "A cat sleeps on the warm roof.",
    "The kitten is napping on top of the house.",
    "Interest rates rose again this spring.",
    "The central bank made borrowing more expensive.",
    "How do I repair a flat bicycle tyre?",
    "Fixing a puncture on my bike",
    "The orchestra played a symphony by Brahms.",
    "Musicians performed classical music in the hall.",
]


def session(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def main():
    random = np.random.default_rng(7)
    goldens = {}
    for name, letters in TAGGERS.items():
        model = session(MODELS / "tashkeel" / f"{name}.int8.onnx")
        ids = random.integers(1, min(letters, 40), (1, 24))
        goldens[f"{name}/ids"] = ids.astype(np.int32)
        outputs = model.run(None, {model.get_inputs()[0].name: ids})
        for port, value in zip(model.get_outputs(), outputs):
            goldens[f"{name}/{port.name}"] = value.astype(
                np.float32 if value.dtype.kind == "f" else np.int32
            )
    tokenizer = tokenizers.Tokenizer.from_file(str(MODELS / "minilm" / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(SENTENCES)
    ids = np.array([e.ids for e in encoded])
    mask = np.array([e.attention_mask for e in encoded])
    model = session(MODELS / "minilm-int8" / "model.onnx")
    hidden = model.run(
        None, {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    )[0]
    means = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    goldens["minilm/ids"] = ids.astype(np.int32)
    goldens["minilm/mask"] = mask.astype(np.int32)
    goldens["minilm/means"] = means.astype(np.float32)
    save_file(goldens, str(GOLDEN))
    GOLDEN.chmod(0o644)


if __name__ == "__main__":
    main()
