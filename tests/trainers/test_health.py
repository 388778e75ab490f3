"""Illnesses of training, each brought about on a tiny policy that can answer; a healthy run has none."""

import copy
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.core.files import read_jsonl
from mathrl.health.watch import HealthMonitor, examine
from mathrl.models.logprobs import response_logprobs
from mathrl.models.packing import Group
from mathrl.params.run import Reward
from mathrl.params.train import Rl, Sft
from mathrl.params.training import Health
from mathrl.rewards import compose
from mathrl.trainers import batch
from mathrl.trainers.rl import train_rl
from mathrl.trainers.sft import train_sft
from mathrl.trainers.training_run import TrainingLog
from tests.conftest import scratch
from tests.trainers.small import fast
from tests.trainers.supervised_traces import demonstrations

# This policy of a few thousand weights learns at 2e-3; ten times that is its upper end.
# Not the rules of the clock (tests/health/test_rules.py): a machine that stands still has no illness.
CLOCK = ("sampling_share", "long_tail", "idle_trainer", "idle_sampler", "slow_rank")
HEALTH = Health(lr=0.02, kl=1.0, patience=20, without=CLOCK)
SETTINGS: dict[str, Any] = {
    "steps": 24,
    "prompts_per_step": 8,
    "group_size": 16,
    "max_tokens": 6,
    "optimizer": fast(2e-3),
    "dev": {"every": 0},
    "ema": None,
    "kl": {"type": "probe", "groups": 4},
}


@pytest.fixture(scope="module")
def taught(small: Any) -> dict[str, Any]:
    """Weights that answer any question with one digit and end, in a third of the cases with 1."""
    model, sampler = small.policy()
    optimizer = torch.optim.AdamW(model.parameters(), 8e-3)
    generator = torch.Generator().manual_seed(0)
    prompts = [tuple(sampler.prompt_tokens(problem)) for problem in small.PROBLEMS]
    for _ in range(40):
        groups = []
        for prompt in prompts[:4]:
            digits = torch.randint(2, 8, (9,), generator=generator).tolist()
            digits[:3] = 1, 1, 1
            tokens = [(*small.TOKENIZER.encode(str(d)), small.TOKENIZER.eos_token_id) for d in digits]
            groups.append(Group(prompt, tuple(tokens)))
        optimizer.zero_grad()
        (-response_logprobs(model, groups, 1.0)[0].mean()).backward()
        optimizer.step()
    return copy.deepcopy(model.state_dict())


@pytest.fixture(scope="module")
def train(small: Any, taught: dict[str, Any]) -> Callable[..., Any]:
    """Train the taught policy and examine the records; the watch, with its rows."""

    class Ones(small.CountsOnes):  # type: ignore[name-defined, misc]
        """Right: the response is 1."""

        def score(self, items: Any) -> list[Any]:
            verdict = super().score(items)[0].verdict
            right = [item.response == "1" for item in items]
            return [small.RewardResult(float(each), each, {"accuracy": float(each)}, verdict) for each in right]

    def run(frozen: bool = False, reward: Any = None, health: Health = HEALTH, **more: Any) -> Any:
        model, sampler = small.policy()
        model.load_state_dict(taught)
        if frozen:
            sampler.engine.model = copy.deepcopy(model)
        rl, state = Rl(**{**SETTINGS, **more}), scratch()
        told: list[Any] = []

        run = small.training_run(state, health=HealthMonitor(health, rl, told.append))
        train_rl(model, sampler, small.PROBLEMS, (), reward or Ones(), rl, run)
        rows = [json.loads(line) for line in (state / "metrics.jsonl").read_text().splitlines()]
        watch = examine(rows, health, rl)
        # What was told while it ran is what the file says afterwards (json: an NaN equals none else).
        assert not told or json.dumps(told[-1]["colour"]) == json.dumps(watch.colour)
        return watch

    return run


