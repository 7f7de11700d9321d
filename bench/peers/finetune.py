#!/usr/bin/env python3
"""Fine-tuning a sentence encoder on rated sentences: Brrr against PyTorch with transformers, the same recipe, in turns.

    build/peers/venv/bin/python bench/peers/finetune.py --model MODEL_FOLDER --ratings movies.tsv [--seeds 1 2]
        [--binary build/release/src/brrr] [--precision fp32] [--epochs 1]

The label of a sentence is the sign of its rating; every tenth line is held out. The recipe: AdamW, peak 5e-5, linear
warm-up over a tenth of the steps and linear decay, weight decay 0.01 of matrices, gradients clipped to 1, batches of 32
rows of similar length (at most 128 tokens), dropout as the model has it, a new head. Samples per second are those of
training alone, without evaluation, saving and start. PyTorch is told to keep its memory and to use all threads.
Needs torch and transformers. Prints a JSON line for each run, and the medians.
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

BATCH, LONGEST, RATE, DECAY, WARMUP = 32, 128, 5e-5, 0.01, 0.1


def read(path):
    rows = []
    for line in pathlib.Path(path).read_text(encoding="utf-8").split("\n"):
        if line:
            rating, text = line.split("\t", 1)
            rows.append(("positive" if float(rating) > 0 else "negative", text))
    return rows


def train_peer(args, rows, seed):
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer
    torch.set_num_threads(args.threads)
    torch.manual_seed(seed)
    rng = random.Random(seed)
    labels = sorted({label for label, _ in rows})
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForSequenceClassification.from_pretrained(args.model, num_labels=len(labels))
    encoded = [(tokenizer(text, truncation=True, max_length=LONGEST)["input_ids"], labels.index(label))
               for label, text in rows]
    held = [row for i, row in enumerate(encoded) if i % 10 == 9]
    train = [row for i, row in enumerate(encoded) if i % 10 != 9]

    def batch_of(part):
        longest = max(len(ids) for ids, _ in part)
        ids = torch.tensor([i + [tokenizer.pad_token_id] * (longest - len(i)) for i, _ in part])
        mask = torch.tensor([[1] * len(i) + [0] * (longest - len(i)) for i, _ in part])
        return dict(input_ids=ids, attention_mask=mask, labels=torch.tensor([y for _, y in part]))

    decays = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([dict(params=decays, weight_decay=DECAY), dict(params=rest, weight_decay=0.0)],
                                  lr=RATE, betas=(0.9, 0.999), eps=1e-8, fused=True)
    per_epoch = (len(train) + BATCH - 1) // BATCH
    total = round(per_epoch * args.epochs)
    warmup = max(1, round(total * WARMUP))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min((s + 1) / warmup, (total - s) / max(1, total - warmup)))
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bf16")
    model.train()
    done, seconds = 0, 0.0
    while done < total:
        order = list(range(len(train)))
        rng.shuffle(order)
        batches = []
        for at in range(0, len(order), 50 * BATCH):  # similar lengths together
            mega = sorted(order[at:at + 50 * BATCH], key=lambda i: -len(train[i][0]))
            batches += [mega[i:i + BATCH] for i in range(0, len(mega), BATCH)]
        rng.shuffle(batches)
        for part in batches[:total - done]:
            feed = batch_of([train[i] for i in part])
            start = time.perf_counter()
            with autocast:
                loss = model(**feed).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
            seconds += time.perf_counter() - start
            done += 1
    model.eval()
    right = 0
    with torch.no_grad(), autocast:
        for at in range(0, len(held), BATCH):
            feed = batch_of(held[at:at + BATCH])
            right += int((model(**feed).logits.argmax(-1) == feed["labels"]).sum())
    samples = len(train) * done / per_epoch
    return dict(peer="torch " + torch.__version__, seed=seed, accuracy=right / len(held),
                samples_per_second=samples / seconds, steps=done)


def train_ours(args, rows, seed, work):
    data = pathlib.Path(work) / "rows.tsv"
    data.write_text("label\ttext\n" + "".join(f"{label}\t{text}\n" for label, text in rows), encoding="utf-8")
    run = pathlib.Path(work) / f"run-{seed}"
    out = subprocess.run(
        [args.binary, "train", "--task", "classify", "--data", str(data), "--init-from", args.model, "--num-train-epochs",
         str(args.epochs), "--seed", str(seed), "--precision", args.precision, "--eval-steps", "0", "--quoting", "none",
         "--no-load-best-model-at-end", "--output-dir", str(run), "--overwrite", "--json", "--disable-tqdm", "--threads",
         str(args.threads)], stdout=subprocess.PIPE, check=True)
    result = json.loads(out.stdout)
    seconds = sum(json.loads(line).get("step_ms", 0) for line in open(run / "log.jsonl")) / 1e3
    held = len(rows) // 10
    samples = (len(rows) - held) * args.epochs
    return dict(peer="brrr", seed=seed, accuracy=result["accuracy"], samples_per_second=samples / seconds,
                steps=result["steps"], run=str(run))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--ratings", required=True)
    parser.add_argument("--binary", default="build/release/src/brrr")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--epochs", type=float, default=1)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    rows = read(args.ratings)
    all_results = []
    with tempfile.TemporaryDirectory(prefix="brrr-finetune-") as work:
        for seed in args.seeds:
            for result in (train_ours(args, rows, seed, work), train_peer(args, rows, seed)):
                all_results.append(result)
                print(json.dumps(result), flush=True)
    by_peer = {}
    for r in all_results:
        by_peer.setdefault(r["peer"].split()[0], []).append(r)
    speed = {p: statistics.median(r["samples_per_second"] for r in rs) for p, rs in by_peer.items()}
    accuracy = {p: statistics.mean(r["accuracy"] for r in rs) for p, rs in by_peer.items()}
    print(json.dumps(dict(speed_ratio=speed["brrr"] / speed["torch"], accuracy=accuracy)))


if __name__ == "__main__":
    sys.exit(main())
