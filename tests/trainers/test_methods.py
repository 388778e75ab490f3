"""The algorithms are settings of one loop: what each does beside its traces (test_golden_traces.py)."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from pydantic import ValidationError

from mathrl.core.errors import OutOfMemory, UserError
from mathrl.learners.sharding import FrozenModel
from mathrl.learners.torch_learner import TorchLearner
from mathrl.params.advantage import Critic, Gae, MaxRl
from mathrl.params.loss import KlController, Masked
from mathrl.params.run import Prompt
from mathrl.params.train import Rl
from mathrl.rollout.sampler import Sampler
from mathrl.trainers import rl, supervised
from mathrl.trainers.batch import response_advantages
from mathrl.trainers.preference import tokenize_pairs
from mathrl.trainers.rollouts import RolloutGroup
from tests.trainers.golden_traces import method
from tests.trainers.supervised_traces import dpo, pairs, reward_model, sft


def test_reward_parts_are_weighed_apart_and_over_time() -> None:
    """Accuracy and a penalty at equal ranges; the penalty's weight falls to 0 within two steps."""
    responses, logprobs = ((5,), (3,), (4,), (6,)), ((-0.1,),) * 4
    values = zip((1.0, 1.0, 0.0, 0.0), (0.0, -0.1, 0.0, -0.1), strict=True)
    parts = tuple({"accuracy": accuracy, "overlong": penalty, "overlong/raw": 9.0} for accuracy, penalty in values)
    correct, rewards = (True, True, False, False), tuple(sum(part.values()) - 9 for part in parts)
    group = RolloutGroup(0, (7,), responses, logprobs, rewards, correct, (False,) * 4, parts)
    rl = Rl(advantage={"type": "gdpo", "eps": 0.0, "weights": {"overlong": {"start": 1.0, "end": 0.0, "steps": 2}}})

    def advantages(step: int) -> list[float]:
        return response_advantages([group], torch.ones(4, dtype=torch.long), None, rl.at_step(step).advantage).tolist()

    one = 0.75**0.5  # (1 - 1/2) / (1 / √3)
    assert advantages(0) == pytest.approx([2 * one, 0, 0, -2 * one], abs=1e-6)
    assert advantages(1) == pytest.approx([1.5 * one, 0.5 * one, -0.5 * one, -1.5 * one], abs=1e-6)
    assert advantages(2) == advantages(9) == pytest.approx([one, one, -one, -one], abs=1e-6)
    wrong = Rl(advantage={"type": "gdpo", "weights": {"length": 0.5}})
    with pytest.raises(UserError, match="no reward part 'length'; there are: accuracy, overlong"):
        response_advantages([group], torch.ones(4, dtype=torch.long), None, wrong.advantage)


def test_max_rl_refuses_negative_rewards_by_name(small: Any) -> None:
    group = RolloutGroup(0, (7,), ((5,), (3,)), ((-0.1,),) * 2, (1.0, -1.0), (True, False), (False,) * 2, ({}, {}))
    with pytest.raises(UserError, match=r"rl\.advantage max_rl needs rewards of at least 0: set reward\.incorrect"):
        response_advantages([group], torch.ones(2, dtype=torch.long), None, MaxRl())


def test_the_greedy_baseline_is_the_reward_without_chance_and_its_tokens_are_counted(small: Any) -> None:
    class Noting(small.CountsOnes):  # type: ignore[name-defined, misc]
        calls: ClassVar[list[list[Any]]] = []

        def score(self, items: Any) -> Any:
            self.calls.append(items)
            return super().score(items)

    noting = Noting()
    result, _, _ = small.run(method("ReMax", steps=1, prompts_per_step=6), reward=noting)
    sampled, greedy = noting.calls
    assert len(sampled) == len(greedy) == 6
    assert result.sampled_tokens == sum(item.length for item in [*sampled, *greedy])
    _, sampler = small.policy()
    by_prompt = {problem.question: problem for problem in small.PROBLEMS}
    chosen = [by_prompt[item.prompt] for item in greedy]
    again = sampler.sample(chosen, small.Sampling(1, 0.0, 8), small.CountsOnes(), 5)
    assert [item.response for item in greedy] == [group[0].completion.text for group in again]