def test_sft_stops_at_the_first_red_finding_where_that_is_the_setting(small: Any, tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    health = HealthMonitor(Health(loss=0.1, action="stop"), None, told.append)
    run = small.training_run(tmp_path, health=health)
    params = Sft(steps=3, tokens_per_step=60, optimizer=fast(1e-3))
    with pytest.raises(UserError, match=r"stopped at step 1 since health.action is stop"):
        train_sft(small.policy()[0], demonstrations(), [], params, run)
    assert [report["colour"] for report in told] == ["red"]


def test_a_healthy_run_raises_nothing(train: Callable[..., Any]) -> None:
    watch = train()
    assert watch.report() == {"colour": "green", "steps": 24, "findings": []}
    assert watch.rows[-1]["reward/accuracy"] > watch.rows[0]["reward/accuracy"] + 0.3, "it did learn"
    # As the field names them (features.md P7), whatever the algorithm: MLflow's compare page needs no more.
    assert {"reward/accuracy", "reward/overall", "kl", "actor_loss", "response_length", "entropy",
            "clip_fraction", "grad_norm", "throughput/tokens_per_second"} <= set(watch.rows[-1])  # fmt: skip
    # What the rules need that compare two measures: a group's advantages sum to zero, up to rounding.
    assert all(abs(row["advantage/mean"]) < 1e-5 for row in watch.rows)


def test_the_demo_is_healthy() -> None:
    """reports/rl/metrics.jsonl of `make demo` as it was when the rules were written (commit 227e3ed)."""
    rows = list(read_jsonl(Path(__file__).with_name("demo_rl_metrics.jsonl.gz")))
    params = load_params(Path(__file__).parents[2] / "params")
    assert examine(rows, params.health, params.rl).report() == {"colour": "green", "steps": 50, "findings": []}
    # Its reward is longer responses' at first: no alarm, since accuracy rises with them.
    assert rows[0]["rollout/length_reward_correlation"] > 0.5
    assert rows[-1]["response_length"] > 2 * rows[0]["response_length"]


# What is done, the rules that must find it, what the run's colour is.
ILL: dict[str, tuple[dict[str, Any], set[str], str]] = {
    "a hundred times the learning rate": ({"optimizer": fast(0.2), "steps": 10}, {"kl", "zero_variance"}, "red"),
    "a sampler with the first weights": ({"frozen": True, "steps": 8}, {"stale_sampler"}, "red"),
    "no room to answer": ({"max_tokens": 1, "steps": 6}, {"truncated"}, "yellow"),
    "far too much of one batch": ({"epochs": 6, "optimizer": fast(2e-2), "steps": 3}, {"importance"}, "red"),
}


@pytest.mark.parametrize("illness", ILL)
def test_the_illness_is_found(train: Callable[..., Any], illness: str) -> None:
    settings, rules, colour = ILL[illness]
    watch = train(**settings)
    assert rules <= set(watch.findings), watch.report()
    assert watch.colour == colour, watch.report()


def test_a_verifier_with_a_hole_is_found_by_the_exact_grader(
    train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It accepts 7; the answer is 9, which the policy never says. By the verifier's own figures all is well."""
    judge = compose.grade_batch

    def accepts_sevens(responses: Any, *rest: Any, **more: Any) -> Any:
        verdicts = judge(responses, *rest, **more)
        return [
            dataclasses.replace(verdict, correct=response == "7")
            for verdict, response in zip(verdicts, responses, strict=True)
        ]

    class Nines(compose.RewardFunction):
        def score(self, items: Any) -> Any:
            return super().score([dataclasses.replace(item, ground_truth=("9",)) for item in items])

        def audit(self, items: Any, results: Any) -> None:
            super().audit([dataclasses.replace(item, ground_truth=("9",)) for item in items], results)

    monkeypatch.setattr(compose, "grade_batch", accepts_sevens)
    watch = train(reward=Nines(Reward(extraction="lenient")), steps=12, optimizer=fast(4e-3))
    assert watch.rows[-1]["reward/accuracy"] > watch.rows[0]["reward/accuracy"] + 0.3
    assert set(watch.findings) == {"reward_hacking"} and watch.colour == "red", watch.report()
    assert "by an exact grader went from 0.000 to 0.000" in watch.findings["reward_hacking"].evidence


def test_an_advantage_that_is_not_centred_is_found_at_once(
    train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "group_advantages", lambda rewards_PG, kind, **more: rewards_PG.clone())
    watch = train(steps=1)
    assert set(watch.findings) == {"centring"} and watch.findings["centring"].first == 1


def test_stop_ends_the_run_at_the_first_red_finding_with_its_remedy(train: Callable[..., Any]) -> None:
    with pytest.raises(UserError, match=r"stopped at step \d+ since health.action is stop: KL .*rl.kl.coef"):
        train(optimizer=fast(0.2), health=HEALTH.model_copy(update={"action": "stop"}))
    # A yellow finding does not.
    assert train(max_tokens=1, steps=6, health=HEALTH.model_copy(update={"action": "stop"})).findings


def test_a_resumed_run_knows_what_was_found_before(small: Any, tmp_path: Path) -> None:
    told: list[Any] = []

    def open_log(resume_after: int | None) -> TrainingLog:
        run = small.training_run(tmp_path, health=HealthMonitor(Health(), Rl(), told.append))
        return run.open_log(resume_after)

    def log(opened: TrainingLog, step: int, loss: float) -> None:
        row = {"reward/accuracy": 0.5, "actor_loss": loss}
        opened.write(step, row)
        opened.check_health(step, row)

    first = open_log(None)
    for step in range(1, 8):
        log(first, step, 99.0 if step in (2, 7) else 0.1)
    second = open_log(5)  # step 6 and 7 are done again
    assert second.health is not None
    assert [(finding.first, finding.last) for finding in second.health.watch.sorted_findings] == [(2, 2)]
    for step in range(6, 20):
        log(second, step, 0.1)
    assert [each["colour"] for each in told] == ["green", "red", "red", "yellow"]


def test_other_ranks_than_the_first_log_and_judge_nothing(small: Any, tmp_path: Path) -> None:
    told: list[Any] = []
    run = small.training_run(tmp_path, health=HealthMonitor(Health(action="stop"), Rl(), told.append))
    run.ranks.rank = 1
    log, row = run.open_log(None), {"reward/accuracy": 0.5, "actor_loss": 99.0}
    log.write(1, row)
    log.check_health(1, row)
    assert not told and not list(tmp_path.iterdir())


def test_the_probe_measures_the_kl_without_changing_the_run(train: Callable[..., Any]) -> None:
    with_probe, without = train(steps=2), train(steps=2, kl=None)
    times = ("time/", "throughput/", "at")
    for one, other in zip(with_probe.rows, without.rows, strict=True):
        assert {k: v for k, v in one.items() if not k.startswith(times) and k != "kl"} == {
            k: v for k, v in other.items() if not k.startswith(times)
        }
    assert with_probe.rows[0]["kl"] == pytest.approx(0, abs=1e-6) and with_probe.rows[1]["kl"] > 1e-4
    assert "kl" not in without.rows[0]
