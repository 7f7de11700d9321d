"""report.py FOLDER: writes FOLDER/report.md from FOLDER/records.jsonl, whatever is there of it.

The verdict comes first; a command that was running when the check ended is named.
"""

import collections
import json
import pathlib
import sys

import figures
import records
from records import CRASHED, FAILED, LACKING, NOT_REACHED, OUTCOMES, SKIPPED, TIMEOUT

WHAT = {"a": "device, driver, libraries", "b": "one process for each family", "c": "head products",
        "d": "twenty losses", "e": "batch 64, autotuned", "f": "PyTorch on the same", "g": "ops",
        "h": "larger models", "i": "compute-sanitizer", "j": "whole runs"}


def table(head, rows):
    if not rows:
        return []
    cell = lambda x: str(x).replace("|", "\\|").replace("\n", " ")
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(map(cell, row)) + " |" for row in rows] + [""]


def results(known, part):
    return [(r, result) for r in known if r["part"] == part for result in r.get("results") or []]


def gpu_of(known):
    for _, result in results(known, "a"):
        if isinstance(result.get("gpu"), list) and result["gpu"]:
            return result["gpu"][0]["name"]
    return ""


def parts_text(known, everything):
    seconds = collections.Counter()
    for r in everything:
        if r.get("event") == "part":
            seconds[r["part"]] = r["seconds"]
    rows = []
    for part, what in WHAT.items():
        of_part = [r for r in known if r["part"] == part]
        count = collections.Counter(r["outcome"] for r in of_part)
        if not of_part and part not in seconds:
            rows.append([f"({part}) {what}", "", "not begun"])
            continue
        rows.append([f"({part}) {what}", f"{seconds[part]:.1f}" if part in seconds else "",
                     ", ".join(f"{count[o]} {o}" for o in OUTCOMES if count[o]) or "nothing was known"])
    return table(["part", "seconds", ""], rows)


def machine_text(known):
    lines = []
    for _, result in results(known, "a"):
        if "library" in result:
            lines.append(f"- {result['library']} {result['version']} {result['path']}".rstrip())
        if result.get("bf16_tflops"):
            lines.append(f"- PyTorch {result['torch']}, CUDA {result['cuda']}, cuDNN {result['cudnn']}: a product of "
                         f"{result['size']}^3 in bf16 at {result['bf16_tflops']:.0f} TFLOP/s, copies at "
                         f"{result['copy_gbytes_per_second']:.0f} GB/s")
        if "gpu_note" in result:
            lines.append(f"- {result['gpu'][0]['name']}, driver for CUDA {result.get('gpu_driver') or '?'}; "
                         f"host: {result.get('cpu', '?')}")
    return lines + [""] if lines else []


def families_text(known):
    rows, words = {}, collections.defaultdict(dict)
    for r in (r for r in known if r["part"] in "bcg"):
        for result in r.get("results") or []:
            if "family" not in result:
                continue
            if "words" in result:
                what = result["case"].rsplit(",", 1)[0]
                if int(result["words"]) not in (50257, 50304):
                    continue  # what told whether this device is fast enough
                words[what][int(result["words"])] = result["ms"], result["tflops"]
                continue
            figures_of = {k: v for k, v in result.items() if k not in ("family", "case")}
            # The error is printed first, and again with the times.
            rows[result["family"], result["case"]] = ", ".join(f"{k} {v:.4g}" for k, v in figures_of.items())
        if r["part"] == "b" and not r.get("results"):
            rows[r["name"], ""] = r["outcome"]
    lines = table(["family", "case", "measured"], [[*key, text] for key, text in rows.items()])
    heads = []
    for what, by in words.items():
        cells = [f"{by[n][0]:.3f} ms, {by[n][1]:.0f} TFLOP/s" if n in by else "" for n in (50257, 50304)]
        gain = f"{by[50257][0] / by[50304][0]:.3f}x" if len(by) == 2 and by[50304][0] > 0 else ""
        heads.append([what, *cells, gain])
    return lines + table(["product of the head", "50257 words", "50304 words", "gain"], heads)


def losses_text(known):
    rows = []
    for name, losses, against, distance, bound in figures.loss_table(known):
        outcome = next(r["outcome"] for r in known if r["name"] == name)
        if not losses:
            rows.append([name, "", outcome])
            continue
        shown = " ".join(f"{x:.4f}" for x in losses)
        if against is None:
            verdict = "the measure of the others"
        elif distance is None:
            verdict = f"not compared: no losses of '{against}'"
        else:
            verdict = (f"at most {100 * distance:.3f}% from '{against}': "
                       f"{'within' if distance <= bound else 'MISSES'} {100 * bound:g}%")
        rows.append([name, shown, verdict])
    return table(["what", "losses", ""], rows)


def steps_text(known, gpu):
    dense, peak = figures.dense_of(gpu), figures.peak_of(known)
    percent = lambda x: f"{100 * x:.1f}%" if x is not None else ""
    clocks = lambda r: ("{sm_mhz:.0f} MHz, {watts:.0f} W, {celsius:.0f} C".format(**r["clocks"]) if r.get("clocks")
                        else "no sample under load")
    rows = []
    for r, row in figures.steps(known) + figures.peers(known):
        size = figures.size_of(r["name"])
        rates = [percent(figures.mfu(row["tokens_per_second"], size, p, attention))
                 for p in (peak[0] if peak else None, dense) for attention in (6, 12)]
        what = r["name"]
        if "attention" in row:
            what += f", {row['compiled']} compiled, {row['attention']} attention"
        rows.append([what, f"{row['ms']:.2f}", f"{row['tokens_per_second']:,.0f}", *rates, clocks(r)])
    if not rows:
        return []
    measured = f"{peak[0]:.0f} TFLOP/s ({peak[1]})" if peak else "no measured peak"
    lines = [f"MFU of {measured} and of the data sheet's {dense or '?'} TFLOP/s, by 6N + 6LCT and by 6N + 12LCT FLOPs a "
             "token.", ""]
    return lines + table(["what", "ms", "tokens/s", "MFU 6LCT", "12LCT", "of the sheet 6LCT", "12LCT", "under load"], rows)


