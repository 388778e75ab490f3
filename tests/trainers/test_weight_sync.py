"""The canary where rounding hides a small step: a sync that nobody takes leaves the same bits behind."""

import copy
import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from mathrl.core.errors import UserError
from mathrl.core.metrics import without_timings
from mathrl.core.types import Completion
from mathrl.learners.distributed import Ranks
from mathrl.learners.torch_learner import TorchLearner
from mathrl.models.linear import use_half_products
from mathrl.models.weights import EMBEDDING, HEAD
from mathrl.params.optimizer import AdamW
from mathrl.params.rollout import Rollout
from mathrl.params.run import Model, Prompt
from mathrl.params.train import Rl
from mathrl.rollout.engine import canary_tolerance
from mathrl.rollout.sampler import Sampler
from mathrl.rollout.torch_engine import CopyEngine
from mathrl.trainers.rl import train_rl
from mathrl.trainers.weight_sync import CERTAIN, SEED, WeightSync, _with_checksums, is_sensitive
from tests.learners.test_shares import together

SMALL_STEPS = Rl(steps=3, prompts_per_step=4, group_size=4, max_tokens=10, ema=None, dev={"samples": 1},
                 loss={"skip_zero_variance": False}, optimizer=AdamW(lr=1e-6, warmup_steps=0))  # fmt: skip


class Deaf(CopyEngine):
    """Takes the first weights and no others, without an error."""

    heard = 0

    def sync(self, weights: Any) -> str:
        self.heard += 1
        return super().sync(weights) if self.heard == 1 else ""


class Shared(CopyEngine):
    """As servers that all ranks share; notes what it is asked for."""

    shared = True

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.happened: list[str] = []

    def sync(self, weights: Any) -> str:
        super().sync(weights)
        self.happened.append("sync")
        return f"version {self.happened.count('sync')}"

    def follow(self, sync_message: str) -> None:
        self.happened.append(sync_message)

    def probe(self, *arguments: Any) -> Any:
        self.happened.append("probe")
        canaries = super().probe(*arguments)
        self.happened.pop()  # the canary is generated too
        return canaries

    def generate(self, *arguments: Any, **more: Any) -> Any:
        self.happened.append("generate")
        return super().generate(*arguments, **more)

    def sleep(self) -> None:
        self.happened.append("sleep")


class OneOff(CopyEngine):
    """Says of one token of the canary another log-prob."""

    by = 0.0

    def probe(self, *arguments: Any) -> list[tuple[str, list[list[Completion]]]]:
        canaries = super().probe(*arguments)
        for _, rows in canaries:
            logprobs = rows[0][0].logprobs.copy()
            logprobs[0] -= self.by
            rows[0][0] = replace(rows[0][0], logprobs=logprobs)
        return canaries


def run(small: Any, state: Path, kind: type[CopyEngine], lr: float = 1e-6) -> list[dict[str, float]]:
    model, _ = small.policy()
    use_half_products(model)
    tolerance = canary_tolerance(Rollout(), Model(precision="bfloat16"), "bfloat16")
    engine = kind(copy.deepcopy(model), small.TOKENIZER, Rollout(), tolerance, torch.bfloat16)
    params = small.changed(SMALL_STEPS, optimizer={"lr": lr})
    train_rl(
        model,
        Sampler(engine, small.TOKENIZER, Prompt()),
        small.PROBLEMS,
        (),
        small.CountsOnes(),
        params,
        small.training_run(state),
    )
    return without_timings(state / "metrics.jsonl")


def test_in_bfloat16_a_swallowed_sync_of_a_small_step_is_noticed(small: Any, tmp_path: Path) -> None:
    rows = run(small, tmp_path / "well", CopyEngine)
    assert len(rows) == 3 and rows[0]["grad_norm"] > 0
    # What the mean difference alone could not have seen: the step moves it by far less than it allows.
    assert max(row["rollout/canary_gap"] for row in rows) < 0.05
    with pytest.raises(UserError, match=r"still serves the previous weights: .* although \d+% of the"):
        run(small, tmp_path / "deaf", Deaf)


def test_weights_that_did_not_change_may_leave_the_same_bits(small: Any, tmp_path: Path) -> None:
    # So small a step is lost in rounding: nothing was there to send.
    assert len(run(small, tmp_path, Deaf, lr=1e-13)) == 3


