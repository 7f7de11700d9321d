"""What follows from the records: rates, aims, agreement of losses. Pure functions."""

import math
import re

SIZES = {"124M": (12, 768), "350M": (24, 1024), "774M": (36, 1280), "1558M": (48, 1600)}  # layers, width
WORDS, CONTEXT = 50257, 1024
DENSE_BF16 = {"H200": 989.0, "H100": 989.0}  # TFLOP/s of the SXM5 boards' data sheets
# By how much the loss of any step may differ from the CPU's in fp32, as a part of it.
CURVE = {"fp32": 0.002, "tf32": 0.01, "bf16": 0.01, "fp16": 0.01, "fp8": 0.03}
AGREE = 0.01  # bf16 by other kernels


def parameters(layers, width, words=WORDS):
    """Of GPT-2, without the position embedding."""
    return words * width + layers * (12 * width * width + 13 * width) + 2 * width


def flops_per_token(layers, width, context=CONTEXT, attention=6):
    """6 N + 6 L C T: attention is causal; with `attention` 12 all scores count, as PaLM's formula does."""
    return 6 * parameters(layers, width) + attention * layers * width * context


def size_of(name):
    """"GPT-2 124M bf16 x 64, after PyTorch" -> "124M"."""
    m = re.search(r"GPT-2 (\w+)", name)
    return m[1] if m else None


def precision_of(name):
    m = re.search(r"\b(fp32|tf32|bf16|fp16|fp8)\b", name)
    return m[1] if m else None


def steps(records):
    """Of every `bench step` that measured GPT-2: the record and its first row."""
    found = []
    for r in records:
        if not size_of(r["name"]) or r["name"].startswith("PyTorch"):
            continue
        for result in r.get("results") or []:
            for row in result.get("results") or []:
                if row.get("tokens_per_second"):
                    found.append((r, row))
    return found


def peers(records):
    """Of every variant of PyTorch that measured GPT-2, whether or not the next one was in time."""
    return [(r, result) for r in records if r["name"].startswith("PyTorch, GPT-2")
            for result in r.get("results") or [] if result.get("tokens_per_second")]


def fastest(pairs, size, precision="bf16"):
    rates = [row["tokens_per_second"] for r, row in pairs
             if size_of(r["name"]) == size and precision_of(r["name"]) == precision]
    return max(rates) if rates else None


def beside_peer(records, size):
    """Our rate beside PyTorch's: the mean of the step before it and the one after."""
    all_of_it = [row["tokens_per_second"] for r, row in steps(records)
                 if size_of(r["name"]) == size and precision_of(r["name"]) == "bf16"]
    theirs = [row["tokens_per_second"] for _, row in peers(records) if size_of(_["name"]) == size]
    if not all_of_it or not theirs:
        return None
    return sum(all_of_it[-2:]) / len(all_of_it[-2:]) / max(theirs)


def dense_of(gpu):
    return next((rate for name, rate in DENSE_BF16.items() if name in gpu), None)


def mfu(tokens_per_second, size, peak_tflops, attention=6):
    if size not in SIZES or not peak_tflops:
        return None
    layers, width = SIZES[size]
    return tokens_per_second * flops_per_token(layers, width, attention=attention) / (1e12 * peak_tflops)


def apart(losses, reference):
    """The largest difference of a step as a part of the reference's loss; None: nothing to compare.
    Infinity: a loss that is no number."""
    pairs = list(zip(losses or [], reference or []))
    if not pairs:
        return None
    if not all(math.isfinite(a) and math.isfinite(b) for a, b in pairs):
        return math.inf
    return max(abs(a - b) / abs(b) for a, b in pairs)


def losses_of(record, count=20):
    for result in record.get("results") or []:
        for row in result.get("results") or []:
            if row.get("losses"):
                return row["losses"][:count]
    return None


def loss_table(records):
    """[name, first, last, compared with, how far apart, bound]: the CPU's losses judge the small batch, the
    default kernels' judge the large one."""
    found = {r["name"]: losses_of(r) for r in records if r["part"] == "d"}
    rows = []
    cpu = next((n for n in found if n.endswith("on the CPU, fp32")), None)
    large = next((n for n in found if n == "losses of batch 32, bf16"), None)
    for name, losses in found.items():
        against = cpu if "of 2 x" in name else large
        if against == name or against is None:
            against = None
        bound = CURVE[precision_of(name)] if against == cpu and cpu else AGREE
        distance = apart(losses, found.get(against)) if against else None
        rows.append((name, losses, against, distance, bound))
    return rows


