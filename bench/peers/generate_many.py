"""Many texts at once from one GPT-2: Brrr with 16 and with 1 at a time, and transformers' generate, batched.

    generate_many.py BRRR FOLDER [--texts 16] [--tokens 64] [--rounds 5] [--precision bf16] [--threads 2]

FOLDER has vocab.json and merges.txt; a model of random weights of GPT-2's size is written into it if it has
none. Every round runs all of them in turn. Prints tokens per second: medians, the range, and ratios.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import tempfile
import time

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

WORDS = "the sea was calm and a small boat went out to look for fish before the first light of the day came over the hills".split()


def prompts(count):
    return [" ".join(WORDS[(3 * i + k) % len(WORDS)] for k in range(24 + i % 7)) for i in range(count)]


def ours(args, texts, parallel):
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        for text in texts:
            file.write(json.dumps({"prompt": text}) + "\n")
        file.flush()
        command = [args.brrr, "generate", "--model", args.folder, "--prompts", file.name, "--parallel", str(parallel)]
        command += ["--max-new-tokens", str(args.tokens), "--temperature", "0", "--precision", args.precision]
        command += ["--threads", str(args.threads), "--prefill-tokens", "256"]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    return float(re.search(r"([\d,]+) tokens/s", said).group(1).replace(",", ""))


class Peer:
    def __init__(self, args):
        torch.set_num_threads(args.threads)
        self.dtype = torch.bfloat16 if args.precision == "bf16" else torch.float32
        self.tokenizer = AutoTokenizer.from_pretrained(args.folder, padding_side="left")
        self.tokenizer.pad_token = self.tokenizer.eos_token
        self.model = AutoModelForCausalLM.from_pretrained(args.folder, dtype=self.dtype).eval()

    def __call__(self, args, texts):
        with torch.inference_mode():
            start = time.perf_counter()
            batch = self.tokenizer(texts, return_tensors="pt", padding=True)
            out = self.model.generate(**batch, do_sample=False, max_new_tokens=args.tokens, min_new_tokens=args.tokens,
                                      pad_token_id=self.tokenizer.pad_token_id)
            seconds = time.perf_counter() - start
        return (out.shape[1] - batch["input_ids"].shape[1]) * len(texts) / seconds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("brrr")
    parser.add_argument("folder")
    parser.add_argument("--texts", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", default="bf16", choices=["fp32", "bf16"])
    args = parser.parse_args()
    if not os.path.exists(os.path.join(args.folder, "config.json")):
        torch.manual_seed(1337)
        GPT2LMHeadModel(GPT2Config()).save_pretrained(args.folder)
    peer = Peer(args)
    texts = prompts(args.texts)
    ways = {
        f"brrr, {args.texts} at once": lambda: ours(args, texts, args.texts),
        "brrr, one at a time": lambda: ours(args, texts[:2], 1),
        f"transformers, batch of {args.texts}": lambda: peer(args, texts),
        "transformers, one at a time": lambda: peer(args, texts[:1]),
    }
    speeds = {name: [] for name in ways}
    for _ in range(args.rounds):
        for name, run in ways.items():
            speeds[name].append(run())
            print(f"{name}: {speeds[name][-1]:.1f} tokens/s", flush=True)
    medians = {name: statistics.median(all) for name, all in speeds.items()}
    first = next(iter(medians.values()))
    for name, all in speeds.items():
        print(f"{name}: median {medians[name]:.1f} tokens/s, {min(all):.1f} to {max(all):.1f}; {first / medians[name]:.2f} times")


if __name__ == "__main__":
    main()
