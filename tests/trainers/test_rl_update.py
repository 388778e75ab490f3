"""The update of the RL loop: invariant to micro-batches and to what may be skipped, and it learns."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mathrl.algorithms.alignment import GAPS
from mathrl.core.errors import UserError
from mathrl.learners.distributed import Ranks
from mathrl.learners.torch_learner import TorchLearner
from mathrl.models.logprobs import prepare_language_model, response_logprobs
from mathrl.models.prepared import compute_as
from mathrl.params.loss import Masked, Truncated
from mathrl.params.optimizer import Muon
from mathrl.params.rollout import Rollout
from mathrl.params.run import Prompt
from mathrl.params.train import Rl
from mathrl.rewards.cascade import merged_counters
from mathrl.rewards.compose import RewardInput, RewardResult
from mathrl.rollout.sampler import Sampler
from mathrl.rollout.torch_engine import TorchEngine
from mathrl.stages.rl import summary_of
from mathrl.trainers.policy_update import StepFigures, UpdateFigures, partition, update_gradient
from mathrl.trainers.rl import train_rl
from tests.trainers.small import changed, policy, scored_batch, short_rl

CPU = Ranks(torch.device("cpu"))


def learner(model: Any) -> TorchLearner:
    return TorchLearner(model, Muon(lr=1e-3), 10)


def gradient(policy: TorchLearner, groups: Any, params: Rl, **models: Any) -> tuple[torch.Tensor, UpdateFigures]:
    batch, _ = scored_batch(groups, params, CPU, policy.model, kl_coef=params.kl_coef, **models)
    figures = update_gradient(policy, params, batch, params.kl_coef)
    return policy.flat.gradients.clone(), figures


@pytest.mark.parametrize(
    ("aggregation", "policy_loss"),
    [("token_mean", "clip"), ("sequence_mean", "gspo"), ("sequence_sum", "cispo"), ("token_mean", "reinforce")],
)
def test_gradient_does_not_depend_on_micro_batches_or_skipping(small: Any, aggregation: str, policy_loss: str) -> None:
    model, sampler = small.policy()
    groups, policy = small.rollouts(model, sampler), learner(model)
    with torch.no_grad():  # off policy, so that ratios differ from 1
        for weight in model.parameters():
            weight.add_(0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    kinds: dict[str, Any] = {"loss": {"aggregation": aggregation, "type": policy_loss}, "max_tokens": 10}
    found, figures = zip(
        *(
            gradient(policy, groups, changed(Rl(**kinds), **changes))
            for changes in ({}, {"tokens_per_microbatch": 16}, {"loss": {"skip_zero_variance": False}})
        ),
        strict=True,
    )
    assert found[0].norm() > 1e-3
    assert figures[2].trained > figures[0].trained
    assert figures[1].trained > figures[0].trained, "groups are cut, and a prompt stands in each part"
    for other in found[1:]:
        assert torch.allclose(other, found[0], atol=1e-6)
    assert figures[1].loss == pytest.approx(figures[0].loss, abs=1e-6)
    assert figures[1].mean_ratio == pytest.approx(figures[0].mean_ratio) != pytest.approx(1)
    if policy_loss == "clip":
        wrong, _ = gradient(policy, groups, Rl(loss={"aggregation": "sequence_sum"}, max_tokens=20))
        assert not torch.allclose(wrong, found[0], atol=1e-6)


@pytest.mark.parametrize(("kernel", "prompts"), [("varlen", 1), ("cpu", 2)])
def test_trained_tokens_are_those_that_the_kernel_computes(small: Any, kernel: str, prompts: int) -> None:
    """Two responses to a long prompt, which one kernel alone shares."""
    model, sampler = small.policy()
    group = replace(small.rollouts(model, sampler, samples=2)[1], prompt=(4, 5) * 600)
    compute_as(model, replace(prepare_language_model(model), kernel=kernel))
    _, figures = gradient(learner(model), [group], Rl(group_size=2))
    assert figures.trained == prompts * 1200 + sum(group.lengths) - 2


def test_a_single_token_with_an_advantage_is_not_skipped(small: Any) -> None:
    model, sampler = small.policy()
    groups, policy = small.rollouts(model, sampler), learner(model)
    batch, _ = scored_batch(groups, Rl(), CPU, model)
    one = torch.zeros_like(batch.advantages_N)
    one[3] = 1.0
    found = []
    for skip in (True, False):
        update_gradient(policy, Rl(loss={"skip_zero_variance": skip}), replace(batch, advantages_N=one), 0.0)
        found.append(policy.flat.gradients.clone())
    assert found[0].norm() > 1e-4 and torch.allclose(found[0], found[1], atol=1e-7)


def test_importance_weights_scale_the_surrogate_and_leave_the_denominator(small: Any) -> None:
    model, sampler = small.policy()
    groups, policy = small.rollouts(model, sampler), learner(model)
    plain, _ = gradient(policy, groups, Rl())
    # The sampler is said to have been twice as unlikely to draw each token: ratio 2.
    halved = [
        replace(group, logprobs=tuple(tuple(v - 0.6931472 for v in row) for row in group.logprobs)) for group in groups
    ]
    doubled, figures = gradient(policy, halved, Rl(importance=Truncated(high=3.0)))
    assert torch.allclose(doubled, 2 * plain, atol=1e-5)
    # Old log-probs are the trainer's: the surrogate's own ratio is 1, whatever the sampler's were.
    assert figures.mean_ratio == pytest.approx(1.0, abs=1e-5) and figures.clipped == 0
    bounded, _ = gradient(policy, halved, Rl(importance=Truncated(high=1.5)))
    assert torch.allclose(bounded, 1.5 * plain, atol=1e-5)
    masked = Rl(importance=Masked(low=0.5, high=1.5))
    nothing, _ = gradient(policy, halved, masked)
    assert nothing.norm() == 0
    # Only the first group's sampler was wrong (its advantages are 0): its tokens leave the denominator.
    mixed = [halved[0], *groups[1:]]
    partly, figures = gradient(policy, mixed, masked)
    counts = [sum(len(each) for each in group.responses) for group in groups]
    assert torch.allclose(partly, plain * sum(counts) / sum(counts[1:]), atol=1e-5)
    _, told = scored_batch(mixed, masked, CPU, model)
    assert told["importance/masked_share"] == pytest.approx(counts[0] / sum(counts))


def test_an_update_past_the_ratio_bound_is_dropped(small: Any) -> None:
    """One at the bound is made: of a step of two updates, the first is on the sampler's policy."""
    params = short_rl(steps=1, epochs=2, lr=0.05, dev={"every": 0})
    _, (free,), _ = small.run(params)
    second = 2 * free["ratio/mean"] - 1
    assert "dropped_minibatches" not in free and abs(second - 1) > 1e-3
    for bound, dropped in ((second - 1e-5, 1), (second + 1e-5, 0)):
        _, (row,), _ = small.run(changed(params, loss={"drop_ratio": bound}))
        assert (row["dropped_minibatches"], row["rollout/staleness"]) == (dropped, 0.5)


