"""What gpu_check measured.

gpu_report.py BUILD_FOLDER RESULTS_FOLDER: as <gpu>.md and <gpu>.json
gpu_report.py --passed FILE NAME: whether the newest record of that name passed
gpu_report.py --record BUILD_FOLDER PART NAME STATUS STARTED COMMAND: appends what a command left in
    BUILD_FOLDER (stdout, stderr, clocks) to PART.json and prints its status
"""

import datetime
import json
import pathlib
import re
import statistics
import sys
import time

PARTS = ["tests", "micro", "step", "peers"]
NOT_REACHED = -1
SKIPPED = 77
DENSE_BF16 = {"H200": 989.0, "H100": 989.0}  # TFLOP/s of the SXM5 boards' data sheets
# As many times the CPU's loss in f32 as the loss of each step of the curve may differ.
CURVE = {"fp32": 0.002, "tf32": 0.01, "bf16": 0.01, "fp16": 0.01, "fp8": 0.03}


def parsed(line):
    try:
        value = json.loads(line)
    except ValueError:  # cut off, or no JSON
        return None
    return value if isinstance(value, dict) else None


def records(folder, part):
    """The newest of each name, in the order in which the names came first."""
    path = folder / f"{part}.json"
    if not path.exists():
        return None
    newest = {}
    for record in filter(None, map(parsed, path.read_text().splitlines())):
        newest[record["name"]] = record
    return list(newest.values())


def outcome(record):
    if record["status"] == 0:
        return "passed"
    return {NOT_REACHED: "not reached", SKIPPED: "FAILED: skipped"}.get(
        record["status"], f"FAILED ({record['status']})")


def result_of(text):
    """The JSON object that a command printed; of several lines the one with the most tokens/s."""
    if (whole := parsed(text)) is not None:
        whole.pop("kernels", None)  # of a profile: hundreds, which stand in by_kind
        return whole
    lines = [r for r in map(parsed, text.splitlines()) if r is not None]
    return max(lines, key=lambda r: r.get("tokens_per_second", 0)) if lines else None


def clocks_of(text):
    rows = []
    for line in text.splitlines():
        try:
            rows.append([float(x) for x in line.split(",")])
        except ValueError:
            continue
    rows = [r for r in rows if len(r) == 3]
    if not rows:
        return None
    return dict(zip(["sm_mhz", "watts", "celsius"], (statistics.median(c) for c in zip(*rows))))


def record(folder, part, name, status, started, command):
    folder, status = pathlib.Path(folder), int(status)
    read = lambda file: (folder / file).read_text(errors="replace")
    text = read("stdout")
    result = result_of(text)
    if status == 0 and "[  SKIPPED ]" in text:
        status = SKIPPED
    log = pathlib.Path((result or {}).get("run_dir", "")) / "log.jsonl"
    if result is not None and log.is_file():
        result["losses"] = [r["loss"] for r in map(parsed, log.read_text().splitlines()) if r and "loss" in r]
    tail = "" if result is not None and status == 0 else text[-3000:] + read("stderr")[-3000:]
    entry = {"name": name, "status": status, "seconds": round(time.time() - float(started), 2),
             "command": command.replace(f"{folder.resolve().parents[1]}/", ""), "result": result,
             "clocks": clocks_of(read("clocks")), "tail": tail}
    path = folder / f"{part}.json"
    torn = path.exists() and not path.read_bytes().endswith(b"\n") and path.stat().st_size > 0
    with path.open("a") as file:
        file.write(("\n" if torn else "") + json.dumps(entry) + "\n")
    print(status)


def passed(path, name):
    path = pathlib.Path(path)
    found = [r for r in records(path.parent, path.stem) or [] if r["name"] == name]
    return bool(found) and found[0]["status"] == 0


def first_row(record):
    rows = (record.get("result") or {}).get("results") or []
    return rows[0] if rows else None


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(str(x) for x in row) + " |" for row in rows] + [""]


def curve_text(losses, reference, precision):
    """How far a loss curve is from the CPU's, at the step where that is most."""
    if not losses or not reference:
        return ""
    far = max(abs(a - b) / b for a, b in zip(losses, reference))
    bound = CURVE[precision]
    return f"at most {100 * far:.2f}% from the CPU's fp32 ({'within' if far <= bound else 'MISSES'} {100 * bound:g}%)"


