"""Rollouts of another trainer, graded again by our verifier: rows for the record, figures per step, disagreements."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mathrl.core.errors import UserError
from mathrl.core.files import encodable
from mathrl.core.hashing import digest
from mathrl.grading import Verdict, grade_batch
from mathrl.grading.extract import ExtractionMode
from mathrl.imports.rollout_shapes import AGAINST, PROMPTS, TRUTHS, TheirRollout, answers_of, read_rollouts, text_of
from mathrl.reading.row_files import read_rows
from mathrl.rollout.rollout_files import SCHEMA

NO_ANSWER = "not graded"  # the rule of a response whose true answer is not known
HALF = 0.5  # of the largest reward: from there on a response counts as right for them, where no column is a verdict
AT_ONCE = 8192  # rollouts that are graded together
Answers = Mapping[str, list[str]]  # accepted answers by question
Memo = dict[int, Verdict]  # verdicts of rollouts that were graded before, by a hash of text and answers


@dataclass
class Graded:
    """A rollout with both verdicts; `ours` is None where the true answer is not known."""

    theirs: TheirRollout
    passed: bool
    ours: Verdict | None

    @property
    def disagrees(self) -> bool:
        return self.ours is not None and self.ours.correct != self.passed


@dataclass
class Opinion:
    """How often their reward and our verifier disagree, over all rollouts.

    `accepted_wrong` are the responses that they accept and that our verifier finds wrong, `rejected_right` the others;
    `reward` is the sum of positive rewards of graded responses, `reward_for_wrong` its part for wrong ones.
    """

    rollouts: int = 0
    graded: int = 0
    accepted_wrong: int = 0
    rejected_right: int = 0
    reward: float = 0.0
    reward_for_wrong: float = 0.0
    cases: list[Graded] = field(default_factory=list)

    def add(self, rows: Sequence[Graded]) -> None:
        self.rollouts += len(rows)
        for row in rows:
            if row.ours is None:
                continue
            self.graded += 1
            paid = max(row.theirs.reward, 0.0)
            self.reward += paid
            self.reward_for_wrong += 0.0 if row.ours.correct else paid
            if row.disagrees:
                self.accepted_wrong += row.passed
                self.rejected_right += not row.passed
                self.cases.append(row)

    @property
    def disagreement(self) -> float:
        return (self.accepted_wrong + self.rejected_right) / max(1, self.graded)

    @property
    def wrong_share(self) -> float:
        return self.reward_for_wrong / self.reward if self.reward else 0.0

    def lines(self) -> list[str]:
        if not self.graded:
            return [f"{self.rollouts:,} rollouts, none with its true answer: name a file of problems with --answers"]
        return [
            f"their reward and our verifier disagree on {self.accepted_wrong + self.rejected_right:,} of "
            f"{self.graded:,} responses ({self.disagreement:.1%}): {self.accepted_wrong:,} are accepted and wrong, "
            f"{self.rejected_right:,} rejected and right",
            f"{self.wrong_share:.1%} of the reward is for wrong answers",
            *([f"{self.rollouts - self.graded:,} responses have no true answer"] * (self.rollouts > self.graded)),
        ]

    def instructive(self, most: int = 20) -> list[Graded]:
        """The cases to read first: one per reason and answer before a second of it, the best paid wrong ones first."""
        order = sorted(self.cases, key=lambda row: (not row.passed, -row.theirs.reward, len(row.theirs.text)))
        rounds: dict[Any, int] = {}
        ranked = []
        for number, row in enumerate(order):
            assert row.ours is not None
            kind = row.passed, row.ours.rule, row.ours.extracted is None, row.theirs.question
            rounds[kind] = rounds.get(kind, 0) + 1
            ranked.append((rounds[kind], not row.passed, number, row))
        return [row for *_, row in sorted(ranked, key=lambda item: item[:3])[:most]]


def read_answers(file: Path) -> dict[str, list[str]]:
    """The accepted answers of the problems in a file of any format, by their question.

    Raises:
        UserError: the file cannot be read, or no row has a question and an answer.
    """
    answers = {}
    for row in read_rows(file):
        question = next((text_of(row.values[name], "user") for name in PROMPTS if row.values.get(name)), "")
        truth = next((row.values[name] for name in TRUTHS if row.values.get(name) is not None), None)
        if question and (found := answers_of(truth)):
            answers[" ".join(question.split())] = found
    if not answers:
        raise UserError(f"{file}: no row has a question ({', '.join(PROMPTS)}) and an answer ({', '.join(TRUTHS)})")
    return answers


def find_answers(prompt: str, answers: Answers) -> list[str]:
    """The answers to the question that a prompt asks: it is the prompt, or a line or a paragraph of it."""
    text = " ".join(prompt.split())
    if text in answers:
        return answers[text]
    for part in (*prompt.split("\n\n"), *prompt.split("\n")):
        if (found := answers.get(" ".join(part.split()))) is not None:
            return found
    return max(((q, a) for q, a in answers.items() if q in text), key=lambda item: len(item[0]), default=("", []))[1]


def grade_rollouts(
    files: Sequence[Path],
    answers: Answers | None = None,
    *,
    extraction: ExtractionMode = "lenient",
    memo: Memo | None = None,
    weights: Sequence[float] = (),
) -> Iterator[list[Graded]]:
    """The rollouts of the files in order, graded, a list of all of a step at a time; `weights` as in `read_rollouts`.

    With `memo` a text that was graded before is not graded again: a run that is watched is read many times.

    Raises:
        UserError: a file is damaged.
    """
    from_half = HALF * _largest_reward(files, weights)
    for steps in _several_steps(files, weights):
        waiting = [row for step in steps for row in step]
        if answers:
            for row in waiting:
                row.answers = row.answers or find_answers(row.question, answers)
        verdicts = _verdicts([row for row in waiting if row.answers], extraction, {} if memo is None else memo)
        graded = iter(
            [Graded(row, _is_accepted(row, from_half), next(verdicts) if row.answers else None) for row in waiting]
        )
        for step in steps:
            yield [next(graded) for _ in step]


def _verdicts(rows: Sequence[TheirRollout], extraction: ExtractionMode, memo: Memo) -> Iterator[Verdict]:
    keys = [hash((row.text, *row.answers)) for row in rows]
    new = {key: row for key, row in zip(keys, rows, strict=True) if key not in memo}
    graded = grade_batch([row.text for row in new.values()], [row.answers for row in new.values()], extraction)
    memo |= zip(new, graded, strict=True)
    return iter([memo[key] for key in keys])


def _several_steps(files: Sequence[Path], weights: Sequence[float]) -> Iterator[list[list[TheirRollout]]]:
    """The rollouts by step, as many steps at a time as are graded together."""
    steps: list[list[TheirRollout]] = []
    for file in files:
        for row in read_rollouts(file, weights):
            if steps and steps[-1][0].step == row.step:
                steps[-1].append(row)
                continue
            if sum(map(len, steps)) >= AT_ONCE:
                yield steps
                steps = []
            steps.append([row])
    if steps:
        yield steps


def _largest_reward(files: Sequence[Path], weights: Sequence[float]) -> float:
    """The largest reward of all rollouts where none of them has a verdict of its own; else it is not needed."""
    largest = 0.0
    for file in files:
        for row in read_rollouts(file, weights):
            if row.verdict is not None:
                return largest
            largest = max(largest, row.reward)
    return largest


def _is_accepted(row: TheirRollout, from_half: float) -> bool:
    return row.verdict if row.verdict is not None else row.reward > 0 and row.reward >= from_half


def step_figures(rows: Sequence[Graded]) -> dict[str, float]:
    """A step's metrics under our names, from its rollouts."""
    rewards = np.array([row.theirs.reward for row in rows])
    lengths = np.array([_length(row.theirs) for row in rows], dtype=float)
    groups: dict[str, list[float]] = {}
    for row in rows:
        groups.setdefault(row.theirs.question, []).append(row.theirs.reward)
    figures = {
        "reward/overall": float(rewards.mean()),
        "reward/overall_std": float(rewards.std(ddof=1)) if len(rows) > 1 else 0.0,
        "response_length": float(lengths.mean()),
        "response_length_max": float(lengths.max()),
        "rollout/longest_to_median": float(lengths.max() / max(1.0, float(np.median(lengths)))),
        "rollout/length_reward_correlation": _correlation(lengths, rewards),
        "rollout/empty_groups": _empty_share(rows),
    }
    if any(len(group) > 1 for group in groups.values()):
        uniform = sum(max(group) - min(group) < 1e-6 for group in groups.values())
        figures["rollout/zero_variance_share"] = uniform / len(groups)
    for name in sorted({name for row in rows for name in row.theirs.parts}):
        values = [row.theirs.parts[name] for row in rows if name in row.theirs.parts]
        figures[f"reward/{name}"] = sum(values) / len(values)
    graded = [row for row in rows if row.ours is not None]
    if not graded and all(row.theirs.verdict is not None for row in rows):
        figures["reward/accuracy"] = sum(row.passed for row in rows) / len(rows)
    if graded:
        right = np.array([float(row.ours.correct) for row in graded if row.ours is not None])
        passed = np.array([float(row.passed) for row in graded])
        figures |= {
            "reward/accuracy": float(right.mean()),
            "rollout/length_accuracy_correlation": _correlation(
                np.array([_length(row.theirs) for row in graded], dtype=float), right
            ),
            # What the trainer is told, and what our verifier says of the same responses.
            "verifier/theirs_passed": float(passed.mean()),
            "verifier/ours_accuracy": float(right.mean()),
            "verifier/graded": float(len(graded)),
            "verifier/disagreement": float((passed != right).mean()),
        }
    return figures


