"""One model on one benchmark: every response kept, one `EvalRow` per problem."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mathrl.core.errors import UserError
from mathrl.core.hashing import digest_path
from mathrl.core.paths import CURATED_TEST
from mathrl.core.problems import read_problems
from mathrl.core.seeding import derive_seed
from mathrl.core.types import EvalRow, Problem
from mathrl.data.reading import Rejected, read_source
from mathrl.data.sources import resolve_benchmark
from mathrl.params.evaluate import TEST
from mathrl.params.run import Reward
from mathrl.params.schema import Params
from mathrl.rewards.compose import build_reward


@dataclass(frozen=True)
class EvaluatedModel:
    """The graded responses of one model to one benchmark.

    `responses` are the rows of responses.jsonl; `dropped` counts problems whose prompt was too long.
    """

    model: str
    benchmark: str
    rows: list[EvalRow]
    responses: list[dict[str, Any]]
    dropped: int

    def relabelled(self, model: str) -> "EvaluatedModel":
        """The same results under another name: for a model folder with the same bytes."""
        rows = [replace(row, model=model) for row in self.rows]
        responses = [{**row, "model": model} for row in self.responses]
        return replace(self, model=model, rows=rows, responses=responses)


def benchmark_problems(name: str, params: Params, test: Path = CURATED_TEST) -> list[Problem]:
    """The problems of a named benchmark, or for the name `test` those of the file `test` (the curated split).

    At most `evaluate.limit` of them, the same ones for every seed.

    Raises:
        UserError: no such benchmark, or its rows cannot be read.
    """
    settings = params.evaluate
    if name == TEST:
        problems = read_problems(test)
    else:
        problems = []
        for item in read_source(resolve_benchmark(name, settings.data_folder), params.run.seed):
            if isinstance(item, Rejected):
                raise UserError(f"{item.where}: {item.reason}; a benchmark with a bad row is not used")
            problems.append(item)
    if settings.limit is not None and settings.limit < len(problems):
        # Independent of run.seed: runs with different seeds are compared on the same problems.
        rng = random.Random(derive_seed(0, "evaluate", "limit", name))
        problems = [problems[i] for i in sorted(rng.sample(range(len(problems)), settings.limit))]
    return problems


def evaluate_model(
    folder: Path | str,
    benchmark: str,
    problems: Sequence[Problem],
    params: Params,
    *,
    label: str,
    few_shot: Sequence[Problem] = (),
    state: Path | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> EvaluatedModel | None:
    """Sample and grade; None at ranks other than 0.

    Reads the sections run, model, prompt, rollout and evaluate. Grading is by correctness alone, with the
    extraction of `evaluate`: the section reward, which a model was trained on, has no part in it. The same
    parameters, folder and number of processes give the same results.

    Raises:
        UserError: the folder holds no model, or every prompt is too long.
    """
    # torch and transformers take seconds to import and are not needed to read a finished evaluation.
    from mathrl.models.device import choose_device
    from mathrl.rollout.engine import Sampling
    from mathrl.rollout.open_engine import open_engine
    from mathrl.rollout.sample_problems import sample_problems, usable
    from mathrl.rollout.sampler import Sampler

    settings = params.evaluate
    engine, tokenizer = open_engine(folder, params.model, params.rollout, choose_device(params.run.device))
    sampler = Sampler(engine, tokenizer, params.prompt, few_shot)
    sampling = Sampling(settings.samples, settings.temperature, settings.max_tokens, settings.top_p)
    samples = sample_problems(
        sampler,
        problems,
        sampling,
        build_reward(Reward(extraction=settings.extraction)),
        seed=derive_seed(params.run.seed, "evaluate", benchmark),
        name=f"{label}.{benchmark}",
        chunk_size=max(1, params.rollout.max_sequences // settings.samples),
        state=_state_of(state, folder),
        on_progress=on_progress,
    )
    if samples is None:
        return None
    usable(problems, samples)
    rows, responses = [], []
    for problem, group in zip(problems, samples, strict=True):
        if group is None:
            continue
        rows.append(_eval_row(label, benchmark, problem, group))
        columns = {
            "model": label,
            "benchmark": benchmark,
            "problem_id": problem.id,
            "question": problem.question,
            "answers": list(problem.answers),
            "level": problem.level,
            "subject": problem.subject,
        }
        for number, sample in enumerate(group):
            responses.append({"sample": number, **columns, **sample})
    return EvaluatedModel(label, benchmark, rows, responses, sum(group is None for group in samples))


def _eval_row(model: str, benchmark: str, problem: Problem, group: Sequence[dict[str, Any]]) -> EvalRow:
    return EvalRow(
        model,
        benchmark,
        problem.id,
        problem.level,
        problem.subject,
        correct=tuple(sample["correct"] for sample in group),
        extracted=tuple(sample["extracted"] for sample in group),
        lengths=tuple(sample["length"] for sample in group),
        truncated=tuple(sample["truncated"] for sample in group),
    )


def _state_of(state: Path | None, folder: Path | str) -> Path | None:
    """Partial results belong to the bytes of a model folder, not to its name."""
    if state is None:
        return None
    return state / (digest_path(Path(folder)) if Path(folder).is_dir() else str(folder).replace("/", "--"))