def tests_text(part):
    reference = next(((r["result"] or {}).get("losses") for r in part if r["name"] == "loss curve on cpu fp32"), None)
    rows = []
    for r in part:
        note = ""
        if r["name"].startswith("loss curve") and r["result"]:
            note = f"training loss {r['result'].get('train_loss')}"
            if " cpu " not in r["name"]:
                note += ", " + curve_text(r["result"].get("losses"), reference, r["name"].split()[-1])
        rows.append([r["name"], outcome(r), note])
    return table(["what", "result", ""], rows)


def kernels_text(part):
    lines = []
    for r in part:
        if "by_kind" in (r["result"] or {}):
            lines += profile_text(r["name"], r["result"])
            continue
        row = first_row(r)
        if row is None:
            lines += [f"{r['name']}: {outcome(r)}", ""]
            continue
        lines += [f"### {r['name']}, by the device's clock", ""]
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


def size_of(name):
    """"GPT-2 124M bf16 x 64" -> "GPT-2 124M bf16"."""
    return name.replace("PyTorch ", "").split(" x ")[0]


def clocks_text(record):
    c = record.get("clocks")
    return f"{c['sm_mhz']:.0f} MHz, {c['watts']:.0f} W" if c else ""


def fastest(part, peers):
    """Size -> tokens/s of the fastest row."""
    best = {}
    for r in part or []:
        if r["name"].startswith("PyTorch ") != peers:
            continue
        row = r["result"] if peers else first_row(r)
        if row and "tokens_per_second" in row:
            best[size_of(r["name"])] = max(best.get(size_of(r["name"]), 0), row["tokens_per_second"])
    return best


def profile_text(name, profile):
    """The slowest kinds of kernels against what the device was measured to reach."""
    ceilings, parts = profile["ceilings"], profile["parts_ms"]
    peaks = [f"{1e-12 * ceilings[t]:.0f} TFLOP/s {t}" for t in ("f32", "tf32", "bf16", "f16", "fp8") if ceilings[t] > 0]
    peaks += [f"{level['name']} {1e-9 * level['read']:.0f} GB/s" for level in ceilings["levels"]]
    peaks.append(f"starting a kernel {1e6 * ceilings['launch_seconds']:.1f} us")
    lines = [f"### {name}", "", "Ceilings: " + ", ".join(peaks) + f". A step takes {profile['step_ms']:.2f} ms, its "
             f"kernels {parts['kernels']:.2f} ms, timing them {100 * profile['timing_cost']:.1f}% more.", ""]
    return lines + table(
        ["kernel", "calls", "ms", "share", "TFLOP/s", "GB/s", "of its ceiling", "verdict"],
        [[k["name"], k["calls"], f"{k['ms']:.3f}", f"{100 * k['share']:.1f}%", f"{1e-3 * k['gflops_per_second']:.1f}",
          f"{k['gbytes_per_second']:.0f}", f"{100 * k['of_ceiling']:.0f}%", k["verdict"]]
         for k in profile["by_kind"][:20]])


def step_text(step, peers, gpu):
    """Our steps, then ours and PyTorch's of the same run."""
    dense = next((v for k, v in DENSE_BF16.items() if k in gpu), None)
    ours = fastest(step, False)
    rows = []
    for r in step or []:
        row = first_row(r)
        if row is None:
            seconds = (r["result"] or {}).get("first_step_seconds")
            rows.append([r["name"], f"{seconds:.2f} s" if seconds else outcome(r), "", "", "", clocks_text(r)])
            continue
        ratio = ""
        if " fp8" in r["name"] and (bf16 := ours.get(size_of(r["name"]).replace(" fp8", " bf16"))):
            ratio = f"{row['tokens_per_second'] / bf16:.2f}x of the fastest bf16"
        peak = row.get("peak_tflops")
        sheet = f"{100 * row['mfu'] * peak / dense:.1f}%" if dense and peak else ""
        rows.append([r["name"], f"{row['tokens_per_second']:.0f} tokens/s", f"{100 * row['mfu']:.1f}%", sheet, ratio,
                     clocks_text(r)])
    lines = []
    if rows:
        lines += ["MFU against a large product measured beside it in the precision of the inputs (fp8: bf16), and against "
                  "the data sheet's dense bf16.", ""]
        lines += table(["what", "", "MFU", "of the data sheet", "", "clock, power"], rows)
    if peers:
        mine, theirs = fastest(peers, False), fastest(peers, True)
        rows = []
        for size in dict.fromkeys(size_of(r["name"]) for r in peers):
            both = size in mine and size in theirs
            rows.append([size, f"{mine[size]:.0f}" if size in mine else "not measured",
                         f"{theirs[size]:.0f}" if size in theirs else "not measured",
                         f"{mine[size] / theirs[size]:.2f}x" if both else ""])
        lines += ["In turns with PyTorch, at its fastest of what `bench/peers/gpt2_train_gpu.py` tries:", ""]
        lines += table(["what", "tokens/s", "PyTorch tokens/s", "ratio"], rows)
    return lines


