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
from mathrl.params.rollout import Rollout
from mathrl.params.run import Prompt
from mathrl.params.train import Asynchronous, Rl
from mathrl.rollout.engine import Sampling
from mathrl.rollout.sampler import Sampler
from mathrl.rollout.torch_engine import CopyEngine
from mathrl.trainers.open_rl import Helpers
from mathrl.trainers.rl import train_rl
from mathrl.trainers.rollouts import RolloutGroup
from tests.trainers.small import short_rl

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


def logprobs(model: Any, engine: Any, draw: int, version: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the tokens of a draw: by the weights of a sync, and as the engine gave them."""
    _, prompts, completions, _ = engine.drawn[draw]
    model.load_state_dict(engine.versions[version])
    groups = [Group(p, [each.tokens for each in row]) for p, row in zip(prompts, completions, strict=True)]
    with torch.no_grad():
        expected, _ = response_logprobs(model, groups)
    return expected, torch.tensor([value for row in completions for each in row for value in each.logprobs])


def test_each_steps_rollouts_are_of_the_weights_before_the_last_update_also_in_a_run_that_was_killed(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[str] = []

    class Counts(small.CountsOnes):  # type: ignore[name-defined, misc]
        """Another thread than the one that grades would take the counts of groups for a later step."""

        def counters(self) -> dict[str, float]:
            readers.append(threading.current_thread().name)
            return {"verifier/graded": 16.0}

    rows, model, engine = run(small, AHEAD, tmp_path / "whole", reward=Counts())
    assert [row["verifier/graded"] for row in rows] == [16.0] * 5
    (last,) = [name for name in readers if not name.startswith("rollouts_")]
    assert last == readers[-1] == threading.main_thread().name  # the evaluation after the last step
    with pytest.raises(small.Killed):
        run(small, AHEAD, tmp_path / "killed", last=3, reward=Counts())
    monkeypatch.setenv(Variable.PROGRESS, str(tmp_path / "progress"))
    resumed, again, other = run(small, AHEAD, tmp_path / "killed", reward=Counts())
    assert resumed == rows and len(other.drawn) == 2  # steps 4 and 5; step 3's were in the checkpoint
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]), name
    told = json.loads((tmp_path / "progress").read_text())
    assert (told["title"], told["done"], told["total"]) == ("rl", 5, 5)
    figures = {"accuracy": rows[-1]["reward/accuracy"], "length": rows[-1]["response_length"]}
    assert told["figures"] == pytest.approx(figures)
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

    params = small.changed(AHEAD, steps=2, asynchronous={"pace": "free", "staleness": 2})
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
