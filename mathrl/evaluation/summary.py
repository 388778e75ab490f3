"""Figures of evaluated models: accuracy with its interval, pass@k without bias, maj@k exactly, lengths, by level."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from math import comb
from typing import Any

from mathrl.core.errors import UserError
from mathrl.core.results import GroupFigures, Interval, ModelFigures
from mathrl.core.statistics import sum_in_order
from mathrl.core.types import EvalRow
from mathrl.evaluation.runs import Values, seeds_interval
from mathrl.evaluation.spread import cluster_interval
from mathrl.grading import equal_answers, equal_classes
from mathrl.params.evaluate import Evaluate

Rows = Sequence[EvalRow]
Key = Callable[[EvalRow], int | str | None]


def summarise(rows: Rows, settings: Evaluate) -> ModelFigures:
    """The figures of one model on one benchmark."""
    samples = len(rows[0].correct)
    responses = len(rows) * samples
    ks = sorted({k for k in settings.ks if 1 < k <= samples})
    return ModelFigures(
        problems=len(rows),
        samples=samples,
        response_length=sum(sum(row.lengths) for row in rows) / responses,
        truncated_share=sum(sum(row.truncated) for row in rows) / responses,
        no_answer_share=sum(answer is None for row in rows for answer in row.extracted) / responses,
        by_level=_groups(rows, lambda row: row.level, settings),
        by_subject=_groups(rows, lambda row: row.subject, settings),
        **_rates([rows], ks, settings),
        **_calls([rows]),
    )


def summarise_seeds(runs: Sequence[Rows], settings: Evaluate) -> ModelFigures:
    """The figures of one model of a recipe, one run or several seeds, with intervals over both.

    k as in `settings.ks`; where a step took more samples than the largest of them, the powers of two as well.
    """
    samples = len(runs[0][0].correct)
    powers = {2**n for n in range(samples.bit_length())} if samples > max(settings.ks) else set()
    ks = sorted(k for k in powers | set(settings.ks) if 1 < k <= samples)
    lengths = [{row.problem_id: sum(row.lengths) / samples for row in rows} for rows in runs]
    length = interval_over(lengths, settings, share=False)
    truncated = [sum_in_order(sum(row.truncated) / samples for row in rows) / len(rows) for rows in runs]
    return ModelFigures(
        problems=len(runs[0]),
        samples=samples,
        response_length=length.mean,
        response_length_low=max(0.0, length.low),
        response_length_high=length.high,
        truncated_share=sum_in_order(truncated) / len(truncated),
        seeds=len(runs),
        **_rates(runs, ks, settings),
        **_calls(runs),
    )


def _calls(runs: Sequence[Rows]) -> dict[str, Any]:
    """The fields of `ModelFigures` about tool calls, where the responses may call a tool."""
    rows = [row for run in runs for row in run if row.calls]
    calls = [(count, correct) for row in rows for count, correct in zip(row.calls, row.correct, strict=True)]
    if not calls:
        return {}
    right = [count > 0 for count, correct in calls if correct]
    return {
        "calls": sum(count for count, _ in calls) / len(calls),
        "call_share": sum(count > 0 for count, _ in calls) / len(calls),
        "right_with_call": sum(right) / max(1, len(right)),
    }


def accuracies(rows: Rows) -> dict[str, float]:
    """pass@1 of each problem: the mean over its samples."""
    return {row.problem_id: sum(row.correct) / len(row.correct) for row in rows}


def values_of(rows: Rows, metric: str) -> dict[str, float]:
    """One value per problem: pass_at_1, pass_at_K or maj_at_K.

    Raises:
        UserError: no such metric, or k above the number of samples.
    """
    if metric == "pass_at_1":
        return accuracies(rows)
    name, _, k_text = metric.rpartition("_")
    samples = len(rows[0].correct)
    if name not in ("pass_at", "maj_at") or not k_text.isdigit() or not 1 <= int(k_text) <= samples:
        raise UserError(
            f"no metric {metric!r} with {samples} samples per problem; there are pass_at_K and maj_at_K with K "
            f"from 1 to {samples}"
        )
    k = int(k_text)
    if name == "pass_at":
        return {row.problem_id: pass_at_k(samples, sum(row.correct), k) for row in rows}
    return {row.problem_id: maj_at_k(*_votes(row), k) for row in rows}


def responses_behind(runs: Sequence[Rows], metric: str = "pass_at_1") -> float:
    """The number of responses that a value of `values_of` is the mean of, by its variance; the fewest of all problems.

    Of n responses pass_at_K and maj_at_K use n / K sets: a mean over all sets varies at most as much as one over so
    many separate ones (Hoeffding, Annals of Mathematical Statistics 19, 1948).
    """
    return min(len(row.correct) for rows in runs for row in rows) / int(metric.rpartition("_")[2])


def _rates(runs: Sequence[Rows], ks: Iterable[int], settings: Evaluate) -> dict[str, Any]:
    """The fields pass_at_k and maj_at_k of `ModelFigures`, pass@1 and `ks`."""
    passed = {1: [accuracies(rows) for rows in runs]}
    voted: dict[int, list[Values]] = {}
    votes = [{row.problem_id: _votes(row) for row in rows} for rows in runs] if (ks := list(ks)) else []
    for k in ks:
        passed[k] = [values_of(rows, f"pass_at_{k}") for rows in runs]
        voted[k] = [{id: maj_at_k(*classes, k) for id, classes in run.items()} for run in votes]
    return {
        "pass_at_k": {k: interval_over(values, settings) for k, values in passed.items()},
        "maj_at_k": {k: interval_over(values, settings) for k, values in voted.items()},
    }


def _votes(row: EvalRow) -> tuple[int, list[int], int]:
    return answer_classes(row.extracted, row.correct, equal_answers)


def interval_over(runs: Sequence[Values], settings: Evaluate, *, share: bool = True) -> Interval:
    """The mean of one value per problem: over the problems of one run, over runs and problems of several."""
    if len(runs) > 1:
        return seeds_interval(runs, confidence=settings.confidence, share=share)
    values = list(runs[0].values())
    return cluster_interval(values, confidence=settings.confidence, share=share)


def _groups(rows: Rows, key: Key, settings: Evaluate) -> Mapping[str, GroupFigures]:
    return {
        name: GroupFigures(len(members), interval_over([accuracies(members)], settings))
        for name, members in group_by(rows, key).items()
    }


def group_by(rows: Rows, key: Key) -> dict[str, list[EvalRow]]:
    """The rows by level or subject, in the order of the keys; rows without one are left out."""
    groups: dict[Any, list[EvalRow]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return {str(name): groups[name] for name in sorted(groups.keys() - {None})}


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Chance that at least one of k samples drawn without replacement is correct.

    1 - C(n-c, k) / C(n, k) (Chen et al., arXiv:2107.03374, equation 1).

    Raises:
        ValueError: k above the number of samples.

    >>> pass_at_k(4, 1, 2)
    0.5
    """
    if not 1 <= k <= samples or not 0 <= correct <= samples:
        raise ValueError(f"pass@{k} of {correct} correct in {samples} samples is not defined")
    return 1 - comb(samples - correct, k) / comb(samples, k)