def test_a_tiny_model_learns(small: Any) -> None:
    params = Rl(**small.SIZES, steps=16, optimizer=small.fast(5e-3), ema=None)
    result, rows, _ = small.run(params, dev=small.PROBLEMS[:2])
    assert result.steps == len(rows) == result.exported_step == 16
    assert rows[-1]["reward/overall"] > rows[0]["reward/overall"] + 0.15
    assert "dev/accuracy" in rows[-1] and "dev/accuracy" not in rows[0]
    for row in rows:
        # Measured at the first update of a step, where sampler and trainer have the same weights.
        # There is none where its groups are all uniform.
        assert 1 <= row.get("rollout/logprob_alignment", 1) < 1.001
        assert ("rollout/logprob_alignment" in row) == (row["rollout/zero_variance_share"] < 1)


def test_where_no_dev_prompt_fits_no_dev_accuracy_is_logged_or_recorded(small: Any) -> None:
    long = replace(small.PROBLEMS[0], question="1+" * 3000)
    params = Rl(steps=1, prompts_per_step=2, group_size=2, max_tokens=4, dev={"export": "best"})
    result, (row,), _ = small.run(params, dev=[long])
    assert (
        result.dev_accuracy is None
        and result.exported_step == 1
        and not [name for name in row if name.startswith("dev/")]
    )
    assert summary_of(result) == {"sampled_tokens": float(result.sampled_tokens)}
    result, (row,), _ = small.run(params, dev=[long, *small.PROBLEMS[:2]])
    assert summary_of(result)["dev/accuracy"] == row["dev/accuracy"]


