"""Tests of scripts/gpu_check where there is no GPU: what it does with commands that crash, hang or cannot
begin, what is left of it when it is killed, and what its report makes of records. Run by gpu_check_test.cpp;
alone: python3 tests/cli/gpu_check.py [Class[.test]]
"""

import importlib.machinery
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts/gpu"))
import figures
import parts
import records
import report
import runner


class InFolder(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder, True)
        runner.LEAST = 0.05
        self.stderr, sys.stderr = sys.stderr, open(os.devnull, "w")
        self.addCleanup(self.restore)

    def restore(self):
        sys.stderr.close()
        sys.stderr = self.stderr

    def runner(self, seconds=60):
        return runner.Runner(self.folder, self.folder, ROOT, seconds)

    def expect_gone(self, pid):
        state = pathlib.Path(f"/proc/{pid}/stat")
        for _ in range(40):
            if not state.exists() or state.read_text().split()[2] == "Z":
                return
            time.sleep(0.05)
        self.fail(f"process {pid} goes on")

    def known(self):
        return {r["name"]: r for r in records.newest(records.read(self.folder / "records.jsonl"))}

    def report(self):
        report.write(self.folder)
        return (self.folder / "report.md").read_text()


class Commands(InFolder):
    def test_outcomes(self):
        run = self.runner()
        run.begin("b", 30)
        shell = lambda text: ["sh", "-c", text]
        run.run("good", shell('echo "{\\"ms\\": 2}"; echo no json'), 5)
        run.run("bad", shell("echo why >&2; exit 5"), 5)
        run.run("crash", shell("echo before; kill -SEGV $$"), 5)
        run.run("hang", shell("echo known; sleep 60"), 0.3)
        run.run("inner time-out", shell("exit 124"), 5)
        run.run("skip", shell('echo "f.cpp:1: Skipped"; echo "no driver"; echo "[  SKIPPED ] X.Y (0 ms)"'), 5)
        run.run("no test", shell('echo; echo "[==========] 0 tests from 0 test suites ran. (0 ms total)"'), 5)
        run.run("absent", [self.folder / "no such program"], 5)
        run.lacks["gpu"] = "no NVIDIA driver"
        run.run("lacking", shell("exit 1"), 5, ("gpu",))
        known = self.known()
        self.assertEqual({n: r["outcome"] for n, r in known.items()},
                         {"good": "passed", "bad": "failed", "crash": "crashed", "hang": "timeout",
                          "inner time-out": "timeout", "skip": "skipped", "no test": "failed", "absent": "failed", "lacking": "lacking"})
        self.assertEqual(known["good"]["results"], [{"ms": 2}])
        self.assertIn("why", known["bad"]["reason"])
        self.assertIn("SIGSEGV", known["crash"]["reason"])
        self.assertIn("known", known["hang"]["reason"])  # what was printed before the limit
        self.assertLess(known["hang"]["seconds"], 5)
        self.assertEqual(known["skip"]["reason"], "no driver")
        self.assertEqual(known["lacking"]["reason"], "no NVIDIA driver")
        self.assertIn("known", (self.folder / "log.txt").read_text())

    def test_a_hanging_command_takes_its_children_along(self):
        run = self.runner()
        run.begin("b", 30)
        run.run("hang", ["sh", "-c", "sleep 60 & echo child $!; wait"], 0.5)
        child = int((self.folder / "log.txt").read_text().split("child ")[-1].split()[0])
        self.expect_gone(child)

    def test_unused_time_passes_on_and_the_total_holds(self):
        run = self.runner(100)
        run.begin("a", 15)
        self.assertAlmostEqual(run.begin("b", 20), 35, delta=1)
        self.assertAlmostEqual(run.begin("g", 500), 100, delta=1)

    def test_what_was_not_reached_gets_a_second_chance(self):
        run = self.runner(60)
        run.begin("b", 0.01)
        time.sleep(0.02)
        run.run("late", ["true"], 5)
        self.assertEqual(self.known()["late"]["outcome"], "not reached")
        run.begin("c", 30)
        mark = self.folder / "mark"
        run.run("slow once", ["sh", "-c", f"[ -e {mark} ] || {{ touch {mark}; sleep 20; }}"], 0.3, retries=True)
        self.assertEqual(self.known()["slow once"]["outcome"], "timeout")
        run.begin("g", 30)
        run.run_late()
        self.assertEqual(self.known()["slow once"]["outcome"], "passed")
        self.assertEqual(self.known()["late"]["outcome"], "passed")
        self.assertEqual(self.known()["late"]["part"], "b")

    def test_what_passed_is_kept(self):
        run = self.runner()
        run.begin("b", 30)
        mark = self.folder / "mark"
        for _ in range(2):
            run.run("once", ["sh", "-c", f"echo x >>{mark}"], 5)
            run.run("never", ["sh", "-c", f"echo y >>{mark}; exit 1"], 5)
            run = self.runner()
            run.begin("b", 30)
        self.assertEqual(mark.read_text().split(), ["x", "y", "y"])

    def test_too_much_output_ends_a_command(self):
        runner.MOST_OUTPUT, most = 1 << 16, runner.MOST_OUTPUT
        try:
            run = self.runner()
            run.begin("b", 30)
            run.run("endless", ["yes"], 20)
        finally:
            runner.MOST_OUTPUT = most
        self.assertEqual(self.known()["endless"]["outcome"], "failed")
        self.assertIn("printed more", self.known()["endless"]["reason"])

    def test_clocks_count_only_under_load(self):
        self.assertIsNone(runner.under_load([[0, 210, 70, 30], [0, 210, 70, 30]]))
        got = runner.under_load([[0, 210, 70, 30], [90, 1980, 650, 60], [99, 1950, 690, 61], [97, 1965, 640, 62]])
        self.assertEqual(got, {"samples": 3, "sm_mhz": 1965, "watts": 650, "celsius": 61})


