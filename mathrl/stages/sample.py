"""sample: graded samples of a model or of a teacher at an endpoint, and training data made of them; a step of recipes.

Writes one folder: samples.jsonl (every response), train.jsonl (correct ones to imitate: rejection sampling),
pairs.jsonl (correct against wrong), steps.jsonl (Monte-Carlo labels of steps, with sample.continuations), and
summary.json. An interrupted run resumes from the chunks that it has finished.
"""

import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mathrl.core.errors import UserError
from mathrl.core.files import write_json, write_jsonl, written_aside
from mathrl.core.hashing import derive_seed
from mathrl.core.metrics import progress
from mathrl.core.types import Problem, read_problems
from mathrl.curation.prompt_leaks import check_prompts
from mathrl.data.difficulty import seeded_subset
from mathrl.data.rejection import Filters, preference_pairs, rejection_sample, step_labels
from mathrl.data.templates import few_shot_examples, response_end
from mathrl.params import Params
from mathrl.rewards.compose import build_reward
from mathrl.rewards.format import step_ends
from mathrl.stages.command import main
from mathrl.stages.stage_run import StageRun

if TYPE_CHECKING:
    from mathrl.rollout.endpoint import EndpointSampler

Row = dict[str, Any]
Groups = list[tuple[Problem, list[Row]]]


def work(run: StageRun, *, start: Path, data: Sequence[Path], examples: Path, out: Path) -> None:
    """Sample the model of the folder `start` on the problems of the files `data`; writes the folder `out`."""
    params = run.params
    settings, seed = params.sample, params.run.seed
    if params.rollout.tool.kind != "none" and params.rollout.turns.format == "tool_call":
        raise UserError(
            "sample writes responses as text, which the turns of rollout.turns.format tool_call are not: set it to "
            "python_block"
        )
    # torch: not before the inputs have been checked.
    from mathrl.rollout.endpoint import EndpointSampler
    from mathrl.rollout.engine import Sampling
    from mathrl.rollout.ranks import from_rank_0
    from mathrl.rollout.sample_problems import sample_problems, usable
    from mathrl.rollout.sampler import Sampler, open_sampler

    problems = seeded_subset([p for file in data for p in read_problems(file)], settings.max_problems, seed)
    few_shot = few_shot_examples(params.prompt, examples)
    teacher = None
    if settings.teacher is not None:
        if params.run.processes > 1:
            raise UserError("sample.teacher is asked by one process, many requests at a time: set run.processes to 1")
        teacher = EndpointSampler(settings.teacher, params, "sample", few_shot)
        sampler: Sampler = teacher
        check_prompts(problems, params.prompt.model_copy(update={"template": "boxed"}), None)
    else:
        sampler = open_sampler(start, params, "sample", few_shot)
        run.record_resolved(sampler.engine.rollout)
        run.check_lengths(problems, lambda: sampler.tokenizer, few_shot)
        check_prompts(problems, params.prompt, sampler.tokenizer)
    reward = build_reward(params.reward)

    def sample(title: str, prompts: Sequence[Problem], samples: int) -> list[list[Row] | None] | None:
        with progress(title, total=len(prompts) * samples) as bar:
            return sample_problems(
                sampler,
                prompts,
                Sampling(samples, settings.temperature, settings.max_tokens),
                reward,
                seed=derive_seed(seed, title),
                name=title,
                state=run.state,
                on_progress=bar.advance,
            )

    sampled = sample("sample", problems, settings.samples)
    groups: Groups = []
    if sampled is not None:
        usable(problems, sampled)
        groups = [(p, with_prefix(rows, params)) for p, rows in zip(problems, sampled, strict=True) if rows is not None]
    labelled: list[Row] | None = None
    if settings.continuations:
        chosen = from_rank_0(lambda: to_label(groups, params, sampler.tokenizer))
        prefixes = [prefix for row in chosen for prefix in _prefixes(row)]
        continued = sample("continue", prefixes, settings.continuations) if prefixes else []
        # An answer in a response that was cut off does not count.
        counts = [sum(row["correct"] and not row["truncated"] for row in rows or ()) for rows in continued or ()]
        labelled = label(chosen, counts, settings.continuations) if continued is not None else None
    if sampled is not None:
        _write(run, groups, labelled, out, teacher_of(teacher))
        run.datasets("sample", data)


def teacher_of(sampler: "EndpointSampler | None") -> Row:
    """The teacher of the samples for summary.json: its model, licence, names, tokens and cost."""
    if sampler is None:
        return {}
    for note in sampler.notes():
        print(note, file=sys.stderr, flush=True)
    passing = ("requests", "kept", "retries")  # other at every run
    return {"teacher": {name: value for name, value in sampler.account().items() if name not in passing}}


