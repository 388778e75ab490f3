"""What `dvc repro` prints, read in one place: it reports its progress in English sentences alone.

The patterns fit the version of DVC that constraints.txt pins; tests/platform runs it.
"""

import re
from collections.abc import Sequence
from typing import Literal

from mathrl.core.errors import EXIT_STOPPED, EXIT_TERMINATED

Event = Literal["started", "skipped"]
EVENTS: tuple[tuple[Event, re.Pattern[str]], ...] = (
    ("started", re.compile(r"Running stage '(?:[^':]*:)?([\w-]+)'")),
    ("skipped", re.compile(r"Stage '(?:[^':]*:)?([\w-]+)' (?:didn't change|is cached)")),
)
FAILED = re.compile(r"failed to reproduce '([^']+)'")
# A stage that wrote a checkpoint when it was signalled, or that SIGTERM ended before it handled signals.
STOPPED = re.compile(rf"failed to run: .*, exited with ({EXIT_STOPPED}|{EXIT_TERMINATED}|-15)$")
# DVC's database was locked by another `dvc repro` before the stage ran: diskcache's Timeout has no text.
BUSY = re.compile(r"failed to reproduce '[^']+': *$")
# Another `dvc repro` read this one's entry of the run cache while it was written, and removed it as corrupted (DVC's
# StageCache._load_cache). Both ran the same stage, so the next attempt takes what the other one has kept.
REMOVED = re.compile(r"failed to reproduce '[^']+': \[Errno 2\] No such file or directory: '[^']*/runs/[^']*\.tmp'$")
# Advice on git and remotes, which does not concern a run.
ADVICE = (
    "Generating lock",
    "Updating lock",
    "To track the changes",
    "\tgit add",
    "To enable auto staging",
    "\tdvc config core.autostage",
    "Use `dvc push`",
)
# An empty split is usual (SFT that is off); a failed stage has written its own error.
# Of those that hold DVC's locks, in the order of its message.
HOLDER = re.compile(r"^ +\(PID (\d+)\): (.*)$")
NOISE = re.compile(r"WARNING: '[^']*' is empty\.$|ERROR: failed to reproduce ")
LAST_OF_TRACEBACK = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit)\b")


def event(line: str) -> tuple[Event, str] | None:
    """What the line reports of a stage.

    >>> event("Running stage 'pipelines/pages/dvc.yaml:pages':"), event("> python -m mathrl.stages.pages")
    (('started', 'pages'), None)
    """
    return next(((kind, match[1]) for kind, pattern in EVENTS if (match := pattern.search(line))), None)


def failed_stage(lines: Sequence[str]) -> str | None:
    match = FAILED.search("\n".join(lines))
    return match[1] if match else None


def was_stopped(lines: Sequence[str]) -> bool:
    """Whether a stage ended because something outside the flow told it to, or DVC collided with another.

    >>> was_stopped(["ERROR: failed to reproduce 'side/dvc.yaml:sft-s1': "])
    True
    >>> was_stopped(["ERROR: failed to reproduce 'sft': failed to run: python -m a, exited with 2"])
    False
    """
    return any(pattern.search(line) for line in lines for pattern in (STOPPED, BUSY, REMOVED))


def lock_holders(lines: Sequence[str]) -> str:
    """The processes for which DVC refused to run; empty: it did not.

    >>> lock_holders(["ERROR: '/p/dvc.lock' is busy, it is being blocked by:", "  (PID 6450): /env/bin/dvc repro", ""])
    'process 6450 (/env/bin/dvc repro)'
    >>> lock_holders(["  (PID 6450): a line of the stage's own"])
    ''
    """
    if not any("it is being blocked by:" in line for line in lines):
        return ""
    return ", ".join(dict.fromkeys(f"process {m[1]} ({m[2].strip()})" for line in lines if (m := HOLDER.match(line))))


def error_message(lines: Sequence[str]) -> str:
    """The stage's error message, or the exception that ended it, or its last line."""
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    exceptions = [line for line in lines if LAST_OF_TRACEBACK.match(line)]
    printed = [line for line in lines if line.strip()]
    return [*printed, *exceptions, *errors][-1] if printed else "it printed nothing"