def _empty_share(rows: Sequence[Graded]) -> float:
    longest: dict[str, int] = {}
    for row in rows:
        longest[row.theirs.question] = max(longest.get(row.theirs.question, 0), len(row.theirs.text.strip()))
    return sum(length == 0 for length in longest.values()) / len(longest)


def _length(row: TheirRollout) -> int:
    return len(row.text) if row.tokens is None else row.tokens


def _correlation(first: Any, second: Any) -> float:
    if len(first) < 2 or first.std() < 1e-12 or second.std() < 1e-12:
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])


class RolloutWriter:
    """Writes rollouts as a record keeps them, a row group per step, those that the graders disagree on first."""

    def __init__(self, file: Path, system: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self.system, self.writer = system, pq.ParquetWriter(file, SCHEMA, compression="zstd")

    def write(self, rows: Sequence[Graded]) -> None:
        numbers: dict[str, int] = {}
        made: list[tuple[bool, int, dict[str, Any]]] = []
        for row in rows:
            number = numbers[row.theirs.question] = numbers.get(row.theirs.question, -1) + 1
            made.append((not row.disagrees, len(made), self._row(row, number)))
        ordered = [row for *_, row in sorted(made, key=lambda item: item[:2])]
        columns = {name: [row.get(name) for row in ordered] for name in SCHEMA.names}
        self.writer.write_table(pa.table(columns, schema=SCHEMA), row_group_size=max(1, len(rows)))

    def _row(self, row: Graded, number: int) -> dict[str, Any]:
        theirs, ours = row.theirs, row.ours
        reasons = {
            AGAINST: row.disagrees,
            "no answer": ours is not None and ours.extracted is None,
            NO_ANSWER: ours is None,
        }
        return {
            "step": theirs.step,
            "problem": digest(theirs.question)[:12],
            "question": encodable(theirs.question),
            "answers": [encodable(answer) for answer in theirs.answers],
            "source": encodable(theirs.source or self.system),
            "response": number,
            "text": encodable(theirs.text),
            "correct": row.passed if ours is None else ours.correct,
            "extracted": None if ours is None or ours.extracted is None else encodable(ours.extracted),
            "rule": NO_ANSWER if ours is None else ours.rule,
            "reward": theirs.reward,
            "parts": sorted(theirs.parts.items()),
            "length": _length(theirs),
            "truncated": theirs.truncated,
            "repeated": 0.0,
            "disagrees": None if ours is None else row.disagrees,
            "odd": [reason for reason, holds in reasons.items() if holds],
            "trained": True,
            "calls": [],
        }

    def close(self) -> None:
        self.writer.close()


def sum_up(steps: Iterable[Sequence[Graded]]) -> Opinion:
    opinion = Opinion()
    for rows in steps:
        opinion.add(rows)
    return opinion


SHOWN = 300  # characters at the end of a question or response


def case_row(row: Graded) -> dict[str, Any]:
    """A disagreement as a row of JSON."""
    theirs, ours = row.theirs, row.ours
    assert ours is not None
    return {
        "step": theirs.step,
        "question": theirs.question,
        "answers": theirs.answers,
        "response": theirs.text,
        "reward": theirs.reward,
        "accepted": row.passed,
        "correct": ours.correct,
        "extracted": ours.extracted,
        "rule": ours.rule,
    }


def case_lines(number: int, row: Graded) -> list[str]:
    """A disagreement for the terminal."""
    case = case_row(row)
    verdicts = "accepted, wrong for us" if row.passed else "rejected, right for us"
    return [
        f"\n{number}. step {case['step']}, reward {case['reward']:g}: {verdicts}; extracted {case['extracted']!r}, "
        f"true answer {' or '.join(case['answers'])}",
        f"   question: {_end(case['question'])}",
        f"   response: {_end(case['response'])}",
    ]


def _end(text: str) -> str:
    text = " ".join(text.split())
    return ("… " if len(text) > SHOWN else "") + text[-SHOWN:]


def document(opinion: Opinion) -> dict[str, Any]:
    """The opinion for --json."""
    return {
        "rollouts": opinion.rollouts,
        "graded": opinion.graded,
        "accepted_wrong": opinion.accepted_wrong,
        "rejected_right": opinion.rejected_right,
        "disagreement": opinion.disagreement if opinion.graded else None,
        "reward_for_wrong": opinion.wrong_share if opinion.graded else None,
        "cases": [case_row(row) for row in opinion.instructive()],
    }
