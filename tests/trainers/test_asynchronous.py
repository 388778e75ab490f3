"""Sampling beside the update at a fixed pace: by older weights, corrected for, and resumed bit for bit."""

import copy
import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from mathrl.core.environment import Variable
from mathrl.core.errors import UserError
from mathrl.core.metrics import without_timings
from mathrl.learners.checkpoint import CheckpointFolder
from mathrl.models.logprobs import response_logprobs
from mathrl.models.packing import Group
from mathrl.params.loss import Truncated
from mathrl.params.rollout import Rollout
from mathrl.params.run import Prompt
from mathrl.params.train import Asynchronous, Rl
from mathrl.rollout.engine import Sampling
from mathrl.rollout.sampler import Sampler
from mathrl.rollout.torch_engine import CopyEngine
from mathrl.trainers.open_rl import Helpers
from mathrl.trainers.rl import train_rl
from mathrl.trainers.rollouts import RolloutGroup
from tests.trainers.small import changed, short_rl

AHEAD = short_rl(steps=5, checkpoint_every=2, asynchronous=Asynchronous(pace="fixed"))


class Watched(CopyEngine):
    """Keeps the weights of each sync and what was drawn after it."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.versions: list[dict[str, torch.Tensor]] = []
        self.drawn: list[tuple[int, list[Any], list[Any], str]] = []

    def sync(self, weights: Any) -> str:
        told = super().sync(weights)
        self.versions.append({name: each.clone() for name, each in self.model.state_dict().items()})
        return told

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling, *rest: Any, **more: Any) -> Any:
        version = len(self.versions) - 1
        found = super().generate(prompts, sampling, *rest, **more)
        if sampling.samples == AHEAD.group_size:  # neither the probe nor dev
            self.drawn.append((version, list(prompts), found, threading.current_thread().name))
        return found


def run(
    small: Any,
    params: Rl,
    state: Path,
    last: int = 10**9,
    kind: type[CopyEngine] = Watched,
    reward: Any = None,
    **more: Any,
) -> tuple[list[dict[str, float]], Any, Any]:
    model, _ = small.policy()
    engine = kind(copy.deepcopy(model), small.TOKENIZER, Rollout(), 1e-4)
    train_rl(
        model,
        Sampler(engine, small.TOKENIZER, Prompt()),
        small.PROBLEMS,
        small.PROBLEMS[:2],
        reward or small.CountsOnes(),
        params,
        small.training_run(state, last),
        **more,
    )
    return without_timings(state / "metrics.jsonl"), model, engine


def test_what_the_verifier_counted_is_read_by_the_thread_that_grades(small: Any, tmp_path: Path) -> None:
    """Another thread would take the counts of groups that are graded for a later step."""
    readers: list[str] = []

    class Counts(small.CountsOnes):  # type: ignore[name-defined, misc]
        def counters(self) -> dict[str, float]:
            readers.append(threading.current_thread().name)
            return {"verifier/graded": 16.0}

    rows, *_ = run(small, changed(AHEAD, dev={"every": 0}), tmp_path, reward=Counts())
    assert [row["verifier/graded"] for row in rows] == [16.0] * 5
    (last,) = [name for name in readers if not name.startswith("rollouts_")]
    assert last == readers[-1] == threading.main_thread().name  # the evaluation after the last step


def logprobs(model: Any, engine: Any, draw: int, version: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the tokens of a draw: by the weights of a sync, and as the engine gave them."""
    _, prompts, completions, _ = engine.drawn[draw]
    model.load_state_dict(engine.versions[version])
    groups = [Group(p, [each.tokens for each in row]) for p, row in zip(prompts, completions, strict=True)]
    with torch.no_grad():
        expected, _ = response_logprobs(model, groups)
    return expected, torch.tensor([value for row in completions for each in row for value in each.logprobs])