def test_dev_prompts_that_are_too_long_are_not_among_the_dropped_ones(small: Any, tmp_path: Path) -> None:
    model, sampler = small.policy()
    sampler.dropped = 3
    long = small.PROBLEMS[0].with_(question="1+" * 3000)
    params = short_rl(steps=1, max_tokens=4, dev={"every": 1})
    run = small.training_run(tmp_path)
    train_rl(model, sampler, small.PROBLEMS, [long, small.PROBLEMS[1]], small.CountsOnes(), params, run)
    assert sampler.dropped == 3 and small.without_timings(tmp_path / "metrics.jsonl")[0]["dev/problems"] == 1


def test_the_disagreement_over_ranks_is_of_what_was_judged() -> None:
    """One of one judged differs at rank 0; rank 1 graded as much and judged nothing."""
    counters = {"verifier/graded": 4.0, "verifier/second_graded": 1.0, "verifier/disagreement": 1.0}
    none = {"verifier/graded": 4.0, "verifier/second_graded": 0.0, "verifier/disagreement": 0.0}
    merged = merged_counters([{**counters, "verifier/rule/string": 1.0}, {**none, "verifier/rule/string": 0.5}])
    assert merged["verifier/disagreement"] == 1.0 and merged["verifier/second_graded"] == 1.0
    assert merged["verifier/rule/string"] == 0.75, "of what was graded"
    assert merged_counters([none, none])["verifier/disagreement"] == 0.0


def test_updates_that_are_not_numbers_are_skipped_counted_and_end_the_run(small: Any, tmp_path: Any) -> None:
    params = Rl(steps=30, prompts_per_step=2, group_size=2, max_tokens=4, dev={"every": 0}, ema=None)
    with pytest.raises(UserError, match="non-finite"):
        small.run(params, tmp_path, reward=small.CountsOnes(broken=True))
    rows = small.without_timings(tmp_path / "metrics.jsonl")
    assert rows[-1]["skipped_updates"] == 10


