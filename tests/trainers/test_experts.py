"""What is imitated beside the advantages: LUFFY's expert in the group, CHORD's SFT loss, VAPO's right samples."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from tokenizers.processors import TemplateProcessing

from mathrl.core.errors import UserError
from mathrl.core.types import Control
from mathrl.learners.distributed import Ranks
from mathrl.learners.torch_learner import TorchLearner
from mathrl.models.logprobs import response_logprobs
from mathrl.params.optimizer import Muon
from mathrl.params.run import Prompt
from mathrl.params.train import Rl
from mathrl.rewards.compose import RewardInput, RewardResult
from mathrl.rollout.sampler import Sampler
from mathrl.trainers.batch import advantages_with_experts
from mathrl.trainers.collect import Collector
from mathrl.trainers.experts import expert_groups, expert_tokens, shown_groups, shown_prompt
from mathrl.trainers.policy_update import UpdateFigures, update_gradient
from mathrl.trainers.rollouts import RolloutGroup, with_experts
from tests.trainers.small import PROBLEMS, TOKENIZER, CountsOnes, changed, policy, rollouts, run, scored_batch, short_rl

CPU = Ranks(torch.device("cpu"))
SOLVED = [problem.with_(solution=f"{problem.question}{problem.answers[0]}") for problem in PROBLEMS]
Logprobs = torch.Tensor


def experts_of(model: Any, groups: list[RolloutGroup], reward: float = 1.0) -> list[RolloutGroup]:
    """Expert responses of the first two groups' problems, one of them right, with the policy's log-probs."""
    experts = []
    for number in (0, 1):
        tokens = TOKENIZER.encode(f"{number + 7}=3")
        group = replace(
            groups[number].some(0, 1), responses=(tokens,), rewards=(reward,), correct=(True,), truncated=(False,),
            expert=True,
        )  # fmt: skip
        with torch.no_grad():
            values = response_logprobs(model, [group.group], 1.0)[0]
        experts.append(replace(group, logprobs=(values.numpy(),)))
    return experts


def gradient(model: Any, groups: list[RolloutGroup], params: Rl) -> tuple[torch.Tensor, UpdateFigures]:
    learner = TorchLearner(model, Muon(lr=1e-3), 10)
    figures = update_gradient(learner, params, scored_batch(groups, params, CPU, model)[0], 0.0)
    return learner.flat.gradients.clone(), figures


def by_hand(model: Any, groups: list[RolloutGroup], loss_of: Any) -> torch.Tensor:
    """The gradient of `loss_of` the log-probs of all tokens."""
    learner = TorchLearner(model, Muon(lr=1e-3), 10)
    loss_of(response_logprobs(model, [group.group for group in groups], 1.0)[0]).backward()
    return learner.flat.gradients.clone()


def test_an_expert_is_compared_within_its_group() -> None:
    """The first group has rewards 1 and 0, its expert 1: mean 2/3. The second 0 and 0, its expert 1: mean 1/3."""
    shared: Any = {"prompt": (7,), "truncated": (False,) * 2, "parts": ({}, {}), "logprobs": ((-0.1,),) * 2}
    sampled = [
        RolloutGroup(problem=4, responses=((5,), (3,)), rewards=(1.0, 0.0), correct=(True, False), **shared),
        RolloutGroup(problem=9, responses=((5,), (3,)), rewards=(0.0, 0.0), correct=(False, False), **shared),
        RolloutGroup(problem=2, responses=((5,), (3,)), rewards=(0.0, 1.0), correct=(False, True), **shared),
    ]
    experts = [replace(group.some(0, 1), rewards=(1.0,), expert=True) for group in (sampled[1], sampled[0])]
    merged, places = with_experts([*sampled, *experts])
    assert [len(group.rewards) for group in merged] == [3, 3, 2] and places == [0, 1, 7, 2, 3, 6, 4, 5]
    found = advantages_with_experts([*sampled, *experts], Rl(advantage="dr_grpo").advantage)  # type: ignore[arg-type]
    thirds = [1 / 3, -2 / 3, -1 / 3, -1 / 3, -1 / 2, 1 / 2, 2 / 3, 1 / 3]
    assert found.tolist() == pytest.approx(thirds, abs=1e-6)


def test_luffys_expert_has_a_shaped_gradient_and_no_clip() -> None:
    """Against a loss written out: -A on-policy, -A p / (p + 0.1) for experts, over the tokens of both."""
    model, sampler = policy()
    sampled = rollouts(model, sampler)
    groups = [*sampled, *experts_of(model, sampled)]
    params = Rl(imitation="luffy", advantage="dr_grpo", tokens_per_microbatch=16, loss={"skip_zero_variance": False})  # type: ignore[arg-type]
    found, figures = gradient(model, groups, params)
    advantages_N = advantages_with_experts(groups, params.advantage).repeat_interleave(
        torch.tensor([length for group in groups for length in group.lengths])
    )
    own = sum(sum(group.lengths) for group in sampled)

    def loss(logprobs_N: Logprobs, shaped: bool = True) -> torch.Tensor:
        ratio_N = (logprobs_N - logprobs_N.detach()).exp()
        p_N = logprobs_N.exp()
        expert_N = p_N / (p_N + 0.1) if shaped else p_N
        surrogate_N = torch.cat([ratio_N[:own], expert_N[own:]])
        return -(surrogate_N * advantages_N).mean()

    expected = by_hand(model, groups, loss)
    assert torch.allclose(found, expected, atol=1e-6) and expected.norm() > 1e-3
    assert not torch.allclose(found, by_hand(model, groups, lambda logprobs_N: loss(logprobs_N, False)), atol=1e-4)
    assert figures.imitated == 0 and figures.ratio_max == pytest.approx(1, abs=1e-4)
    unlikely = [replace(expert, logprobs=(expert.logprobs[0] - 2,)) for expert in groups[-2:]]
    assert gradient(model, [*sampled, *unlikely], params)[1].clipped == 0, "what has no clip is not counted"


@pytest.mark.parametrize("weigh", ["alike", "phi"])
def test_chords_sft_loss_takes_its_share_of_the_policys(weigh: str) -> None:
    """0.7 x the policy loss without experts and 0.3 x the mean -log p, or -p (1 - p) log p, of the experts' tokens."""
    model, sampler = policy()
    sampled = rollouts(model, sampler)
    groups, own = [*sampled, *experts_of(model, sampled)], sum(sum(group.lengths) for group in sampled)
    imitation = {"type": "sft", "coef": 0.3, "weigh": weigh}
    params = Rl(advantage="dr_grpo", imitation=imitation, tokens_per_microbatch=16)  # type: ignore[arg-type]
    found, figures = gradient(model, groups, params)
    plain, _ = gradient(model, sampled, Rl(advantage="dr_grpo"))  # type: ignore[arg-type]

    def loss(logprobs_N: Logprobs) -> torch.Tensor:
        p_N = logprobs_N.detach().exp()
        return -((p_N * (1 - p_N) if weigh == "phi" else 1.0) * logprobs_N)[own:].mean()

    expected = 0.7 * plain + 0.3 * by_hand(model, groups, loss)
    assert torch.allclose(found, expected, atol=1e-6) and (found - plain).norm() > 0.1 * plain.norm()
    assert figures.imitated == sum(sum(group.lengths) for group in groups[4:])
    assert figures.tokens == sum(sum(group.lengths) for group in sampled if group.problem % 2), (
        "the policy loss's alone"
    )


