"""The stream between sampler and trainer: how it begins, what waits for what, and the spare problems that it takes."""

import json
from collections.abc import Sequence
from concurrent.futures import wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mathrl.learners.checkpoint import CheckpointFolder
from mathrl.params.train import Asynchronous
from mathrl.rewards.compose import RewardInput, RewardResult
from mathrl.rollout.torch_engine import CopyEngine
from mathrl.trainers.collect import Collector
from mathrl.trainers.continuous_pool import ContinuousPool
from mathrl.trainers.curriculum import make_order
from mathrl.trainers.rollout_stream import RolloutStream
from tests.trainers.small import PROBLEMS, CountsOnes, changed, policy, training_run
from tests.trainers.test_asynchronous import run
from tests.trainers.test_continuous import CONTINUOUS, PARAMS, Verdicts
from tests.trainers.test_staleness import events


def made_stream(state: Path, reward: Any, **asynchronous: Any) -> RolloutStream:
    """Of a run of five steps of four groups, with one spare group at a time."""
    sampler, params = policy()[1], changed(PARAMS, dynamic_sampling={"rounds": 2, "prompts_per_round": 1})
    order = make_order(params.curriculum, PROBLEMS, range(8), 40, 0)
    prompts, run = [sampler.prompt_tokens(problem) for problem in PROBLEMS], training_run(state, seed=7)
    collector = Collector(sampler, PROBLEMS, prompts, order, reward, None, params, run.ranks)
    return RolloutStream(collector, changed(CONTINUOUS, **asynchronous), run, 0, None)


def test_a_stream_begins_its_log_and_pool_and_waits_for_the_grader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, reward = tmp_path / "events.jsonl", Verdicts()
    file.write_text('{"step": 0, "settings": {}}\n')  # of a run that was killed before its first checkpoint
    stream = made_stream(tmp_path, reward)
    (begun,) = events(tmp_path)
    assert begun["settings"] == {
        "run.seed": 7, "run.processes": 1, "rl.prompts_per_step": 4, "rl.group_size": 4, "rl.max_tokens": 9,
        "rl.asynchronous.staleness": 2, "rl.asynchronous.segment_tokens": 1, "rl.asynchronous.pace": "continuous",
        "rl.dynamic_sampling": 1,
    }  # fmt: skip
    pool = stream.pool
    assert isinstance(pool, ContinuousPool) and (pool.seed, pool.most_running, pool.spare) == (7, 4, 1)
    assert (pool.startable, len(pool.pending)) == (3 * 4, 3 * 4 + 1)
    while not pool.grading:
        pool.sample()

    def waits(futures: Any) -> None:
        reward.may_grade.set()
        wait(futures)

    monkeypatch.setattr("mathrl.trainers.continuous_pool.wait", waits)
    with stream.pause():
        graded = [future.done() for future in pool.grading.values()]
    reward.may_grade.set()
    assert graded and all(graded), "within a pause the reward is free"
    stream.__exit__(None, None, None)
    with pytest.raises(RuntimeError, match="shutdown"):
        pool.grader.submit(len, ())
    arrived = [[0, 3, [], 2], [1, 4, [], 2], [2, 5, [], 4]]
    step = {"step": 1, "ranks": [{"segments": 6, "arrived": arrived}]}
    file.write_text(json.dumps(begun) + "\n" + json.dumps(step) + "\n")
    again = made_stream(tmp_path / "again", reward, replay=str(file))
    assert isinstance(again.pool, ContinuousPool) and again.pool.recorded(1) == {2: [0, 1], 4: [2]}


class EveryOther(CountsOnes):
    """Of the responses of a group every other is right."""

    def score(self, items: Sequence[RewardInput]) -> list[RewardResult]:
        return [replace(result, correct=n % 2 == 0) for n, result in enumerate(super().score(items))]


@pytest.mark.parametrize(("reward", "replaced"), [(EveryOther(), 0), (CountsOnes(right_above=2.0), 4)], ids=["", "all"])
def test_as_many_spare_problems_are_taken_as_were_used(
    small: Any, tmp_path: Path, reward: CountsOnes, replaced: int
) -> None:
    free = PARAMS.model_copy(update={"steps": 2, "asynchronous": Asynchronous(staleness=2, pace="free")})
    rows, _, _ = run(small, free, tmp_path, kind=CopyEngine, reward=reward)
    saved = CheckpointFolder(tmp_path / "checkpoints").latest()
    counts = [row["rollout/replaced_groups"] for row in rows]
    log = events(tmp_path)
    assert log[0]["settings"]["rl.dynamic_sampling"] == 4 and "rl.asynchronous.pace" not in log[0]["settings"]
    assert counts == [len(row["ranks"][0]["replaced"]) for row in log[1:]]
    assert saved is not None and saved.values["stream"][0]["numbered"] == 2 * 4 + 4 + sum(counts)
    assert counts[0] == replaced