def test_a_judge_replaces_the_rewards_of_each_process(small: Any) -> None:
    def judge(groups: list[Any]) -> list[Any]:
        return [replace(g, rewards=tuple(float(len(r)) for r in g.responses)) for g in groups]

    _, rows, _ = small.run(method("Dr.GRPO", steps=1), judge=judge)
    assert rows[0]["reward/overall"] == pytest.approx(rows[0]["response_length"])
    assert rows[0]["reward/overall"] > 1 and rows[0]["grad_norm"] > 0
    # The greedy baseline is judged too: all are 5, so nothing is left.
    _, rows, _ = small.run(method("ReMax", steps=1), judge=lambda groups: [replace(g, rewards=(5.0,)) for g in groups])
    assert rows[0]["reward/overall"] == 5 and rows[0]["grad_norm"] == 0


def test_a_model_that_is_missing_or_has_no_use_is_named(small: Any) -> None:
    with pytest.raises(UserError, match="there is no teacher"):
        small.run(method("on-policy distillation"))
    with pytest.raises(UserError, match=r"rl\.advantage is grpo"):
        small.run(method("GRPO"), teacher=small.policy()[0])
    with pytest.raises(UserError, match="process reward model"):
        small.run(method("GRPO, process supervision"))


def test_a_problem_without_the_answer_that_the_reward_grades_against_is_named(small: Any) -> None:
    problems = [small.PROBLEMS[0], small.PROBLEMS[1].with_(answers=())]
    with pytest.raises(UserError, match="problem p2 has no answer, which part accuracy of the reward grades against"):
        small.run(method("GRPO", steps=1), problems=problems)


