"""sample: graded samples of a model, and what is made of them; a step of recipes.

Writes one folder: samples.jsonl (every response), train.jsonl (correct ones to imitate: rejection sampling),
pairs.jsonl (correct against wrong), steps.jsonl (Monte-Carlo labels of steps, with sample.continuations), and
summary.json. Resumes from the chunks that an interrupted run finished.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mathrl.core.files import write_json, write_jsonl, written_aside
from mathrl.core.launch import launch_ranks, world_size
from mathrl.core.problems import read_problems
from mathrl.core.progress import progress
from mathrl.core.seeding import derive_seed
from mathrl.core.types import Problem
from mathrl.data.difficulty import seeded_subset
from mathrl.data.rejection import Filters, preference_pairs, rejection_sample, step_labels
from mathrl.data.sft_sets import few_shot_examples
from mathrl.params import Params
from mathrl.stages.stage_run import StageRun

Row = dict[str, Any]
Groups = list[tuple[Problem, list[Row]]]


def draw(run: StageRun, *, start: Path, data: Sequence[Path], examples: Path, out: Path) -> None:
    """Sample the model of the folder `start` on the problems of the files `data`; writes the folder `out`."""
    params = run.params
    how, seed = params.sample, params.run.seed
    launch_ranks(params.run.processes, params.run.device, fewer=True)
    # torch: after the ranks are started, so that each has its own.
    from mathrl.models.device import choose_device
    from mathrl.rewards.compose import build_reward
    from mathrl.rollout.engine import Sampling
    from mathrl.rollout.open_engine import open_engine
    from mathrl.rollout.sample_problems import sample_problems, usable
    from mathrl.rollout.sampler import Sampler

    problems = seeded_subset([p for file in data for p in read_problems(file)], how.max_problems, seed)
    engine, tokenizer = open_engine(start, params.model, params.rollout, choose_device(params.run.device))
    sampler = Sampler(engine, tokenizer, params.prompt, few_shot_examples(params.prompt, examples))
    reward = build_reward(params.reward)

    def sample(title: str, asked: Sequence[Problem], samples: int) -> list[list[Row] | None] | None:
        with progress(title, total=len(asked) * samples) as bar:
            return sample_problems(
                sampler,
                asked,
                Sampling(samples, how.temperature, how.max_tokens),
                reward,
                seed=derive_seed(seed, title),
                name=title,
                chunk_size=max(1, params.rollout.max_sequences // samples),
                state=run.state,
                on_progress=lambda count: bar.advance(count * world_size()),
            )

    drawn = sample("sample", problems, how.samples)
    groups: Groups | None = None
    if drawn is not None:
        usable(problems, drawn)
        groups = [(p, whole(rows, params)) for p, rows in zip(problems, drawn, strict=True) if rows is not None]
    labelled: list[Row] = []
    if how.continuations:
        chosen = _shared(run.state, groups, params, tokenizer)
        begun = [prefix for row in chosen for prefix in _prefixes(row)]
        continued = sample("continue", begun, how.continuations) if begun else []
        if continued is not None:
            counts = [sum(_came_out(row) for row in rows or ()) for rows in continued]
            labelled = label(chosen, counts, how.continuations)
    if groups is None:
        return
    filters = Filters(how.per_problem, how.max_length, how.language, max_repetition=how.max_repetition)
    kept, reasons = rejection_sample(groups, filters, seed)
    pairs = pairs_of(groups, how.pairs_per_problem, seed)
    every = [row for _, rows in groups for row in rows]
    summary = {
        "problems": len(groups),
        "samples": len(every),
        "correct": sum(row["correct"] for row in every),
        "kept": len(kept),
        "pairs": len(pairs),
        "labelled": len(labelled),
        "why_not": {reason: count for reason, count in sorted(reasons.items()) if reason != "kept"},
    }
    with written_aside(out) as folder:
        folder.mkdir(parents=True)
        write_jsonl(
            folder / "samples.jsonl",
            (
                {"problem_id": problem.id, "sample": number, **row}
                for problem, rows in groups
                for number, row in enumerate(rows)
            ),
        )
        write_jsonl(folder / "train.jsonl", (problem.to_row() for problem in kept))
        write_jsonl(folder / "pairs.jsonl", pairs)
        if how.continuations:
            write_jsonl(folder / "steps.jsonl", labelled)
        write_json(folder / "summary.json", summary)
    for file in data:
        run.dataset("sample", file)
    run.summary({name: float(value) for name, value in summary.items() if isinstance(value, int)})


def whole(rows: Sequence[Row], params: Params) -> list[Row]:
    """The samples with the response prefix, which belongs to what is imitated."""
    return [{**row, "response": params.prompt.response_prefix + row["response"]} for row in rows]


def pairs_of(groups: Groups, per_problem: int, seed: int) -> list[Row]:
    """Preference pairs with their problem, and whether each side ended by itself.

    Example:
        {"problem_id": "chain/rl/00012", "problem": {…}, "chosen": "…", "rejected": "…", "chosen_ended": true,
         "rejected_ended": false, "question": "7+5-3*4="}
    """
    problems = {problem.id: problem for problem, _ in groups}
    ended = {(problem.id, row["response"]) for problem, rows in groups for row in rows if not row["truncated"]}
    return [
        pair
        | {"problem": problems[pair["problem_id"]].to_row()}
        | {f"{side}_ended": (pair["problem_id"], pair[side]) in ended for side in ("chosen", "rejected")}
        for pair in preference_pairs(groups, per_problem, seed)
    ]


def to_label(groups: Groups, params: Params, tokenizer: Any) -> list[Row]:
    """A seeded choice of different responses a problem, cut into steps, before their labels are known."""
    import random

    from mathrl.rewards.steps import step_ends

    rows = []
    start = params.prompt.response_prefix
    prefix = tokenizer.encode(start, add_special_tokens=False)
    for problem, samples in groups:
        different = list({row["response"]: row for row in samples}.values())
        rng = random.Random(derive_seed(params.run.seed, "labelled", problem.id))
        for row in rng.sample(different, min(params.sample.labelled_per_problem, len(different))):
            ended = not row["truncated"]
            rest = row["response"].removeprefix(start)  # apart: its tokens follow the prefix's in the prompt
            tokens = prefix + tokenizer.encode(rest, add_special_tokens=False)
            tokens += [tokenizer.eos_token_id] if ended or not tokens else []
            ends = step_ends(tokens, tokenizer, params.reward.steps)
            rows.append(
                {
                    "problem_id": problem.id,
                    "problem": problem.to_row(),
                    "response": row["response"],
                    "ended": ended,
                    "correct": bool(row["correct"]),
                    "begun": [tokens[len(prefix) : end + 1] for end in ends[:-1]],
                }
            )
    return rows


def _prefixes(row: Row) -> list[Problem]:
    """The problem once for each step but the last, its response begun up to the step's end."""
    problem = Problem.from_row(row["problem"])
    return [
        problem.with_(id=f"{problem.id}@{number}", extra={**problem.extra, "begun": tokens})
        for number, tokens in enumerate(row["begun"])
    ]


