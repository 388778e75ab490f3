from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mathrl.core.types import Completion, Problem
from mathrl.models.base import character_tokenizer
from mathrl.params.rollout import Rollout
from mathrl.params.run import FreshModel, Prompt
from mathrl.rewards.compose import build_reward
from mathrl.rollout.engine import Sampling
from mathrl.rollout.sample_problems import sample_problems
from mathrl.rollout.sampler import Sampler
from tests.rollout.no_engine import NO_ENGINE

TOKENIZER = character_tokenizer(FreshModel())


class Scripted:
    """An engine that says the same two things to every prompt."""

    def __init__(self, *texts: str) -> None:
        self.rollout, self.texts, self.seen = Rollout(), texts, []  # type: ignore[var-annotated]

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seed: int,
        on_progress: Callable[[int], None] | None = None,
    ) -> list[list[Completion]]:
        self.seen = [TOKENIZER.decode(list(prompt)) for prompt in prompts]
        return [[Completion((5, 6), (-0.1, -0.2), text, "stop") for text in self.texts] for _ in prompts]


def problem(number: int, question: str = "7+5=") -> Problem:
    return Problem(id=f"p{number}", question=question, answers=("12",), source="chain", split="rl")


def test_grades_and_keeps_the_order() -> None:
    engine = Scripted("<think>x</think><answer>12</answer>", "<answer>13</answer>")
    sampler = Sampler(engine, TOKENIZER, Prompt())
    groups = sampler.sample([problem(0), problem(1)], Sampling(2, 1.0, 8), build_reward(), seed=0)
    assert [[each.correct for each in group or []] for group in groups] == [[True, False]] * 2
    assert [group[0].problem_id for group in groups if group] == ["p0", "p1"]
    assert groups[0] is not None and groups[0][0].reward == 1.0 and groups[0][1].extracted == "13"
    assert engine.seen == ["7+5=", "7+5="]


def test_too_long_prompts_are_dropped_and_counted() -> None:
    sampler = Sampler(Scripted("<answer>12</answer>"), TOKENIZER, Prompt(max_tokens=6))
    groups = sampler.sample([problem(0, "1+2+3+4="), problem(1)], Sampling(1, 1.0, 8), build_reward(), 0)
    assert groups[0] is None and groups[1] is not None
    assert sampler.dropped == 1


def test_a_response_prefix_is_given_to_the_model_and_graded_with_the_response() -> None:
    engine = Scripted("12</answer>")
    sampler = Sampler(engine, TOKENIZER, Prompt(response_prefix="<answer>"))
    groups = sampler.sample([problem(0)], Sampling(1, 1.0, 8), build_reward({"extraction": "strict"}), 0)
    assert engine.seen == ["7+5=<answer>"]
    assert groups[0] is not None and groups[0][0].correct
    assert groups[0][0].completion.tokens.tolist() == [5, 6]


def test_samples_are_kept_for_the_same_call_alone(small: Any, tmp_path: Path) -> None:
    _, sampler = small.policy()

    def sample(state: Path | None, **changes: Any) -> Any:
        given = {"problems": small.PROBLEMS[:3], "sampling": Sampling(2, 1.0, 6), "seed": 0, "name": "x", **changes}
        return sample_problems(sampler, reward=small.CountsOnes(), state=state, **given)

    first = sample(tmp_path)
    others: list[dict[str, Any]] = [
        {"seed": 1}, {"name": "y"}, {"problems": small.PROBLEMS[1:4]},
        *({"sampling": sampling} for sampling in (Sampling(3, 1.0, 6), Sampling(2, 0.5, 6), Sampling(2, 1.0, 5))),
    ]  # fmt: skip
    for changes in others:
        assert sample(tmp_path, **changes) == sample(None, **changes) != first, changes
    assert len(list(tmp_path.iterdir())) == 1 + len(others)
    sampler.engine = NO_ENGINE  # nothing is sampled again
    assert sample(tmp_path) == first
