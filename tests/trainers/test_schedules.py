"""Settings that move over the steps: what each is at a step, that the loop goes by it, and what does not fit."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from mathrl.core.errors import UserError
from mathrl.params.train import Rl
from mathrl.rewards.compose import build_reward
from tests.trainers.small import PROBLEMS, Killed, changed, run, short_rl


def jump(start: float, end: float, after: int = 1) -> dict[str, float]:
    return {"start": start, "end": end, "after": after, "steps": 1}


EVERYTHING: dict[str, Any] = {
    "temperature": {"start": 1.0, "end": 0.6, "steps": 4},
    "max_tokens": [jump(4, 6), jump(6, 10, after=2)],
    "low": {"start": 0.2, "end": 0.1, "steps": 2},
    "high": jump(0.2, 0.3),
    "kl_coef": {"start": 0.1, "end": 0.0, "steps": 2},
    "entropy_coef": jump(0.0, 0.01),
}


def test_every_setting_at_every_step() -> None:
    rl = Rl(schedules=EVERYTHING, kl={"coef": 0.1})  # type: ignore[arg-type]
    steps = [rl.at_step(step) for step in range(4)]
    assert [step.temperature for step in steps] == pytest.approx([1.0, 0.9, 0.8, 0.7])
    assert [step.max_tokens for step in steps] == [4, 4, 6, 10]
    assert [step.loss.low for step in steps] == pytest.approx([0.2, 0.15, 0.1, 0.1])  # type: ignore[union-attr]
    assert [step.loss.high for step in steps] == pytest.approx([0.2, 0.2, 0.3, 0.3])  # type: ignore[union-attr]
    assert [step.kl_coef for step in steps] == pytest.approx([0.1, 0.05, 0.0, 0.0])
    assert [step.loss.entropy_coef for step in steps] == pytest.approx([0.0, 0.0, 0.01, 0.01])
    assert steps[0].loss.aggregation == rl.loss.aggregation and rl.at_step(3) != rl.at_step(2)
    assert Rl().at_step(7) == Rl()


def test_a_run_goes_by_its_schedules(tmp_path: Path) -> None:
    """The sampler's temperature is the update's: the ratio is 1 at every step. A resumed run has the same rows."""
    params = changed(short_rl(lr=2e-3), steps=4, checkpoint_every=1, kl={"coef": 0.1}, schedules=EVERYTHING)
    _, rows, _ = run(params, tmp_path / "whole")
    assert [row["ratio/max"] for row in rows] == pytest.approx([1.0] * 4, abs=1e-4)
    assert [row["response_length_max"] for row in rows] == [4, 4, 6, 10]
    assert [row["kl_coef"] for row in rows] == pytest.approx([0.1, 0.05, 0.0, 0.0])
    assert ["kl" in row for row in rows] == [True, True, False, False], "no reference is asked where it has no weight"
    assert [row["schedule/temperature"] for row in rows] == pytest.approx([1.0, 0.9, 0.8, 0.7])
    assert [row["schedule/max_tokens"] for row in rows] == [4, 4, 6, 10]
    entropies = [row["entropy"] for row in rows]
    assert entropies[3] < entropies[0] - 0.005, "softmax at a lower temperature"
    with pytest.raises(Killed):
        run(params, tmp_path / "parts", last=2)
    assert run(params, tmp_path / "parts")[1] == rows


def test_a_solution_is_imitated_from_the_step_on_that_has_room_for_it() -> None:
    """Responses have first eight tokens, which no solution has with its answer, then more than any."""
    solved = [problem.with_(solution=problem.question) for problem in PROBLEMS]
    params = changed(short_rl(), steps=3, max_tokens=24, schedules={"max_tokens": jump(8, 24)})
    plain, imitated = (run(each, problems=solved)[1] for each in (params, changed(params, imitation="luffy")))
    assert imitated[:2] == plain[:2] and imitated[2]["grad_norm"] != plain[2]["grad_norm"]


def test_the_rewards_weights_move() -> None:
    parts = [{"type": "accuracy"}, {"type": "overlong", "weight": 0.25, "options": {"max_length": 8, "buffer": 8}}]
    params = changed(short_rl(), steps=3, max_tokens=8, schedules={"reward_weights": {"overlong": jump(0.5, 2.0)}})
    _, rows, _ = run(params, reward=build_reward({"parts": parts}, processes=1))
    assert [row["reward/overall"] - row["reward/accuracy"] for row in rows] == pytest.approx(
        [weight * row["reward/overlong"] for weight, row in zip([0.5, 0.5, 2.0], rows, strict=True)], abs=1e-6
    )
    assert all(row["reward/overlong"] < -0.1 for row in rows)
    assert [row["schedule/reward_weights/overlong"] for row in rows] == [0.5, 0.5, 2.0]
    wrong = changed(params, schedules={"reward_weights": {"over": jump(0, 1)}})
    with pytest.raises(UserError, match="no reward part 'over'; there are: accuracy, overlong"):
        run(wrong, reward=build_reward({"parts": parts}, processes=1))


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"schedules": {"temperature": jump(1, 0)}}, "schedules.temperature: 0 is not within 0.01"),
        ({"schedules": {"max_tokens": jump(512, 2048)}}, "schedules.max_tokens: 2048 is not within 1 and 1024"),
        ({"schedules": {"max_tokens": [jump(1, 2), jump(2, 3)]}}, "in the order of their `after`"),
        ({"schedules": {"low": jump(0.2, 1.5)}}, "schedules.low: 1.5"),
        ({"schedules": {"low": jump(0.2, 0.1)}, "loss": "reinforce"}, "loss reinforce has no low"),
        ({"schedules": {"kl_coef": jump(0.2, 0.1)}}, "schedules.kl_coef needs kl"),
        ({"schedules": {"kl_coef": jump(0.2, 0.1)}, "kl": {"controller": {}}}, "leave one out"),
        ({"schedules": {"entropy_coef": jump(0, 1)}, "loss": {"entropy_controller": {}}}, "leave one out"),
        ({"schedules": {"reward_weights": {"a": jump(0, 1)}}, "advantage": "gdpo"}, "advantage.weights"),
        ({"schedules": {"temperature": jump(1, 0.5)}, "asynchronous": {}}, "set asynchronous null"),
        ({"schedules": {"heat": jump(1, 0.5)}}, "heat"),
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any], what: str) -> None:
    with pytest.raises(ValidationError) as error:
        Rl(**settings)
    assert what in str(error.value)
