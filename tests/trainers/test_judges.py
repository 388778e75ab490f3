"""Who judges beside the rule: scores of responses and steps, continuations, and what A3 makes of them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mathrl.compose import load_params
from mathrl.core.types import Completion, Graded
from mathrl.grading import Verdict
from mathrl.learners.distributed import Ranks
from mathrl.models.prepared import Prepared, compute_as
from mathrl.params.run import Judge
from mathrl.params.train import Rl
from mathrl.rewards.compose import RewardInput, RewardResult
from mathrl.rollout.sampler import Sampler
from mathrl.trainers import judges
from mathrl.trainers.judges import (
    continuations_judge,
    open_judge,
    process_judge,
    reward_model_judge,
    scale_scores,
    with_steps,
)
from mathrl.trainers.rollouts import RolloutGroup
from tests.trainers.small import scored_batch

TEXTS = (("1+1=2;2", "3"), ("1;2;3", "4+4"))
CUT = ((False, True), (False, False))


@pytest.fixture
def scorer(scorer: Any) -> Any:
    """With the scale of its training set."""
    scorer.config.reward_mean, scorer.config.reward_std = 0.5, 2.0
    return scorer


@pytest.fixture
def groups(small: Any) -> list[RolloutGroup]:
    """Two problems with two responses each; those that ended have the end token."""
    encode, end = small.TOKENIZER.encode, small.TOKENIZER.eos_token_id
    made = []
    for number, (texts, cut) in enumerate(zip(TEXTS, CUT, strict=True)):
        responses = tuple((*encode(text), *(() if short else (end,))) for text, short in zip(texts, cut, strict=True))
        made.append(
            RolloutGroup(
                problem=number,
                prompt=tuple(encode(small.PROBLEMS[number].question)),
                responses=responses,
                logprobs=tuple((-1.0,) * len(each) for each in responses),
                rewards=(1.0, 0.25),
                correct=(True, False),
                truncated=cut,
                parts=({"accuracy": 1.0}, {"accuracy": 0.0}),
            )
        )
    return made


def score_after(scorer: Any, group: RolloutGroup, response: int, place: int) -> float:
    """By a plain forward that ends with the token at `place`."""
    ids = [*group.prompt, *group.responses[response][: place + 1]]
    return float(scorer(input_ids=torch.tensor([ids])).logits[0, -1, 0].detach())


def standard(score: float) -> float:
    return (score - 0.5) / 2.0


@pytest.mark.parametrize("budget", [16, 4096])
def test_a_response_gets_its_last_score_plus_the_weighted_rule_and_0_if_cut_off(
    scorer: Any, groups: list[RolloutGroup], small: Any, budget: int
) -> None:
    how = Judge(scale="standard", rule_weight=0.5)
    found = reward_model_judge(scorer, how, small.TOKENIZER.eos_token_id, budget)(groups)
    for group, given in zip(found, groups, strict=True):
        for n, (response, cut) in enumerate(zip(given.responses, given.truncated, strict=True)):
            score = 0.0 if cut else standard(score_after(scorer, given, n, len(response) - 1))
            assert group.rewards[n] == pytest.approx(score + 0.5 * given.rewards[n], abs=2e-3)
            assert group.parts[n] == {**given.parts[n], "reward_model": pytest.approx(score, abs=2e-3)}
        assert group == replace(given, rewards=group.rewards, parts=group.parts), "the rest is as it was"
    # The sum is of four different scores; the one that was cut off would not have scored 0.
    assert len({round(reward, 3) for group in found for reward in group.rewards}) == 4
    assert abs(standard(score_after(scorer, groups[0], 1, 0))) > 0.01


def test_without_a_weight_the_rule_has_no_part_in_the_reward(
    scorer: Any, groups: list[RolloutGroup], small: Any
) -> None:
    judge = reward_model_judge(scorer, Judge(), small.TOKENIZER.eos_token_id, 4096)
    found = judge([replace(group, rewards=(9.0, 9.0)) for group in groups])
    assert [group.rewards for group in found] == [group.rewards for group in judge(groups)]
    assert judge([]) == []
    compute_as(scorer, Prepared(packed=False))  # padded, an end token follows, which is one of the vocabulary
    padded = judge(groups)
    for one, other in zip(padded, judge(groups), strict=True):
        assert one.rewards == other.rewards


@pytest.mark.parametrize(("packed", "budget"), [(True, 16), (False, 4096)])
def test_steps_get_the_scores_after_their_last_tokens(
    scorer: Any, groups: list[RolloutGroup], small: Any, packed: bool, budget: int
) -> None:
    if not packed:  # then an end token follows, which is one of the vocabulary
        compute_as(scorer, Prepared(packed=False))
    found = process_judge(scorer, Judge(scale="raw"), small.TOKENIZER, "semicolon", budget)(groups)
    # "1+1=2;2" and the end; "3", cut off; "1;2;3" and the end; "4+4" and the end.
    assert [group.step_ends for group in found] == [((5, 7), (0,)), ((1, 3, 5), (3,))]
    for group, given in zip(found, groups, strict=True):
        for n, ends in enumerate(group.step_ends):
            scores = [score_after(scorer, given, n, end) for end in ends]
            if given.truncated[n]:
                scores[-1] = 0.0
            assert group.step_rewards[n] == pytest.approx(scores, abs=2e-3)
            assert group.parts[n]["steps"] == pytest.approx(sum(scores) / len(scores), abs=2e-3)
        assert group.rewards == given.rewards and group.correct == given.correct
    one_off = score_after(scorer, groups[0], 0, 4)
    assert abs(found[0].step_rewards[0][0] - one_off) > 0.05


def test_step_rewards_become_the_advantages_of_section_4_1_3(small: Any, groups: list[RolloutGroup]) -> None:
    """Each process reward of the group minus their mean, over their deviation; summed over later steps."""
    group = with_steps(groups[0], [(5, 7), (0,)], [[1.0, 0.25], [0.75]])  # the cut one's becomes 0
    params = Rl(advantage={"type": "process", "ddof": 0, "eps": 0.0})
    batch, _ = scored_batch([group], params, Ranks(torch.device("cpu")), small.policy()[0])
    rewards = [1.0, 0.25, 0.0]
    mean = sum(rewards) / 3
    deviation = (sum((r - mean) ** 2 for r in rewards) / 3) ** 0.5
    first, second, cut = ((r - mean) / deviation for r in rewards)
    expected = [first + second] * 6 + [second] * 2 + [cut]
    assert batch.advantages_N.tolist() == pytest.approx(expected, abs=1e-6)
    assert expected[5] != expected[6]


def test_scales() -> None:
    class Config:
        reward_mean, reward_std, reward_logits = 1.0, 2.0, False

    scores = torch.tensor([1.0, 3.0])
    assert scale_scores(scores, "raw", Config) is scores
    assert scale_scores(scores, "standard", Config).tolist() == [0.0, 1.0]
    assert scale_scores(scores, "standard", object()).tolist() == scores.tolist(), "of a model without statistics"
    assert scale_scores(scores, "sigmoid", Config).tolist() == pytest.approx([0.5, 0.7310586])
    Config.reward_logits = True  # of a process reward model: its zero is between right and wrong
    assert scale_scores(scores, "sigmoid", Config).tolist() == pytest.approx([0.7310586, 0.9525741])
    assert scale_scores(scores, "standard", Config).tolist() == [1.0, 3.0]
    Config.reward_logits, Config.reward_std = False, 0.0
    assert torch.isfinite(scale_scores(scores, "standard", Config)).all()


class Scripted(Sampler):
    """Continuations with known ends instead of sampled ones; what it was asked for is kept."""

    def __init__(self, real: Sampler, outcomes: Sequence[Sequence[tuple[bool, str]]]) -> None:
        super().__init__(real.engine, real.tokenizer, real.prompt)
        self.outcomes, self.asked = list(outcomes), list[tuple[str, tuple[int, ...]]]()

    def sample(self, problems: Any, sampling: Any, reward: Any, seed: int, on_progress: Any = None) -> Any:
        self.asked += [(problem.id, problem.control.begun) for problem in problems]
        self.sampling = sampling
        return [
            [
                Graded(problem.id, Completion((1,), (0.0,), "", reason), right, float(right), {}, None, "none")
                for right, reason in rows
            ]
            for problem, rows in zip(problems, self.outcomes, strict=True)
        ]


def test_a_judge_is_opened_with_all_that_the_parameters_say(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []
    for name in ("load_scorer", "build_reward", "reward_model_judge", "process_judge", "continuations_judge"):
        monkeypatch.setattr(judges, name, lambda *given, name=name: asked.append((name, *given)) or name)
    _, sampler = small.policy()
    overrides = ["reward.judge.continuations=1", "reward.steps=semicolon", "run.seed=5", "rl.tokens_per_microbatch=99"]
    params = load_params(Path(__file__).parents[2] / "params", overrides=overrides)
    rl, judge, device, problems = params.rl, params.reward.judge, torch.device("cpu"), small.PROBLEMS

    def opened(**folders: Path) -> Any:
        asked.clear()
        return open_judge(params, rl, sampler, problems, device, folders)

    one, two, end = Path("one"), Path("two"), small.TOKENIZER.eos_token_id
    assert opened(reward_model=one, process_reward_model=two) == "reward_model_judge" and asked == [
        ("load_scorer", one, params.model, device),
        ("reward_model_judge", "load_scorer", judge, end, 99),
    ]
    assert opened(process_reward_model=two, teacher=one) == "process_judge" and asked == [
        ("load_scorer", two, params.model, device),
        ("process_judge", "load_scorer", judge, small.TOKENIZER, "semicolon", 99),
    ]
    assert opened(teacher=one) == "continuations_judge" and asked == [
        ("build_reward", params.reward),
        ("continuations_judge", sampler, problems, "build_reward", rl, judge, "semicolon", 5),
    ]
    params = load_params(Path(__file__).parents[2] / "params")
    assert opened() is None and asked == []


def test_a_step_is_worth_the_share_of_its_continuations_that_come_out_right(
    small: Any, groups: list[RolloutGroup]
) -> None:
    """A continuation that was cut off counts as wrong; the last step is as right as the response."""
    yes, no, cut = (True, "stop"), (False, "stop"), (True, "length")
    sampler = Scripted(small.policy()[1], [[yes, no, yes, yes], [no, no, cut, yes], [cut, cut, cut, cut]])
    params = Rl(max_tokens=9, temperature=0.8)
    how = Judge(continuations=4)
    judge = continuations_judge(sampler, small.PROBLEMS, small.CountsOnes(), params, how, "semicolon", seed=1)
    found = judge(groups)
    one, two = (group.responses[0] for group in groups)
    assert sampler.asked == [("p1", tuple(one[:6])), ("p2", tuple(two[:2])), ("p2", tuple(two[:4]))]
    assert (sampler.sampling.samples, sampler.sampling.temperature) == (4, 0.8)
    assert found[0].step_rewards == ((0.75, 1.0), (0.0,)) and found[0].step_ends == ((5, 7), (0,))
    assert found[1].step_rewards == ((0.25, 0.0, 1.0), (0.0,))
    assert found[1].parts[0]["steps"] == pytest.approx(1.25 / 3)


def test_continuations_go_on_from_the_steps_end_and_are_graded_whole(small: Any, groups: list[RolloutGroup]) -> None:
    """A reward that looks at the begun text alone gives each prefix 1 or 0, whatever is sampled after it."""
    seen: list[str] = []

    class BegunWithTwo(small.CountsOnes):  # type: ignore[name-defined, misc]
        def score(self, items: Sequence[RewardInput]) -> list[RewardResult]:
            seen.extend(item.response for item in items)
            verdict = Verdict(False, None, "none", "", 0.0)
            return [RewardResult(0.0, item.response.startswith("1;2;"), {}, verdict) for item in items]

    _, sampler = small.policy()
    model_ends = sampler.engine.ends
    sampler.engine.ends = list(range(64))  # every token ends a continuation, so that none is cut off
    params, how = Rl(max_tokens=4), Judge(continuations=3)
    judge = continuations_judge(sampler, small.PROBLEMS, BegunWithTwo(), params, how, "semicolon", 0)
    found = judge(groups)
    sampler.engine.ends = model_ends
    assert len(seen) == 9 and all(text.startswith("1+1=2;") for text in seen[:3])
    assert all(text.startswith("1;") for text in seen[3:6])
    assert found[0].step_rewards == ((0.0, 1.0), (0.0,))
    assert found[1].step_rewards[0][1:] == (1.0, 1.0)
