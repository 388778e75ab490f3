"""Graded samples of a problem set, over the ranks of a stage, in chunks that survive a kill."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mathrl.core.environment import rank, world_size
from mathrl.core.errors import UserError
from mathrl.core.hashing import derive_seed, digest
from mathrl.core.types import Graded, Problem
from mathrl.rewards.compose import RewardFunction
from mathrl.rollout.engine import Sampling
from mathrl.rollout.ranks import gather
from mathrl.rollout.sampler import Sampler

# One line of partial results: {"chunk": 0, "groups": [[sample, …] or null, …]}
Sample = dict[str, Any]


def sample_problems(
    sampler: Sampler,
    problems: Sequence[Problem],
    sampling: Sampling,
    reward: RewardFunction,
    *,
    seed: int,
    name: str,
    state: Path | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> list[list[Sample] | None] | None:
    """Graded samples of every problem, in the order of `problems`, at rank 0; None at the other ranks.

    Each rank takes problems[rank::world] in chunks of `rollout.max_sequences` responses. With a `state` folder a
    finished chunk is kept, and a later call with the same arguments starts after it. A problem whose prompt is
    too long is None. `on_progress` gets the number of further responses that are finished, at all ranks if they are as
    fast as this one.
    """
    mine = problems[rank() :: world_size()]
    tell = of_all_ranks(on_progress, len(problems) / max(1, len(mine)))
    chunk_size = max(1, sampler.engine.rollout.max_sequences // sampling.samples)
    tools = sampler.turns.params.model_dump() if sampler.turns is not None else None
    key = digest([name, seed, sampling.__dict__, [p.id for p in mine], chunk_size, world_size(), tools])
    file = state / f"{rank()}of{world_size()}.{key}.jsonl" if state else None
    groups, chunks_done = _finished_chunks(file)
    tell(len(groups) * sampling.samples)
    for chunk in range(chunks_done, -(-len(mine) // chunk_size)):
        chunk_problems = mine[chunk * chunk_size : (chunk + 1) * chunk_size]
        chunk_seed = derive_seed(seed, name, rank(), chunk)
        sampled = sampler.sample(chunk_problems, sampling, reward, chunk_seed, tell)
        rows = [None if group is None else [_row(graded, tools is not None) for graded in group] for group in sampled]
        if file:
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps({"chunk": chunk, "groups": rows}) + "\n")
                stream.flush()
                os.fsync(stream.fileno())
        groups += rows
    shards = gather(groups)
    if shards is None:
        return None
    merged: list[list[Sample] | None] = [None] * len(problems)
    for shard_rank, shard in enumerate(shards):
        merged[shard_rank :: world_size()] = shard
    return merged


def of_all_ranks(on_progress: Callable[[int], None] | None, ranks: float) -> Callable[[int], None]:
    """A function that is told of responses of this rank, and tells `on_progress` of `ranks` times as many."""
    done = 0

    def tell(count: int) -> None:
        nonlocal done
        before = round(done * ranks)
        done += count
        if on_progress and count:
            on_progress(round(done * ranks) - before)

    return tell


def usable(problems: Sequence[Problem], samples: Sequence[list[Sample] | None]) -> int:
    """The number of problems that were sampled.

    Raises:
        UserError: no problem was sampled, since every prompt was too long.
    """
    count = sum(group is not None for group in samples)
    if not count:
        raise UserError(
            f"all {len(problems)} prompts are longer than prompt.max_tokens; raise it in params/prompt.yaml"
        )
    return count


def _row(graded: Graded, tools: bool) -> Sample:
    calls = [{"code": c.code, "output": c.output, "status": c.status} for c in graded.completion.calls]
    return {
        "response": graded.completion.text,
        "extracted": graded.extracted,
        "correct": graded.correct,
        "rule": graded.rule,
        "length": graded.completion.sampled_count,
        "truncated": graded.completion.finish_reason == "length",
        **({"calls": calls} if tools else {}),
    }


def _finished_chunks(file: Path | None) -> tuple[list[list[Sample] | None], int]:
    """The groups of the whole chunks in the file, and their number; a torn line is dropped from the file."""
    groups: list[list[Sample] | None] = []
    chunks = 0
    if file is None or not file.exists():
        return groups, chunks
    kept = ""
    for line in file.read_text(encoding="utf-8").splitlines(keepends=True):
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            break  # cut short by a kill
        if row["chunk"] != chunks or not line.endswith("\n"):
            break
        groups += row["groups"]
        chunks += 1
        kept += line
    file.write_text(kept, encoding="utf-8")
    return groups, chunks