def answer_classes(
    extracted: Sequence[str | None], correct: Sequence[bool], equal: Callable[[str, str], bool]
) -> tuple[int, list[int], int]:
    """Votes for the correct answer, votes of each class of equal wrong answers, and abstentions.

    All correct responses are one class, whatever their spelling; a response without an answer abstains.
    Answers that equal one and the same third answer are one class, so the order of the samples does not matter.

    >>> marks = [True, False, False, False, False]
    >>> answer_classes(["4", ".5", "0.5", "7", None], marks, lambda a, b: float(a) == float(b))
    (1, [2, 1], 1)
    """
    right, silent = 0, 0
    wrong: dict[str, int] = {}
    for answer, is_correct in zip(extracted, correct, strict=True):
        if is_correct:
            right += 1
        elif answer is None or not answer.strip():
            silent += 1
        else:
            wrong[answer] = wrong.get(answer, 0) + 1
    classes = equal_classes(wrong, equal)
    return right, [sum(wrong[member] for member in members) for members in classes], silent


def maj_at_k(right: int, wrong: Sequence[int], silent: int, k: int) -> float:
    """Chance that a majority vote of k samples drawn without replacement is correct.

    Exact over all k-subsets; a tie of t classes at the top counts 1/t; without any answer it is wrong.

    Args:
        right: Samples with the correct answer.
        wrong: Samples in each class of equal wrong answers.
        silent: Samples without an answer; they do not vote.

    Raises:
        ValueError: k above the number of samples.

    >>> maj_at_k(2, [1], 0, 2)  # of the pairs RR, RW, RW: 1, 1/2, 1/2
    0.6666666666666666
    """
    samples = right + sum(wrong) + silent
    if not 1 <= k <= samples:
        raise ValueError(f"maj@{k} of {samples} samples is not defined")
    won = Fraction(0)
    for votes in range(1, min(k, right) + 1):
        for ties, ways in _fillings(wrong, silent, k - votes, votes).items():
            won += Fraction(comb(right, votes) * ways, ties + 1)
    return float(won / comb(samples, k))


def _fillings(wrong: Sequence[int], silent: int, seats: int, top: int) -> dict[int, int]:
    """Ways to fill `seats` with the other samples, no wrong class above `top` votes, by number of ties."""
    # Classes that are smaller reach no tie: any of their samples may vote.
    free = silent + sum(size for size in wrong if size < top)
    # By seats used and by classes with exactly `top` votes.
    ways = {(used, 0): comb(free, used) for used in range(min(seats, free) + 1)}
    for size in (size for size in wrong if size >= top):
        after: Counter[tuple[int, int]] = Counter()
        for (used, ties), count in ways.items():
            for votes in range(min(size, top, seats - used) + 1):
                after[used + votes, ties + (votes == top)] += count * comb(size, votes)
        ways = after
    return {ties: count for (used, ties), count in ways.items() if used == seats}
