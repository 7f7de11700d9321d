"""The parts of the check, (a) to (j), in the order in which they tell most."""

import os
import re
import shutil
import sys
import threading
from dataclasses import dataclass

import records
from records import CRASHED, FAILED, PASSED, TIMEOUT
from runner import DOES_NOT_FIT, LANES


@dataclass
class Model:
    name: str
    layers: int
    heads: int
    width: int
    context: int = 1024
    preset: str = "gpt2"
    words: int = 50257

    def options(self):
        return ["--preset", self.preset, "--n-layer", self.layers, "--n-head", self.heads, "--n-embd", self.width,
                "--context", self.context]


MODELS = {m.name: m for m in (Model("124M", 12, 12, 768), Model("350M", 24, 16, 1024),
                              Model("774M", 36, 20, 1280), Model("1558M", 48, 25, 1600))}
# What a rehearsal on an emulated GPU puts in their place.
TINY = Model("tiny", 1, 2, 128, 64, "char-cpu", 65)

FAMILIES = [("copies", "Copies"), ("fused cluster", "FusedCluster"), ("cuBLASLt bf16", "CublasLtBf16"),
            ("cuBLASLt fp8", "CublasLtFp8"), ("bias gradient", "BiasGradient"),
            ("attention by cuDNN", "AttentionByCudnn"), ("attention by tma", "AttentionByTma"),
            ("attention by wgmma", "AttentionByWgmma"), ("attention by mma", "AttentionByMma"),
            ("graph replay", "GraphReplay")]
# The names for BRRR_DISABLE_KERNEL of what a family tests, in steps that are measured without it.
WAYS = {"bias gradient": "cublaslt_epilogue", "attention by cuDNN": "cudnn", "attention by tma": "tma",
        "attention by wgmma": "wgmma", "attention by mma": "mma"}
STEPS = 20  # whose losses are compared