class Killed(InFolder):
    def test_nothing_known_is_lost(self):
        script = f"""
import pathlib, sys
sys.path.insert(0, {str(ROOT / 'scripts/gpu')!r})
import runner
run = runner.Runner(pathlib.Path({str(self.folder)!r}), pathlib.Path('/tmp'), pathlib.Path('/'), 60)
run.begin('b', 50)
run.run('first', ['sh', '-c', 'echo \\'{{"family": "copies", "case": "4 bytes", "error": 0}}\\''], 5)
run.run('second', ['sh', '-c', 'echo process $$; echo half of it; exec sleep 30'], 30)
"""
        process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
        for _ in range(200):
            time.sleep(0.05)
            log = self.folder / "log.txt"
            if log.exists() and "half of it\n" in log.read_text():
                break
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.expect_gone(int(log.read_text().split("process ")[-1].split()[0]))
        everything = records.read(self.folder / "records.jsonl")
        self.assertEqual([r["name"] for r in records.unfinished(everything)], ["second"])
        self.assertEqual(self.known()["first"]["outcome"], "passed")
        text = self.report()
        self.assertIn("**Running when the check ended:** (b) second", text)
        self.assertIn("| copies | 4 bytes |", text)

    def test_who_is_asked_to_stop_stops_and_reports(self):
        root = self.folder / "root"
        shutil.copytree(ROOT / "scripts", root / "scripts")
        for program in ("src/brrr", "tests/test_backend_cuda"):
            path = root / "build/release" / program
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("#!/bin/sh\ncase $1 in --version | --help) exit ;; esac\necho process $$\nexec sleep 30\n")
            path.chmod(0o755)
        out = self.folder / "out"
        process = subprocess.Popen([root / "scripts/gpu_check", "--no-build", "--part", "b"], stderr=subprocess.PIPE,
                                   text=True, env={**os.environ, "OUT": str(out), "BRRR_CHECK_SECONDS": "540"})
        log = out / "log.txt"
        for _ in range(200):
            time.sleep(0.05)
            if log.exists() and "process " in log.read_text():
                break
        process.send_signal(signal.SIGTERM)
        self.assertIn("stopped by SIGTERM", process.communicate(timeout=20)[1])
        self.assertEqual(process.returncode, 128 + signal.SIGTERM)
        self.expect_gone(int(log.read_text().split("process ")[-1].split()[0]))
        self.assertIn("**Running when the check ended:** (b) what brrr sees", (out / "report.md").read_text())

    def test_a_torn_line_costs_itself_only(self):
        path = self.folder / "records.jsonl"
        records.Records(path).add(part="b", name="one", outcome="passed")
        with open(path, "a") as file:
            file.write('{"part": "b", "name": "two", "outc')
        records.Records(path).add(part="b", name="three", outcome="failed")
        self.assertEqual(list(self.known()), ["one", "three"])