def test_a_shared_engine_follows_each_sync_and_sleeps_until_the_next(small: Any, tmp_path: Path) -> None:
    engines: list[Shared] = []

    class Kept(Shared):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            engines.append(self)

    assert run(small, tmp_path / "shared", Kept) == run(small, tmp_path / "own", CopyEngine)
    synced = [["sync", f"version {number}", "probe"] for number in range(1, 5)]
    steps = [each for after in synced[1:] for each in ("generate", "sleep", *after)]
    assert engines[0].happened == [*synced[0], *steps, "sleep"]


class Joined(Shared):
    def join(self, weights: Any) -> None:
        self.happened.append(f"join {next(iter(weights))[0]}")


@pytest.mark.parametrize("off", [None, 0, 1])  # the rank whose trainer has other weights
def test_of_ranks_that_share_an_engine_the_first_sends_and_asks_and_each_compares(small: Any, off: int | None) -> None:
    start = small.policy()[0]  # not made in threads, which would share its random numbers

    def work(ranks: Ranks) -> tuple[Any, list[str], list[str]]:
        model, gathered = copy.deepcopy(start), list[str]()
        engine = Joined(copy.deepcopy(model), small.TOKENIZER, Rollout(), 1e-4)
        policy = TorchLearner(model, AdamW(lr=1e-3), 1, ranks)
        weights = policy.weights

        def noted() -> Any:
            for name, weight in weights():
                gathered.append(name)
                yield name, weight

        policy.weights = noted  # type: ignore[method-assign]
        sync = WeightSync(engine, policy, ranks, [(4, 5)], 1.0, 8)
        if off == ranks.rank == 0:  # what it sends does not arrive
            engine.model.get_input_embeddings().weight.data.mul_(2.0)
            engine.sync = lambda _: "version 1"  # type: ignore[method-assign]
        elif off == ranks.rank:
            policy.flat.weights.mul_(1.5)
        try:
            told: Any = {name: value for name, value in sync().items() if name.startswith("rollout/")}
        except UserError as error:
            told = str(error)
        return told, engine.happened, gathered

    (first, happened, sent), (second, followed, joined) = together(2, work)
    assert happened == ["sync", "version 1", "probe"][off == 0 :] and followed == [f"join {joined[0]}", "version 1"]
    assert first == second and isinstance(first, dict if off is None else str)
    assert joined and joined == (sent or joined)


class TwoServers(CopyEngine):
    """Two engines that sample, of which one may be off; notes what the canary was asked with."""

    by = 0.0
    asked: ClassVar[list[tuple[Any, ...]]] = []

    def probe(self, *arguments: Any) -> list[tuple[str, list[list[Completion]]]]:
        TwoServers.asked.append(arguments)
        ((_, rows),) = super().probe(*arguments)
        off = [[replace(each, logprobs=each.logprobs - self.by) for each in row] for row in rows]
        return [("server a", rows), ("server b", off)]


