"""Is the benchmark in the model? A model that met the test problems does better on them than on their twins.

`mathrl evaluate --probe` scores each problem beside its twins (mathrl/data/twins.py). The AUC is the chance that a
problem scores higher than a twin of its own, ties as a half: 0.5 where the problems are nothing special to the model.

| score | of a problem | twins |
|---|---|---|
| completion | mean log-prob per token of the question's second half, after the first | generated, or renumbered |
| solution | mean log-prob per token of the worked demonstration | generated |
| answer | share of right responses | generated, or reworded |
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from mathrl.core.errors import UserError
from mathrl.core.files import read_jsonl, write_json
from mathrl.core.paths import CURATED_TEST
from mathrl.core.results import Interval
from mathrl.core.types import Problem
from mathrl.data.templates import demonstration, prompt_text, render
from mathrl.data.twins import TwinKind, crowded_levels, generators_of, twins
from mathrl.evaluation.benchmark import benchmark_problems
from mathrl.evaluation.responses import read_run
from mathrl.evaluation.spread import cluster_interval
from mathrl.evaluation.summary import accuracies
from mathrl.models.device import choose_device
from mathrl.models.load import load_model, load_tokenizer
from mathrl.models.logprobs import pad
from mathrl.models.packing import Group
from mathrl.params import Params
from mathrl.params.run import Prompt
from mathrl.reports.evaluation import evaluate_once

TOKENS_AT_A_TIME = 4096


@dataclass(frozen=True)
class Probed:
    """What one score says.

    Example:
        Probed("completion", problems=200, twins=800, auc=Interval(0.612, 0.569, 0.653), own=-0.91, of_twins=-0.99,
               verbatim=0.11, twins_verbatim=0.0)

    `own` and `of_twins` are the mean scores; `verbatim` the share of second halves that greedy decoding reproduces,
    None for other scores. `verdict` follows from the interval, which leaves room for all scores of the probe.
    """

    score: str
    problems: int
    twins: int
    auc: Interval
    own: float
    of_twins: float
    verbatim: float | None = None
    twins_verbatim: float | None = None

    @property
    def verdict(self) -> str:
        if self.auc.low > 0.5:
            return "higher on the benchmark than on twins: the model has met some of these problems"
        if self.auc.high < 0.5:
            return "lower on the benchmark than on twins: the twins are easier, so this score cannot tell"
        return "no sign of the benchmark in the model"


def paired_auc(scores: Sequence[float], twins: Sequence[Sequence[float]], confidence: float = 0.95) -> Interval:
    """Chance that a problem scores higher than a twin of its own, a tie as a half; the interval is over problems.

    Raises:
        ValueError: no problem, or one without a twin.

    >>> round(paired_auc([3, 1], [[1, 2], [1, 2]]).mean, 4)  # wins of 2 out of 2, and of a half
    0.625
    """
    wins = [
        fmean(1.0 if score > twin else 0.5 if score == twin else 0.0 for twin in others)
        for score, others in zip(scores, twins, strict=True)
    ]
    return cluster_interval(wins, confidence=confidence)


def probe_score(
    score: str,
    scores: Sequence[float],
    twins: Sequence[Sequence[float]],
    confidence: float,
    verbatim: tuple[float, float] | None = None,
) -> Probed:
    """The score's AUC from one number per problem and several per problem of its twins."""
    others = [value for values in twins for value in values]
    auc = paired_auc(scores, twins, confidence)
    return Probed(score, len(scores), len(others), auc, fmean(scores), fmean(others), *(verbatim or (None, None)))


@dataclass(frozen=True)
class Scored:
    """A text's mean log-prob per token, and whether each of its tokens is the likeliest: greedy decoding writes it."""

    logprob: float
    greedy: bool


def completion_group(problem: Problem, prompt: Prompt, tokenizer: Any) -> Group | None:
    """The prompt up to the middle of the question, and the question's rest; None where the prompt lacks the question.

    The cut is before the word in which the middle is, where the question has several.
    """
    if problem.control.messages:  # a chat of the user's, in which a twin's question does not stand
        return None
    text, question = prompt_text(problem, prompt, tokenizer), problem.question
    start = text.rfind(question)
    if start < 0 or len(question) < 2:
        return None
    middle = len(question) // 2
    cut = start + (question.rfind(" ", 1, middle + 1) if " " in question[1 : middle + 1] else middle)
    before, rest = text[:cut], text[cut : start + len(question)]
    ids = list(tokenizer.encode(before, add_special_tokens=False))
    whole = render(problem, prompt, tokenizer)
    if whole[:1] == [tokenizer.bos_token_id] and ids[:1] != whole[:1]:
        ids.insert(0, whole[0])
    return Group(ids, (tokenizer.encode(rest, add_special_tokens=False),))


def solution_group(problem: Problem, prompt: Prompt, tokenizer: Any) -> Group | None:
    """The prompt and the worked demonstration; None without a solution."""
    if problem.solution is None:
        return None
    text = demonstration(problem, prompt, terse=False)
    return Group(render(problem, prompt, tokenizer), (tokenizer.encode(text, add_special_tokens=False),))


@torch.no_grad()
def score_groups(model: Any, groups: Sequence[Group]) -> list[Scored]:
    """Each group's one response under the model at temperature 1."""
    scored: list[Scored] = []
    for batch in _batches(groups):
        ids_BL, real_BL, chosen = pad(batch, model.device)
        logits = model(input_ids=ids_BL, attention_mask=real_BL, use_cache=False).logits[:, :-1]
        targets_N = ids_BL[:, 1:][chosen]
        logp_NV = torch.log_softmax(logits[chosen].float(), dim=-1)
        logp_N = logp_NV.gather(1, targets_N[:, None])[:, 0]
        likeliest_N = logp_NV.argmax(-1) == targets_N
        logprobs, likeliest = iter(logp_N.tolist()), iter(likeliest_N.tolist())
        for group in batch:
            length = len(group.responses[0])
            scored.append(Scored(fmean(islice(logprobs, length)), all(list(islice(likeliest, length)))))
    return scored


def _batches(groups: Sequence[Group]) -> list[list[Group]]:
    """In order, each of at most TOKENS_AT_A_TIME tokens with its padding, one group at least."""
    batches: list[list[Group]] = []
    longest = 0
    for group in groups:
        length = len(group.prompt) + len(group.responses[0])
        longest = max(longest, length) if batches else length
        if not batches or longest * (len(batches[-1]) + 1) > TOKENS_AT_A_TIME:
            batches.append([])
            longest = length
        batches[-1].append(group)
    return batches


FEWEST = 10  # problems with twins; fewer say nothing
Pair = tuple[Problem, list[Problem]]


@dataclass(frozen=True)
class ProbeReport:
    """The scores, as `mathrl.reports.probe.Probed`, and why one is missing, by its name."""

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
        probe_score(name, original, others, confidence, verbatim)
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
