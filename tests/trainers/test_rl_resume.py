"""A run that is cut between any two steps goes on to the same bits, with every state that RL has."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mathrl.learners.checkpoint import CheckpointFolder
from mathrl.learners.preemption import StopRequest
from mathrl.learners.torch_learner import TorchLearner
from mathrl.params.advantage import Critic
from mathrl.params.curriculum import PassRate
from mathrl.params.loss import KlController
from mathrl.params.optimizer import AdamW
from mathrl.params.paths import merge
from mathrl.params.train import Rl
from mathrl.rollout.torch_engine import CopyEngine
from mathrl.trainers.rl import train_rl

COMMON: dict[str, Any] = {
    "steps": 5,
    "prompts_per_step": 4,
    "group_size": 4,
    "max_tokens": 8,
    "optimizer": AdamW(lr=5e-3, warmup_steps=2),
    "dev": {"every": 2, "samples": 4},
    "checkpoint_every": 1,
}
CASES: dict[str, dict[str, Any]] = {
    "ppo with an adaptive KL": {
        "advantage": {"type": "gae", "critic": Critic(warmup_steps=1), "whiten": True},
        "epochs": 2,
        "minibatches": 2,
        "kl": {"type": "reward", "coef": 0.05, "controller": KlController(target=1e-4, horizon=100)},
    },
    "dynamic sampling by pass rate, best weights": {
        "dynamic_sampling": {"rounds": 3},
        "curriculum": PassRate(),
        "dev": {"export": "best"},
        "loss": {"entropy_coef": 0.01, "entropy_controller": {"target": 4.0}},
    },
}


@pytest.fixture(scope="module", params=list(CASES))
def whole_run(request: Any, small: Any) -> Any:
    """A case's name, its parameters, and what a run gives that nothing ends."""
    params = Rl(**merge(COMMON, CASES[request.param]))
    return request.param, params, small.run(params, dev=small.PROBLEMS[:3])


def test_cut_and_resumed_equals_uninterrupted(small: Any, tmp_path: Path, whole_run: Any) -> None:
    cut = 3
    name, params, (whole_result, whole, model) = whole_run
    dev = small.PROBLEMS[:3]
    with pytest.raises(small.Killed):
        small.run(params, tmp_path / "cut", last=cut, dev=dev)
    assert len(small.without_timings(tmp_path / "cut" / "metrics.jsonl")) == cut
    result, rows, resumed = small.run(params, tmp_path / "cut", dev=dev)
    assert rows == whole and result == whole_result
    for ours, other in zip(model.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(ours, other)
    saved = CheckpointFolder(tmp_path / "cut" / "checkpoints").latest()
    assert saved is not None and {each.partition("/")[0] for each in saved.tensors} == {
        "rl", *(["rl.advantage.critic"] if "ppo" in name else [])
    }  # fmt: skip
    # There is something to differ in.
    if "ppo" in name:
        assert len({row["kl_coef"] for row in whole}) == 5 and whole[-1]["kl"] != 0
        assert whole[-1]["critic/value_mean"] != 0
    else:
        assert max(row["rollout/sampling_rounds"] for row in whole) > 1
        assert len({row["entropy_coef"] for row in whole}) > 2


def test_what_is_saved_in_the_middle_of_sampling_is_the_step_before(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole_run: Any
) -> None:
    class Held(StopRequest):
        save: Any = None

        def hold(self, save: Any) -> None:
            Held.save = save

        def release(self) -> None:
            Held.save = None

    class SavesAtTheFourth(small.CountsOnes):  # type: ignore[name-defined, misc]
        calls = 0

        def score(self, items: Any) -> Any:
            self.calls += 1
            if self.calls >= 4 and Held.save is not None:
                Held.save()
                raise small.Killed
            return super().score(items)

    _, every_step, (whole_result, whole, model) = whole_run
    params, dev = small.changed(every_step, checkpoint_every=100), small.PROBLEMS[:3]
    monkeypatch.setattr("mathrl.trainers.rl.StopRequest", Held)
    with pytest.raises(small.Killed):
        small.run(params, tmp_path / "cut", reward=SavesAtTheFourth(), dev=dev)
    (file,) = (tmp_path / "cut" / "checkpoints").glob("*.json")
    assert 1 <= int(file.stem.partition("-")[2]) < 5
    monkeypatch.setattr("mathrl.trainers.rl.StopRequest", StopRequest)
    result, rows, resumed = small.run(params, tmp_path / "cut", dev=dev)
    assert rows == whole and result == whole_result
    for ours, other in zip(model.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(ours, other)


def test_a_step_is_held_while_it_samples_and_its_seconds_and_tokens_are_told(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []

    class Watched(StopRequest):
        def hold(self, save: Any) -> None:
            happened.append("hold")

        def release(self) -> None:
            happened.append("release")

    random: list[float] = []

    class Scoring(small.CountsOnes):  # type: ignore[name-defined, misc]
        def score(self, items: Any) -> Any:
            happened.append("sample")
            random.append(float(torch.rand(())))
            return super().score(items)

    def update(self: TorchLearner, loss: float) -> None:
        happened.append("update")
        assert self.model.training, "in which activations may be recomputed"
        take(self, loss)

    take = TorchLearner.update
    monkeypatch.setattr("mathrl.trainers.rl.StopRequest", Watched)
    monkeypatch.setattr(TorchLearner, "update", update)
    params = Rl(**merge(COMMON, {"steps": 2, "dev": {"every": 0}}))
    result, _, model = small.run(params, tmp_path, reward=Scoring())
    assert not model.training
    assert happened == ["hold", "sample", "release", "update"] * 2 + ["release"]
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    tokens = sum(row["throughput/tokens_per_second"] * row["time/step"] for row in rows)
    assert tokens == pytest.approx(result.sampled_tokens)
    for row in rows:
        parts = [row[f"time/{name}"] for name in ("rollout", "reward", "scores", "update")]
        assert min(parts) > 0 and sum(parts) <= row["time/step"] * 1.001
    torch.manual_seed(99)
    small.run(params, tmp_path / "again", reward=Scoring())
    assert random[:2] == random[2:] and random[0] != random[1], "a step's random numbers are its own"
    happened.clear()
    params = Rl(**merge(COMMON, {"steps": 2, "dev": {"every": 0}, "asynchronous": {"staleness": 0}}))
    model, _ = small.policy()
    engine = CopyEngine(copy.deepcopy(model), small.TOKENIZER, small.Rollout(), 1e-4)
    sampler = small.Sampler(engine, small.TOKENIZER, small.Prompt())
    train_rl(model, sampler, small.PROBLEMS, (), Scoring(), params, small.training_run(tmp_path / "ahead"))
    assert "hold" not in happened, "what is sampled ahead changes meanwhile"


def test_checkpoints_are_of_every_so_many_steps_and_of_the_last(small: Any, tmp_path: Path) -> None:
    kept = []
    few = {"prompts_per_step": 1, "group_size": 2, "checkpoint_every": 2, "dev": {"every": 0}}
    for steps in (4, 5):
        state = tmp_path / str(steps)
        small.run(Rl(**{**COMMON, **few, "steps": steps}), state)
        kept.append(sorted(file.stem for file in (state / "checkpoints").glob("*.json")))
    assert kept == [["step-00000002", "step-00000004"], ["step-00000004", "step-00000005"]]