def test_the_canary_is_of_a_runs_own_prompts_and_names_the_server_that_is_off(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    longer = [small.PROBLEMS[n].with_(question="1+" * (n + 3) + "=") for n in range(5)]
    too_long = small.PROBLEMS[5].with_(question="1+" * 300)
    monkeypatch.setattr(small, "PROBLEMS", [*small.PROBLEMS[:3], longer[0], too_long, *longer[1:]])
    monkeypatch.setattr(TwoServers, "asked", [])
    run(small, tmp_path / "well", TwoServers)
    sampler = small.policy()[1]
    expected = [sampler.prompt_tokens(problem) for problem in reversed(longer[1:])]
    assert len(TwoServers.asked) == 1 + SMALL_STEPS.steps
    for prompts, sampling, seed in TwoServers.asked:
        assert [list(prompt) for prompt in prompts] == expected, "the longest of those that fit"
        assert (sampling.temperature, sampling.max_tokens) == (SMALL_STEPS.temperature, SMALL_STEPS.max_tokens)
        assert seed == SEED, "the same tokens, unless the weights changed"
    monkeypatch.setattr(TwoServers, "by", 9.0)
    with pytest.raises(UserError, match="the log-probs of server b differ from the trainer's by 9"):
        run(small, tmp_path / "off", TwoServers)


def test_what_changed_is_told_by_the_bits_of_the_layers_matrices(small: Any) -> None:
    one, two = torch.tensor([[1.0, 2.0], [0.5, 0.0]]), torch.tensor([[-1.0]])
    named = {f"x.{EMBEDDING}": one, f"x.{HEAD}": two, "x.a.weight": one, "x.a.bias": one[0], "x.b.weight": two}
    for dtype, integers in ((torch.float32, torch.int32), (torch.bfloat16, torch.int16)):
        sums: dict[str, torch.Tensor] = {}
        assert list(_with_checksums(named.items(), dtype, sums)) == list(named.items())
        expected = {"x.a.weight": one, "x.b.weight": two}
        assert {name: int(value) for name, value in sums.items()} == {
            name: int(value.to(dtype).view(integers).long().sum()) for name, value in expected.items()
        }
    sync = WeightSync(small.policy()[1].engine, None, None, [], 1.0, 8)  # type: ignore[arg-type]

    def share(**sums: int) -> float:
        return sync._changed_share({name: torch.tensor(value) for name, value in sums.items()})

    assert [share(a=1, b=2), share(a=1, b=3), share(a=1, b=3), share(a=2, b=4, c=5, d=6)] == [0, 0.5, 0, 0.5]
    assert share() == 0
    assert [share(a=1), share(a=2)] == [0, 1], "of one layer"


def test_a_certain_token_tells_nothing() -> None:
    def all_at(value: float) -> list[list[Completion]]:
        return [[Completion((1,) * 4, (value,) * 4, "", "stop")] * 2]

    assert is_sensitive(all_at(-0.5)) and not is_sensitive(all_at(0.0)) and not is_sensitive(all_at(-1e-4))
    assert not is_sensitive([[replace(each, logprobs=np.full(4, CERTAIN)) for each in all_at(0.0)[0]]])
    assert not is_sensitive([all_at(-0.5)[0][:1]])  # four tokens


def test_the_mean_over_the_canary_decides_and_the_largest_difference_is_named(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OneOff, "by", 0.5)
    gaps = [row["rollout/canary_gap"] for row in run(small, tmp_path / "one", OneOff)]
    assert all(0 < gap < 0.05 for gap in gaps), gaps
    monkeypatch.setattr(OneOff, "by", 50.0)
    with pytest.raises(UserError) as raised:
        run(small, tmp_path / "far", OneOff)
    mean, largest = re.findall(r"by (\S+) on average over the canary \(at most (\S+)\)", str(raised.value))[0]
    assert float(mean) < 10 < float(largest) == pytest.approx(50, abs=1)


def test_the_canary_may_differ_by_the_tolerance_itself(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OneOff, "by", 0.5)
    model, ranks = small.policy()[0], Ranks(torch.device("cpu"))
    engine = OneOff(copy.deepcopy(model), small.TOKENIZER, Rollout(), 1.0)
    sync = WeightSync(engine, TorchLearner(model, AdamW(lr=1e-3), 1, ranks), ranks, [(4, 5)], 1.0, 8)
    engine.tolerance = sync()["rollout/canary_gap"]
    assert sync()["rollout/canary_gap"] == engine.tolerance > 0.01
    engine.tolerance *= 0.999
    with pytest.raises(UserError, match="differ from the trainer's by"):
        sync()


def test_old_weights_are_noticed_from_a_share_of_changed_matrices_on(
    small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the fourteen matrices of two layers changes, and the sampler does not take it."""
    model, ranks = small.policy()[0], Ranks(torch.device("cpu"))
    engine = Deaf(copy.deepcopy(model), small.TOKENIZER, Rollout(), 1.0)
    sync = WeightSync(engine, TorchLearner(model, AdamW(lr=1e-3), 1, ranks), ranks, [(4, 5)], 1.0, 8)
    sync()
    for share, stale in ((1 / 13, False), (1 / 14, True)):
        monkeypatch.setattr("mathrl.trainers.weight_sync.CHANGED_SHARE", share)
        with torch.no_grad():
            model.model.layers[0].mlp.up_proj.weight[0, 0] += 1e-3
        with pytest.raises(UserError, match="still serves the previous weights") if stale else nullcontext():
            sync()
