"""gpu_report.py BUILD_FOLDER RESULTS_FOLDER: what gpu_check measured, as <gpu>.md and <gpu>.json."""

import datetime
import json
import pathlib
import re
import sys

PARTS = ["tests", "micro", "step", "peers"]


def records(folder, part):
    path = folder / f"{part}.json"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else None


def first_row(record):
    rows = (record.get("result") or {}).get("results") or []
    return rows[0] if rows else None


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(str(x) for x in row) + " |" for row in rows] + [""]


def tests_text(part):
    rows = []
    for r in part:
        note = ""
        if r["name"].startswith("loss curve") and r["result"]:
            note = f"training loss {r['result'].get('train_loss')}"
        rows.append([r["name"], "passed" if r["status"] == 0 else f"FAILED ({r['status']})", note])
    return table(["what", "result", ""], rows)


def kernels_text(part):
    lines = []
    for r in part:
        row = first_row(r)
        if row is None:
            lines += [f"{r['name']}: failed ({r['status']})", ""]
            continue
        lines += [f"### {r['name']}, each kernel waited for", ""]
        lines += table(
            ["op", "kernel", "nodes", "ms", "TFLOP/s", "GB/s"],
            [[k["op"], k["kernel"], k["nodes"], f"{k['ms']:.3f}", f"{1e-9 * k['flops'] / k['ms']:.1f}",
              f"{1e-6 * k['bytes'] / k['ms']:.0f}"] for k in row["kernels"] if k["ms"] > 0])
    return lines


def flops(call):
    """FLOPs of one call as the autotuner describes it: a product or attention; None for others."""
    if m := re.match(r"(\S+)(?: (\d+) x)? (\d+)x(\d+)x(\d+) [nt][nt]", call):
        return 2.0 * int(m[2] or 1) * int(m[3]) * int(m[4]) * int(m[5])
    if m := re.match(r"sdpa(_grad)? \S+ (\d+)x(\d+) (\d+)x(\d+)x(\d+)( causal)?", call):
        pairs = int(m[2]) * int(m[3]) * int(m[4]) * int(m[5]) * (0.5 if m[7] else 1)
        return pairs * int(m[6]) * (10 if m[1] else 4)
    return None


def ways_text(files):
    """What each way of a node took, as the autotuner measured it."""
    rows = []
    for file in files:
        for line in file.read_text().splitlines()[1:]:
            key, way, times = (line.split("\t") + ["", ""])[:3]
            if not key.startswith("way ") or not times:
                continue
            ways = key.split(" | ")[1:]
            work = next((f for f in map(flops, ways) if f), None)
            taken = [float(t) for t in times.split()]
            best = min(taken)
            rate = f"{1e-9 * work / best:.0f}" if work and 0 < best < float("inf") else ""
            rows.append([ways[0], way, " / ".join(f"{t:.3f}" for t in taken), rate])
    return table(["node", "taken", "ms of each way", "TFLOP/s of the fastest"], sorted(rows)) if rows else []


def step_text(step, peers):
    torch = {}
    for r in peers or []:
        if r["result"]:
            torch[r["name"].replace("PyTorch ", "")] = r["result"]["tokens_per_second"]
    rows = []
    ours = {r["name"]: first_row(r) for r in step or []}
    for r in step or []:
        row = first_row(r)
        if row is None:
            seconds = (r["result"] or {}).get("first_step_seconds")
            rows.append([r["name"], "", "", "", "", f"{seconds} s" if seconds else f"failed ({r['status']})"])
            continue
        theirs = torch.get(r["name"])
        beside = ours.get(r["name"].replace(" fp8", " bf16")) if r["name"].endswith(" fp8") else None
        ratio = f"{row['tokens_per_second'] / theirs:.2f}x" if theirs else ""
        if beside:
            ratio = f"{row['tokens_per_second'] / beside['tokens_per_second']:.2f}x of bf16"
        rows.append([r["name"], row["batch"], f"{row['tokens_per_second']:.0f}", f"{100 * row['mfu']:.1f}%",
                     f"{theirs:.0f}" if theirs else "not measured", ratio])
    return table(["what", "batch", "tokens/s", "MFU of the measured product peak", "PyTorch tokens/s", ""], rows)


def main():
    folder, results = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    info = json.loads((folder / "info.json").read_text())
    gpu = info["gpu"][0]["name"]
    parts = {name: records(folder, name) for name in PARTS}
    lines = [f"# {gpu}", "", f"Measured {datetime.date.today()} by `scripts/gpu_check`, one GPU, driver for CUDA "
             f"{info.get('gpu_driver', '?')}. MFU counts 6N + 6LCT FLOPs per token.", ""]
    for name, title in zip(PARTS, ["Tests", "Kernels", "Whole steps", "Whole steps"]):
        if parts[name] is None:
            lines += [f"Part `{name}`: not measured.", ""]
    if parts["tests"] is not None:
        lines += ["## Tests", ""] + tests_text(parts["tests"])
    if parts["step"] is not None:
        lines += ["## Whole steps", ""] + step_text(parts["step"], parts["peers"])
    if parts["micro"] is not None:
        lines += ["## Kernels", ""] + kernels_text(parts["micro"])
    if ways := ways_text(sorted(folder.glob(f"caches/cuda/autotune-*-{gpu}.txt"))):
        lines += ["## Ways to compute a node, measured when programs were bound", ""] + ways
    failed = [r for part in parts.values() for r in part or [] if r["status"] != 0]
    for r in failed:
        lines += [f"## Failed: {r['name']}", "", f"`{r['command']}`", "", "```", r["tail"].strip(), "```", ""]
    stem = re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")
    results.mkdir(parents=True, exist_ok=True)
    (results / f"{stem}.md").write_text("\n".join(lines).rstrip() + "\n")
    (results / f"{stem}.json").write_text(json.dumps({"gpu": gpu, "info": info, "parts": parts}, indent=1) + "\n")
    print(results / f"{stem}.md")
    sys.exit(1 if failed else 0)


main()