def label(rows: Sequence[Row], counts: Sequence[int], continuations: int) -> list[Row]:
    """The rows with soft and hard labels a step; the last step's is whether the response is correct.

    `counts` says of each prefix, in the order of rows and steps, how many continuations came out right.
    """
    left, out = iter(counts), []
    for row in rows:
        found = step_labels([next(left) for _ in row["begun"]], continuations)
        last = float(row["correct"] and row["ended"])
        told = {kind: [*(each[kind] for each in found), last] for kind in ("soft", "hard")}
        out.append({k: v for k, v in row.items() if k != "begun"} | told)
    return out


def _came_out(row: Row) -> bool:
    """Right, and not cut off: an answer in a text that never ends is none."""
    return bool(row["correct"] and not row["truncated"])


def _shared(state: Path, groups: Groups | None, params: Params, tokenizer: Any) -> list[Row]:
    """What rank 0 chose to label, at every rank, through a file in the stage's state."""
    import time

    from mathrl.core.files import read_jsonl
    from mathrl.core.launch import check_ranks, rank

    file = state / "to_label.jsonl"
    if groups is not None and not file.exists():  # the same after a kill
        write_jsonl(file, to_label(groups, params, tokenizer))
    while not file.exists():
        assert rank() != 0
        check_ranks()
        time.sleep(0.05)
    return list(read_jsonl(file))
