#!/usr/bin/env python3
"""Golden numbers of the optimizers: parameters after ten steps, in float64 but for 8-bit AdamW, whose
reference is float32. Needs torch, transformers, bitsandbytes (its reference code runs on any CPU),
numpy and safetensors:

    python tests/golden/make_optimizer_goldens.py

It writes optimizers.safetensors beside itself. Parameters are "wide" [24, 40], "tall" [40, 24],
"large" [65, 67] (the one of more than 4096 elements, which have 8-bit moments), and "bias" [37]; step
t (from 1) has gradient number t % 3. Weight decay applies to all but the bias. Lion and Muon are
written out from their papers; torch.optim.Muon, whose products are bfloat16, must agree with the
latter within what bfloat16 allows.
"""

import json
import math
import pathlib
import warnings

import bitsandbytes.functional as bnb
import numpy
import torch
from bitsandbytes.backends.triton import kernels_optim
from safetensors.torch import save_file
from transformers.optimization import Adafactor

STEPS = 10
GRADIENTS = 3
OPTIONS = dict(lr=3e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, momentum=0.9,
               muon_rate=20.0)
SHAPES = {"wide": (24, 40), "tall": (40, 24), "large": (65, 67), "bias": (37,)}

rng = numpy.random.default_rng(11)
START = {n: torch.from_numpy(rng.standard_normal(s).astype("float32") * 0.3)
         for n, s in SHAPES.items()}
# Sizes of gradients over several decades, as in a network.
GRADS = [{n: torch.from_numpy((rng.standard_normal(s) * 10 ** rng.uniform(-4, 0, s)).astype("float32"))
          for n, s in SHAPES.items()} for _ in range(GRADIENTS)]


def decay_of(name, weight_decay):
    return 0.0 if name == "bias" else weight_decay


def by_torch(make, prepare=lambda name, tensor: tensor):
    """Ten steps of a torch optimizer in float64; make(groups) builds it."""
    params = {n: torch.nn.Parameter(prepare(n, p.double().clone())) for n, p in START.items()}
    groups = [{"params": [p], "weight_decay": decay_of(n, OPTIONS["weight_decay"])}
              for n, p in params.items()]
    optimizer = make(groups)
    for t in range(1, STEPS + 1):
        for n, p in params.items():
            p.grad = prepare(n, GRADS[t % GRADIENTS][n].double())
        optimizer.step()
    return {n: prepare(n, p.detach()) for n, p in params.items()}


def adamw():
    return by_torch(lambda g: torch.optim.AdamW(
        g, lr=OPTIONS["lr"], betas=(OPTIONS["beta1"], OPTIONS["beta2"]), eps=OPTIONS["eps"]))


def sgd():
    return by_torch(lambda g: torch.optim.SGD(g, lr=OPTIONS["lr"], momentum=OPTIONS["momentum"]))


def adafactor_relative():
    """The paper's own step size: relative to the parameter and to the step's number."""
    return by_torch(lambda g: Adafactor(g, lr=None, scale_parameter=True, relative_step=True))


def adafactor():
    """As transformers.Trainer has it."""
    return by_torch(lambda g: Adafactor(g, lr=OPTIONS["lr"], scale_parameter=False,
                                        relative_step=False))


def lion():
    """Chen et al. 2023, algorithm 2."""
    out = {}
    b1, b2, lr = OPTIONS["beta1"], OPTIONS["beta2"], OPTIONS["lr"]
    for n, start in START.items():
        p, m = start.double().numpy().copy(), numpy.zeros(SHAPES[n])
        for t in range(1, STEPS + 1):
            g = GRADS[t % GRADIENTS][n].double().numpy()
            p -= lr * (numpy.sign(b1 * m + (1 - b1) * g) + decay_of(n, OPTIONS["weight_decay"]) * p)
            m = b2 * m + (1 - b2) * g
        out[n] = torch.from_numpy(p)
    return out