def test_vapos_right_samples_have_a_likelihood_too() -> None:
    """0.2 x the mean -log p of the tokens of right responses, beside the whole policy loss."""
    model, sampler = policy()
    groups = rollouts(model, sampler)
    params = Rl(imitation={"type": "own", "coef": 0.2})  # type: ignore[arg-type]
    found, figures = gradient(model, groups, params)
    plain, _ = gradient(model, groups, Rl())
    right_N = torch.tensor(
        [
            right
            for group in groups
            for right, length in zip(group.correct, group.lengths, strict=True)
            for _ in range(length)
        ]
    )
    expected = plain + 0.2 * by_hand(model, groups, lambda logprobs_N: -logprobs_N[right_N].mean())
    assert torch.allclose(found, expected, atol=1e-6) and (found - plain).norm() > 0.1 * plain.norm()
    assert figures.imitated == right_N.sum() and 0 < right_N.sum() < len(right_N)


def test_a_coefficient_that_falls_to_zero_ends_the_imitation() -> None:
    ramp = {"type": "sft", "coef": {"start": 0.5, "end": 0.0, "steps": 1}}
    few = changed(short_rl(steps=2), prompts_per_step=2, group_size=2, max_tokens=24, imitation=ramp)
    _, rows, _ = run(few, problems=SOLVED)
    assert ["imitation/nll" in row for row in rows] == [True, False]