def step(part, name, tokens_per_second, peak=700.0, losses=None, clocks=None):
    row = {"precision": "bf16", "ms": 100.0, "tokens_per_second": tokens_per_second, "peak_tflops": peak,
           "losses": losses or []}
    return dict(part=part, name=name, outcome="passed", results=[{"results": [row]}], clocks=clocks, seconds=1.0)


class Figures(InFolder):
    def write(self, *all_of_them):
        out = records.Records(self.folder / "records.jsonl")
        out.add(event="check", date="2026-01-01")
        out.add(part="a", name="what brrr sees", outcome="passed",
                results=[{"gpu": [{"name": "NVIDIA H100"}], "gpu_note": "", "cpu": "a processor"}])
        for record in all_of_them:
            out.add(**record)

    def test_flops(self):
        self.assertEqual(figures.parameters(12, 768), 123653376)  # and 1024 x 768 of positions: 124.44 M
        six = figures.flops_per_token(12, 768)
        self.assertEqual(six, 6 * 123653376 + 6 * 12 * 768 * 1024)
        self.assertEqual(figures.flops_per_token(12, 768, attention=12) - six, 6 * 12 * 768 * 1024)

    def test_aims(self):
        self.write(step("e", "GPT-2 124M bf16 x 64", 500e3), step("f", "GPT-2 124M bf16 x 64, after PyTorch", 520e3),
                   dict(part="f", name="PyTorch, GPT-2 124M bf16 x 64", outcome="timeout",
                        results=[{"tokens_per_second": 400e3, "ms": 160, "compiled": "blocks", "attention": "flash"}]),
                   step("h", "GPT-2 1558M bf16 x 16", 60e3), step("h", "GPT-2 1558M fp8 x 16", 78e3))
        text = self.report()
        self.assertIn("| GPT-2 124M bf16, tokens/s | 600,000 | 520,000 | missed: 520,000, 0.87 of the aim |", text)
        # The mean of ours before and after over PyTorch's, which counts though it was not in time for all.
        self.assertIn("| GPT-2 124M bf16 over PyTorch | 1.25x | 1.27x | met |", text)
        self.assertIn("| GPT-2 1558M fp8 over bf16 | 1.25x | 1.30x | met |", text)
        self.assertIn("| GPT-2 350M bf16 over PyTorch | 1.20x | not measured | not measured |", text)
        mfu = 60e3 * figures.flops_per_token(48, 1600) / 989e12
        self.assertIn(f"| GPT-2 1558M bf16, MFU of 989 TFLOP/s | 55.0% | {mfu:.1%} | met |", text)

    def test_mfu_is_of_the_peak_that_was_measured(self):
        self.write(step("e", "GPT-2 124M bf16 x 64", 500e3, 640.0,
                        clocks={"samples": 9, "sm_mhz": 1755, "watts": 650, "celsius": 60}),
                   dict(part="b", name="cuBLASLt bf16", outcome="passed",
                        results=[{"family": "cublaslt bf16", "case": "8192 x 8192 x 8192", "ms": 1.5, "tflops": 720.0}]))
        text = self.report()
        self.assertIn("MFU of 720 TFLOP/s (8192 x 8192 x 8192) and of the data sheet's 989.0 TFLOP/s", text)
        for peak in (720.0, 989.0):
            for attention in (6, 12):
                self.assertIn(f"{100 * figures.mfu(500e3, '124M', peak, attention):.1f}%", text)
        self.assertIn("1755 MHz, 650 W, 60 C", text)

    def test_losses(self):
        reference = [10.9, 10.5, 10.1]
        near, far = [x * 1.004 for x in reference], [x * 1.02 for x in reference]
        self.write(step("d", "losses of batch 32, bf16", 1e5, losses=reference),
                   step("d", "losses of batch 32, bf16, without cudnn", 1e5, losses=far),
                   step("d", "losses of 2 x 256 on the CPU, fp32", 1e2, losses=reference),
                   step("d", "losses of 2 x 256, bf16", 1e4, losses=near),
                   step("d", "losses of 2 x 256, fp32", 1e4, losses=near),
                   dict(part="d", name="losses of batch 32, bf16, without tma,wgmma,mma", outcome="timeout", reason=""))
        text = self.report()
        line = lambda name: next(x for x in text.splitlines() if x.startswith(f"| {name} |"))
        self.assertIn("MISSES 1%", line("losses of batch 32, bf16, without cudnn"))
        self.assertIn("within 1%", line("losses of 2 x 256, bf16"))
        self.assertIn("MISSES 0.2%", line("losses of 2 x 256, fp32"))
        self.assertIn("| timeout |", line("losses of batch 32, bf16, without tma,wgmma,mma"))
        self.assertEqual(figures.apart([1.0, float("nan")], [1.0, 1.0]), float("inf"))

    def test_a_time_out_is_no_failure(self):
        self.write(dict(part="b", name="attention by tma", outcome="timeout", reason="", seconds=8.0))
        self.assertTrue(report.write(self.folder))
        text = (self.folder / "report.md").read_text()
        self.assertIn("- timeout: (b) attention by tma", text)
        self.assertNotIn("### (b) attention by tma", text)

    def test_kernels_of_a_step(self):
        kernel = {"name": "attention (tma)", "calls": 12, "ms": 7.5, "share": 0.0577, "gflops_per_second": 412000.0,
                  "gbytes_per_second": 310.0, "of_ceiling": 0.62, "verdict": "compute"}
        (self.folder / "profile.json").write_text(json.dumps({
            "ceilings": {"f32": 5e13, "tf32": 0, "bf16": 7e14, "f16": 0, "fp8": 1.2e15,
                         "levels": [{"name": "memory", "read": 3.1e12}]},
            "parts_ms": {"kernels": 129.4}, "step_ms": 130.0, "by_kind": [kernel]}))
        self.write()
        text = self.report()
        self.assertIn("Measured: f32 50 TFLOP/s, bf16 700 TFLOP/s, fp8 1200 TFLOP/s, memory 3100 GB/s. A step takes 130.00 "
                      "ms, its kernels 129.40 ms.", text)
        self.assertIn("| attention (tma) | 12 | 7.500 | 5.8% | 412.0 | 310 | 62% | compute |", text)

    def test_ways(self):
        text = ("brrr autotune 4\nway cuda:0 | bf16 4096x3072x768 nt +bias\tcublaslt\t0.05 0.08 inf\t0.001 0.002 -\n"
                "product x\t3\t\n")
        self.assertEqual(figures.ways(text), [["bf16 4096x3072x768 nt +bias", "cublaslt",
                                               "0.05 +- 0.001 / 0.08 +- 0.002 / inf", "387"]])


