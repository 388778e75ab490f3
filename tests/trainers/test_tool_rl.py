"""RL on responses that call a tool: resumed and asynchronous as without, its figures, and what is kept of the calls."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mathrl.learners.distributed import Ranks
from mathrl.params.responses import KeepRollouts
from mathrl.params.rollout import Rollout
from mathrl.params.run import Prompt
from mathrl.params.train import Asynchronous, Rl
from mathrl.rollout.rollout_files import read_responses, read_tokens, rollout_files
from mathrl.rollout.sampler import Sampler
from mathrl.rollout.torch_engine import CopyEngine, TorchEngine
from mathrl.trainers.collect import Collector
from mathrl.trainers.curriculum import make_order
from mathrl.trainers.pooled_group import GroupPool
from mathrl.trainers.rl import train_rl
from tests.rollout.calculator import Calculator, Equations


def train(small: Any, params: Rl, state: Path, last: int = 10**9, *, tools: bool = True) -> tuple[list[Any], Any]:
    """Train a policy that calls the calculator; the logged rows without timings, and the model."""
    model, sampler = small.policy()
    engine = sampler.engine
    if params.asynchronous is not None:
        copy = small.policy()[0]
        engine = CopyEngine(copy, small.TOKENIZER, engine.rollout, 1e-4)
    sampler = Sampler(engine, small.TOKENIZER, Prompt(), tool=Calculator() if tools else None)
    if sampler.turns is not None:
        sampler.turns.format = Equations()
    run = replace(small.training_run(state, last), rollouts=state / "rollouts")
    train_rl(model, sampler, small.PROBLEMS, small.PROBLEMS[:2], small.CountsOnes(), params, run)
    return small.without_timings(state / "metrics.jsonl"), model


def short(small: Any, **changes: Any) -> Rl:
    keep = KeepRollouts(which="all")
    sizes = {"steps": 3, "max_tokens": 30, "checkpoint_every": 1, "dev": {"every": 2}, "keep_rollouts": keep}
    return small.short_rl(**(sizes | changes))  # type: ignore[no-any-return]


@pytest.mark.parametrize("asynchronous", [None, Asynchronous(pace="fixed")], ids=["", "asynchronous"])
def test_a_killed_run_goes_on_with_the_same_bits(small: Any, tmp_path: Path, asynchronous: Any) -> None:
    params = short(small, asynchronous=asynchronous)
    whole, model = train(small, params, tmp_path / "whole")
    with pytest.raises(small.Killed):
        train(small, params, tmp_path / "cut", last=1)
    resumed, again = train(small, params, tmp_path / "cut")
    assert resumed == whole and any(row["tool/calls"] > 0.3 for row in whole)
    for ours, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(ours, other)


def pool_of_whole_responses(small: Any, engine: Any, tool: Any, most_running: int) -> GroupPool:
    """Four groups of one problem, whose responses of up to 30 tokens are a segment."""
    params, sampler = short(small), Sampler(engine, small.TOKENIZER, Prompt(), tool=tool)
    order = make_order(params.curriculum, small.PROBLEMS, range(1), 4, 0)
    prompts, ranks = [sampler.prompt_tokens(small.PROBLEMS[0])], Ranks(torch.device("cpu"))
    collector = Collector(sampler, small.PROBLEMS, prompts, order, small.CountsOnes(), None, params, ranks)
    pool = GroupPool(collector, 0, params.max_tokens, most_running, 0)
    pool.add_round()
    return pool


def test_each_segment_of_a_pool_has_random_numbers_of_its_own(small: Any) -> None:
    pool = pool_of_whole_responses(small, small.policy()[1].engine, Calculator(), 1)
    groups = [group for _ in range(4) for group in pool.sample()[0]]
    assert len({str([response.tokens for response in group.responses]) for group in groups}) == 4


def test_no_response_goes_on_that_an_engine_cut_where_a_segment_is_a_response(small: Any) -> None:
    class Short(TorchEngine):
        """Has room for four tokens."""

        def generate(self, prompts: Any, sampling: Any, *given: Any, **named: Any) -> Any:
            return super().generate(prompts, replace(sampling, max_tokens=4, limits=()), *given, **named)

    pool = pool_of_whole_responses(small, Short(small.policy()[0], small.TOKENIZER, Rollout()), None, 4)
    whole, _ = pool.sample()
    assert len(whole) == 4 and not pool.has_work
    assert max(len(response.tokens) for group in whole for response in group.responses) == 4


def test_figures_and_kept_rollouts_have_the_calls(small: Any, tmp_path: Path) -> None:
    rows, _ = train(small, short(small, steps=1), tmp_path)
    plain, _ = train(small, short(small, steps=1), tmp_path / "plain", tools=False)
    assert not any(name.startswith("tool/") for name in plain[0])
    timed = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert all(0 < row["time/tools"] < row["time/rollout"] < row["time/step"] for row in timed if "time/step" in row)
    files = rollout_files(tmp_path / "rollouts")
    table = read_responses(files).to_pylist()
    first = [row for row in table if row["step"] == 1]
    assert rows[0]["tool/calls"] == pytest.approx(sum(len(row["calls"]) for row in first) / len(first))
    assert rows[0]["response_length"] == pytest.approx(sum(row["length"] for row in first) / len(first))
    called = [number for number, row in enumerate(table) if row["calls"]]
    assert called and any("call failed" in table[number]["odd"] for number in called)
    for number in called[:5]:
        row, tokens = table[number], read_tokens(files, number)
        mask = np.ones(len(tokens["tokens"]), bool)
        for call in row["calls"]:
            mask[call["start"] : call["end"]] = False
            assert "".join(tokens["pieces"][call["start"] : call["end"]]).startswith(call["output"][:1])
        assert row["length"] == mask.sum()
        for name in ("logprobs", "advantages", "ratios"):
            assert np.array_equal(np.isfinite(tokens[name]), mask)
