"""The health rules on made-up rows."""

import math
import random
from typing import Any

import pytest

from mathrl.health.watch import examine
from mathrl.params.section import unions_of
from mathrl.params.train import Asynchronous, Rl
from mathrl.params.training import Health
from mathrl.trainers.rollouts import correlation, repeated_shares

RL = Rl()


def colours(rows: list[dict[str, float]], rl: Rl = RL, **health: Any) -> dict[str, str]:
    """The findings of made-up rows; what a row does not say is well."""
    whole = [{"step": n, "reward/accuracy": 0.5, **row} for n, row in enumerate(rows, start=1)]
    limits = Health(**{"kl": 1.0, "patience": 40, **health})  # of a small model from random weights
    return {name: each.colour for name, each in examine(whole, limits, rl).findings.items()}


def rising(name: str, first: float, last: float, steps: int = 60, **others: float) -> list[dict[str, float]]:
    return [{name: first + (last - first) * n / (steps - 1), **others} for n in range(steps)]


def with_accuracy(rows: list[dict[str, float]], first: float, last: float) -> list[dict[str, float]]:
    ways = rising("reward/accuracy", first, last, len(rows))
    return [{**row, **way} for row, way in zip(rows, ways, strict=True)]


@pytest.mark.parametrize("value", [10.5, -10.5, math.nan, math.inf])
def test_loss(value: float) -> None:
    assert colours([{"actor_loss": value}]) == {"loss": "red"}
    assert colours([{"critic_loss": value}]) == {"loss": "red"}
    assert colours([{"actor_loss": 9.5, "grad_norm": 500.0}]) == {}
    assert colours([{"skipped_updates": 0.0}, {"skipped_updates": 1.0}, {"skipped_updates": 1.0}]) == {"loss": "red"}
    assert set(examine([{"step": 1, "loss": value}], Health(), None).findings) == {"loss"}, "fine-tuning too"


def test_a_red_finding_that_has_passed_leaves_the_run_yellow() -> None:
    rows = [{"step": n, "reward/accuracy": 0.5, "actor_loss": 11.0 if n == 3 else 0.1} for n in range(1, 9)]
    assert examine(rows[:6], Health(), RL).colour == "red"
    assert examine(rows, Health(), RL).colour == "yellow"


def test_kl_and_length_are_fine_while_accuracy_rises_with_them() -> None:
    kl, length = rising("kl", 0.0, 3.0), rising("response_length", 100.0, 300.0)
    assert colours(with_accuracy(kl, 0.2, 0.8)) == {} == colours(with_accuracy(length, 0.2, 0.8))
    assert "kl" in colours([{"kl": 0.2}] * 50 + [{"kl": 2.0}] * 10)
    assert colours(length)["length"] == "yellow"
    # Dev accuracy, where it is measured, is what counts: it rises, that of the rollouts does not.
    dev = [{**row, "dev/accuracy": 0.2 + n / 200} if n % 2 else row for n, row in enumerate(length)]
    assert "length" not in colours(dev)


def test_a_kl_that_explodes_in_the_first_steps_is_found_at_once() -> None:
    sudden = [{"kl": 0.0}, *[{"kl": 5.0}] * 5]
    for steps in range(2, 7):
        assert colours(sudden[:steps]) == {"kl": "red"}, steps
    assert colours([{"kl": 0.9}] * 6) == {}
    learned = [{**row, "dev/accuracy": 0.2 + n / 10} for n, row in enumerate(sudden)]
    assert colours(learned) == {}, "on dev it rises"


def test_a_collapse_is_judged_by_dev_and_not_by_problems_that_become_harder() -> None:
    falling = with_accuracy([{}] * 60, 0.8, 0.4)

    def on_dev(first: float, last: float) -> list[dict[str, float]]:
        dev = rising("dev/accuracy", first, last)
        return [{**row, **(dev[n] if n % 10 == 9 else {})} for n, row in enumerate(falling)]

    for order in unions_of(Rl)["curriculum"].members:
        sampler = {"sampler": {"path": "my.module.sampler"}} if order == "user" else {}
        rl = Rl(curriculum={"type": order, **sampler})
        assert ("collapse" in colours(falling, rl)) == (order == "shuffled"), order
        assert ("collapse" in colours(on_dev(0.4, 0.6), rl)) == (order == "shuffled")
        assert colours(on_dev(0.8, 0.4), rl)["collapse"] == "red"
    steady = [{k: v for k, v in row.items() if k != "reward/accuracy"} for row in on_dev(0.8, 0.4)]
    found = examine([{"step": n, "reward/accuracy": 0.5, **row} for n, row in enumerate(steady, 1)], Health(), RL)
    collapse = found.findings["collapse"]
    assert collapse.first == 40 and collapse.evidence == "accuracy on dev fell from 0.739 to 0.400"


