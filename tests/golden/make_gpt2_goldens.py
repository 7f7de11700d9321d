#!/usr/bin/env python3
"""Golden numbers of a small GPT-2 from PyTorch, in float64: logits, loss, every gradient and the
losses of ten AdamW steps. Needs torch, numpy and safetensors; run it where they are installed:

    python tests/golden/make_gpt2_goldens.py

It writes gpt2_small.safetensors and gpt2_plain.safetensors beside itself. Weights are stored too,
rounded to float32 before they are used, so that both sides start from the same bits. "small" is
GPT-2 as published (tanh GELU, biases, tied head); "plain" has no biases, the erf GELU and a head
of its own. Results are rounded to float32 only when they are stored; the ten losses stay float64.
"""

import json
import math
import pathlib

import numpy
import torch
from safetensors.numpy import save_file

CONFIGS = {
    "small": dict(vocab_size=97, n_positions=24, n_embd=36, n_layer=2, n_head=3, bias=True,
                  activation="gelu_new", tie=True, batch=3, length=19, eps=1e-5),
    "plain": dict(vocab_size=61, n_positions=17, n_embd=20, n_layer=2, n_head=4, bias=False,
                  activation="gelu", tie=False, batch=2, length=17, eps=1e-5),
}
STEPS = 10
ADAMW = dict(lr=3e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, clip=1.0)


def make_weights(c, rng):
    """Names, shapes and layout (x @ w) as in Hugging Face's GPT-2 files."""
    width = c["n_embd"]
    w = {}

    def matrix(name, *shape):
        w[name] = rng.standard_normal(shape) * 0.15

    def norm(name):
        w[name + ".weight"] = 1 + 0.2 * rng.standard_normal(width)
        if c["bias"]:
            w[name + ".bias"] = 0.1 * rng.standard_normal(width)

    def linear(name, inside, outside):
        matrix(name + ".weight", inside, outside)
        if c["bias"]:
            w[name + ".bias"] = 0.1 * rng.standard_normal(outside)

    matrix("transformer.wte.weight", c["vocab_size"], width)
    matrix("transformer.wpe.weight", c["n_positions"], width)
    for i in range(c["n_layer"]):
        h = f"transformer.h.{i}."
        norm(h + "ln_1")
        linear(h + "attn.c_attn", width, 3 * width)
        linear(h + "attn.c_proj", width, width)
        norm(h + "ln_2")
        linear(h + "mlp.c_fc", width, 4 * width)
        linear(h + "mlp.c_proj", 4 * width, width)
    norm("transformer.ln_f")
    if not c["tie"]:
        matrix("lm_head.weight", c["vocab_size"], width)
    return {k: v.astype(numpy.float32) for k, v in w.items()}


def forward(c, w, tokens):
    """tokens: [B, T]; returns logits [B, T, V]."""
    F = torch.nn.functional
    width, heads = c["n_embd"], c["n_head"]

    def linear(x, name):
        y = x @ w[name + ".weight"]
        return y + w[name + ".bias"] if c["bias"] else y

    def norm(x, name):
        return F.layer_norm(x, (width,), w[name + ".weight"], w.get(name + ".bias"), c["eps"])

    batch, length = tokens.shape
    x = w["transformer.wte.weight"][tokens] + w["transformer.wpe.weight"][:length]
    future = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
    for i in range(c["n_layer"]):
        h = f"transformer.h.{i}."
        q, k, v = linear(norm(x, h + "ln_1"), h + "attn.c_attn").split(width, dim=2)
        q, k, v = (t.view(batch, length, heads, width // heads).transpose(1, 2) for t in (q, k, v))
        scores = q @ k.transpose(2, 3) / math.sqrt(width // heads)
        p = scores.masked_fill(future, -math.inf).softmax(-1)
        y = (p @ v).transpose(1, 2).reshape(batch, length, width)
        x = x + linear(y, h + "attn.c_proj")
        y = linear(norm(x, h + "ln_2"), h + "mlp.c_fc")
        y = F.gelu(y, approximate="tanh" if c["activation"] == "gelu_new" else "none")
        x = x + linear(y, h + "mlp.c_proj")
    head = w["transformer.wte.weight"] if c["tie"] else w["lm_head.weight"]
    return norm(x, "transformer.ln_f") @ head.T


def loss_of(c, w, tokens, targets):
    """The mean over targets that are not -1."""
    logits = forward(c, w, tokens)
    return logits, torch.nn.functional.cross_entropy(
        logits.reshape(-1, c["vocab_size"]), targets.reshape(-1), ignore_index=-1)


def make(name, c):
    rng = numpy.random.default_rng(sum(map(ord, name)))
    stored = make_weights(c, rng)
    shape = (STEPS, c["batch"], c["length"])
    tokens = rng.integers(0, c["vocab_size"], shape)
    targets = rng.integers(0, c["vocab_size"], shape)
    targets[rng.random(shape) < 0.1] = -1  # ignored
    out = {"weights/" + k: v for k, v in stored.items()}
    out["tokens"] = tokens.astype(numpy.int32)
    out["targets"] = targets.astype(numpy.int32)
    tokens, targets = torch.from_numpy(tokens), torch.from_numpy(targets)

    w = {k: torch.from_numpy(v).double().requires_grad_() for k, v in stored.items()}
    logits, loss = loss_of(c, w, tokens[0], targets[0])
    loss.backward()
    out["logits"] = logits.detach().numpy().astype(numpy.float32)
    out["loss"] = loss.detach().numpy().reshape(1)
    for k, v in w.items():
        out["grads/" + k] = v.grad.numpy().astype(numpy.float32)

    o = ADAMW
    for v in w.values():
        v.grad = None
    matrices = [v for v in w.values() if v.dim() >= 2]
    vectors = [v for v in w.values() if v.dim() < 2]
    optimizer = torch.optim.AdamW(
        [dict(params=matrices, weight_decay=o["weight_decay"]), dict(params=vectors, weight_decay=0.0)],
        lr=o["lr"], betas=(o["beta1"], o["beta2"]), eps=o["eps"])
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        _, loss = loss_of(c, w, tokens[step], targets[step])
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(list(w.values()), o["clip"]).item())
        optimizer.step()
        losses.append(loss.item())
    out["step_losses"] = numpy.array(losses)
    out["step_norms"] = numpy.array(norms)
    for k in ("transformer.wte.weight", "transformer.h.1.mlp.c_proj.weight", "transformer.ln_f.weight"):
        out["final/" + k] = w[k].detach().numpy().astype(numpy.float32)

    path = pathlib.Path(__file__).parent / f"gpt2_{name}.safetensors"
    save_file(out, path, metadata={"config": json.dumps(c), "adamw": json.dumps(o),
                                   "torch": torch.__version__.split("+")[0]})
    print(path.name, path.stat().st_size, "bytes; losses", [round(x, 4) for x in losses],
          "norms", [round(x, 3) for x in norms])


if __name__ == "__main__":
    torch.use_deterministic_algorithms(True)
    for key, value in CONFIGS.items():
        make(key, value)
