"""A benchmark's problems, and what a model made of them: every response, one `EvalRow` per problem."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from mathrl.core.errors import UserError
from mathrl.core.hashing import derive_seed, digest
from mathrl.core.paths import CURATED_SFT, CURATED_TEST
from mathrl.core.types import EvalRow, Problem, read_problems
from mathrl.data.templates import few_shot_examples
from mathrl.grading import reading
from mathrl.params.evaluate import SFT, TEST
from mathrl.params.run import Prompt
from mathrl.params.schema import Params
from mathrl.reading.reading import guess_fields, read_source, split_rejected
from mathrl.reading.registry import REGISTRY
from mathrl.reading.row_formats import source_fields
from mathrl.reading.sources import resolve_benchmark, resolve_named


@dataclass(frozen=True)
class EvaluatedModel:
    """The graded responses of one model to one benchmark.

    `responses` are the rows of responses.jsonl; `dropped` counts problems whose prompt was too long. `verifier` are the
    counters of the verifier where a judge model takes part; a resumed evaluation counts from its resumption.
    `endpoint` is what was asked there, and what it cost.
    """

    model: str
    benchmark: str
    rows: list[EvalRow]
    responses: list[dict[str, Any]]
    dropped: int
    verifier: dict[str, float] | None = None
    endpoint: dict[str, Any] | None = None

    def relabel(self, model: str) -> "EvaluatedModel":
        """The same results under another name: for a model folder with the same bytes."""
        rows = [replace(row, model=model) for row in self.rows]
        responses = [{**row, "model": model} for row in self.responses]
        return replace(self, model=model, rows=rows, responses=responses)


@dataclass(frozen=True)
class Benchmark:
    """A benchmark's problems, and how its rows were read where nobody had written that down.

    Example:
        Benchmark([Problem(…), …], {"prompt_key": "question", "answer_key": "gold"}, {"answer_key": "by its name; …"})

    `unread` are true answers that the grader takes for neither mathematics, an option nor words, by the problem's id.
    """

    problems: list[Problem]
    fields: Mapping[str, Any] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)

    def to_row(self) -> dict[str, Any]:
        """The entry of fields.json."""
        return {"fields": self.fields, "reasons": self.reasons, "unread": self.unread}

    def notes(self, name: str) -> list[str]:
        """What a person should look at before the figures."""
        taken = ", ".join(f"{key} {value} ({self.reasons.get(key, 'as usual')})" for key, value in self.fields.items())
        notes = [f"{name}: fields were guessed: {taken}; name others with --field KEY=NAME"] if taken else []
        if self.unread:
            shown = "; ".join(
                f"{id}: {' '.join(answer.split())[:60]!r}" for id, answer in list(self.unread.items())[:3]
            )
            notes.append(
                f"{name}: {len(self.unread)} of {len(self.problems)} true answers cannot be parsed, so only a response "
                f"that repeats one to the letter is right ({shown})"
            )
        return notes


def prompt_of(
    name: str, params: Params, problems: Sequence[Problem], examples: Path = CURATED_SFT
) -> tuple[Params, list[Problem]]:
    """The parameters with the prompt of this benchmark (`evaluate.prompts`), and its worked examples.

    No worked example is one of `problems`. `examples` is the file of the sft split.

    Raises:
        UserError: too few problems with a worked solution.
    """
    prompt, source, named = params.prompt, params.evaluate.few_shot_from, REGISTRY.get(name)
    if params.evaluate.prompts == "published" and named and named.prompt:
        prompt = Prompt.model_validate(prompt.model_dump() | dict(named.prompt))
        source = named.examples or source
        params = params.model_copy(update={"prompt": prompt})
    if not prompt.few_shot or source == SFT:
        return params, few_shot_examples(prompt, examples)
    folder, asked = params.evaluate.data_folder, {problem.question for problem in problems}
    known = REGISTRY.get(source)
    resolved = resolve_named(known, "train", folder) if known else resolve_benchmark(source, folder)
    rows = (row for row in read_source(resolved, 0) if isinstance(row, Problem))
    shots = list(islice((row for row in rows if row.solution and row.question not in asked), prompt.few_shot))
    if len(shots) < prompt.few_shot:
        raise UserError(
            f"evaluate.few_shot_from: {source} has {len(shots)} problems with a worked solution outside {name}, "
            f"and prompt.few_shot is {prompt.few_shot}"
        )
    return params, shots


def benchmark_problems(name: str, params: Params, test: Path = CURATED_TEST) -> list[Problem]:
    """The problems of `read_benchmark` alone.

    Raises:
        UserError: as `read_benchmark`.
    """
    return read_benchmark(name, params, test).problems


def digest_problems(problems: Sequence[Problem]) -> str:
    """The digest of what is asked and of the true answers."""
    return digest([[problem.id, problem.question, list(problem.answers)] for problem in problems])


def read_benchmark(name: str, params: Params, test: Path = CURATED_TEST) -> Benchmark:
    """A benchmark by its name, its files or its place on the hub (`resolve_benchmark`).

    The name `test` stands for the problems of the file `test` (the curated split). At most `evaluate.limit` problems,
    the same ones for every seed.

    Raises:
        UserError: no such benchmark, its rows cannot be read, or the grader can read none of its true answers.
    """
    settings, sniffed = params.evaluate, None
    if name == TEST:
        if not test.exists():
            raise UserError(f"{test}: no such file; make the curated splits first: mathrl run curate")
        problems = read_problems(test)
    else:
        resolved = resolve_benchmark(name, settings.data_folder, settings.fields.get(name))
        if not resolved.shapes:
            sniffed = guess_fields(resolved)
            resolved = replace(resolved, shapes=(sniffed.shape,))
        rows = read_source(resolved, params.run.seed)
        problems, _ = split_rejected(rows, "a benchmark with a bad row is not used")
    if unlabelled := [problem.id for problem in problems if not problem.answers]:
        raise UserError(
            f"{name}: problem {unlabelled[0]} has no answer to grade against; rows without an answer "
            "(answer_rule none) are for RL alone: name a benchmark whose rows have one"
        )
    unread = {
        problem.id: problem.answers[0]
        for problem in (problems if sniffed else ())
        if all(reading(answer) == "not parsed" for answer in problem.answers)
    }
    if sniffed and len(unread) == len(problems):
        id, answer = next(iter(unread.items()))
        raise UserError(
            f"{name}: the grader can read none of the {len(problems)} true answers ({id}: {answer[:60]!r}); name the "
            "field of the final answer with --field answer_key=NAME or evaluate.fields, and if it stands within a "
            "solution its mark with answer_rule=boxed, hash, answer_tag or sentence"
        )
    if settings.limit is not None and settings.limit < len(problems):
        # Independent of run.seed: runs with different seeds are compared on the same problems.
        rng = random.Random(derive_seed(0, "evaluate", "limit", name))
        problems = [problems[i] for i in sorted(rng.sample(range(len(problems)), settings.limit))]
    if sniffed is None:
        return Benchmark(problems)
    return Benchmark(problems, source_fields(sniffed.shape, every=True), sniffed.reasons, unread)