def kernels_text(folder, known):
    lines = []
    try:
        profile = json.loads((folder / "profile.json").read_text())
        parts = profile["parts_ms"]
        peaks = [f"{t} {1e-12 * profile['ceilings'][t]:.0f} TFLOP/s" for t in ("f32", "tf32", "bf16", "f16", "fp8")
                 if profile["ceilings"].get(t, 0) > 0]
        peaks += [f"{level['name']} {1e-9 * level['read']:.0f} GB/s" for level in profile["ceilings"]["levels"]]
        lines += ["## Kernels of a step", "", f"Measured: {', '.join(peaks)}. A step takes {profile['step_ms']:.2f} ms, "
                  f"its kernels {parts['kernels']:.2f} ms.", ""]
        lines += table(["kernel", "calls", "ms", "share", "TFLOP/s", "GB/s", "of its ceiling", "verdict"],
                       [[k["name"], k["calls"], f"{k['ms']:.3f}", f"{100 * k['share']:.1f}%",
                         f"{1e-3 * k['gflops_per_second']:.1f}", f"{k['gbytes_per_second']:.0f}",
                         f"{100 * k['of_ceiling']:.0f}%", k["verdict"]] for k in profile["by_kind"][:25]])
    except (OSError, ValueError, KeyError, IndexError):
        pass
    try:
        if rows := figures.ways((folder / "autotune.txt").read_text(errors="replace")):
            lines += ["## Ways of each node, by the autotuner", ""]
            lines += table(["node", "taken", "ms of each way", "TFLOP/s of the fastest"], rows)
    except OSError:
        pass
    return lines


def curves_text(everything):
    losses = {r["of"]: r["losses"] for r in everything if r.get("event") == "losses" and r["losses"]}
    reference = next((v for k, v in losses.items() if " on cpu" in k), None)
    rows = []
    for name, curve in losses.items():
        distance = figures.apart(curve, reference)
        bound = figures.CURVE[figures.precision_of(name)]
        verdict = "" if " on cpu" in name or distance is None else (
            f"at most {100 * distance:.2f}% from the CPU's: {'within' if distance <= bound else 'MISSES'} {100 * bound:g}%")
        rows.append([name, len(curve), f"{curve[0]:.4f}", f"{curve[-1]:.4f}", verdict])
    return table(["what", "steps", "first", "last", ""], rows)


def troubles_text(known, everything):
    lines = []
    for r in records.unfinished(everything):
        lines += [f"**Running when the check ended:** ({r['part']}) {r['name']}", ""]
    for outcome in (LACKING, SKIPPED, TIMEOUT, NOT_REACHED):
        of_it = [r for r in known if r["outcome"] == outcome]
        by_reason = collections.defaultdict(list)
        for r in of_it:
            first = (r.get("reason") or "").splitlines()
            by_reason[first[0] if first and outcome in (LACKING, SKIPPED) else ""].append(f"({r['part']}) {r['name']}")
        for reason, names in by_reason.items():
            lines += [f"- {outcome}{': ' + reason if reason else ''}: {'; '.join(names)}"]
    if lines and lines[-1]:
        lines.append("")
    for r in (r for r in known if r["outcome"] in (FAILED, CRASHED)):
        lines += [f"### ({r['part']}) {r['name']}: {r['outcome']}", "", f"`{r.get('command', '')}`", "", "```",
                  r.get("reason", "").strip()[-3000:], "```", ""]
    return lines


def text_of(folder):
    everything = records.read(folder / "records.jsonl")
    known = records.newest(everything)
    gpu = gpu_of(known)
    head = next((r for r in reversed(everything) if r.get("event") == "check"), {})
    count = collections.Counter(r["outcome"] for r in known)
    lines = [f"# {gpu or 'No GPU'}", "",
             f"`scripts/gpu_check`, {head.get('date', 'no date')}: "
             + (", ".join(f"{count[o]} {o}" for o in OUTCOMES if count[o]) or "nothing is known") + ".", ""]
    if head.get("rehearses"):
        lines += ["**A rehearsal on an emulated GPU with a tiny model in the place of every model: the times mean "
                  "nothing.**", ""]
    else:
        lines += ["## Aims", ""] + table(["aim", "", "measured", "verdict"], figures.aims(known, gpu))
    lines += ["## Parts", ""] + parts_text(known, everything)
    for title, text in (("Machine", machine_text(known)), ("Losses", losses_text(known)),
                        ("Steps", steps_text(known, gpu)), ("Families", families_text(known)),
                        ("Loss curves of char-cpu", curves_text(everything))):
        if text:
            lines += [f"## {title}", ""] + text
    lines += kernels_text(folder, known)
    if troubles := troubles_text(known, everything):
        lines += ["## What did not pass", ""] + troubles
    return "\n".join(lines).rstrip() + "\n", known


def write(folder):
    """Returns whether nothing failed or crashed."""
    folder = pathlib.Path(folder)
    text, known = text_of(folder)
    (folder / "report.md.new").write_text(text)
    (folder / "report.md.new").replace(folder / "report.md")
    return not any(r["outcome"] in (FAILED, CRASHED) for r in known)


if __name__ == "__main__":
    write(sys.argv[1])
    print(pathlib.Path(sys.argv[1]) / "report.md")
