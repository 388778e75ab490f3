"""A run that is cut between any two steps goes on to the same bits, with every state that RL has."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from mathrl.params.train import Critic, Curriculum, KlController, Optimizer, Rl
from mathrl.trainers.stopping import Stopped, StopRequest

FAST = Optimizer(type="adamw", warmup_steps=2)
COMMON: dict[str, Any] = {
    "steps": 7, "prompts_per_step": 4, "group_size": 4, "max_tokens": 8, "lr": 5e-3, "optimizer": FAST,
    "eval_every": 2, "eval_samples": 4, "checkpoint_every": 1,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "ppo with an adaptive KL": {
        "advantage": "gae", "critic": Critic(warmup_steps=1), "whiten": True, "epochs": 2, "minibatches": 2,
        "kl_coef": 0.05, "kl_in": "reward", "kl_estimator": "k1",
        "kl_controller": KlController(target=1e-4, horizon=100),
    },
    "dynamic sampling by pass rate, best weights": {
        "dynamic_sampling": 3, "curriculum": Curriculum(order="pass_rate"), "export": "best",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("cut", [1, 4, 6])
def test_cut_and_resumed_equals_uninterrupted(small: Any, tmp_path: Path, name: str, cut: int) -> None:
    params, dev = Rl(**COMMON, **CASES[name]), small.PROBLEMS[:3]
    whole_result, whole, model = small.run(params, tmp_path / "whole", dev=dev)
    with pytest.raises(small.Killed):
        small.run(params, tmp_path / "cut", last=cut, dev=dev)
    assert len(small.without_timings(tmp_path / "cut" / "metrics.jsonl")) == cut
    result, rows, resumed = small.run(params, tmp_path / "cut", dev=dev)
    assert rows == whole and result == whole_result
    for ours, other in zip(model.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(ours, other)
    # There is something to differ in.
    if "ppo" in name:
        assert len({row["kl_coef"] for row in whole}) == 7 and whole[-1]["kl"] != 0
        assert whole[-1]["critic/value_mean"] != 0
    else:
        assert max(row["rollout/sampling_rounds"] for row in whole) > 1


def test_asked_to_stop_it_ends_after_the_step_with_a_checkpoint(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stop:
        asked = False

        def hold(self, save: Any) -> None:
            pass

        def release(self) -> None:
            pass

        def close(self) -> None:
            pass

    class AsksAtTheThird(small.CountsOnes):  # type: ignore[name-defined, misc]
        calls = 0

        def score(self, items: Any) -> Any:
            self.calls += 1
            Stop.asked = self.calls == 3
            return super().score(items)

    params = Rl(**{**COMMON, "checkpoint_every": 100, "eval_every": 0})
    whole_result, whole, _ = small.run(params, tmp_path / "whole")
    monkeypatch.setattr("mathrl.trainers.rl.StopRequest", Stop)
    with pytest.raises(Stopped):
        small.run(params, tmp_path / "cut", reward=AsksAtTheThird())
    assert len(small.without_timings(tmp_path / "cut" / "metrics.jsonl")) == 3
    Stop.asked = False
    result, rows, _ = small.run(params, tmp_path / "cut")
    assert rows == whole and result == whole_result


@pytest.mark.parametrize("name", CASES)
def test_what_is_saved_in_the_middle_of_sampling_is_the_step_before(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    class Held(StopRequest):
        save: Any = None

        def hold(self, save: Any) -> None:
            Held.save = save

        def release(self) -> None:
            Held.save = None

    class SavesAtTheFifth(small.CountsOnes):  # type: ignore[name-defined, misc]
        calls = 0

        def score(self, items: Any) -> Any:
            self.calls += 1
            if self.calls >= 5 and Held.save is not None:
                Held.save()
                raise small.Killed
            return super().score(items)

    params, dev = Rl(**{**COMMON, "checkpoint_every": 100}, **CASES[name]), small.PROBLEMS[:3]
    whole_result, whole, model = small.run(params, tmp_path / "whole", dev=dev)
    monkeypatch.setattr("mathrl.trainers.rl.StopRequest", Held)
    with pytest.raises(small.Killed):
        small.run(params, tmp_path / "cut", reward=SavesAtTheFifth(), dev=dev)
    (file,) = (tmp_path / "cut" / "checkpoints").glob("*.json")
    assert 1 <= int(file.stem.partition("-")[2]) < 7
    monkeypatch.setattr("mathrl.trainers.rl.StopRequest", StopRequest)
    result, rows, resumed = small.run(params, tmp_path / "cut", dev=dev)
    assert rows == whole and result == whole_result
    for ours, other in zip(model.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(ours, other)


@pytest.mark.parametrize(("held", "fewest", "most"), [(True, 4, 8), (False, 8, 10)])
def test_a_signal_without_a_step_boundary_ends_the_process_in_time(
    tmp_path: Path, held: bool, fewest: float, most: float
) -> None:
    code = (
        "import sys, time; from pathlib import Path; from mathrl.trainers.stopping import StopRequest\n"
        "stop = StopRequest(); stop.hold(lambda: Path('saved').touch())\n"
        f"{'' if held else 'stop.release()'}\nprint('on', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, text=True, stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    try:
        assert process.stdout is not None and process.stdout.readline() == "on\n"
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 75
    finally:
        process.kill()
    # The upper bounds are the ten seconds that a cluster gives, and that a held run need not wait for them.
    assert fewest <= time.monotonic() - began < most and (tmp_path / "saved").exists() == held