def test_a_sampler_whose_log_probs_are_off_is_warned_of_once(
    small: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Off(TorchEngine):
        def generate(self, *given: Any, **more: Any) -> Any:
            found = super().generate(*given, **more)
            return [[replace(each, logprobs=each.logprobs - 0.2) for each in group] for group in found]

    def off() -> Any:
        model = policy()[0]
        return model, Sampler(Off(model, small.TOKENIZER, Rollout()), small.TOKENIZER, Prompt())

    monkeypatch.setattr("tests.trainers.small.policy", off)
    _, rows, _ = small.run(short_rl(steps=2, max_tokens=6))
    assert [row["rollout/logprob_alignment"] for row in rows] == pytest.approx([math.exp(0.2)] * 2, abs=0.05)
    said = [line for line in capsys.readouterr().err.splitlines() if "warning: step" in line]
    assert len(said) == 1 and "warning: step 1: rollout/logprob_alignment is 1.2" in said[0]


def test_minibatches_are_a_partition_and_one_keeps_the_order() -> None:
    assert partition(5, 1, seed=3) == [[0, 1, 2, 3, 4]]
    parts = partition(8, 2, seed=3)
    assert [len(part) for part in parts] == [4, 4] and sorted([*parts[0], *parts[1]]) == list(range(8))
    assert parts != partition(8, 2, seed=4) and parts == partition(8, 2, seed=3)


def test_figures_of_a_step_are_means_over_tokens_and_alignment_is_the_first_updates() -> None:
    step = StepFigures()
    assert step.metrics(Rl()) == {} and UpdateFigures().mean_ratio == 1.0
    nothing = StepFigures()
    nothing.add(UpdateFigures(), norm=0.0)
    told = nothing.metrics(Rl())
    assert set(told) == {"actor_loss", "grad_norm", "trained_tokens"}, "nothing else was measured"
    assert nothing.mismatch() == {}
    first = UpdateFigures(
        loss=1.0, kl=1.0, entropy=4.0, clipped=1.0, ratio=2.0, alignment=2.2, responses=2, tokens=2, trained=10
    )
    step.add(first, norm=3.0)
    alone = step.metrics(Rl())
    assert alone["entropy"] == 4 / 2 and "rollout/staleness" not in alone and "dropped_minibatches" not in alone
    second = UpdateFigures(
        loss=2.0, kl=3.0, entropy=2.0, ratio=7.0, alignment=9.0, responses=2, tokens=6, trained=5, ratio_max=5
    )
    step.add(second, norm=1.0, dropped=True)
    told = step.metrics(Rl(loss={"drop_ratio": 2.0}, kl={"coef": 0.1}))
    assert told["actor_loss"] == 1.5 and told["grad_norm"] == 2.0 and told["dropped_minibatches"] == 1
    assert told["entropy"] == 6 / 8 and told["clip_fraction"] == 1 / 8 and told["ratio/mean"] == 9 / 8
    assert told["kl"] == 4 / 8 and told["trained_tokens"] == 15
    assert told["ratio/max"] == 5 and told["rollout/logprob_alignment"] == pytest.approx(1.1)
    assert told["rollout/staleness"] == 0.5
    for without in (Rl(), Rl(kl={"type": "reward", "coef": 0.1})):
        assert "kl" not in step.metrics(without)
    assert UpdateFigures().mean_ratio == 1 and UpdateFigures(ratio=3.0, tokens=2.0).mean_ratio == 1.5
    one = StepFigures()
    one.add(UpdateFigures(loss=2.0, tokens=1.0, gaps=[1.0] * len(GAPS)), norm=1.0)
    assert one.dropped == 0 and set(one.mismatch().values()) == {1.0} and "rollout/staleness" not in one.metrics(Rl())


def test_a_step_that_trains_no_group_logs_no_figure_of_a_forward_pass(small: Any) -> None:
    class SparseAtFirst(small.CountsOnes):  # type: ignore[misc]
        steps = 0

        def score(self, items: Sequence[RewardInput]) -> list[RewardResult]:
            self.steps += 1
            return [replace(result, overall=0.0) if self.steps <= 1 else result for result in super().score(items)]

    params = small.short_rl(dev={"every": 0}, steps=2, loss={"skip_zero_variance": True}, lr=1e-6)
    _, rows, _ = small.run(params, reward=SparseAtFirst())
    figures = {"entropy", "clip_fraction", "ratio/mean", "ratio/max", "rollout/logprob_alignment"}
    assert [figures & set(row) for row in rows] == [set(), figures]
    assert [row["trained_tokens"] > 0 for row in rows] == [False, True]


def test_gspo_with_masked_tokens_is_over_the_kept_ones(small: Any) -> None:
    """Against a loop over responses: s = exp(mean of the kept log-ratios), a mean over kept tokens."""
    model, sampler = small.policy()
    groups, policy = small.rollouts(model, sampler), learner(model)
    shown = torch.Generator().manual_seed(2)

    def off(row: tuple[float, ...]) -> tuple[float, ...]:
        """As an engine whose log-probs differ, at some tokens by more than the bounds."""
        noise = torch.randn(len(row), generator=shown) * 0.2
        return tuple((torch.tensor(row) + noise).tolist())

    groups = [replace(group, logprobs=tuple(map(off, group.logprobs))) for group in groups]
    params = Rl(
        loss={"type": "gspo", "aggregation": "sequence_mean", "low": 0.001, "high": 0.002},
        max_tokens=10,
        importance=Masked(low=0.8, high=1.25),
    )
    batch, _ = scored_batch(groups, params, CPU, model)
    assert 0.05 < float((~batch.kept_N).float().mean()) < 0.6 and batch.importance_N is not None
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    update_gradient(policy, params, batch, 0.0)
    found = policy.flat.gradients.clone()
    policy.flat.gradients.zero_()
    now_N, _ = response_logprobs(model, [group.group for group in groups], 1.0)
    total, start, counted = torch.zeros(()), 0, 0
    for length in batch.lengths_S.tolist():
        kept = [n for n in range(start, start + length) if batch.kept_N[n]]
        start += length
        if not kept:
            continue
        counted += 1
        ratio = (now_N[kept] - batch.old_N[kept]).mean().exp()
        advantage, weights = batch.advantages_N[kept[0]], batch.importance_N[kept]
        bounded = ratio.clamp(1 - 0.001, 1 + 0.002)
        # GSPO-token: each kept token has the sequence's ratio, its own weight, its own gradient.
        each = torch.exp(now_N[kept] - now_N[kept].detach() + ratio.log().detach())
        loss = torch.maximum(-each * advantage, (-bounded * advantage).detach().expand_as(each))
        total = total + (loss * weights).mean()
    (total / counted).backward()
    assert found.norm() > 1e-3 and torch.allclose(found, policy.flat.gradients, atol=1e-6)
