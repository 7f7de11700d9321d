#!/usr/bin/env python3
"""char-lstm beside torch.nn.LSTM: training steps and generated tokens, in turns on one machine.

    python bench/peers/char_lstm.py PROGRAM [--rounds 5] [--steps 12] [--tokens 2000]

PROGRAM is the brrr to measure. Both sides train the model of the preset char-lstm (2 layers of
width 256, 32 texts of 128 characters, AdamW, norm of gradients at most 1) in f32 on two threads, and
generate greedily with a batch of one. Prints each round, the medians and the ratios.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

import torch

V, H, B, T = 65, 256, 32, 128


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(V, H)
        self.rnn = torch.nn.LSTM(H, H, 2, batch_first=True)
        self.head = torch.nn.Linear(H, V)

    def forward(self, tokens, state=None):
        y, state = self.rnn(self.embedding(tokens), state)
        return self.head(y), state


def torch_training(model, optimizer, steps):
    times = []
    for _ in range(steps):
        tokens = torch.randint(0, V, (B, T))
        begin = time.perf_counter()
        logits, _ = model(tokens)
        loss = torch.nn.functional.cross_entropy(logits.view(-1, V), tokens.view(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)


def torch_generation(model, tokens):
    with torch.inference_mode():
        token, state = torch.tensor([[1]]), None
        begin = time.perf_counter()
        for _ in range(tokens):
            logits, state = model(token, state)
            token = logits[:, -1].argmax(-1, keepdim=True)
        return tokens / (time.perf_counter() - begin)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("program")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--steps", type=int, default=12)
    p.add_argument("--tokens", type=int, default=2000)
    o = p.parse_args()
    torch.set_num_threads(2)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    torch_training(model, optimizer, 2)
    torch_generation(model, 50)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for r in range(o.rounds):
            run = pathlib.Path(folder) / f"run{r}"
            subprocess.run([o.program, "train", "--preset", "char-lstm", "--max-steps", str(o.steps),
                            "--samples", "0", "--save-steps", "0", "--eval-steps", "0",
                            "--eval-batches", "1", "--output-dir", run], check=True,
                           capture_output=True)
            lines = [json.loads(x) for x in (run / "log.jsonl").read_text().splitlines()]
            ours = statistics.median([x["step_ms"] for x in lines if "step_ms" in x][2:])
            theirs = torch_training(model, optimizer, o.steps)
            said = json.loads(subprocess.run(
                [o.program, "generate", "--model", run, "--prompt", "A", "--temperature", "0",
                 "--max-new-tokens", str(o.tokens), "--json"], check=True,
                capture_output=True).stdout)
            rows.append((ours, theirs, said["tokens_per_second"],
                         torch_generation(model, o.tokens)))
            print("step %.1f ms, torch %.1f ms; %.0f tokens/s, torch %.0f" % rows[-1],
                  "load %.1f" % os.getloadavg()[0], flush=True)
    print("training: torch takes %.2f times as long (%.2f to %.2f)" % spread([b / a for a, b, _, _ in rows]))
    print("generation: %.2f times torch's tokens/s (%.2f to %.2f)" % spread([c / d for _, _, c, d in rows]))


def spread(ratios):
    return statistics.median(ratios), min(ratios), max(ratios)


if __name__ == "__main__":
    main()
