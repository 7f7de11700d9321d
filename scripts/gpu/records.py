"""What gpu_check learns, one line of JSON each, on disk before anything else happens.

A line with "event": "start" says that a command has begun; the line with its "outcome" follows when it
has ended. So a machine that is lost leaves everything that was known and the name of what was running.
"""

import json
import os

PASSED, FAILED, CRASHED, TIMEOUT = "passed", "failed", "crashed", "timeout"
SKIPPED = "skipped"  # by itself: the device or a library does not do it
LACKING = "lacking"  # not begun: something that it needs is not here
NOT_REACHED = "not reached"  # not begun: its time was up
OUTCOMES = [PASSED, FAILED, CRASHED, TIMEOUT, SKIPPED, LACKING, NOT_REACHED]


def parsed(line):
    """The JSON object of a line; None: it is none, or was cut off."""
    if not line.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def read(path):
    """Every whole record of a file, in order; a line that was being written when the machine was lost
    is left out."""
    try:
        with open(path, errors="replace") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    return [r for r in map(parsed, lines) if r is not None]


def newest(records):
    """The last outcome of each (part, name), in the order in which they came first."""
    last = {}
    for record in records:
        if "outcome" in record:
            last[record["part"], record["name"]] = record
    return list(last.values())


def unfinished(records):
    """What had begun and has no outcome: it was running when the check ended."""
    running = {}
    for record in records:
        if "name" not in record:
            continue
        key = record["part"], record["name"]
        if record.get("event") == "start":
            running[key] = record
        else:
            running.pop(key, None)
    return list(running.values())


class Records:
    """Appends to a file, each record flushed to the disk."""

    def __init__(self, path):
        torn = os.path.exists(path) and os.path.getsize(path) > 0
        if torn:
            with open(path, "rb") as file:
                file.seek(-1, os.SEEK_END)
                torn = file.read(1) != b"\n"
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        if torn:  # what was cut off stands alone on its line
            os.write(self.fd, b"\n")

    def add(self, **record):
        os.write(self.fd, json.dumps(record).encode() + b"\n")
        os.fsync(self.fd)
        return record