class Steps(InFolder):
    """A step is measured without the ways that were found to be wrong, and a time-out finds nothing wrong."""

    def measured(self, script, **families):
        brrr = self.folder / "brrr"
        brrr.write_text("#!/bin/sh\n" + script)
        brrr.chmod(0o755)
        run = self.runner()
        for name, outcome in families.items():
            run.records.add(part="b", name="attention by " + name, outcome=outcome)
        run.begin("e", 50)
        parts.Check(run, brrr, brrr, "cuda:0", False).measured_step("124M", "bf16", 64, 1)
        return [(r["name"], r["outcome"]) for r in records.newest(records.read(self.folder / "records.jsonl"))
                if r["part"] == "e"]

    def test_a_crash_in_a_family_leaves_its_way_out(self):
        got = self.measured('[ "$BRRR_DISABLE_KERNEL" = tma ]', tma="crashed", wgmma="passed")
        self.assertEqual(got, [("GPT-2 124M bf16 x 64, without tma", "passed")])

    def test_a_time_out_does_not(self):
        got = self.measured('[ -z "$BRRR_DISABLE_KERNEL" ]', tma="timeout")
        self.assertEqual(got, [("GPT-2 124M bf16 x 64", "passed")])

    def test_but_a_step_that_hangs_is_measured_again_without_it(self):
        got = self.measured('[ "$BRRR_DISABLE_KERNEL" = wgmma ] || exec sleep 20', wgmma="timeout")
        self.assertEqual(got, [("GPT-2 124M bf16 x 64", "timeout"), ("GPT-2 124M bf16 x 64, without wgmma", "passed")])

    def test_a_batch_that_does_not_fit_is_halved(self):
        got = self.measured('case "$*" in *"--batch-size 16 "*) exit 0 ;; esac; echo "brrr: does not fit" >&2; exit 3')
        self.assertEqual(got, [("GPT-2 124M bf16 x 64", "skipped"), ("GPT-2 124M bf16 x 32", "skipped"),
                               ("GPT-2 124M bf16 x 16", "passed")])


