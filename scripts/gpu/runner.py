"""Runs commands within a budget: each has a limit, each part a share of the whole, and what a part leaves
over goes to those behind it. Output goes straight to files while a command runs.
"""

import ctypes
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time

import records
from records import CRASHED, FAILED, LACKING, NOT_REACHED, PASSED, SKIPPED, TIMEOUT

LEAST = 2.0  # seconds with which a command is still begun
MOST_OUTPUT = 2 << 20  # bytes that one command may print: the files of all must stay small
DOES_NOT_FIT = 3  # the exit code of brrr where memory is too small
LANES = 3  # commands at a time, where a part asks for more than one


LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


def die_with_us():
    """In a new process: it ends when the check is killed, and leaves the GPU to whoever comes next."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Clocks:
    """Clock, power and temperature of the GPU, sampled by nvidia-smi for as long as the check runs."""

    QUERY = "utilization.gpu,clocks.sm,power.draw,temperature.gpu"

    def __init__(self, index):
        self.samples = []  # (time, utilisation, MHz, W, degrees)
        try:
            self.process = subprocess.Popen(
                ["nvidia-smi", f"--id={index}", f"--query-gpu={self.QUERY}", "--format=csv,noheader,nounits",
                 "-lms", "200"],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                preexec_fn=die_with_us)
        except OSError:
            self.process = None
            return
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            try:
                values = [float(x) for x in line.split(",")]
            except ValueError:
                continue
            if len(values) == 4:
                self.samples.append((time.time(), *values))

    def between(self, start, end):
        """Medians of the samples under load; None: there are none."""
        return under_load([s[1:] for s in list(self.samples) if start <= s[0] <= end])

    def stop(self):
        if self.process is not None:
            self.process.kill()


def under_load(samples):
    busy = [s for s in samples if s[0] > 0]
    if not busy:
        return None
    middle = lambda i: sorted(s[i] for s in busy)[len(busy) // 2]
    return {"samples": len(busy), "sm_mhz": middle(1), "watts": middle(2), "celsius": middle(3)}


def kill_group(process):
    """Asks, then insists. What hangs in the driver may outlive even that, and is left behind."""
    for sign, patience in ((signal.SIGTERM, 1.0), (signal.SIGKILL, 2.0)):
        try:
            os.killpg(process.pid, sign)
        except ProcessLookupError:
            pass
        try:
            process.wait(patience)
            return
        except subprocess.TimeoutExpired:
            pass


def outcome_of(code, output):
    """Of a command that has ended by itself."""
    if code == 124:  # of a `timeout` within
        return TIMEOUT
    if code < 0 or code > 128:
        return CRASHED
    if code == DOES_NOT_FIT:
        return SKIPPED
    if code > 0 or "\n[==========] 0 tests from " in output:
        return FAILED
    if "[  SKIPPED ]" in output and "[       OK ]" not in output:
        return SKIPPED
    return PASSED


def reason_of(outcome, code, output, errors):
    """What a reader needs of what was printed: why a test was skipped, or the end of both streams."""
    if outcome == PASSED:
        return ""
    if outcome == SKIPPED:
        lines = output.splitlines()
        for i, line in enumerate(lines[:-1]):
            if line.endswith(": Skipped"):
                return lines[i + 1]
        return (errors.strip().splitlines() or [""])[-1]
    tail = (output[-2000:] + "\n" + errors[-2000:]).strip()
    if outcome == CRASHED:
        number = -code if code < 0 else code - 128
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        return f"ended by {name}\n{tail}"
    return tail


class Runner:
    def __init__(self, out, work, root, seconds, scale=1.0):
        """`scale`: by how much parts and commands may take longer than they say."""
        self.out, self.work, self.root, self.scale = out, work, root, scale
        self.begun = time.time()
        self.end = self.begun + seconds
        self.due = self.begun  # when the present part must be done
        self.part = ""
        self.records = records.Records(out / "records.jsonl")
        self.kept = {(r["part"], r["name"]): r for r in records.newest(records.read(out / "records.jsonl"))
                     if r["outcome"] == PASSED}
        self.lacks = {}  # need -> why it is not there; "" or absent: it is
        self.clocks = None
        self.libraries = {}  # the environment in which programs of ours find their libraries
        self.late = []  # commands that were not reached, for when time is left
        self.live = set()  # processes that run now
        self.outputs = {}  # name -> all that a command of the present part printed

    # -- parts

    def begin(self, part, seconds):
        """The part may take `seconds` and what those before it have left over."""
        self.part = part
        self.due = min(self.end, self.due + self.scale * seconds)
        self.part_begun = time.time()
        return self.left()

    def finish(self):
        self.records.add(part=self.part, event="part", seconds=round(time.time() - self.part_begun, 2))

    def left(self):
        return self.due - time.time()

    # -- commands

    def log_of(self, lane):
        return self.out / ("log.txt" if lane == 0 else f"log{lane}.txt")

    def shown(self, command):
        text = shlex.join(str(c) for c in command)
        for path, name in ((self.out, "$OUT"), (self.work, "$WORK"), (self.root, ".")):
            text = text.replace(str(path), name)
        return text

    def conclude(self, name, outcome, **more):
        record = self.records.add(part=self.part, name=name, outcome=outcome, **more)
        note = more.get("reason", "").splitlines()
        seconds = f" ({more['seconds']:.1f} s)" if "seconds" in more else ""
        extra = f": {note[0]}" if note and outcome in (LACKING, SKIPPED, CRASHED) else ""
        print(f"brrr: ({self.part}) {name}: {outcome}{seconds}{extra}", file=sys.stderr, flush=True)
        return record

    def libraries_for(self, command):
        """None for Python: what we bring must not stand in for what PyTorch was built with."""
        return {} if str(command[0]) == sys.executable and "libraries.py" not in str(command[1]) else self.libraries

    def end_all(self):
        for process in list(self.live):
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def lacking(self, needs):
        return next((self.lacks[n] for n in needs if self.lacks.get(n)), "")

    def run(self, name, command, limit, needs=(), env=None, lane=0, again=False, whole=None, retries=False):
        """Runs it and returns its record. `env`: what the command sees besides our environment. `again`: even
        if it has passed before. `whole`: a file for its result, whose list of kernels is too long for the
        records. `retries`: a time-out gets a second chance, too."""
        if not again and (self.part, name) in self.kept:
            return self.kept[self.part, name]
        if reason := self.lacking(needs):
            return self.conclude(name, LACKING, reason=reason)
        once_more = (self.part, name, command, limit, needs, env, whole)
        limit = min(self.scale * limit, self.left())
        if limit < LEAST:
            self.late.append(once_more)
            return self.conclude(name, NOT_REACHED)
        record = self.run_now(name, command, limit, env or {}, lane, whole)
        if retries and record["outcome"] == TIMEOUT:
            self.late.append(once_more)
        return record

    def run_now(self, name, command, limit, env, lane, whole):
        shown = self.shown([f"{k}={v}" for k, v in env.items() if k != "BRRR_CACHE"] + list(command))
        self.records.add(part=self.part, name=name, event="start", limit=round(limit, 1))
        log = self.log_of(lane)
        errors = self.out / "errors.txt" if lane == 0 else log
        start = time.time()
        with open(log, "ab") as to, open(errors, "ab") as errors_to:
            for file in {to, errors_to}:
                file.write(f"== ({self.part}) {name}: {shown}\n".encode())
                file.flush()
            at, errors_at = to.tell(), errors_to.tell()
            try:
                process = subprocess.Popen(
                    [str(c) for c in command], stdin=subprocess.DEVNULL, stdout=to, stderr=errors_to,
                    env={**os.environ, **self.libraries_for(command), **{k: str(v) for k, v in env.items()}},
                    start_new_session=True, preexec_fn=die_with_us)
            except OSError as error:
                return self.conclude(name, FAILED, reason=str(error), command=shown, seconds=0.0)
            self.live.add(process)
            timed_out = too_much = False
            while process.poll() is None and not timed_out and not too_much:
                try:
                    process.wait(0.05)
                except subprocess.TimeoutExpired:
                    pass
                timed_out = time.time() - start > limit
                too_much = log.stat().st_size - at > MOST_OUTPUT
            if process.poll() is None:
                kill_group(process)
            else:
                timed_out = too_much = False
        seconds = time.time() - start
        output, error_text = self.text_from(log, at), self.text_from(errors, errors_at) if lane == 0 else ""
        self.live.discard(process)
        code = process.returncode
        self.outputs[name] = output
        if timed_out:
            outcome = TIMEOUT
        elif too_much:
            outcome, error_text = FAILED, f"it printed more than {MOST_OUTPUT} bytes and was ended"
        else:
            outcome = outcome_of(code, output)
        results = [r for r in map(records.parsed, output.splitlines()) if r is not None]
        if whole is not None and results:
            whole.write_text(json.dumps(results[-1]) + "\n")
            results[-1].pop("kernels", None)
        return self.conclude(
            name, outcome, code=code, seconds=round(seconds, 2), limit=round(limit, 1), command=shown, results=results,
            clocks=self.clocks.between(start, start + seconds) if self.clocks else None,
            reason=reason_of(outcome, code if code is not None else 0, output, error_text))

    @staticmethod
    def text_from(path, at):
        with open(path, "rb") as file:
            file.seek(at)
            return file.read(MOST_OUTPUT + (1 << 20)).decode(errors="replace")

    def run_late(self):
        """What was not reached in time gets a second chance, one command after another."""
        late, self.late = self.late, []
        for i, (part, name, command, limit, needs, env, whole) in enumerate(late):
            if self.left() < LEAST:
                self.late += late[i:]
                break
            self.part, present = part, self.part
            self.run(name, command, limit, needs, env, whole=whole)
            self.part = present

    def alongside(self, lane, function):
        """Calls it on a thread of its own; its commands use the log of that lane."""
        part = self.part

        def guarded():
            try:
                function(lane)
            except Exception as error:  # a mistake of ours must not go unseen
                self.records.add(part=part, name=f"lane {lane}", outcome=FAILED,
                                 reason=f"{type(error).__name__}: {error}")

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        return thread