def newton_schulz(g):
    """Jordan et al. 2024: five iterations of the quintic, here in float64."""
    x = g / max(numpy.linalg.norm(g), 1e-7)
    if x.shape[0] > x.shape[1]:
        x = x.T
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x if g.shape[0] <= g.shape[1] else x.T


def muon():
    """Matrices [in, out] along orthogonalised Nesterov momentum, the bias by AdamW."""
    out = adamw()
    lr, mu = OPTIONS["lr"] * OPTIONS["muon_rate"], 0.95
    for n in ("wide", "tall", "large"):
        p, m = START[n].double().numpy().copy(), numpy.zeros(SHAPES[n])
        scale = math.sqrt(max(1, p.shape[1] / p.shape[0]))
        for t in range(1, STEPS + 1):
            g = GRADS[t % GRADIENTS][n].double().numpy()
            m = mu * m + (1 - mu) * g
            p = p * (1 - lr * OPTIONS["weight_decay"]) - lr * scale * newton_schulz(
                (1 - mu) * g + mu * m)
        out[n] = torch.from_numpy(p)

    def transposed(name, tensor):  # torch has [out, in]
        return tensor.T.contiguous() if tensor.ndim == 2 else tensor

    theirs = by_torch(
        lambda g: torch.optim.Muon([x for x in g if x["params"][0].ndim == 2], lr=lr, momentum=mu,
                                   weight_decay=OPTIONS["weight_decay"]), transposed)
    for n in ("wide", "tall", "large"):
        moved = (out[n] - START[n]).norm()
        assert (theirs[n] - out[n]).norm() < 0.05 * moved, (n, (theirs[n] - out[n]).norm() / moved)
    return out


def adamw_8bit():
    """bitsandbytes' reference in plain PyTorch; small tensors as adamw."""
    out = adamw()
    p = START["large"].clone()
    n = p.numel()
    state = [torch.zeros(p.shape, dtype=torch.uint8) for _ in range(2)]
    absmax = [torch.zeros((n + 255) // 256) for _ in range(2)]
    maps = [bnb.create_dynamic_map(signed=True), bnb.create_dynamic_map(signed=False)]
    tensors = {"codes.signed": maps[0], "codes.unsigned": maps[1]}
    for t in range(1, STEPS + 1):
        kernels_optim.optimizer_update_8bit_blockwise_pytorch(
            p, GRADS[t % GRADIENTS]["large"].clone(), state[0], state[1], OPTIONS["beta1"],
            OPTIONS["beta2"], 0.0, 0.0, OPTIONS["eps"], t, OPTIONS["lr"], maps[0], maps[1],
            absmax[0], absmax[1], OPTIONS["weight_decay"], 1.0, False, optimizer_name="adam")
        if t in (1, STEPS):
            for k, kind in enumerate("mv"):
                tensors[f"state.{t}.adam_{kind}_code"] = state[k].clone()
                tensors[f"state.{t}.adam_{kind}_scale"] = absmax[k].clone()
    out["large"] = p.double()
    return out, tensors


def main():
    warnings.simplefilter("ignore")
    tensors = {f"start.{n}": p for n, p in START.items()}
    for i, grads in enumerate(GRADS):
        tensors |= {f"grad.{i}.{n}": g for n, g in grads.items()}
    for make in (adamw, sgd, lion, adafactor, adafactor_relative, muon):
        tensors |= {f"{make.__name__}.{n}": p for n, p in make().items()}
    out, more = adamw_8bit()
    tensors |= {f"adamw_8bit.{n}": p for n, p in out.items()} | more
    versions = {"torch": torch.__version__}
    path = pathlib.Path(__file__).with_name("optimizers.safetensors")
    save_file({n: t.contiguous() for n, t in tensors.items()}, path,
              metadata={"options": json.dumps(OPTIONS | {"steps": STEPS, "gradients": GRADIENTS}),
                        "versions": json.dumps(versions)})
    print(path, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
