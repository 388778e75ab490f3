"""`mathrl evaluate --probe`: scores of the problems of a benchmark beside those of their twins, as file and table."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mathrl.core.errors import UserError
from mathrl.core.files import read_jsonl, write_json
from mathrl.core.paths import CURATED_TEST
from mathrl.core.types import Problem
from mathrl.data.twins import TwinKind, crowded_levels, generators_of, twins
from mathrl.evaluation.benchmark import benchmark_problems
from mathrl.evaluation.probe import completion_group, probed, score_groups, solution_group
from mathrl.evaluation.responses import read_run
from mathrl.evaluation.summary import accuracies
from mathrl.models.device import choose_device
from mathrl.models.load import load_model, load_tokenizer
from mathrl.params import Params
from mathrl.reports.evaluation import evaluate_once

FEWEST = 10  # problems with twins; fewer say nothing
Pair = tuple[Problem, list[Problem]]


@dataclass(frozen=True)
class ProbeReport:
    """The scores, as `mathrl.evaluation.probe.Probed`, and why one is missing, by its name."""

    scores: list[Any]
    missing: dict[str, str]


def probe_benchmark(model: Path | str, benchmark: str, params: Params, folder: Path, count: int) -> ProbeReport:
    """Probe a model whose evaluation on the benchmark is in `folder`, with up to `count` twins of each problem.

    Writes twins/ (the evaluation of the twins) and probe.json to the folder.

    Raises:
        UserError: hardly a problem has twins.
    """
    problems = benchmark_problems(benchmark, params)
    kinds = {name: _pairs(problems, name, count, params) for name in ("generated", "renumbered", "reworded")}
    text = {name: kinds["generated"] or kinds[name] for name in ("renumbered", "reworded")}
    if max(map(len, text.values())) < FEWEST:
        raise UserError(
            f"{benchmark}: fewer than {FEWEST} problems have twins; the probe needs generated problems, or questions "
            "with numbers or with phrases of English tasks"
        )
    tokenizer = load_tokenizer(model, params.model)
    network = load_model(model, params.model, choose_device(params.run.device))
    makers: dict[str, tuple[list[Pair], Callable[[Problem], Any]]] = {
        "completion": (text["renumbered"], lambda problem: completion_group(problem, params.prompt, tokenizer)),
        "solution": (kinds["generated"], lambda problem: solution_group(problem, params.prompt, tokenizer)),
    }
    scores_by_name: dict[str, tuple[list[float], list[list[float]], tuple[float, float] | None]] = {}
    for name, (pairs, maker) in makers.items():
        groups = [(maker(problem), [maker(twin) for twin in others]) for problem, others in pairs]
        groups = [(original, others) for original, others in groups if original is not None and None not in others]
        if len(groups) >= FEWEST:
            scored = iter(
                score_groups(network, [group for original, others in groups for group in (original, *others)])
            )
            rows = [(next(scored), [next(scored) for _ in others]) for _, others in groups]
            written = [twin.greedy for _, others in rows for twin in others]
            verbatim = sum(original.greedy for original, _ in rows) / len(rows), sum(written) / len(written)
            scores = (
                [original.logprob for original, _ in rows],
                [[twin.logprob for twin in others] for _, others in rows],
            )
            scores_by_name[name] = (*scores, verbatim if name == "completion" else None)
    if len(text["reworded"]) >= FEWEST:
        scores_by_name["answer"] = (*_answers(model, benchmark, params, folder, text["reworded"]), None)
    confidence = 1 - (1 - params.evaluate.confidence) / len(scores_by_name)
    scores_found = [
        probed(name, original, others, confidence, verbatim)
        for name, (original, others, verbatim) in scores_by_name.items()
    ]
    missing = {name: MISSING[name] for name in MISSING if name not in scores_by_name}
    write_json(folder / "probe.json", {
        "confidence": confidence,
        "scores": {score.score: asdict(score) | {"verdict": score.verdict} for score in scores_found},
        "missing": missing,
    })  # fmt: skip
    return ProbeReport(scores_found, missing)


MISSING = {
    "completion": "too few questions have numbers and stand in the prompt as they are",
    "solution": "too few problems have a worked solution and come from a generator of params/curate.yaml",
    "answer": "too few questions have phrases that the rules reword",
}


def _pairs(problems: Sequence[Problem], kind: TwinKind, count: int, params: Params) -> list[Pair]:
    """The problems that have twins of this kind, with them."""
    generators = generators_of(params.curate.sources)
    known_questions = {problem.question for problem in problems}
    for file in sorted(CURATED_TEST.parent.glob("*.jsonl")):
        known_questions |= {row["question"] for row in read_jsonl(file) if isinstance(row.get("question"), str)}
    if kind == "generated":
        crowded = crowded_levels(problems, generators, known_questions)
        problems = [problem for problem in problems if (problem.source, problem.level) not in crowded]
    seed = params.run.seed
    pairs = [
        (p, twins(p, kind, count, generators=generators, known_questions=known_questions, seed=seed)) for p in problems
    ]
    return [(problem, others) for problem, others in pairs if others]


def _answers(
    model: Path | str, benchmark: str, params: Params, folder: Path, pairs: Sequence[Pair]
) -> tuple[list[float], list[list[float]]]:
    """Shares of right responses: of the problems, sampled before, and of their twins, sampled now."""
    rates_before = accuracies(read_run(folder / "responses.jsonl", None, None).rows)
    others = [twin for _, twin_problems in pairs for twin in twin_problems]
    evaluate_once(model, benchmark, params, folder / "twins", problems=others)
    rates = accuracies(read_run(folder / "twins" / "responses.jsonl", None, None).rows)
    both = [
        (rates_before[p.id], [rates[twin.id] for twin in made if twin.id in rates])
        for p, made in pairs
        if p.id in rates_before
    ]
    both = [(rate, twin_rates) for rate, twin_rates in both if twin_rates]
    return [rate for rate, _ in both], [twin_rates for _, twin_rates in both]
