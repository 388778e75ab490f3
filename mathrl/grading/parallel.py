"""`grade_batch`: grades a batch of responses in order, each distinct pair once, in one or several processes.

A child is a `python` process that reads pairs as JSON and writes verdicts; the parent grades the pairs of a
child that is lost. There are no executors and no signals, and nothing is left behind: a child exits when its
input closes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from pathlib import Path
from typing import Any

from mathrl.core.errors import UserError
from mathrl.core.parent import die_with_parent
from mathrl.grading.engine import default_engine
from mathrl.grading.extract import ExtractionMode
from mathrl.grading.grade import grade
from mathrl.grading.verdict import Verdict

SMALL_BATCH = 4096  # one process grades fewer pairs than this before a second has started
_PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])
_PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from mathrl.grading.parallel import main; main()"


def grade_batch(
    responses: Sequence[str],
    truths: Sequence[str | Sequence[str]],
    extraction: ExtractionMode = "lenient",
    *,
    processes: int | None = None,
) -> list[Verdict]:
    """One verdict per response, in order.

    Args:
        responses: The responses of the policy.
        truths: The accepted answer, or the accepted answers, of each response.
        extraction: As in `grade`.
        processes: Number of processes; None: one for a small batch, else up to four.

    Raises:
        UserError: the two sequences differ in length, or `processes` is below 1.

    Examples:
        >>> [v.correct for v in grade_batch(["#### 4", "#### 5"], ["4", ["4", "5.0"]])]
        [True, True]
    """
    if len(responses) != len(truths):
        raise UserError(
            f"grade_batch: {len(responses)} responses but {len(truths)} truths; give one truth per response"
        )
    if processes is not None and processes < 1:
        raise UserError(f"grade_batch: processes={processes}; give 1 or more")
    keys = [(r, t if isinstance(t, str) else tuple(t)) for r, t in zip(responses, truths, strict=True)]
    distinct = list(dict.fromkeys(keys))
    if processes is None:
        processes = 1 if len(distinct) < SMALL_BATCH else min(4, os.cpu_count() or 1)
    processes = min(processes, max(1, len(distinct)))
    if processes == 1:
        verdicts = [_grade_with_engine(response, truth, extraction) for response, truth in distinct]
    else:
        parts = [distinct[i::processes] for i in range(processes)]
        with ThreadPoolExecutor(processes) as threads:  # the threads only wait for the pipes
            graded = list(threads.map(lambda part: _in_child(part, extraction), parts))
        verdicts = [graded[i % processes][i // processes] for i in range(len(distinct))]
    verdict_of = dict(zip(distinct, verdicts, strict=True))
    return [verdict_of[key] for key in keys]


def _grade_with_engine(response: str, truth: str | Sequence[str], extraction: ExtractionMode) -> Verdict:
    """As `grade`, but a batch waits for the engine to start instead of doing without it."""
    verdict = grade(response, truth, extraction)
    if verdict.reason.endswith("is still starting") and default_engine().warm_up():
        return grade(response, truth, extraction)
    return verdict


def _in_child(part: list[tuple[str, str | tuple[str, ...]]], extraction: ExtractionMode) -> list[Verdict]:
    child = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, _PACKAGE_ROOT, extraction],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        output, _ = child.communicate(json.dumps(part).encode(), timeout=60 + 1.5 * len(part))
        rows: list[list[Any]] = json.loads(output)
    except (subprocess.TimeoutExpired, ValueError):
        child.kill()
        child.wait()
        rows = []
    if len(rows) != len(part):
        return [_grade_with_engine(response, truth, extraction) for response, truth in part]
    return [Verdict(*row) for row in rows]


def main() -> None:
    """A child of `grade_batch`: one JSON list of pairs in, one of verdicts out."""
    die_with_parent()
    extraction: ExtractionMode = "strict" if sys.argv[2] == "strict" else "lenient"
    pairs = json.load(sys.stdin)
    verdicts = [_grade_with_engine(response, truth, extraction) for response, truth in pairs]
    sys.stdout.write(json.dumps([astuple(verdict) for verdict in verdicts]))