def test_the_teacher_of_self_distillation_is_the_policy_that_reads_the_solution() -> None:
    model, sampler = policy()
    groups = rollouts(model, sampler)
    params = Rl(advantage={"type": "self_distillation", "hint": "{question}{solution};{question}"})  # type: ignore[arg-type]
    order: Any = None
    collector = Collector(sampler, SOLVED, [], order, CountsOnes(), None, params, CPU)
    shown = shown_groups(groups, collector)
    assert TOKENIZER.decode(shown[1].prompt) == "2+2=2+2=4;2+2=" and shown[1].lengths == groups[1].lengths
    answered = replace(collector, problems=PROBLEMS)
    assert TOKENIZER.decode(shown_groups(groups, answered)[1].prompt) == "2+2=4;2+2=", "the answer, without a solution"
    batch, _ = scored_batch(groups, params, CPU, model, shown=shown)
    with torch.no_grad():
        seen_N, own_N = (response_logprobs(model, [group.group for group in each], 1.0)[0] for each in (shown, groups))
    assert torch.allclose(batch.advantages_N, seen_N - own_N, atol=1e-5) and batch.advantages_N.abs().max() > 1e-2
    assert shown_groups(groups, replace(collector, params=Rl())) == []
    for problem, what in (
        (PROBLEMS[0].with_(answers=()), "neither a solution nor an answer"),
        (PROBLEMS[0].with_(control=Control(templated=True)), "a prompt that is templated already"),
    ):
        with pytest.raises(UserError, match=f"problem p1 has {what}, so that nothing can be shown"):
            shown_groups(groups[:1], replace(collector, problems=[problem]))
    with pytest.raises(ValidationError, match=r"hint must have \{question\} and \{solution\}"):
        Rl(advantage={"type": "self_distillation", "hint": "{question}"})  # type: ignore[arg-type]


class Remembering(CountsOnes):
    """Keeps what it is asked to score, and how often its counters are read."""

    def __init__(self) -> None:
        super().__init__()
        self.items: list[RewardInput] = []
        self.reads = 0

    def score(self, items: Sequence[RewardInput]) -> list[RewardResult]:
        self.items += items
        return super().score(items)

    def counters(self) -> dict[str, float]:
        self.reads += 1
        return super().counters()


@pytest.mark.parametrize("imitation", ["luffy", "sft"])
def test_an_expert_is_the_solution_as_a_response_with_the_policys_log_probs(imitation: Any) -> None:
    """One problem has a solution, one none, one a policy's response, one a solution that is too long."""
    model, sampler = policy()
    groups, end, order, reward = rollouts(model, sampler), TOKENIZER.eos_token, None, Remembering()
    problems = [
        SOLVED[0].with_(solution=f"1+{end}1"),
        PROBLEMS[1],
        PROBLEMS[2].with_(control=Control(response=f"3+{end}1=")),
        SOLVED[3].with_(solution="8" * 60),
    ]
    calls: list[list[RolloutGroup]] = []

    def score(experts: Sequence[RolloutGroup]) -> Logprobs:
        calls.append(list(experts))
        return torch.arange(float(sum(len(expert.responses[0]) for expert in experts)))

    collector = Collector(sampler, problems, [], order, reward, None, Rl(imitation=imitation, max_tokens=50), CPU)  # type: ignore[arg-type]
    found = expert_groups(groups, collector, score)
    assert [(expert.problem, expert.prompt) for expert in found] == [(n, groups[n].prompt) for n in (0, 2)]
    solution, response = (expert.responses[0].tolist() for expert in found)
    assert response == [*TOKENIZER.encode(f"3+{end}1="), TOKENIZER.eos_token_id] and len(response) == 6
    assert solution.index(TOKENIZER.eos_token_id) == len(solution) - 1, "a solution spells no control token"
    assert np.concatenate([expert.logprobs[0] for expert in found]).tolist() == list(range(len(solution) + 6))
    for expert in found:
        others = (expert.truncated, expert.parts, expert.repeated, expert.caught, expert.left_out, expert.expert)
        assert others == ((False,), ({},), (0.0,), ("",), (False,), True)
    (scored,) = calls
    assert not any(expert.logprobs[0].any() for expert in scored) and scored[0].rewards == found[0].rewards
    verdicts = [(expert.rewards, expert.correct) for expert in found]
    if imitation == "luffy":
        texts = [TOKENIZER.decode(ids, skip_special_tokens=True) for ids in (solution, response)]
        sizes = [(len(ids), 50, False) for ids in (solution, response)]
        asked = [(item.response, (item.length, item.max_length, item.truncated)) for item in reward.items]
        assert asked == list(zip(texts, sizes, strict=True)) and texts[1] == "3+1=" and reward.reads == 1
        assert [item.ground_truth for item in reward.items] == [("2",), ("6",)]
        expected = [result.overall for result in CountsOnes().score(reward.items)]
        assert verdicts == [((value,), (value > 0.04,)) for value in expected] and expected[1] == 1 / 6
    else:
        assert verdicts == 2 * [((0.0,), (True,))] and not reward.items and not reward.reads
    for most, count in ((len(solution), 2), (len(solution) - 1, 1)):
        shorter = replace(collector, params=changed(collector.params, max_tokens=most))
        assert len(expert_groups(groups, shorter, score)) == count
    assert expert_groups(groups, replace(collector, params=Rl(imitation="own")), score) == []  # type: ignore[arg-type]
    assert expert_groups(groups, replace(collector, problems=PROBLEMS), score) == [] and len(calls) == 3