CASE = "Table/OnGpuOp.AsTheReference/"


class Ops(unittest.TestCase):
    def test_another_process_goes_on_behind_a_crash(self):
        samples = ["add_0", "add_1", "add_2"]
        died = f"[ RUN      ] {CASE}add_0\n[       OK ] {CASE}add_0 (1 ms)\n[ RUN      ] {CASE}add_1\n"
        self.assertEqual(parts.Check.unjudged("crashed", died, samples), ["add_2"])
        self.assertEqual(parts.Check.unjudged("timeout", died, samples), ["add_2"])

    def test_and_behind_one_that_left_the_device_in_error(self):
        samples = ["add_0", "add_1", "add_2"]
        sticky = "".join(f"[ RUN      ] {CASE}{s}\nthe NVIDIA driver: cuStreamSynchronize said CUDA_ERROR_ILLEGAL_ADDRESS\n"
                         f"[  FAILED  ] {CASE}{s}, where GetParam() = 1 (1 ms)\n" for s in samples)
        self.assertEqual(parts.Check.unjudged("failed", sticky, samples), ["add_1", "add_2"])

    def test_a_wrong_number_spoils_nothing(self):
        samples = ["add_0", "add_1"]
        wrong = (f"[ RUN      ] {CASE}add_0\nThe difference is 1\n[  FAILED  ] {CASE}add_0 (1 ms)\n"
                 f"[ RUN      ] {CASE}add_1\n[       OK ] {CASE}add_1 (1 ms)\n")
        self.assertEqual(parts.Check.unjudged("failed", wrong, samples), [])


def load_gpu_check():
    loader = importlib.machinery.SourceFileLoader("gpu_check_script", str(ROOT / "scripts/gpu_check"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check_script", loader))
    loader.exec_module(module)
    return module


class Bare(InFolder):
    def test_every_part_says_what_it_lacks(self):
        shutil.copytree(ROOT / "scripts", self.folder / "root/scripts")
        out = self.folder / "out"
        done = subprocess.run([self.folder / "root/scripts/gpu_check", "--no-build"], capture_output=True, text=True,
                              env={**os.environ, "OUT": str(out), "BRRR_CHECK_SECONDS": "30"})
        self.assertEqual(done.returncode, 0, done.stderr)
        for letter in parts.Check.PARTS:
            self.assertIn(f"brrr: ({letter}) ", done.stderr)
        text = (out / "report.md").read_text()
        self.assertIn("lacking: brrr is not here: ", text)
        self.assertIn("lacking: test_backend_cuda is not here: ", text)
        self.assertLessEqual(len(list(out.iterdir())), 8)

    def test_an_older_c_library_is_said(self):
        check = load_gpu_check()
        self.assertIn("needs glibc 9.99 or newer", check.too_old({"glibc": "9.99"}))
        self.assertEqual(check.too_old({"glibc": "2.2"}), "")
        self.assertEqual(check.too_old(None), "")


if __name__ == "__main__":
    unittest.main()