def test_each_steps_rollouts_are_of_the_weights_before_the_last_update(small: Any, tmp_path: Path) -> None:
    rows, model, engine = run(small, AHEAD, tmp_path)
    # Version 0 is the start and each step's sync makes one, the last step's two: dev's weights, the trained.
    assert [version for version, *_ in engine.drawn] == [0, 0, 1, 2, 3]
    assert all(name.startswith("rollouts_") for *_, name in engine.drawn)
    assert [row["rollout/lag"] for row in rows] == [0, 1, 1, 1, 1]
    assert [row["rollout/staleness"] for row in rows] == [0, 1, 1, 1, 1]
    for draw, (version, *_) in enumerate(engine.drawn):
        for number, near in ((version, True), (version + 1, False)):
            assert torch.allclose(*logprobs(model, engine, draw, number), atol=1e-4) == near
    # The ratio is that of the trained weights to those that sampled.
    now, sampled = logprobs(model, engine, draw=1, version=1)
    assert rows[1]["ratio/mean"] == pytest.approx(float((now - sampled).exp().mean()), abs=1e-4) != 1


def test_the_lag_is_in_updates_of_which_a_step_may_have_several(small: Any, tmp_path: Path) -> None:
    params = AHEAD.model_copy(update={"steps": 3, "epochs": 3, "minibatches": 2})
    rows, *_ = run(small, params, tmp_path, kind=CopyEngine)
    assert [(row["rollout/lag"], row["rollout/lag_max"]) for row in rows] == [(0, 0), (6, 6), (6, 6)]
    saved = CheckpointFolder(tmp_path / "checkpoints").latest()
    assert saved is not None and saved.values["order"]["cursor"] == 3 * 4, "nothing is sampled that no step trains on"
    assert saved.values["stream"][0]["numbered"] == 3 * 4 and saved.values["stream"][0]["segments"] == 3
    assert saved.values["stream"][0]["updates"] == {"1": 6, "2": 12, "3": 18}, "of older versions no group is trained"


def test_an_update_at_the_ratio_bound_is_made_and_one_above_is_not(small: Any, tmp_path: Path) -> None:
    params = changed(AHEAD, steps=3, dev={"every": 0})
    rows, *_ = run(small, params, tmp_path / "free", kind=CopyEngine)
    place, ratio = next((n, row["ratio/mean"]) for n, row in enumerate(rows) if row["ratio/mean"] > 1 + 1e-6)
    for name, bound, dropped in (("at", ratio, 0), ("above", ratio - 1e-9, 1)):
        bounded, *_ = run(small, changed(params, loss={"drop_ratio": bound}), tmp_path / name, kind=CopyEngine)
        assert bounded[place]["ratio/mean"] == ratio and bounded[place]["dropped_minibatches"] == dropped


def test_a_killed_run_goes_on_bit_for_bit(small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, model, _ = run(small, AHEAD, tmp_path / "whole")
    with pytest.raises(small.Killed):
        run(small, AHEAD, tmp_path / "killed", last=3)
    monkeypatch.setenv(Variable.PROGRESS, str(tmp_path / "progress"))
    resumed, again, engine = run(small, AHEAD, tmp_path / "killed")
    assert resumed == rows and len(engine.drawn) == 2  # steps 4 and 5; step 3's were in the checkpoint
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]), name
    progress = json.loads((tmp_path / "progress").read_text())
    assert (progress["title"], progress["done"], progress["total"]) == ("rl", 5, 5)


def test_importance_weights_are_of_the_trainers_weights_to_the_samplers(small: Any, tmp_path: Path) -> None:
    params = AHEAD.model_copy(update={"importance": Truncated(high=100.0)})
    rows, model, engine = run(small, params, tmp_path)
    now, sampled = logprobs(model, engine, draw=2, version=2)
    assert rows[2]["importance/mean"] == pytest.approx(float((now - sampled).exp().mean()), abs=1e-4) != 1
    assert rows[2]["ratio/mean"] == pytest.approx(1, abs=1e-4)