def aims_text(step, peers):
    """What the backend set out to reach, and what it did."""
    ours, mine, theirs = fastest(step, False), fastest(peers, False), fastest(peers, True)
    mfu, first = {}, {}
    for r in step or []:
        if row := first_row(r):
            mfu[size_of(r["name"])] = max(mfu.get(size_of(r["name"]), 0), row["mfu"])
        elif (r["result"] or {}).get("first_step_seconds"):
            first[r["name"]] = r["result"]["first_step_seconds"]
    ratio = lambda a, b: a / b if a and b else None
    aims = [("GPT-2 124M bf16, tokens/s", 600e3, ours.get("GPT-2 124M bf16"), "{:.0f}", 1)]
    for size, aim in (("124M", 1.25), ("350M", 1.2), ("774M", 1.2)):
        name = f"GPT-2 {size} bf16"
        aims.append((f"{name} over PyTorch", aim, ratio(mine.get(name), theirs.get(name)), "{:.2f}x", 1))
    aims.append(("GPT-2 1558M bf16, MFU", 0.55, mfu.get("GPT-2 1558M bf16"), "{:.1%}", 1))
    aims.append(("GPT-2 1558M fp8 over bf16", 1.25, ratio(ours.get("GPT-2 1558M fp8"), ours.get("GPT-2 1558M bf16")),
                 "{:.2f}x", 1))
    aims.append(("first step, cold caches, seconds at most", 3, first.get("first step, cold caches"), "{:.2f}", -1))
    aims.append(("first step, warm caches, seconds at most", 1, first.get("first step, warm caches"), "{:.2f}", -1))
    return table(["aim", "", "measured", ""], [
        [what, form.format(aim), "not measured" if got is None else form.format(got),
         "" if got is None else "met" if sign * got >= sign * aim else "MISSED"] for what, aim, got, form, sign in aims])


def main():
    if sys.argv[1] == "--passed":
        sys.exit(0 if passed(*sys.argv[2:4]) else 1)
    if sys.argv[1] == "--record":
        return record(*sys.argv[2:8])
    folder, results = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    info = json.loads((folder / "info.json").read_text())
    gpu = info["gpu"][0]["name"]
    parts = {name: records(folder, name) for name in PARTS}
    lines = [f"# {gpu}", "", f"Measured {datetime.date.today()} by `scripts/gpu_check`, one GPU, driver for CUDA "
             f"{info.get('gpu_driver', '?')}. MFU counts 6N + 6LCT FLOPs per token.", ""]
    for name in PARTS:
        if parts[name] is None:
            lines += [f"Part `{name}`: not measured.", ""]
    if parts["step"] is not None or parts["peers"] is not None:
        lines += ["## Aims", ""] + aims_text(parts["step"], parts["peers"])
    if parts["tests"] is not None:
        lines += ["## Tests", ""] + tests_text(parts["tests"])
    if parts["step"] is not None or parts["peers"] is not None:
        lines += ["## Whole steps", ""] + step_text(parts["step"], parts["peers"], gpu)
    if parts["micro"] is not None:
        lines += ["## Kernels", ""] + kernels_text(parts["micro"])
    if ways := ways_text(sorted(folder.glob(f"caches/cuda/autotune-*-{gpu}.txt"))):
        lines += ["## Ways to compute a node, measured when programs were bound", ""] + ways
    failed = [r for part in parts.values() for r in part or [] if r["status"] != 0]
    for r in failed:
        if r["status"] == NOT_REACHED:
            continue
        lines += [f"## Failed: {r['name']}", "", f"`{r['command']}`", "", "```", r["tail"].strip(), "```", ""]
    stem = re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")
    results.mkdir(parents=True, exist_ok=True)
    (results / f"{stem}.md").write_text("\n".join(lines).rstrip() + "\n")
    (results / f"{stem}.json").write_text(json.dumps({"gpu": gpu, "info": info, "parts": parts}, indent=1) + "\n")
    print(results / f"{stem}.md")
    sys.exit(1 if failed else 0)


main()