def judge(got, aim, form, least=True):
    """"met", "missed: ..." or "not measured"."""
    if got is None:
        return "not measured"
    met = got >= aim if least else got <= aim
    return "met" if met else f"missed: {form.format(got)}, {got / aim:.2f} of the aim"


def aims(records, gpu):
    """[what, aim, measured, verdict]"""
    ours = steps(records)
    ratio = lambda a, b: a / b if a and b else None
    large, large8 = fastest(ours, "1558M"), fastest(ours, "1558M", "fp8")
    first = {r["name"]: result["first_step_seconds"] for r in records for result in r.get("results") or []
             if result.get("first_step_seconds")}
    rows = [("GPT-2 124M bf16, tokens/s", 600e3, fastest(ours, "124M"), "{:,.0f}", True)]
    for size, aim in (("124M", 1.25), ("350M", 1.2), ("774M", 1.2)):
        rows.append((f"GPT-2 {size} bf16 over PyTorch", aim, beside_peer(records, size), "{:.2f}x", True))
    rows += [("GPT-2 1558M bf16, MFU of 989 TFLOP/s", 0.55,
              mfu(large, "1558M", dense_of(gpu) or 989.0) if large else None, "{:.1%}", True),
             ("GPT-2 1558M fp8 over bf16", 1.25, ratio(large8, large), "{:.2f}x", True),
             ("first step with cold caches, seconds", 3, first.get("first step, cold caches"), "{:.2f}", False),
             ("first step with warm caches, seconds", 1, first.get("first step, warm caches"), "{:.2f}", False)]
    return [(what, form.format(aim), "not measured" if got is None else form.format(got),
             judge(got, aim, form, least)) for what, aim, got, form, least in rows]


def peak_of(records):
    """TFLOP/s of the fastest large product in bf16 that this check measured, and what measured it."""
    peaks = []
    for r in records:
        for result in r.get("results") or []:
            if result.get("bf16_tflops"):
                peaks.append((result["bf16_tflops"], f"PyTorch, {result.get('size')}^3"))
            if result.get("family") == "cublaslt bf16" and result.get("tflops"):
                peaks.append((result["tflops"], result["case"]))
            for row in result.get("results") or []:
                if row.get("precision") in ("bf16", "fp8") and row.get("peak_tflops", 0) > 0:
                    peaks.append((row["peak_tflops"], "beside a step"))
    return max(peaks) if peaks else None


def work_of(call):
    """FLOPs of one call as the autotuner describes it: a product or attention; None for others."""
    if m := re.match(r"(\S+)(?: (\d+) x)? (\d+)x(\d+)x(\d+) [nt][nt]", call):
        return 2.0 * int(m[2] or 1) * int(m[3]) * int(m[4]) * int(m[5])
    if m := re.match(r"sdpa(_grad)? \S+ (\d+)x(\d+) (\d+)x(\d+)x(\d+)( causal)?", call):
        pairs = int(m[2]) * int(m[3]) * int(m[4]) * int(m[5]) * (0.5 if m[7] else 1)
        return pairs * int(m[6]) * (10 if m[1] else 4)
    return None


def ways(text):
    """[node, taken, ms and spread of each way, TFLOP/s of the fastest] from the autotuner's table, whose lines
    are "key<tab>way<tab>times<tab>spreads"."""
    rows = []
    for line in text.splitlines():
        key, way, times, spreads = (line.split("\t") + ["", "", ""])[:4]
        if not key.startswith("way ") or not times:
            continue
        described = key.split(" | ")[1:] or [key]
        work = next((w for w in map(work_of, described) if w), None)
        numbers = [float(t) for t in times.split()]
        best = min(numbers)
        shown = " / ".join(t if s in ("", "-") else f"{t} +- {s}" for t, s in
                           zip(times.split(), spreads.split() + [""] * len(numbers)))
        rate = f"{1e-9 * work / best:.0f}" if work and 0 < best < math.inf else ""
        rows.append([described[0], way, shown, rate])
    return sorted(rows)
