"""Validation loss of the char-cpu configuration in PyTorch, over seeds: what `brrr train` is compared with.

    build/peers/venv/bin/python bench/peers/char_loss.py --text input.txt --seeds 1337 1 2

Trains the model of gpt2_train.py (or nanoGPT's own, --nanogpt FOLDER with its model.py) for 2,000 steps on one
thread and prints one JSON line per seed: the loss over the whole validation text in windows of 64 side by side,
and on 20 random batches, which is how nanoGPT measures.
"""

import argparse
import json
import math
import sys

import torch
from gpt2_train import PRESETS, Gpt2

CONTEXT, BATCH, STEPS, WARMUP = 64, 12, 2000, 100
PEAK, FLOOR = 1e-3, 1e-4


def learning_rate(step):
    if step < WARMUP:
        return PEAK * (step + 1) / (WARMUP + 1)
    done = (step - WARMUP) / (STEPS - WARMUP)
    return FLOOR + 0.5 * (1 + math.cos(math.pi * done)) * (PEAK - FLOOR)


def random_batch(ids):
    at = torch.randint(len(ids) - CONTEXT, (BATCH,))
    rows = torch.stack([ids[i:i + CONTEXT + 1] for i in at])
    return rows[:, :-1], rows[:, 1:].contiguous()


def build(nanogpt):
    if not nanogpt:
        model = Gpt2(**PRESETS["char-cpu"])
        for name, p in model.named_parameters():
            if name.endswith("proj.weight"):
                torch.nn.init.normal_(p, std=0.02 / math.sqrt(2 * PRESETS["char-cpu"]["layers"]))
        return model, lambda x, y: model(x, y)
    sys.path.insert(0, nanogpt)
    from model import GPT, GPTConfig
    model = GPT(GPTConfig(block_size=CONTEXT, vocab_size=65, n_layer=4, n_head=4, n_embd=128,
                          dropout=0.0, bias=False))
    return model, lambda x, y: model(x, y)[1]


def run(seed, train, val, nanogpt):
    torch.manual_seed(seed)
    model, loss_of = build(nanogpt)
    groups = [dict(params=[p for p in model.parameters() if (p.dim() >= 2) == decays],
                   weight_decay=0.1 * decays) for decays in (True, False)]
    optimizer = torch.optim.AdamW(groups, lr=PEAK, betas=(0.9, 0.99))
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        loss_of(*random_batch(train)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    model.eval()
    with torch.no_grad():
        windows = (len(val) - 1) // CONTEXT
        x = val[:windows * CONTEXT].view(-1, CONTEXT)
        y = val[1:windows * CONTEXT + 1].view(-1, CONTEXT)
        whole = sum(loss_of(a, b).item() * len(a) for a, b in zip(x.split(16), y.split(16))) / windows
        part = sum(loss_of(*random_batch(val)).item() for _ in range(20)) / 20
    return dict(seed=seed, whole=whole, twenty_batches=part)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--text", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1337])
    parser.add_argument("--nanogpt", default="")
    args = parser.parse_args()
    torch.set_num_threads(1)
    text = open(args.text, encoding="utf-8").read()
    index = {c: i for i, c in enumerate(sorted(set(text)))}
    ids = torch.tensor([index[c] for c in text])
    split = int(0.9 * len(ids))
    for seed in args.seeds:
        print(json.dumps(run(seed, ids[:split], ids[split:], args.nanogpt)), flush=True)


if __name__ == "__main__":
    main()
