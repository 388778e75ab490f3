"""Text in, verdict out: `grade` judges one response, `grade_batch` many, in order and in one or several processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from mathrl.core.errors import UserError
from mathrl.core.guard import die_with_parent
from mathrl.grading.boxes import all_boxes
from mathrl.grading.compare import Match, compare
from mathrl.grading.countdown import countdown_correct, read_truth
from mathrl.grading.engine import SymbolicEngine, default_engine, refusal
from mathrl.grading.extract import TAIL, Extraction, ExtractionMode, extract, without_think
from mathrl.grading.instructions import instructions_followed, read_instructions
from mathrl.grading.normalize import canonical
from mathrl.grading.parser import parse
from mathrl.grading.words import last_option, option

CACHE_SIZE = 65_536
# Matches by (extracted, truth); emptied when full. Each operation on it is atomic, so threads need no lock.
_cache: dict[tuple[str, str], Match] = {}
ENGINE_BUDGET = 0.3  # processor time; after it, further accepted answers are compared without the engine
_TRANSIENT = ("the symbolic engine is still starting", "the symbolic engine is busy", "the symbolic engine was lost")
SMALL_BATCH = 4096  # one process grades fewer pairs than this before a second has started
_PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])
_PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from mathrl.grading.grade import grade_pairs; grade_pairs()"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement on one response.

    Example:
        Verdict(correct=True, extracted="\\\\frac{1}{2}", rule="boxed; structure", reason="", seconds=0.0001)

    `rule` names the extraction rule and the comparison rule; `reason` says why an answer was not accepted
    ("different numbers", "timeout", …) and is empty for a correct one.
    """

    correct: bool
    extracted: str | None
    rule: str
    reason: str
    seconds: float


def grade(
    response: str,
    ground_truth: str | Sequence[str],
    extraction: ExtractionMode = "lenient",
    engine: SymbolicEngine | None = None,
) -> Verdict:
    r"""Judge one response against the accepted answer, or against any of several.

    Args:
        response: The response of the policy; any text.
        ground_truth: One accepted answer or several. JSON with "numbers" and "target" is a Countdown.
        extraction: "strict" requires a marked answer (box, answer tag, ####, "answer is"); "lenient" also takes
            a short response whole, the last formula or the last number.
        engine: The symbolic engine; by default that of this process (`default_engine`).

    Never raises on any text and never takes much longer than a second of processor time.

    >>> grade("<think>7+5=12;12-3=9</think><answer>9</answer>", "9").correct
    True
    >>> grade("so $x = \\boxed{\\frac{2}{4}}$.", ["7", "0.5"]).rule
    'boxed; structure'
    """
    started = time.perf_counter()
    truths = (ground_truth,) if isinstance(ground_truth, str) else tuple(ground_truth)
    several = len(truths) > 1
    hurry_from = _processor_seconds(engine) + ENGINE_BUDGET if several else 0.0
    text = _replace_surrogates(response)
    extracted = extract(text, extraction)
    result = Match(False, "", "no accepted answer")
    for truth in truths:
        hurried = several and _processor_seconds(engine) > hurry_from
        accepted = _accepted_answer(_replace_surrogates(str(truth)))
        result, extracted = _judge(text, extracted, accepted, extraction, False if hurried else engine)
        if result.equal:
            break
    rule = f"{extracted.rule}; {result.rule}" if result.rule else extracted.rule
    reason = "" if result.equal else result.reason
    return Verdict(bool(result.equal), extracted.text, rule, reason, time.perf_counter() - started)


@lru_cache(maxsize=4096)
def _accepted_answer(truth: str) -> str:
    """The accepted answer itself, or what it marks as its answer where it is a whole solution."""
    if truth.startswith('{"instructions"'):
        return truth
    if "\\boxed" in truth:
        return ", ".join(all_boxes(truth)) or truth
    return extract(truth, "strict").text or truth


def _processor_seconds(engine: SymbolicEngine | None) -> float:
    """Processor time of this thread and of the pairs that the engine has compared."""
    return time.thread_time() + (engine or default_engine()).seconds


