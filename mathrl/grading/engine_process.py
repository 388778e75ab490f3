r"""The process behind the engine: a keeper that forks one worker at a time, which ends when it is late.

    caller  <-- pipe -->  keeper (imports Math-Verify once)  <-- pipe -->  worker (forked, limited)

The keeper is started by `engine.SymbolicEngine` with ``python -c``; it never looks at a response, so it cannot hang
on one. Both directions carry lines of JSON. The limit of a pair is processor time, so that a busy machine gives the
same verdicts as an idle one: the kernel's timer ends the worker. One that hangs without computing is killed after
WAIT times the limit. The keeper exits when its input closes, and the kernel kills it
and its worker when their parent dies.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, BinaryIO

from mathrl.core.guard import die_with_parent

ADDRESS_SPACE = 4 << 30
WAIT = 10.0  # seconds on the clock per second of processor time


class _Worker:
    """A forked child that answers one pair after another."""

    def __init__(self, compare: dict[str, Callable[[str, str], bool]], limit: float) -> None:
        self.limit = limit
        request_read, self.request = os.pipe()
        self.reply, reply_write = os.pipe()
        keeper = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.request)
            os.close(self.reply)
            die_with_parent()
            if os.getppid() != keeper:
                os._exit(0)
            _serve(compare, request_read, reply_write, limit)
        os.close(request_read)
        os.close(reply_write)

    def ask(self, line: bytes) -> dict[str, object] | None:
        """The worker's reply, or None when it was late or died."""
        try:
            os.write(self.request, line)
        except BrokenPipeError:
            return None
        ready, _, _ = select.select([self.reply], [], [], WAIT * self.limit)
        if not ready:
            return None
        data = os.read(self.reply, 4096)
        return dict(json.loads(data)) if data.endswith(b"\n") else None

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.request)
        os.close(self.reply)


def _serve(compare: dict[str, Callable[[str, str], bool]], request: int, reply: int, limit: float) -> None:
    """The worker's loop. Whatever the engine does or raises, the keeper sees either one line or silence."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    sys.setrecursionlimit(2000)
    with os.fdopen(request, "rb") as lines:
        for line in lines:
            truth, answer, mode = json.loads(line)
            started = time.process_time()
            signal.setitimer(signal.ITIMER_PROF, limit)
            try:
                outcome: dict[str, object] = {"equal": compare[mode](truth, answer)}
            except BaseException as error:  # SystemExit and MemoryError too: a worker's end must be a reply
                outcome = {"equal": False, "error": type(error).__name__}
            signal.setitimer(signal.ITIMER_PROF, 0)
            outcome["seconds"] = time.process_time() - started
            os.write(reply, json.dumps(outcome).encode() + b"\n")
    os._exit(0)


def keep(source: BinaryIO, sink: BinaryIO, compare: dict[str, Callable[[str, str], bool]], limit: float) -> None:
    """Answer each line of `source` on `sink`; a late or dead worker is killed and replaced at once."""
    worker = _Worker(compare, limit)
    sink.write(b"ready\n")
    sink.flush()
    for line in source:
        outcome = worker.ask(line)
        if outcome is None:
            worker.kill()
            worker = _Worker(compare, limit)
            outcome = {"equal": False, "error": "timeout", "seconds": limit}
        sink.write(json.dumps(outcome).encode() + b"\n")
        sink.flush()
    worker.kill()


def load_math_verify() -> dict[str, Callable[[str, str], bool]]:
    """Import the engine (it takes seconds) and return its comparison functions by mode."""
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify

    config = (
        LatexExtractionConfig(
            normalization_config=NormalizationConfig(basic_latex=True, units=False, boxed="all"), boxed_match_priority=0
        ),
    )

    def tree(text: str) -> Any:
        return parse("$\\boxed{" + text + "}$", config, parsing_timeout=None, fallback_mode="no_fallback")

    def compare(truth: str, answer: str) -> bool:
        gold, target = tree(truth), tree(answer)
        if not gold or not target:
            return False
        return bool(verify(gold, target, float_rounding=12, timeout_seconds=None, raise_on_error=False))

    def compare_response(truth: str, response: str) -> bool:
        """Math-Verify as its users call it, on the whole response: the second grader."""
        gold = parse("$" + truth + "$", parsing_timeout=None)
        return bool(verify(gold, parse(response, parsing_timeout=None), timeout_seconds=None, raise_on_error=False))

    compare("\\frac{1}{2}", "0.5")
    return {"reduced": compare, "whole": compare_response}


def main() -> None:
    """``python -c "… main()" LIMIT PARENT``: read pairs from standard input until it closes."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    limit, parent = float(sys.argv[1]), int(sys.argv[2])
    if os.getppid() != parent:
        return
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever the libraries print must not enter the protocol
    keep(sys.stdin.buffer, sink, load_math_verify(), limit)
