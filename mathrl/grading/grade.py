"""Text in, verdict out: `grade` judges one response; `parallel.grade_batch` judges a batch of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

from mathrl.grading.countdown import countdown_correct, read_truth
from mathrl.grading.engine import SymbolicEngine, default_engine
from mathrl.grading.extract import Extraction, ExtractionMode, all_boxes, extract
from mathrl.grading.guards import refusal
from mathrl.grading.matching import Match, compare
from mathrl.grading.normalize import canonical
from mathrl.grading.parser import parse
from mathrl.grading.verdict import Verdict
from mathrl.grading.words import last_option, option

CACHE_SIZE = 65_536
ENGINE_BUDGET = 0.3  # processor time; after it, further accepted answers are compared without the engine


# Matches by (extracted, truth); emptied when full. Each operation on it is atomic, so threads need no lock.
_cache: dict[tuple[str, str], Match] = {}
_TRANSIENT = ("the symbolic engine is still starting", "the symbolic engine is busy", "the symbolic engine was lost")


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
    started, symbolic = time.perf_counter(), engine or default_engine()
    truths = (ground_truth,) if isinstance(ground_truth, str) else tuple(ground_truth)
    begun = time.thread_time() + symbolic.seconds if len(truths) > 1 else 0.0
    text = _without_surrogates(response)
    extracted = extract(text, extraction)
    result = Match(False, "", "no accepted answer")
    for truth in truths:
        hurried = len(truths) > 1 and time.thread_time() + symbolic.seconds - begun > ENGINE_BUDGET
        accepted = _without_surrogates(str(truth))
        if "\\boxed" in accepted:
            accepted = ", ".join(all_boxes(accepted)) or accepted
        result, extracted = _judge(text, extracted, accepted, extraction, False if hurried else engine)
        if result.equal:
            break
    rule = f"{extracted.rule}; {result.rule}" if result.rule else extracted.rule
    reason = "" if result.equal else result.reason
    return Verdict(bool(result.equal), extracted.text, rule, reason, time.perf_counter() - started)


def _without_surrogates(text: object) -> str:
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
    game = read_truth(truth)
    if game is not None:
        correct, reason = countdown_correct(extraction.text or "", *game)
        return Match(correct, "countdown", reason), extraction
    letter = option(truth)
    if (
        letter is not None
        and letter.isupper()
        and mode == "lenient"
        and extraction.rule in ("last number", "last formula", "none", "whole")
    ):
        last = last_option(response) if option(extraction.text or "") is None else None
        if last is not None:
            extraction = Extraction(last, "last letter")
    if extraction.text is None:
        reason = "the answer never left the thinking" if extraction.rule == "think" else "no answer found"
        return Match(False, "", reason), extraction
    if not extraction.text.strip():
        return Match(False, "", "an empty answer"), extraction
    result = _settled(extraction.text, truth, engine)
    if not result.equal and extraction.rule in ("boxed", "boxed run"):
        boxes = all_boxes(response)
        if 1 < len(boxes) == _items(truth):
            parts = _settled(", ".join(boxes), truth, engine)
            if parts.equal:
                return Match(True, "a box per part", ""), Extraction(", ".join(boxes), "boxes")
    if not result.equal and extraction.boxes and all(_settled(box, truth, engine).equal for box in extraction.boxes):
        result = Match(True, "the same in every box", "")
    return result, extraction


def _items(truth: str) -> int:
    """The number of values that the accepted answer lists."""
    tree = parse(canonical(truth)) if "," in truth or "and" in truth or ";" in truth else None
    return len(tree.args[0]) if tree is not None and tree.kind == "list" else 1


def _settled(extracted: str, truth: str, engine: SymbolicEngine | Literal[False] | None) -> Match:
    pair = (extracted, truth)
    result = _cache.get(pair)
    if result is not None:
        return result
    try:
        result = compare(truth, extracted)
    except RecursionError:
        result = Match(False, "guard", "nested too deeply")
    except (ValueError, ArithmeticError) as error:  # a gap in the grammar must not end a training run
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
        result = _settled(answer, truth, engine)
        if result.reason == _TRANSIENT[0] and (engine or default_engine()).warm_up():
            result = _settled(answer, truth, engine)
        if result.equal:
            return True
    return False


def warm_up() -> bool:
    """Start the symbolic engine of this process and wait for it; True if it is ready."""
    return default_engine().warm_up()