def _replace_surrogates(text: object) -> str:
    """The text with a question mark for each lone surrogate, which UTF-8 does not have; "" if it is no string."""
    if not isinstance(text, str):
        return ""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _judge(
    response: str,
    extraction: Extraction,
    truth: str,
    mode: ExtractionMode,
    engine: SymbolicEngine | Literal[False] | None,
) -> tuple[Match, Extraction]:
    if (instructions := read_instructions(truth)) is not None:
        followed, reason = instructions_followed(without_think(response) or "", instructions)
        return Match(followed, "instructions", reason), extraction
    game = read_truth(truth)
    if game is not None:
        correct, reason = countdown_correct(extraction.text or "", *game)
        return Match(correct, "countdown", reason), extraction
    unmarked = mode == "lenient" and extraction.rule in ("last number", "last formula", "none", "whole")
    if unmarked and (option(truth) or "").isupper():
        last = last_option(response) if option(extraction.text or "") is None else None
        if last is not None:
            extraction = Extraction(last, "last letter")
    if extraction.text is None:
        reason = "the answer never left the thinking" if extraction.rule == "think" else "no answer found"
        return Match(False, "", reason), extraction
    if not extraction.text.strip():
        return Match(False, "", "an empty answer"), extraction
    result = _match(extraction.text, truth, engine)
    if not result.equal and extraction.rule in ("boxed", "boxed run") and (parts_of_truth := _items(truth)) > 1:
        boxes = all_boxes((without_think(response) or "")[-5 * TAIL :])
        if len(boxes) == parts_of_truth:
            parts = _match(", ".join(boxes), truth, engine)
            if parts.equal:
                return Match(True, "a box per part", ""), Extraction(", ".join(boxes), "boxes")
    if not result.equal and extraction.boxes and all(_match(box, truth, engine).equal for box in extraction.boxes):
        result = Match(True, "the same in every box", "")
    return result, extraction


def _items(truth: str) -> int:
    """The number of values that the accepted answer lists."""
    tree = parse(canonical(truth)) if "," in truth or "and" in truth or ";" in truth else None
    return len(tree.args[0]) if tree is not None and tree.kind == "list" else 1


def _match(extracted: str, truth: str, engine: SymbolicEngine | Literal[False] | None) -> Match:
    pair = (extracted, truth)
    result = _cache.get(pair)
    if result is not None:
        return result
    try:
        result = compare(truth, extracted)
    except RecursionError:
        result = Match(False, "guard", "nested too deeply")
    except (
        ValueError,
        ArithmeticError,
        TypeError,
        LookupError,
        AttributeError,
    ) as error:  # a gap in the grammar must not end a training run
        result = Match(False, "error", f"not compared: {error!r}"[:200])
    if result.equal is None:
        result = _by_engine(extracted, truth, engine)
    if result.reason not in _TRANSIENT:
        if len(_cache) >= CACHE_SIZE:
            _cache.clear()
        _cache[pair] = result
    return result


def _by_engine(extracted: str, truth: str, engine: SymbolicEngine | Literal[False] | None) -> Match:
    answer, gold = canonical(extracted), canonical(truth)
    refused = refusal(answer, gold)
    if refused is not None:
        return Match(False, "guard", f"not shown equal: {refused}")
    if engine is False:
        return Match(False, "symbolic", _TRANSIENT[1])
    outcome = (engine or default_engine()).ask(gold, answer)
    if outcome.equal:
        return Match(True, "symbolic", "")
    return Match(False, "symbolic", outcome.reason or "not shown equal")


def equal_answers(first: str, second: str, engine: SymbolicEngine | None = None) -> bool:
    """Whether two extracted answers are equal, with either of them taken as the truth.

    It agrees with `grade`, so votes for 0.5 and 1/2 count as votes for one answer. The first pair that needs
    the symbolic engine waits until it has started.

    >>> equal_answers("0.5", "1/2"), equal_answers("12", "21")
    (True, False)
    """
    if first == second:
        return True
    for answer, truth in ((first, second), (second, first)):
        result = _match(answer, truth, engine)
        if result.reason == _TRANSIENT[0] and (engine or default_engine()).warm_up():
            result = _match(answer, truth, engine)
        if result.equal:
            return True
    return False


def warm_up() -> bool:
    """Load what comparisons need, start the symbolic engine of this process and wait for it; True if it is ready."""
    compare("\\pi", "3")  # imports mpmath
    return default_engine().warm_up()


def equal_classes(answers: Iterable[str], equal: Callable[[str, str], bool]) -> list[list[str]]:
    """The distinct answers in classes of equal ones.

    Answers that equal one and the same third answer are one class, so the order of the answers does not matter.

    >>> equal_classes([".5", "7", "0.5", "7"], lambda a, b: float(a) == float(b))
    [['7'], ['.5', '0.5']]
    """
    classes: list[list[str]] = []
    for answer in dict.fromkeys(answers):
        joined = [members for members in classes if any(equal(member, answer) for member in members)]
        classes = [members for members in classes if members not in joined]
        classes.append([*(member for members in joined for member in members), answer])
    return classes


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


def grade_pairs() -> None:
    """A child of `grade_batch`: one JSON list of pairs in, one of verdicts out."""
    die_with_parent()
    extraction: ExtractionMode = "strict" if sys.argv[2] == "strict" else "lenient"
    pairs = json.load(sys.stdin)
    verdicts = [_grade_with_engine(response, truth, extraction) for response, truth in pairs]
    sys.stdout.write(json.dumps([astuple(verdict) for verdict in verdicts]))
