"""GPT-2 training in PyTorch at its best GPU settings: the peer of `brrr bench step --device cuda`.

torch.compile, bf16 autocast, SDPA, fused AdamW, padded vocabulary, gradient clipping. Prints one JSON
object: tokens_per_second and ms are of the median step; the batch is halved while it does not fit.
"""

import argparse
import json
import statistics

import torch
from gpt2_train import Gpt2


def measure(args, batch):
    torch.manual_seed(1)
    device = torch.device(args.device)
    model = Gpt2(50304, args.context, args.layers, args.heads, args.width, True).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    step_model = torch.compile(model)
    tokens = torch.randint(0, 50257, (batch, args.context), device=device)
    targets = torch.randint(0, 50257, (batch, args.context), device=device)
    times = []
    for i in range(args.steps + 5):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        with torch.autocast("cuda", torch.bfloat16):
            loss = step_model(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        end.record()
        torch.cuda.synchronize()
        if i >= 5:
            times.append(start.elapsed_time(end))
    ms = statistics.median(times)
    return {"peer": "pytorch", "torch": torch.__version__, "batch": batch, "ms": ms,
            "tokens_per_second": 1e3 * batch * args.context / ms, "loss": loss.item(),
            "memory_bytes": torch.cuda.max_memory_allocated()}


def main():
    parser = argparse.ArgumentParser()
    for name, default in (("layers", 12), ("heads", 12), ("width", 768), ("batch", 64), ("context", 1024), ("steps", 20)):
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--device", default="cuda:0")
    args = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    batch = args.batch
    while batch > 0:
        try:
            print(json.dumps(measure(args, batch)))
            return
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            batch //= 2
    raise SystemExit("not even one sequence fits")


main()
