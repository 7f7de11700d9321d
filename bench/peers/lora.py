#!/usr/bin/env python3
"""LoRA of a language model: Brrr's adapters beside Brrr's full fine-tuning and beside PEFT with transformers, in turns.

    build/peers/venv/bin/python bench/peers/lora.py --model FOLDER [--binary build/release/src/brrr] [--turns 2]
        [--steps 5] [--rank 16] [--batch 2] [--length 512] [--precision bf16] [--without full]

The model is a folder of transformers, perhaps with random weights: only times count. A step is a batch of rows of random
words, the forward and backward pass of all linear layers' adapters, and AdamW. PEFT gets the base in the precision,
adapters in fp32 and autocast, which is what its examples do. Prints a JSON line for each run and the ratios; a run's figure is
the median of its steps after the second. Needs torch, transformers and peft.
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import tempfile
import time


def ours(args, work, name, options):
    run = pathlib.Path(work) / name
    command = [args.binary, "train", "--text", str(pathlib.Path(work) / "text.txt"), "--init-from", args.model, "--precision",
               args.precision, "--batch-size", str(args.batch), "--context", str(args.length), "--max-steps", str(args.steps),
               "--logging-steps", "1", "--eval-steps", "0", "--samples", "0", "--save-strategy", "no", "--threads", str(args.threads),
               "--output-dir", str(run), "--overwrite", "--disable-tqdm"] + options
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    steps = [json.loads(line)["step_ms"] / 1e3 for line in open(run / "log.jsonl") if '"step_ms"' in line]
    return statistics.median(steps[2:])


def peft_step(args):
    import torch
    import transformers
    from peft import LoraConfig, get_peft_model
    torch.set_num_threads(args.threads)
    dtype = torch.bfloat16 if args.precision == "bf16" else torch.float32
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype)
    model = get_peft_model(model, LoraConfig(r=args.rank, lora_alpha=2 * args.rank, target_modules="all-linear"))
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    for p in trained:
        p.data = p.data.float()
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
    seconds = []
    for _ in range(args.steps):
        ids = torch.randint(0, model.config.vocab_size, (args.batch, args.length))
        begun = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bf16"):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds[2:])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--binary", default="build/release/src/brrr")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--without", nargs="*", default=[], choices=["full", "peft", "int4"])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    adapter = ["--lora-r", str(args.rank)]
    ways = {"lora": lambda work: ours(args, work, "lora", adapter),
            "int4": lambda work: ours(args, work, "int4", adapter + ["--load-in-4bit"]),
            "full": lambda work: ours(args, work, "full", []),
            "peft": lambda work: peft_step(args)}
    ways = {name: way for name, way in ways.items() if name not in args.without}
    seconds = {name: [] for name in ways}
    with tempfile.TemporaryDirectory(prefix="brrr-lora-") as work:
        words = ["time", "light", "river", "stone", "green", "the", "of", "and", "walks", "sings"]
        text = " ".join(random.Random(1).choices(words, k=400_000))
        (pathlib.Path(work) / "text.txt").write_text(text, encoding="utf-8")
        for _ in range(args.turns):
            for name, way in ways.items():
                seconds[name].append(way(work))
                print(json.dumps({"way": name, "seconds_a_step": seconds[name][-1]}), flush=True)
    for name in list(ways)[1:]:
        ratios = [other / lora for other, lora in zip(seconds[name], seconds["lora"])]
        print(f"{name}: {statistics.median(ratios):.2f} ({min(ratios):.2f} - {max(ratios):.2f}) times the time of lora")


if __name__ == "__main__":
    main()
