#!/usr/bin/env python3
"""Golden numbers for 200 rows of 1 to 97 tokens, for every encoder with every head, by Hugging
Face's transformers. Needs torch, transformers (the version below) and safetensors:

    python tests/golden/make_encoder_batch_goldens.py

It writes tests/golden/encoder_batches.safetensors. Weights and tokens are formulas of their names
and places, which tests/infer/mixed_lengths_test.cpp has, too, so the file holds answers alone. Each
row goes through transformers by itself, without padding. Kept are the whole vectors of embeddings,
classes and values; of tags those of the last token and the sum over all tokens; of masked tokens
sums of the logits with four signs, for three places of a row.
"""

import pathlib

import numpy
import torch
import transformers
from safetensors.numpy import save_file

TRANSFORMERS = "5.24.0"
ROWS, VOCABULARY, CONTEXT, SIGNS = 200, 61, 104, 4
SIZES = dict(vocab_size=VOCABULARY, max_position_embeddings=CONTEXT + 2)
COMMON = dict(SIZES, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
              num_attention_heads=2, layer_norm_eps=1e-6)
TYPES = {
    "bert": COMMON,
    "roberta": dict(COMMON, type_vocab_size=1),
    "xlm-roberta": dict(COMMON, type_vocab_size=1),
    "distilbert": dict(SIZES, dim=16, hidden_dim=24, n_layers=2, n_heads=2),
    "mpnet": COMMON,
    "modernbert": dict(SIZES, hidden_size=16, intermediate_size=24, num_hidden_layers=4,
                       num_attention_heads=2, norm_eps=1e-6, local_attention=16, pad_token_id=0,
                       bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2),
}
POOLINGS = {"bert": ["cls", "max"], "roberta": ["mean"], "xlm-roberta": ["mean_sqrt_len"],
            "distilbert": ["weighted_mean"], "mpnet": ["mean", "last_token"],
            "modernbert": ["cls", "mean"]}
NORMALIZED = {"roberta", "mpnet"}
HEADS = {"masked": (transformers.AutoModelForMaskedLM, None),
         "classes": (transformers.AutoModelForSequenceClassification, 3),
         "values": (transformers.AutoModelForSequenceClassification, 2),
         "tags": (transformers.AutoModelForTokenClassification, 3),
         "embedding": (transformers.AutoModel, None)}


def mixed(x):
    """A hash of 32-bit numbers, element by element."""
    x = numpy.asarray(x, dtype=numpy.uint64) & 0xFFFFFFFF
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = ((x ^ (x >> shift)) * factor) & 0xFFFFFFFF
    return x ^ (x >> 16)


def weights(name, shape):
    """Multiples of 1/512 in (-0.5, 0.5), those of a norm's weight around 1."""
    hashed = 2166136261
    for byte in name.encode():
        hashed = ((hashed ^ byte) * 16777619) & 0xFFFFFFFF
    count = int(numpy.prod(shape))
    x = (mixed(hashed + numpy.arange(count)) >> 24).astype(numpy.float32)
    values = (x - 127.5) / 256
    if "norm" in name.lower() and name.endswith("weight"):
        values = 1 + values
    return values.reshape(shape).astype(numpy.float32)


def tokens_of(row):
    length = 1 + row * 37 % 97
    return (4 + mixed(1000 * row + numpy.arange(length)) % (VOCABULARY - 4)).astype(numpy.int64)


def types_of(row, length):
    return (2 * numpy.arange(length) >= length).astype(numpy.int64) * (row % 2)


def pooled(x, how):
    """x: [T, C]"""
    if how == "cls":
        return x[0]
    if how == "last_token":
        return x[-1]
    if how == "max":
        return x.max(dim=0).values
    if how == "weighted_mean":
        w = torch.arange(1, len(x) + 1, dtype=x.dtype)[:, None]
        return (x * w).sum(0) / w.sum()
    return x.sum(0) / (len(x) if how == "mean" else len(x) ** 0.5)


def make(model_type, head, out, metadata):
    name = f"{model_type}_{head}"
    build, labels = HEADS[head]
    settings = dict(TYPES[model_type], **({} if labels is None else {"num_labels": labels}))
    if head == "values":
        settings["problem_type"] = "regression"
    config = transformers.AutoConfig.for_model(model_type, **settings)
    has_pooler = model_type not in ("distilbert", "modernbert")
    extra = dict(add_pooling_layer=False) if head == "embedding" and has_pooler else {}
    model = build.from_config(config, attn_implementation="eager", **extra).float().eval()
    names = {}  # a tied parameter by its name in the embedding, or by its shortest name
    for key, p in model.named_parameters(remove_duplicate=False):
        known = names.get(p)
        if known is None or "embeddings" in key or ("embeddings" not in known and len(key) < len(known)):
            names[p] = key
    with torch.no_grad():
        for p, key in names.items():
            p.copy_(torch.from_numpy(weights(key, tuple(p.shape))))
    model = model.double()  # what is rounded once is what both sides should be near to
    answers = []
    for row in range(ROWS):
        tokens = tokens_of(row)
        feed = dict(input_ids=torch.from_numpy(tokens)[None],
                    attention_mask=torch.ones(1, len(tokens), dtype=torch.int64))
        if model_type == "bert":
            feed["token_type_ids"] = torch.from_numpy(types_of(row, len(tokens)))[None]
        with torch.no_grad():
            answer = model(**feed)
        if head == "embedding":
            x = answer.last_hidden_state[0]
            y = torch.cat([pooled(x, how) for how in POOLINGS[model_type]])
            answers.append(torch.nn.functional.normalize(y, dim=0) if model_type in NORMALIZED else y)
        elif head == "masked":
            signs = 1.0 - 2.0 * (mixed(numpy.arange(SIGNS * VOCABULARY)) % 2).astype(numpy.float64)
            signs = torch.from_numpy(signs.reshape(SIGNS, VOCABULARY))
            places = [0, len(tokens) // 2, len(tokens) - 1]
            answers.append((answer.logits[0][places] @ signs.T).reshape(-1))
        elif head == "tags":
            answers.append(torch.cat([answer.logits[0][-1], answer.logits[0].sum(0)]))
        else:
            answers.append(answer.logits[0])
    out[name] = torch.stack(answers).float().numpy()
    config.architectures = [type(model).__name__]
    metadata[name] = config.to_json_string(use_diff=False)
    print(name, out[name].shape, "largest", float(numpy.abs(out[name]).max()))


if __name__ == "__main__":
    assert transformers.__version__ == TRANSFORMERS, transformers.__version__
    out, metadata = {}, {"transformers": transformers.__version__}
    for model_type in TYPES:
        for head in HEADS:
            make(model_type, head, out, metadata)
        metadata[f"{model_type} pooling"] = " ".join(
            POOLINGS[model_type] + (["normalize"] if model_type in NORMALIZED else []))
    path = pathlib.Path(__file__).parent / "encoder_batches.safetensors"
    save_file(out, path, metadata=metadata)
    print(path.name, path.stat().st_size, "bytes")