def test_low_entropy_and_equal_groups_are_fine_near_the_maximum() -> None:
    rows = [{"entropy": 0.001, "rollout/zero_variance_share": 0.95}] * 10
    unmeasured = [{"rollout/zero_variance_share": 1.0}] * 10
    assert colours(unmeasured) == {"zero_variance": "yellow"}
    assert colours(rows) == {"entropy": "yellow", "zero_variance": "yellow"}
    assert colours([{**row, "reward/accuracy": 0.95} for row in rows]) == {}


def test_accuracy_that_stays_falls_or_jumps() -> None:
    assert colours([{}] * 60) == {"flat": "yellow"} and colours([{}] * 39) == {}
    assert colours(with_accuracy([{}] * 60, 0.3, 0.6)) == {}
    assert colours(with_accuracy([{}] * 60, 0.8, 0.4))["collapse"] == "red"
    assert "spikes" in colours([{"reward/accuracy": 0.1 + 0.8 * (n % 2)} for n in range(20)])
    # Chance: the batch mean of 32 problems.
    noise = random.Random(0)
    steady = [{"reward/accuracy": sum(noise.random() < 0.5 for _ in range(32)) / 32} for _ in range(39)]
    assert colours(steady) == {}


def test_agreement_of_sampler_and_trainer() -> None:
    name = "rollout/logprob_alignment"
    assert colours([{name: 1.049}] * 10) == {}
    assert colours([{name: 1.06}]) == {"mismatch": "red"}, "at once"
    assert colours(rising(name, 1.0, 1.04, 30)) == {"stale_sampler": "red"}, "before the limit"
    late = [{**row, "rollout/lag": 2.0, "rollout/canary_alignment": 1.0} for row in rising(name, 1.0, 1.2, 30)]
    assert colours(late) == {}, "rollouts of older weights by choice"
    assert colours([{"importance/mean": 0.85}] * 5) == {"importance": "red"}
    assert colours([{"importance/mean": 0.95, "ratio/mean": 1.0}] * 5) == {}


def test_responses_that_go_in_circles_are_cut_off_or_never_right() -> None:
    circles = rising("rollout/repetition", 0.0, 0.9)
    assert colours(circles)["repetition"] == "yellow" and "repetition" not in colours(with_accuracy(circles, 0.2, 0.8))
    assert "repetition" not in colours([{"rollout/repetition": 0.9}] * 40), "from the first step on"
    assert colours([{"rollout/truncated_share": 1.0}] * 6) == {"truncated": "yellow"}
    answers = (
        ({"rollout/truncated_share": 1.0}, "the prompt is not what the model was trained on, so it finds no end"),
        ({"entropy": 2.0}, "the prompt is not what the model was trained on"),
        ({}, "the answer is not found in the responses"),
    )
    for row, cause in answers:
        wrong = [{"step": n, "reward/accuracy": 0.0, **row} for n in range(1, 41)]
        found = examine(wrong, Health(), RL).findings["no_success"]
        assert found.cause.startswith(cause) and "prompt.template" in found.remedy
        assert ("reward.extraction" in found.remedy) == (not row)


def test_a_critic_that_explains_nothing_once_it_had_time_to_learn() -> None:
    rl = Rl(advantage={"type": "gae", "critic": {"warmup_steps": 2}})  # type: ignore[arg-type]
    rows = rising("reward/accuracy", 0.2, 0.8, 42, **{"critic/explained_variance": 0.0})
    assert colours(rows, rl) == {"critic": "yellow"} and colours(rows[:41], rl) == {}
    assert colours([{**row, "critic/explained_variance": 0.1} for row in rows], rl) == {}


def test_timeouts_parts_and_rules_left_out() -> None:
    late = [{"verifier/graded": 100.0, "verifier/timeouts": 2.0}]
    assert colours(late) == {"timeouts": "yellow"} and colours(late, without=("timeouts",)) == {}
    assert colours([{"verifier/graded": 100.0, "verifier/timeouts": 1.0}]) == {}
    parts = rising("reward/format", 0.1, 0.9, 45)
    assert "reward_parts" in colours(parts)
    assert "reward_parts" not in colours(with_accuracy(parts, 0.2, 0.5))


def test_groups_that_are_dropped_as_too_old() -> None:
    apart = RL.model_copy(update={"asynchronous": Asynchronous(staleness=2), "prompts_per_step": 8})
    rows = [{"rollout/dropped_groups": 1.0}] * 5  # 1 of 9 groups
    assert colours(rows, apart) == {"dropped_groups": "yellow"} and colours(rows[1:], apart) == {}
    assert colours(rows, apart, dropped_groups=0.12) == {}


def test_shares_of_repeated_text_and_correlation_by_hand() -> None:
    assert repeated_shares([(1, 2, 3, 1, 2, 3, 1, 2)], n=3) == pytest.approx([3 / 6])
    assert repeated_shares([tuple(range(40)), (7,) * 16]) == [0, 0]
    assert repeated_shares([(7,) * 18]) == pytest.approx([2 / 3])
    assert correlation([2, 4, 6], [3, 2, 1]) == pytest.approx(-1)
    assert correlation([5, 5], [0, 1]) == 0 == correlation([5], [1])