def test_divided_weights_would_be_there_wherever_a_model_runs(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contexts that do nothing for the weights of this backend, and gather those of others."""
    within: Counter[str] = Counter()
    seen: dict[str, list[dict[str, int]]] = {}

    def context(kind: str) -> Any:
        @contextmanager
        def entered(self: Any) -> Iterator[None]:
            name = f"{kind} {getattr(self, 'name', 'frozen')}"
            within[name] += 1
            try:
                yield
            finally:
                within[name] -= 1

        return entered

    def watch(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def watched(*given: Any, **named: Any) -> Any:
            seen.setdefault(name, []).append({key: count for key, count in within.items() if count})
            return real(*given, **named)

        monkeypatch.setattr(owner, name, watched)

    for owner in (TorchLearner, FrozenModel):
        monkeypatch.setattr(owner, "while_scoring", context("scoring"))
    monkeypatch.setattr(TorchLearner, "whole", context("whole"))
    rounded: list[Any] = []
    monkeypatch.setattr("mathrl.trainers.open_rl.keep_rounded_only", rounded.append)
    watch(rl, "score")
    watch(supervised, "evaluate")
    watch(Sampler, "sample")
    changes: dict[str, Any] = {"kl": {"coef": 0.1}, "advantage": "gae", "dev": {"every": 1, "samples": 1}}
    reference = small.policy()[0]
    small.run(method("GRPO", steps=1, **changes), tmp_path, dev=small.PROBLEMS[:1], reference=reference)
    scoring = {"scoring rl": 1, "scoring rl.advantage.critic": 1, "scoring frozen": 1}
    assert seen.pop("score") == [scoring] and seen.pop("sample") == [{"whole rl": 1}] * 2
    assert rounded == [reference]
    small.run(method("GRPO", steps=1, kl={"type": "probe", "groups": 1}), tmp_path / "probe")
    assert seen["score"] == [{"scoring rl": 1, "scoring frozen": 1}]
    (tmp_path / "sft").mkdir()
    sft(tmp_path / "sft")
    assert seen["evaluate"] == [{"scoring sft": 1}] * 2


@pytest.mark.parametrize(
    ("module", "function", "part", "settings", "section"),
    [
        ("scores", "response_logprobs", "log-probs of the policy", {"importance": {"when": "always"}}, "rl"),
        ("scores", "response_logprobs", "log-probs of the reference", {"kl": {"coef": 0.1}}, "rl"),
        ("scores", "response_logprobs", "log-probs of the reference", {"kl": {"type": "probe", "groups": 1}}, "rl"),
        ("scores", "response_logprobs", "log-probs of the teacher", {"advantage": "distillation", "kl": None}, "rl"),
        ("scores", "token_scores", "critic's values", {"advantage": "gae"}, "rl"),
        ("critic", "token_scores", "activations of a micro-batch", {"advantage": "gae"}, "rl"),
        ("policy_update", "response_logprobs", "activations of a micro-batch", {}, "rl"),
        ("sft", "response_logprobs", "activations of a micro-batch", {}, "sft"),
        ("preference", "response_logprobs", "log-probs of the reference", {}, "dpo"),
        ("reward_model", "token_scores", "activations of a micro-batch", {}, "reward_model"),
    ],
)
def test_who_has_no_memory_is_named_with_the_setting_that_helps(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    module: str, function: str, part: str, settings: dict[str, Any], section: str,
) -> None:  # fmt: skip
    def full(*_: Any, **__: Any) -> Any:
        raise MemoryError("you tried to allocate 7 bytes")

    monkeypatch.setattr(f"mathrl.trainers.{module}.{function}", full)
    with pytest.raises(OutOfMemory, match=f"for the {part} .*7 bytes.*: lower {section}.tokens_per_microbatch"):
        if section == "rl":
            teacher = {"teacher": small.policy()[0]} if settings.get("advantage") == "distillation" else {}
            small.run(method("GRPO", **settings), tmp_path, **teacher)
        elif section == "sft":
            sft(tmp_path)
        elif section == "dpo":
            dpo(tmp_path)
        else:
            reward_model(tmp_path, tokenize_pairs(pairs(), Prompt(), small.TOKENIZER))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"advantage": {"critic": Critic()}}, r"advantage\.grpo\.critic"),
        ({"advantage": Gae(critic=Critic(warmup_steps=60)), "steps": 60}, "must be below steps"),
        ({"kl": {"coef": 0.0, "controller": KlController()}}, "controller needs coef above 0"),
        ({"kl": {"type": "reward", "coef": 0.1, "estimator": "k3"}}, r"kl\.reward\.estimator\n +Extra inputs"),
        ({"kl": {"coef": 0.1, "estimator": "k1"}}, "Input should be 'k2', 'k3', "),
        ({"lora": {"dropout": 0.1}}, r"^1 validation error.*\nlora\.dropout\n +Extra inputs"),
        (
            {"advantage": {"type": "gae", "critic": {"lora": {"dropout": 0.1}}}},
            r"critic\.lora\.dropout\n +Extra inputs",
        ),
        ({"kl": {"type": "reward", "coef": 0.1}, "advantage": "rft"}, "no effect on advantage rft"),
        ({"kl": {"type": "reward", "coef": 0.1}, "advantage": "gdpo"}, "no effect on advantage"),
        ({"kl": {"type": "reward", "coef": 0.1}, "advantage": "max_rl"}, "at least 0"),
        (
            {"advantage": {"type": "pass_at_k", "k": 5}, "group_size": 4},
            "at least 5 for advantage pass_at_k: a set has",
        ),
        ({"loss": {"dual": 3.0, "type": "cispo"}}, r"loss\.cispo\.dual\n +Extra inputs"),
        ({"group_size": 1}, "a group of one has no advantage"),
        ({"group_size": 1, "advantage": "reinforce", "dynamic_sampling": {"rounds": 2}}, "at least 2"),
        ({"minibatches": 5}, "a multiple of minibatches"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Rl(**settings)


def test_bounds_of_importance_and_curricula() -> None:
    with pytest.raises(ValidationError, match=r"importance\.low must be below"):
        Masked(low=2.0, high=2.0)
    for order in ("shuffled", "as_given", "easy_to_hard", "pass_rate"):
        assert Rl(curriculum=order).curriculum.type == order  # type: ignore[arg-type]
    assert Rl(group_size=1, advantage="reinforce").group_size == 1


def test_benchmarks_are_measured_at_their_own_steps_and_change_nothing(small: Any) -> None:
    settings: Any = {"steps": 4, "dev": {"every": 2, "export": "best"}, "prompts_per_step": 2, "group_size": 2}
    settings["max_tokens"] = 6
    watched = [{"name": "math500", "every": 3, "samples": 2}, {"name": "data/exam.jsonl", "every": 0}]
    plain, alone, model = small.run(Rl(**settings), dev=small.PROBLEMS[:3])
    benchmarks = {"math500": small.PROBLEMS[3:5], "data/exam.jsonl": small.PROBLEMS[5:6]}
    params = Rl(**settings, eval_benchmarks=watched)
    result, rows, same = small.run(params, dev=small.PROBLEMS[:3], benchmarks=benchmarks)
    measured = [[name for name in row if name.startswith("eval/") and name.endswith("accuracy")] for row in rows]
    assert measured == [[], [], ["eval/math500/accuracy"], ["eval/math500/accuracy", "eval/exam.jsonl/accuracy"]]
    assert rows[2]["eval/math500/problems"] == 2.0 and rows[2]["eval/math500/response_length"] > 0
    kept = [{name: value for name, value in row.items() if not name.startswith("eval/")} for row in rows]
    assert kept == alone and result == plain
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), same.parameters(), strict=True))
    _, (row, *_), _ = small.run(params, benchmarks=benchmarks)
    assert "dev/accuracy" not in row, "benchmarks need no dev split"
