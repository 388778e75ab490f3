"""The algorithms are settings of one loop: what each does beside its traces (test_golden_traces.py)."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from pydantic import ValidationError

from mathrl.algorithms.policy_loss import Clip
from mathrl.core.errors import OutOfMemory, UserError
from mathrl.learners.sharding import FrozenModel
from mathrl.learners.torch_learner import TorchLearner
from mathrl.params.advantage import Critic, Gae, MaxRl
from mathrl.params.curriculum import PassRate
from mathrl.params.loss import KlController, Masked, PpoClip, Sapo
from mathrl.params.run import Prompt
from mathrl.params.train import Rl
from mathrl.rollout.sampler import Sampler
from mathrl.trainers import rl, supervised
from mathrl.trainers.batch import response_advantages
from mathrl.trainers.curriculum import ProblemOrder
from mathrl.trainers.policy_update import ratio_bounds
from mathrl.trainers.preference import tokenize_pairs
from mathrl.trainers.rollouts import RolloutGroup
from tests.trainers.golden_traces import HELPERS, method
from tests.trainers.small import changed
from tests.trainers.supervised_traces import dpo, pairs, reward_model, sft


def train(small: Any, name: str, **more: Any) -> tuple[list[dict[str, float]], Any]:
    helpers = {helper: make() for helper, make in HELPERS.get(name, {}).items()}
    _, rows, model = small.run(method(name, **more), **helpers)
    return rows, model


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


def test_the_bounds_of_a_ratio_are_the_losss_own() -> None:
    assert ratio_bounds(Sapo(temperatures=(0.5, 2.0))).temperatures == (0.5, 2.0)
    assert ratio_bounds(PpoClip(low=0.1, high=0.3, dual=4.0)) == Clip(0.1, 0.3, 4.0)


def test_max_rl_refuses_negative_rewards_by_name(small: Any) -> None:
    group = RolloutGroup(0, (7,), ((5,), (3,)), ((-0.1,),) * 2, (1.0, -1.0), (True, False), (False,) * 2, ({}, {}))
    with pytest.raises(UserError, match=r"rl\.advantage max_rl needs rewards of at least 0: set reward\.incorrect"):
        response_advantages([group], torch.ones(2, dtype=torch.long), None, MaxRl())


CLIMBS = ["RLOO", "REINFORCE++", "ReMax", "online RFT", "PPO", "GRPO, process supervision", "MaxRL", "GMPO"]


@pytest.mark.parametrize("name", CLIMBS)
def test_it_climbs_its_reward(small: Any, name: str) -> None:
    more: dict[str, Any] = {"steps": 16, "lr": 8e-3, "kl": None}
    if name not in ("PPO", "ReMax"):
        more |= {"group_size": 8, "prompts_per_step": 8}
    else:
        more |= {"prompts_per_step": 64}
    if name == "PPO":
        more |= {"advantage": {"critic": {"optimizer": {"lr": 5e-3}, "warmup_steps": 2}}}
    rows, _ = train(small, name, **more)
    first, last = (sum(row["reward/overall"] for row in part) / 3 for part in (rows[:3], rows[-3:]))
    assert last > first + 0.1


def test_a_student_comes_closer_to_its_teacher(small: Any) -> None:
    rows, _ = train(small, "on-policy distillation", steps=15, lr=5e-3, prompts_per_step=8, group_size=8)
    gaps = [row["distillation/reverse_kl"] for row in rows]
    assert gaps[0] > 0 and sum(gaps[-3:]) < 0.7 * sum(gaps[:3])


def test_a_round_may_sample_more_prompts_than_a_step_trains_on(small: Any) -> None:
    few = method("DAPO", steps=2, dynamic_sampling={"rounds": 20})
    _, rows, _ = small.run(changed(few, dynamic_sampling={"prompts_per_round": 3 * few.prompts_per_step}))
    _, expected, _ = small.run(few)
    assert all(row["rollout/zero_variance_share"] == 0 for row in rows)
    # The first round has them all, where single rounds came one after the other.
    assert [row["rollout/sampling_rounds"] for row in rows] == [1, 1]
    assert max(row["rollout/sampling_rounds"] for row in expected) > 1


def test_dynamic_sampling_goes_on_until_all_groups_differ(small: Any) -> None:
    _, rows, _ = small.run(method("DAPO", steps=3, dynamic_sampling={"rounds": 20}))
    for row in rows:
        assert row["rollout/sampling_rounds"] > 1 and row["rollout/zero_variance_share"] == 0
    # The bound is kept, and the batch filled with groups that do not differ.
    never = small.CountsOnes(right_above=2.0)
    result, rows, _ = small.run(method("DAPO", steps=1, dynamic_sampling={"rounds": 3}), reward=never)
    assert rows[0]["rollout/sampling_rounds"] == 3 and result.sampled_tokens == pytest.approx(3 * 16 * 8, rel=0.3)
    _, rows, _ = small.run(method("GRPO", steps=1))
    assert "rollout/sampling_rounds" not in rows[0]


def test_the_curriculum_learns_from_every_round_of_dynamic_sampling(
    small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    observed: list[int] = []
    take, observe = ProblemOrder.take, ProblemOrder.observe

    def taking(self: ProblemOrder, count: int) -> list[int]:
        taken.extend(found := take(self, count))
        return found

    def observing(self: ProblemOrder, problem: int, correct: int, samples: int) -> None:
        observed.append(problem)
        observe(self, problem, correct, samples)

    monkeypatch.setattr(ProblemOrder, "take", taking)
    monkeypatch.setattr(ProblemOrder, "observe", observing)
    _, rows, _ = small.run(method("DAPO", dynamic_sampling={"rounds": 20}, curriculum=PassRate()))
    assert max(row["rollout/sampling_rounds"] for row in rows) > 1
    assert observed == taken and len(taken) == 4 * sum(row["rollout/sampling_rounds"] for row in rows)


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


def test_the_best_weights_of_dev_are_exported_by_choice(small: Any) -> None:
    # Trained towards fewer ones, so that the first evaluation is the best.
    class Fewer(small.CountsOnes):  # type: ignore[name-defined, misc]
        def score(self, items: Any) -> Any:
            return [type(r)(-r.overall, r.correct, r.parts, r.verdict) for r in super().score(items)]

    kinds: dict[str, Any] = {"steps": 12, "lr": 0.02, "dev": {"every": 3, "samples": 16}, "kl": None}
    dev = small.PROBLEMS[:4]
    last, rows, model = small.run(method("GRPO", **kinds), reward=Fewer(), dev=dev)
    best, again, kept = small.run(changed(method("GRPO", **kinds), dev={"export": "best"}), reward=Fewer(), dev=dev)
    assert rows == again
    measured = {number: row["dev/accuracy"] for number, row in enumerate(rows, start=1) if "dev/accuracy" in row}
    top = max(measured.values())
    assert best.dev_accuracy == top > measured[12] == last.dev_accuracy
    assert last.exported_step == 12 and best.exported_step == min(n for n, a in measured.items() if a == top)
    early, _, stopped = small.run(
        changed(method("GRPO", **kinds), steps=best.exported_step, dev={"every": 0}), reward=Fewer(), dev=dev
    )
    assert early.dev_accuracy == top
    for ours, same, other in zip(kept.parameters(), stopped.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, same) and (ours.dim() == 1 or not torch.equal(ours, other))


def test_of_equal_accuracies_the_first_is_the_best(small: Any) -> None:
    constant: dict[str, Any] = {"steps": 4, "lr": 0.0, "dev": {"every": 1, "export": "best"}}
    result, rows, _ = small.run(method("GRPO", **constant), dev=small.PROBLEMS[:4])
    assert len({row["dev/accuracy"] for row in rows}) == 1 and result.exported_step == 1
    unmeasured, _, _ = small.run(method("GRPO", **{**constant, "steps": 2}))
    assert unmeasured.dev_accuracy is None and unmeasured.exported_step == 2


def test_figures_are_logged_by_source_where_there_are_several(small: Any, tmp_path: Path) -> None:
    mixed = [problem.with_(source=("even", "odd")[n % 2]) for n, problem in enumerate(small.PROBLEMS)]
    params = method("GRPO", steps=2, prompts_per_step=8)
    _, rows, _ = small.run(params, tmp_path, problems=mixed)
    for row in rows:
        names = {"accuracy": "reward/accuracy", "reward": "reward/overall"}
        for name, whole in {**names, "response_length": "response_length"}.items():
            parts = [row[f"source/{source}/{name}"] for source in ("even", "odd")]
            # Each source has half of the problems of a step of all eight.
            assert sum(parts) / 2 == pytest.approx(row[whole]) and parts[0] != parts[1]
    timed = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert all(row["time/rollout"] > 0 and row["time/reward"] > 0 for row in timed)
    _, rows, _ = small.run(params)
    assert not any(name.startswith("source/") for name in rows[0])


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