class Check:
    def __init__(self, runner, brrr, tests, device, rehearses):
        self.run, self.brrr, self.tests, self.device = runner, brrr, tests, device
        self.rehearses = rehearses
        self.ours = {"BRRR_CACHE": runner.work / "caches"}

    # -- what several parts run

    def model(self, name):
        return TINY if self.rehearses else MODELS[name]

    def batch(self, n):
        return 2 if self.rehearses else n

    def test(self, name, case, limit, **more):
        """Tests of test_backend_cuda by a GoogleTest pattern, in a process of their own."""
        return self.run.run(name, [self.tests, f"--gtest_filter={case}", "--gtest_color=no"], limit,
                            ("gpu", "tests"), {**self.ours, **more.pop("env", {})}, **more)

    def step(self, name, size, precision, batch, limit, steps=4, seconds=5.0, peaks=True, env=None, **more):
        model = self.model(size)
        return self.run.run(
            name, [self.brrr, "bench", "step", *model.options(), "--precision", precision, "--batch-size",
                   self.batch(batch), "--device", more.pop("device", self.device), "--steps", steps, "--seconds",
                   0 if self.rehearses else seconds, *([] if peaks and not self.rehearses else ["--no-peaks"]), "--json"],
            limit, more.pop("needs", ("brrr", "gpu")), {**self.ours, **(env or {})}, **more)

    def ways_that(self, *outcomes):
        """Ways whose family ended so in (b), in this call or before it."""
        known = {r["name"]: r["outcome"] for r in records.newest(records.read(self.run.out / "records.jsonl"))
                 if r["part"] == "b"}
        return [way for family, way in WAYS.items() if known.get(family) in outcomes]

    def measured_step(self, size, precision, batch, limit, suffix=""):
        """A step of the largest batch that fits, with every way but those that were found to be wrong; a time-out
        finds nothing wrong. Where it does not end well, once more without those that are under suspicion, so that
        there is a figure. Returns the batch and the environment of the last one."""
        wrong = self.ways_that(FAILED, CRASHED)
        doubtful = self.ways_that(TIMEOUT) or ["tma", "wgmma"]
        choices = [wrong, wrong + [w for w in doubtful if w not in wrong]]
        while True:
            ways, env = choices[0], {}
            if ways:
                mine = [w for w in os.environ.get("BRRR_DISABLE_KERNEL", "").split(",") if w]
                env["BRRR_DISABLE_KERNEL"] = ",".join(mine + ways)
            without = ", without " + " and ".join(ways) if ways else ""
            record = self.step(f"GPT-2 {size} {precision} x {batch}{suffix}{without}", size, precision, batch, limit,
                               env=env)
            if record["outcome"] in (FAILED, CRASHED, TIMEOUT) and len(choices) > 1:
                choices.pop(0)
            elif record.get("code") == DOES_NOT_FIT and batch > 1:
                batch //= 2
            else:
                return batch, env

    def keep_autotune(self):
        """The table of the autotuner as it is now."""
        files = sorted((self.run.work / "caches/cuda").glob("autotune-*.txt"))
        if files:
            text = "".join(f.read_text(errors="replace") for f in files)
            (self.run.out / "autotune.txt").write_text(text)

    # -- (a) what is here

    def machine(self):
        torch = self.run.alongside(1, lambda lane: self.run.run(
            "PyTorch's 8192^3 product",
            [sys.executable, self.run.root / "bench/peers/product_torch_gpu.py", "--device", self.device],
            30, ("torch",), lane=lane, retries=True))
        smi = shutil.which("nvidia-smi")
        self.run.lacks["nvidia-smi"] = "" if smi else "no nvidia-smi: clocks and power are unknown"
        self.run.run("nvidia-smi", ["nvidia-smi"], 4, ("nvidia-smi",), again=True)
        self.look()
        self.run.run("NVIDIA's libraries", [sys.executable, self.run.root / "scripts/gpu/libraries.py"], 8, again=True)
        torch.join()

    def look(self):
        """Whether there is a GPU that brrr can use. Only a clear no keeps the parts from trying."""
        info = self.run.run("what brrr sees", [self.brrr, "info", "--no-measure", "--json"], 8, ("brrr",), again=True)
        for result in info.get("results", [])[:1]:
            note = result.get("gpu_note") or ""
            if isinstance(result.get("gpu"), str):
                self.run.lacks["gpu"] = result["gpu"]
            elif note.startswith("present, not used"):
                self.run.lacks["gpu"] = note

    # -- (b), (c) the families of kernels

    def families(self):
        for name, case in FAMILIES:
            self.test(name, f"OnGpuFamily.{case}", 8)

    def head_products(self):
        self.test("head products, 50257 against 50304", "OnGpuFamily.HeadProducts", 15)

    # -- (d) twenty losses

    def losses(self):
        untuned = {"BRRR_AUTOTUNE": 0}
        short = self.model("124M")
        little = Model(short.name, short.layers, short.heads, short.width, min(short.context, 256), short.preset)
        cores = max(1, (os.cpu_count() or 2) - 2)

        def small(name, precision, device, lane=0, env=None):
            self.run.run(name, [self.brrr, "bench", "step", *little.options(), "--precision", precision,
                                "--batch-size", 2, "--device", device, "--steps", STEPS, "--seconds", 0,
                                "--no-peaks", "--json"],
                         60, ("brrr", "gpu"), {**self.ours, **(env or untuned)}, lane)

        # Beside the GPU's work, on the processors that it does not need.
        cpu = self.run.alongside(1, lambda lane: small(
            f"losses of 2 x {little.context} on the CPU, fp32", "fp32", "cpu", lane, {"OMP_NUM_THREADS": cores}))
        large = dict(size="124M", precision="bf16", batch=32, limit=25, steps=STEPS, seconds=0,
                     peaks=False)
        self.step("losses of batch 32, bf16", env=untuned, **large)
        for ways in ("tma,wgmma,mma", "cudnn"):
            self.step(f"losses of batch 32, bf16, without {ways}",
                      env={**untuned, "BRRR_DISABLE_KERNEL": ways}, **large)
        for precision in ("bf16", "fp32"):
            small(f"losses of 2 x {little.context}, {precision}", precision, self.device)
        cpu.join()

    # -- (e), (f) a whole step, and PyTorch's

    def tuned(self):
        batch, env = self.measured_step("124M", "bf16", 64, 40)
        self.keep_autotune()
        if self.rehearses:
            return  # the ceilings of an emulated GPU take minutes
        model = self.model("124M")
        self.run.run(
            f"profile of GPT-2 124M bf16 x {batch}",
            [self.brrr, "profile", *model.options(), "--precision", "bf16", "--batch-size", batch,
             "--device", self.device, "--seconds", 2, "--no-advice", "--json"], 30, ("brrr", "gpu"),
            {**self.ours, **env}, whole=self.run.out / "profile.json")

    def torch(self, size, batch, limit):
        model = self.model(size)
        return self.run.run(
            f"PyTorch, GPT-2 {size} bf16 x {batch}",
            [sys.executable, self.run.root / "bench/peers/gpt2_train_gpu.py", "--layers", model.layers, "--heads",
             model.heads, "--width", model.width, "--context", model.context, "--batch", self.batch(batch),
             "--device", self.device], limit, ("torch", "gpu"))

    def peers(self):
        """In turns with ours, so that both meet the same clocks: ours of (e), PyTorch, ours again."""
        self.torch("124M", 64, self.run.left() - 12)
        self.measured_step("124M", "bf16", 64, 30, ", after PyTorch")

    # -- (g) the ops

    def ops(self):
        """A process for each op, some at a time; behind a sample that crashes or leaves the device in error
        another process goes on."""
        self.run.run_late()
        listed = self.run.run("the table of ops", [self.tests, "--gtest_list_tests", "--gtest_filter=Table/OnGpuOp.*"],
                              10, ("gpu", "tests"), self.ours, again=True)
        cases = {}
        if listed["outcome"] == PASSED:
            for line in self.run.outputs["the table of ops"].splitlines():
                if m := re.match(r"\s+AsTheReference/(\w+)_(\d+)\b", line):
                    cases.setdefault(m[1], []).append(f"{m[1]}_{m[2]}")
        if wanted := os.environ.get("BRRR_CHECK_OPS"):
            cases = {op: of_it for op, of_it in cases.items() if op in wanted.split(",")}
        waiting, lock = list(cases.items()), threading.Lock()

        def lane_of(lane):
            while True:
                with lock:
                    if not waiting:
                        return
                    op, of_it = waiting.pop(0)
                self.op(op, of_it, lane)

        lanes = [self.run.alongside(lane, lane_of) for lane in range(LANES)]
        for lane in lanes:
            lane.join()
        if self.rehearses:
            return  # an emulated GPU would take hours
        # Many heads, way against way; where one of the ways ends the process, the others without it.
        for ways in ("", "tma", "tma,wgmma"):
            record = self.test("attention of many heads by every way" + (f" without {ways}" if ways else ""),
                               "*OnGpuAttention*", 45, env={"BRRR_DISABLE_KERNEL": ways} if ways else {})
            if record["outcome"] not in (FAILED, CRASHED, TIMEOUT):
                break
        self.test("every way of every node of steps", "OnGpu.EveryWayOfEveryNodeOfAStep", 60)

    def op(self, op, samples, lane):
        """Each sample is judged in a process that no earlier one has spoilt."""
        left, process = list(samples), 0
        while left:
            process += 1
            pattern = ":".join(f"Table/OnGpuOp.AsTheReference/{s}" for s in left)
            name = f"op {op}" + (f", from {left[0]} on" if process > 1 else "")
            record = self.test(name, pattern, 20, lane=lane, env={"BRRR_AUTOTUNE": 0})
            if record["outcome"] == PASSED or "code" not in record:
                return
            left = self.unjudged(record["outcome"], self.run.outputs[name], left)

    @staticmethod
    def unjudged(outcome, text, samples):
        """The samples that a process which did not pass has not judged: those behind the first that left the
        device in error, or that the process did not survive."""
        case = r"Table/OnGpuOp\.AsTheReference/(\w+)"
        for m in re.finditer(r"\[ RUN      \] " + case + r"((?:.|\n)*?)(?=\[ RUN      \]|\Z)", text):
            has_ended = re.search(r"\[ +(OK|FAILED|SKIPPED) +\] Table", m[2]) is not None
            is_spoilt = "the NVIDIA driver" in m[2] or "cuBLASLt said" in m[2]
            if m[1] in samples and (is_spoilt or not has_ended):
                return samples[samples.index(m[1]) + 1:]
        return [] if outcome == FAILED else samples[1:]  # it died before its first sample

    # -- (h) larger models, (i) the sanitizer, (j) whole runs

    def large(self):
        for size, precision, batch, limit in (("1558M", "bf16", 16, 60), ("1558M", "fp8", 16, 60),
                                              ("350M", "bf16", 64, 40), ("774M", "bf16", 32, 40)):
            self.measured_step(size, precision, batch, limit)
        self.keep_autotune()
        self.torch("350M", 64, 60)
        self.torch("774M", 32, 60)

    def sanitizer(self):
        path = shutil.which("compute-sanitizer")
        self.run.lacks["sanitizer"] = "" if path else "compute-sanitizer is not here"
        sanitizer = ["compute-sanitizer", "--error-exitcode", "9", "--report-api-errors", "no"]
        # Not every virtual machine lets it look at the device.
        first = self.run.run("compute-sanitizer starts", [*sanitizer, self.brrr, "info", "--no-measure"], 15,
                             ("sanitizer", "brrr", "gpu"), self.ours)
        if first["outcome"] == FAILED:
            self.run.lacks["sanitizer"] = "compute-sanitizer does not run here"
        for name, case in (("ops", "OnGpu.SanitizedOps"), ("a step", "OnGpu.SanitizedStep")):
            self.run.run(f"compute-sanitizer, {name}",
                         [*sanitizer, self.tests, f"--gtest_filter={case}", "--gtest_color=no"], 60,
                         ("sanitizer", "gpu", "tests"), {**self.ours, "BRRR_AUTOTUNE": 0})

    def whole_runs(self):
        runs = self.run.work / "runs"
        quiet = ["--eval-steps", 0, "--save-steps", 0, "--samples", 0, "--overwrite", "--json"]
        # The first step of all, with nothing compiled yet and with everything compiled.
        cold = self.run.work / "cold"
        if not self.rehearses:
            shutil.rmtree(cold, ignore_errors=True)
            for caches in ("cold", "warm"):
                self.run.run(f"first step, {caches} caches",
                             [self.brrr, "train", "--preset", "gpt2", "--precision", "bf16", "--max-steps", 2,
                              "--batch-size", 8, "--device", self.device, "--output-dir", runs / "first", *quiet],
                             40, ("brrr", "gpu"), {"BRRR_CACHE": cold})
        steps = 3 if self.rehearses else 100
        train = [self.brrr, "train", "--preset", "char-cpu", "--max-steps", steps, "--logging-steps", 1, "--dropout",
                 0, *quiet]
        if self.rehearses:
            train += [*TINY.options()[2:], "--batch-size", 2]
        for where, precision in (("cpu", "fp32"), *((self.device, p) for p in ("fp32", "bf16", "fp16", "fp8"))):
            folder = runs / f"{where.replace(':', '-')}-{precision}"
            needs = ("brrr",) if where == "cpu" else ("brrr", "gpu")
            name = f"loss curve of char-cpu on {where.split(':')[0]}, {precision}"
            self.run.run(name, [*train, "--device", where, "--precision", precision, "--output-dir", folder], 40,
                         needs, self.ours)
            steps_log = records.read(folder / "log.jsonl")
            self.run.records.add(part="j", event="losses", of=name,
                                 losses=[r["loss"] for r in steps_log if "loss" in r])
        on_gpu = f"{runs}/{self.device.replace(':', '-')}"
        self.run.run("a run goes on where it ended, on the CPU",
                     [self.brrr, "train", "--resume", f"{on_gpu}-fp32", "--max-steps", steps + 10, "--device", "cpu",
                      "--json"], 40, ("brrr", "gpu"), self.ours)
        self.run.run("text from a checkpoint",
                     [self.brrr, "generate", "--model", f"{on_gpu}-bf16", "--device", self.device,
                      "--max-new-tokens", 64], 20, ("brrr", "gpu"), self.ours)
        for form in ("brrr", "onnx"):
            file = runs / f"model.{form}"
            self.run.run(f"a file of the form .{form}", [self.brrr, "export", f"{on_gpu}-fp32", "--output", file], 20,
                         ("brrr",), self.ours)
            self.run.run(f"where the time of the .{form} file goes",
                         [self.brrr, "profile", file, "--device", self.device, "--seconds", 1, "--json"], 20,
                         ("brrr", "gpu"), self.ours)
        self.run.run_late()

    PARTS = {  # letter: seconds, what it says, what it does
        "a": (15, "device, driver, libraries", machine),
        "b": (20, "one process for each family", families),
        "c": (15, "head products, 50257 against 50304", head_products),
        "d": (60, "twenty losses of GPT-2 124M", losses),
        "e": (60, "GPT-2 124M at batch 64, autotuned", tuned),
        "f": (60, "PyTorch on the same", peers),
        "g": (110, "ops, a process for each", ops),
        "h": (120, "larger models", large),
        "i": (40, "compute-sanitizer", sanitizer),
        "j": (40, "whole runs", whole_runs),
    }