def _write(run: StageRun, groups: Groups, labelled: list[Row] | None, out: Path, teacher: Row) -> None:
    """The files of the folder `out`, and the stage's figures."""
    settings, seed = run.params.sample, run.params.run.seed
    filters = Filters(
        settings.per_problem, settings.max_length, settings.language, max_repetition=settings.max_repetition
    )
    kept, reasons = rejection_sample(groups, filters, seed)
    pairs = pairs_of(groups, settings.pairs_per_problem, seed)
    samples = [
        {"problem_id": problem.id, "sample": number, **row}
        for problem, rows in groups
        for number, row in enumerate(rows)
    ]
    summary = {
        "problems": len(groups),
        "samples": len(samples),
        "correct": sum(row["correct"] for row in samples),
        "kept": len(kept),
        "pairs": len(pairs),
        "labelled": len(labelled or ()),
        **teacher,
        "why_not": {reason: count for reason, count in sorted(reasons.items()) if reason != "kept"},
    }
    with written_aside(out) as folder:
        folder.mkdir(parents=True)
        write_jsonl(folder / "samples.jsonl", samples)
        write_jsonl(folder / "train.jsonl", (problem.to_row() for problem in kept))
        write_jsonl(folder / "pairs.jsonl", pairs)
        if labelled is not None:
            write_jsonl(folder / "steps.jsonl", labelled)
        write_json(folder / "summary.json", summary)
    run.summary({name: float(value) for name, value in summary.items() if isinstance(value, int)})


def with_prefix(rows: Sequence[Row], params: Params) -> list[Row]:
    """The samples with the response prefix, which is part of the response to imitate."""
    return [{**row, "response": params.prompt.response_prefix + row["response"]} for row in rows]


def pairs_of(groups: Groups, per_problem: int, seed: int) -> list[Row]:
    """Preference pairs with their problem, and whether each side ended by itself (with the end token).

    Responses that called a tool are in no pair: DPO would learn the tool's outputs.

    Example:
        {"problem_id": "chain/rl/00012", "problem": {…}, "chosen": "…", "rejected": "…", "chosen_ended": true,
         "rejected_ended": false, "question": "7+5-3*4="}
    """
    groups = [(problem, [row for row in rows if not row.get("calls")]) for problem, rows in groups]
    problems = {problem.id: problem for problem, _ in groups}
    ended = {(problem.id, row["response"]) for problem, rows in groups for row in rows if not row["truncated"]}
    return [
        pair
        | {"problem": problems[pair["problem_id"]].to_row()}
        | {f"{side}_ended": (pair["problem_id"], pair[side]) in ended for side in ("chosen", "rejected")}
        for pair in preference_pairs(groups, per_problem, seed)
    ]


def to_label(groups: Groups, params: Params, tokenizer: Any) -> list[Row]:
    """A seeded choice of different responses per problem, cut into steps, not yet labelled."""

    rows = []
    start = params.prompt.response_prefix
    prefix = tokenizer.encode(start, add_special_tokens=False)
    for problem, samples in groups:
        different = list({row["response"]: row for row in samples}.values())
        rng = random.Random(derive_seed(params.run.seed, "labelled", problem.id))
        for row in rng.sample(different, min(params.sample.labelled_per_problem, len(different))):
            ended = not row["truncated"]
            rest = row["response"].removeprefix(start)  # tokenized apart: in the prompt its tokens follow the prefix's
            tokens = prefix + tokenizer.encode(rest, add_special_tokens=False)
            if ended or not tokens:
                tokens.append(response_end(problem, params.prompt, tokenizer))
            ends = step_ends(tokens, tokenizer, params.reward.steps)
            rows.append(
                {
                    "problem_id": problem.id,
                    "problem": problem.to_row(),
                    "response": row["response"],
                    "ended": ended,
                    "correct": bool(row["correct"]),
                    "prefixes": [tokens[len(prefix) : end + 1] for end in ends[:-1]],
                }
            )
    return rows


def _prefixes(row: Row) -> list[Problem]:
    """The problem once per step but the last, with the response up to the step's end as its beginning."""
    problem = Problem.from_row(row["problem"])
    return [
        problem.with_(id=f"{problem.id}@{number}", control=replace(problem.control, begun=tuple(tokens)))
        for number, tokens in enumerate(row["prefixes"])
    ]


def label(rows: Sequence[Row], counts: Sequence[int], continuations: int) -> list[Row]:
    """The rows with a soft and a hard label per step; the last step's is whether the response is correct.

    `counts` has the number of correct continuations of each prefix, in the order of rows and steps.
    """
    remaining, labelled = iter(counts), []
    for row in rows:
        steps = step_labels([next(remaining) for _ in row["prefixes"]], continuations)
        last = float(row["correct"] and row["ended"])
        labels = {kind: [*(step[kind] for step in steps), last] for kind in ("soft", "hard")}
        labelled.append({name: value for name, value in row.items() if name != "prefixes"} | labels)
    return labelled


if __name__ == "__main__":
    main("sample", work)