def test_progress_is_counted_from_the_step_of_the_checkpoint(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(Variable.PROGRESS, str(tmp_path / "progress"))
    three = changed(AHEAD, steps=3)
    with pytest.raises(small.Killed):
        run(small, three, tmp_path, last=2, kind=CopyEngine)
    (*_, row), _, _ = run(small, three, tmp_path, kind=CopyEngine)
    told = json.loads((tmp_path / "progress").read_text())
    assert (told["title"], told["done"], told["total"]) == ("rl", 3, 3)
    figures = {"accuracy": row["reward/accuracy"], "length": row["response_length"]}
    assert told["figures"] == pytest.approx(figures)


def test_it_learns(small: Any, tmp_path: Path) -> None:
    params = AHEAD.model_copy(update={"steps": 14, "prompts_per_step": 8, "group_size": 8})
    rows, *_ = run(small, params, tmp_path, kind=CopyEngine)
    first, last = (sum(row["reward/overall"] for row in part) / 4 for part in (rows[:4], rows[-4:]))
    assert last > first + 0.1


class Endless(CopyEngine):
    """Samples ahead until it is ended, or the test is over."""

    started, over = threading.Event(), threading.Event()
    rounds = 0

    def generate(self, *arguments: Any, **more: Any) -> Any:
        completions = super().generate(*arguments, **more)
        self.rounds += threading.current_thread().name.startswith("rollouts")
        while self.rounds > 1 and not self.over.wait(0.01):
            self.started.set()
        return completions


def test_an_error_of_the_update_ends_the_rollouts_being_sampled(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        assert Endless.started.wait()
        raise RuntimeError("of the update")

    monkeypatch.setattr("mathrl.trainers.rl.update_gradient", fail)
    with pytest.raises(RuntimeError, match="of the update"):
        run(small, AHEAD, tmp_path, kind=Endless)
    sampling = [thread for thread in threading.enumerate() if thread.name.startswith("rollouts")]
    for thread in sampling:
        thread.join(60)
    try:
        assert not any(thread.is_alive() for thread in sampling)
    finally:
        Endless.over.set()


class Broken(CopyEngine):
    """Breaks in the thread that samples ahead."""

    def generate(self, *arguments: Any, **more: Any) -> Any:
        if threading.current_thread().name.startswith("rollouts"):
            raise RuntimeError("of the sampler")
        return super().generate(*arguments, **more)


def test_an_error_of_the_thread_that_samples_ends_the_run(small: Any, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="of the sampler"):
        run(small, AHEAD, tmp_path, kind=Broken)


class Alone(CopyEngine):
    """Samples for one at a time."""

    made: "Alone"

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.lock, Alone.made = threading.Lock(), self

    def generate(self, *arguments: Any, **more: Any) -> Any:
        assert self.lock.acquire(blocking=False), "two sample at once"
        try:
            time.sleep(0.02)
            return super().generate(*arguments, **more)
        finally:
            self.lock.release()


def test_nothing_is_sampled_while_a_judge_samples(small: Any, tmp_path: Path) -> None:
    judged = []

    def judge(groups: list[RolloutGroup]) -> list[RolloutGroup]:
        judged.append(Alone.made.generate([[5]], Sampling(1, 1.0, 2), 0))
        return groups

    params = small.changed(AHEAD, asynchronous={"pace": "free", "staleness": 2})
    run(small, params, tmp_path, kind=Alone, helpers=Helpers(judge=judge))
    assert len(judged) >= params.steps


class Forgetful(CopyEngine):
    """A sync that leaves a layer as it was."""

    def sync(self, weights: Any) -> str:
        return super().sync((name, each) for name, each in weights if ".layers.1.mlp." not in name)


def test_the_canary_stops_a_run_whose_sync_leaves_a_layer_out(small: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the sampler's copy differ from the trainer's by .* nothing was"):
        run(small, AHEAD, tmp_path, kind=Forgetful)


def test_it_needs_weights_of_its_own_and_something_that_corrects(small: Any) -> None:
    with pytest.raises(UserError, match="the sampler has no weights of its own"):
        small.run(AHEAD)
    with pytest.raises(ValidationError, match="needs importance"):
        Rl(asynchronous=Asynchronous(), loss="reinforce")
    assert Rl(asynchronous=Asynchronous(staleness=0), loss="reinforce")
    with pytest.raises(ValidationError, match=r"asynchronous\.pace fixed one round per step"):
        Rl(asynchronous=Asynchronous(pace="fixed"), dynamic_sampling={"rounds": 2})
    with pytest.raises(ValidationError, match="pace fixed repeats itself"):
        Asynchronous(pace="fixed", replay="events.jsonl")
    with pytest.raises(ValidationError, match="needs pace free and staleness of at least 1"):
        Asynchronous(staleness=0, segment_tokens=8)
    with pytest.raises(ValidationError, match="needs pace free and staleness of at least 1"):
        Asynchronous(pace="continuous", segment_tokens=8)
    with pytest.raises(ValidationError, match="pace continuous needs staleness of at least 1"):
        Asynchronous(pace="continuous", staleness=0)
