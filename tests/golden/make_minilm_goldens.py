#!/usr/bin/env python3
"""Embeddings of 200 sentences by a published sentence encoder (MiniLM, 22.7M parameters), as transformers computes
them one by one in float32, with the pooling that its folder asks for: the mean over tokens, then length 1. For
tests/infer/minilm_test.cpp, which reads model and sentences from $BRRR_MODELS and $BRRR_DATA.

    python tests/golden/make_minilm_goldens.py MODEL_FOLDER SENTENCES_FOLDER

Needs torch, transformers (the version below) and safetensors. Writes tests/golden/minilm_embeddings.safetensors: "lines"
[200] (of the four files one behind the other) and "embeddings" [200, 384].
"""
import pathlib
import sys

import numpy
import torch
import transformers
from safetensors.numpy import save_file

TRANSFORMERS = "5.24.0"
COUNT, LONGEST = 200, 256


def main():
    assert transformers.__version__ == TRANSFORMERS, transformers.__version__
    torch.use_deterministic_algorithms(True)
    model_folder, data = sys.argv[1:3]
    sentences = []
    for name in ("editorials", "movies", "products", "tweets"):
        with open(pathlib.Path(data) / f"{name}.tsv", encoding="utf-8", newline="") as file:
            for line in file.read().split("\n"):
                if line:
                    sentences.append(line.split("\t", 1)[1])
    lines = numpy.linspace(0, len(sentences) - 1, COUNT).astype(numpy.int32)
    # Among them the longest and the shortest.
    lines[7] = max(range(len(sentences)), key=lambda i: len(sentences[i]))
    lines[8] = min(range(len(sentences)), key=lambda i: len(sentences[i]))
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_folder)
    model = transformers.AutoModel.from_pretrained(model_folder, attn_implementation="eager",
                                                   dtype=torch.float32).eval()
    rows = []
    with torch.no_grad():
        for line in lines:
            feed = tokenizer(sentences[line], truncation=True, max_length=LONGEST, return_tensors="pt")
            hidden = model(**feed).last_hidden_state[0]
            rows.append(torch.nn.functional.normalize(hidden.mean(0), dim=0).numpy())
    path = pathlib.Path(__file__).parent / "minilm_embeddings.safetensors"
    save_file({"lines": lines, "embeddings": numpy.stack(rows)}, path)
    print(path.name, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