def test_an_expert_goes_on_after_the_prefix_by_tokens_that_are_its_own() -> None:
    """The prompt has the prefix already; a tokenizer that begins each text with a special token does so there alone."""
    begins = copy.deepcopy(TOKENIZER)
    end = TOKENIZER.eos_token
    begins._tokenizer.post_processor = TemplateProcessing(f"{end} $A", None, [(end, TOKENIZER.eos_token_id)])
    assert begins.encode("1") == [TOKENIZER.eos_token_id, *TOKENIZER.encode("1")]
    sampler = Sampler(policy()[1].engine, begins, Prompt(response_prefix="<think>"))
    order: Any = None
    collector = Collector(sampler, SOLVED, [], order, CountsOnes(), None, Rl(imitation="luffy"), CPU)  # type: ignore[arg-type]
    rest = TOKENIZER.encode("1+1=2</think><answer>2</answer>")
    assert expert_tokens(SOLVED[0], collector) == [*rest, TOKENIZER.eos_token_id]


def test_a_shown_prompt_ends_with_the_prefix_and_may_show_a_policys_response() -> None:
    params = Rl(advantage={"type": "self_distillation", "hint": "{question}{solution};{question}"})  # type: ignore[arg-type]
    order: Any = None
    sampler = Sampler(policy()[1].engine, TOKENIZER, Prompt(response_prefix="3"))
    collector = Collector(sampler, PROBLEMS, [], order, CountsOnes(), None, params, CPU)
    for control, shown in ((Control(), "2"), (Control(response="9"), "9")):
        prompt = shown_prompt(PROBLEMS[0].with_(control=control), params.advantage, collector)  # type: ignore[arg-type]
        assert TOKENIZER.decode(prompt) == f"1+1={shown};1+1=3"
    taught = replace(collector, sampler=Sampler(sampler.engine, TOKENIZER, Prompt(), SOLVED[1:2]))
    text = TOKENIZER.decode(shown_prompt(PROBLEMS[0], params.advantage, taught))  # type: ignore[arg-type]
    assert "2+2=4" in text and text.endswith("1+1=2;1+1="), "after the examples"
    chat = copy.deepcopy(TOKENIZER)
    mark = "{% if message['role'] == 'user' %}={% endif %}"
    chat.chat_template = "{% for message in messages %}" + mark + "{{ message['content'] }};{% endfor %}"
    turns = tuple(
        {"role": role, "content": text} for role, text in (("system", "7"), ("assistant", "9"), ("user", "8+"))
    )
    asked = replace(collector, sampler=Sampler(sampler.engine, chat, Prompt(template="chat")))
    prompt = shown_prompt(PROBLEMS[0].with_(control=Control(messages=turns)), params.advantage, asked)  # type: ignore[arg-type]
    assert chat.decode(prompt) == "7;9;=8+2;8+;"


def test_what_imitation_cannot_go_with_is_refused() -> None:
    for settings, message in (
        ({"imitation": "sft", "advantage": "rft"}, "imitation sft needs advantage grpo, dr_grpo or rloo, not rft"),
        ({"imitation": "luffy", "kl": {"type": "reward"}}, "set kl.type loss, or kl null"),
        ({"imitation": "luffy", "loss": "gspo"}, "needs a loss per token, not gspo"),
    ):
        with pytest.raises(ValidationError, match=message):
            Rl(**settings)  # type: ignore[arg-type]
    Rl(imitation="own", advantage="gae", group_size=1)  # type: ignore[arg-type]
