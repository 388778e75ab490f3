"""The symbolic engine from the caller's side: killable, usable from any thread and after a fork; and its guards."""

from __future__ import annotations

import atexit
import json
import os
import re
import select
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from mathrl.grading.engine_process import WAIT

HARD_LIMIT = 1.0  # seconds of processor time
_GRACE = 0.25
_PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])
_PROGRAM = "import sys; sys.path.insert(0, sys.argv[3]); from mathrl.grading.engine_process import main; main()"


class EngineReply(NamedTuple):
    """EngineReply(True, "") or EngineReply(False, "timeout"); a lost or starting engine is a reason too."""

    equal: bool
    reason: str


class SymbolicEngine:
    """One keeper process and its worker; calls are served one at a time, each in `limit` seconds of processor time.

    The process starts in the background at the first `ask`. Until it is ready (about a second),
    `ask` waits at most `patience` seconds and then replies "not equal"; `warm_up` waits longer.

    >>> engine = SymbolicEngine()
    >>> engine.warm_up()
    True
    >>> engine.ask("x^2-1", "(x-1)(x+1)").equal
    True
    >>> engine.close()
    """

    def __init__(self, limit: float = HARD_LIMIT, patience: float = 1.0) -> None:
        self.limit = limit
        self.patience = patience
        self.seconds = 0.0  # processor time of the pairs
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._ready = False

    def warm_up(self, seconds: float = 120.0) -> bool:
        """Start the engine and wait until it is ready; False if `seconds` pass first."""
        with self._lock:
            self._start()
            return self._wait_ready(seconds)

    def ask(self, truth: str, answer: str, mode: str = "reduced") -> EngineReply:
        """Whether the engine shows the pair equal within the limit; in mode "whole" `answer` is a response."""
        line = json.dumps([truth, answer, mode]).encode() + b"\n"
        started = time.monotonic()
        if not self._lock.acquire(timeout=WAIT * self.limit + _GRACE):
            return EngineReply(False, "the symbolic engine is busy")
        try:
            self._start()
            if not self._wait_ready(max(0.0, started + self.patience - time.monotonic())):
                return EngineReply(False, "the symbolic engine is still starting")
            return self._exchange(line, time.monotonic() + WAIT * self.limit + _GRACE)
        finally:
            self._lock.release()

    def close(self) -> None:
        """End the process; the next `ask` starts a new one."""
        with self._lock:
            self._stop()

    # -- under the lock -----------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._process is not None and self._owner == os.getpid() and self._process.poll() is None:
            return
        self._stop()
        self._owner = os.getpid()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(self.limit), str(os.getpid()), _PACKAGE_ROOT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,  # nothing half-written that a forked child could flush
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        self._ready = False

    def _wait_ready(self, seconds: float) -> bool:
        if self._ready:
            return True
        self._ready = self._read_line(seconds) == b"ready\n"
        return self._ready

    def _exchange(self, line: bytes, deadline: float) -> EngineReply:
        process = self._process
        assert process is not None and process.stdin is not None
        try:
            process.stdin.write(line)
            reply = self._read_line(deadline - time.monotonic())
        except (BrokenPipeError, ValueError):
            reply = None
        if reply is None:
            self._stop()
            self._start()
            return EngineReply(False, "the symbolic engine was lost")
        outcome = json.loads(reply)
        self.seconds += outcome["seconds"]
        return EngineReply(bool(outcome["equal"]), str(outcome.get("error", "")))

    def _read_line(self, seconds: float) -> bytes | None:
        process = self._process
        assert process is not None and process.stdout is not None
        descriptor = process.stdout.fileno()
        deadline = time.monotonic() + seconds
        data = b""
        while not data.endswith(b"\n"):
            ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return None
            part = os.read(descriptor, 4096)
            if not part:
                return None
            data += part
        return data

    def _stop(self) -> None:
        process, self._process, self._ready = self._process, None, False
        if process is None:
            return
        if self._owner == os.getpid():
            process.kill()
            process.wait()
        else:
            process.returncode = 0  # inherited through a fork: the parent's child, nothing to wait for
        for pipe in (process.stdin, process.stdout):
            with suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()


_default: SymbolicEngine | None = None
_default_lock = threading.Lock()


def default_engine() -> SymbolicEngine:
    """The engine that `grade` uses in this process."""
    global _default
    with _default_lock:
        if _default is None:
            _default = SymbolicEngine()
            atexit.register(_default.close)
        return _default


def _after_fork() -> None:
    """A forked child gets fresh locks: another thread may have held them at the fork."""
    global _default_lock
    _default_lock = threading.Lock()
    if _default is not None:
        _default._lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


# What may not reach the engine: long, deep, towering or code-like text. These checks look at characters only, so they
# cost microseconds and cannot be outwitted by a parser.
MAX_LENGTH = 400
MAX_NESTING = 12
_TOO_LARGE = (
    (re.compile(r"\d\s*\^\s*\{?\s*\d+\s*\^|\^[^ ,;]*\^[^ ,;]*\^|\*\*[^ ,;]*\*\*"), "a tower of exponents"),
    (re.compile(r"(?:\^|\*\*)\s*[{(]?\s*-?\s*\d{4,}"), "an exponent too large"),
    (re.compile(r"\^\s*\{?\s*\d+\s*\}?\s*\)?\s*!|\d{4,}\s*[})]*\s*!|!!|!\s*[})]*\s*!"), "a factorial too large"),
)
_CODE = re.compile(r"__|[\"'`;@#]|\b(?:import|lambda|eval|exec|open|getattr|globals|print|exit|raise|class|system)\b")
_BASE = re.compile(r"\d\s*\}?\s*_")
_BOUND = re.compile(r"\\(?:sum|prod|int|iint|iiint|oint|lim|Gamma|zeta|binom|bigcup|bigcap)(?![a-zA-Z])")
_WORD = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{4,}(?![A-Za-z}])")
_MATH = re.compile(r"[\d\\^_=<>+*/|]")


def refusal(answer: str, truth: str) -> str | None:
    """Why a pair may not go to the symbolic engine, or None if it may.

    >>> refusal("10^{10^{10^{10}}}", "42")
    'a tower of exponents'
    """
    for text in (answer, truth):
        if len(text) > MAX_LENGTH:
            return "too long"
        depth = _bracket_depth(text)
        if depth is None:
            return "unbalanced brackets"
        if depth > MAX_NESTING:
            return "nested too deeply"
        for pattern, reason in _TOO_LARGE:
            if pattern.search(text):
                return reason
        if not _MATH.search(text):
            return "no mathematics in it"
    if len(_WORD.findall(answer)) > 1 and "\\text" not in truth:
        return "words where mathematics was expected"
    if _BASE.search(answer) or _BASE.search(truth):
        return "digits in a base, which the engine would overlook"
    if _CODE.search(answer):
        return "it looks like code"
    if _BOUND.search(answer) and not _BOUND.search(truth):
        return "a bound operator that the truth does not have"
    return None


def _bracket_depth(text: str) -> int | None:
    """How deep brackets go, or None where they do not balance (of whatever kind: [1, 2) is an interval)."""
    depth = deepest = 0
    for char in text:
        if char in "{([":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "})]":
            depth -= 1
            if depth < 0:
                return None
    return deepest if depth == 0 else None
