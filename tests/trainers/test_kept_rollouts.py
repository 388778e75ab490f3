"""Kept rollouts: complete and equal after a kill, without an effect on the run, and true of its tokens."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.decoders import Metaspace
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from mathrl.core.errors import OutOfMemory
from mathrl.core.hashing import digest_path
from mathrl.core.types import Completion, Graded, Problem, ToolCall
from mathrl.models.logprobs import response_logprobs
from mathrl.models.packing import Group
from mathrl.params.optimizer import AdamW
from mathrl.params.responses import KeepRollouts
from mathrl.params.train import Rl
from mathrl.rewards.compose import build_reward
from mathrl.rollout.rollout_files import WHOLE, RolloutFolder, read_responses, read_tokens, rollout_files
from mathrl.trainers.batch import Batch
from mathrl.trainers.kept_rollouts import REPEATS, KeptRollouts, odd_reasons, of_responses, open_kept
from mathrl.trainers.rl import train_rl
from mathrl.trainers.rollouts import RolloutGroup

PARAMS = Rl(
    steps=4, prompts_per_step=4, group_size=4, max_tokens=8, dev={"every": 0}, checkpoint_every=2,
    optimizer=AdamW(lr=5e-3, warmup_steps=0), dynamic_sampling={"rounds": 2}, ema=None,
    keep_rollouts=KeepRollouts(which="all"),
)  # fmt: skip


def train(small: Any, params: Rl, state: Path, last: int = 10**9, seed: int = 0) -> tuple[Any, Any]:
    """Train with rollouts kept in state/rollouts; returns the result and the model."""
    model, sampler = small.policy()
    run = replace(small.training_run(state, last, seed=seed), rollouts=state / "rollouts")
    return train_rl(model, sampler, small.PROBLEMS, (), small.CountsOnes(), params, run), model


def test_keeping_changes_nothing_of_the_run(small: Any, tmp_path: Path) -> None:
    _, plain, model = small.run(PARAMS.model_copy(update={"keep_rollouts": KeepRollouts()}), tmp_path / "none")
    _, kept = train(small, PARAMS, tmp_path / "all")
    assert small.without_timings(tmp_path / "all" / "metrics.jsonl") == plain
    for ours, other in zip(model.parameters(), kept.parameters(), strict=True):
        assert torch.equal(ours, other)
    assert not (tmp_path / "none" / "rollouts").exists()
    file = rollout_files(tmp_path / "all" / "rollouts")[0]
    assert pq.ParquetFile(file).metadata.row_group(0).column(0).compression == "ZSTD"


def test_who_has_no_memory_for_the_log_probs_of_kept_tokens_is_named(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mathrl.trainers.scores.response_logprobs", lambda *_, **__: torch.empty(2**48))
    with pytest.raises(OutOfMemory, match=r"log-probs of the policy \(.*lower rl\.tokens_per_microbatch"):
        train(small, PARAMS, tmp_path)


def test_a_run_that_begins_anew_has_nothing_of_another(tmp_path: Path) -> None:
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "rollouts" / "notes.txt").touch()
    RolloutFolder(tmp_path / "rollouts", 0)
    assert (tmp_path / "rollouts" / "notes.txt").exists()
    RolloutFolder(tmp_path / "rollouts", None)
    assert list((tmp_path / "rollouts").iterdir()) == []


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_0_alone_writes(rank: int, small: Any, tmp_path: Path) -> None:
    ranks = SimpleNamespace(rank=rank)
    run = replace(small.training_run(tmp_path), rollouts=tmp_path / "rollouts", ranks=ranks)
    kept = open_kept(PARAMS.keep_rollouts, small.PROBLEMS, small.TOKENIZER, run, None)
    assert kept is not None and (kept.folder is None) == (rank == 1)
    assert (tmp_path / "rollouts").exists() == (rank == 0)


def test_a_killed_run_keeps_every_rollout_once_with_the_same_bytes(small: Any, tmp_path: Path) -> None:
    cut = 2
    train(small, PARAMS, tmp_path / "whole")
    with pytest.raises(small.Killed):  # between keeping the rollouts of the next step and logging it
        train(small, PARAMS, tmp_path / "cut", last=cut)
    assert len(rollout_files(tmp_path / "cut" / "rollouts")) == cut + 1
    train(small, PARAMS, tmp_path / "cut")
    for name in ("whole", "cut"):
        assert RolloutFolder(tmp_path / name / "rollouts", 4).finish(4) == []
    assert digest_path(tmp_path / "whole" / "rollouts") == digest_path(tmp_path / "cut" / "rollouts")
    assert pq.ParquetFile(tmp_path / "cut" / "rollouts" / WHOLE).num_row_groups == 4
    # Killed after the one file was made: as if it had not been.
    again = RolloutFolder(tmp_path / "cut" / "rollouts", 4)
    assert len(again.steps()) == 4 and again.finish(4) == []
    assert digest_path(tmp_path / "whole" / "rollouts") == digest_path(tmp_path / "cut" / "rollouts")
    # A step that is gone is noticed.
    lost = RolloutFolder(tmp_path / "cut" / "rollouts", 4)
    lost.steps()[1].unlink()
    assert lost.finish(4) == [2]


def test_the_ratios_are_those_of_the_updated_policy(small: Any, tmp_path: Path) -> None:
    _, model = train(small, PARAMS.model_copy(update={"steps": 1}), tmp_path)
    files = rollout_files(tmp_path / "rollouts")
    table = read_responses(files).to_pylist()
    assert len(table) % PARAMS.group_size == 0 and {row["step"] for row in table} == {1}
    _, sampler = small.policy()
    moved = 0.0
    for number, row in enumerate(table):
        tokens = read_tokens(files, number)
        assert "".join(piece for piece in tokens["pieces"] if piece not in ("<pad>", "<end>", "<unk>")) == row["text"]
        assert len(tokens["tokens"]) == row["length"]
        assert row["parts"] == [("ones", row["reward"])] and row["problem"] in {p.id for p in small.PROBLEMS}
        if not row["trained"]:
            assert tokens["ratios"] is None and tokens["advantages"] is None
            continue
        problem = next(problem for problem in small.PROBLEMS if problem.id == row["problem"])
        group = Group(tuple(sampler.prompt_tokens(problem)), (np.asarray(tokens["tokens"], np.int32),))
        now, _ = response_logprobs(model, [group], PARAMS.temperature)
        expected = (now.detach() - torch.tensor(tokens["logprobs"])).exp()
        # float32 log-probs of up to 5 differ by a few last places with the packing.
        assert torch.allclose(torch.tensor(tokens["ratios"]), expected, atol=1e-4)
        moved = max(moved, float((expected - 1).abs().max()))
        assert len(set(tokens["advantages"])) == 1
    assert moved > 1e-2, "an unmoved policy would pass as well"


def group(correct: tuple[bool, ...], rewards: tuple[float, ...], **changes: Any) -> RolloutGroup:
    size = len(correct)
    graded = tuple(
        Graded("p", Completion(np.array([1]), np.array([0.0]), "1", "stop"), c, r, {}, "1", "number")
        for c, r in zip(correct, rewards, strict=True)
    )
    values: dict[str, Any] = {"truncated": (False,) * size, "repeated": (0.0,) * size, "graded": graded} | changes
    return RolloutGroup(
        0, (1,), ((1,),) * size, ((0.0,),) * size, rewards, correct, parts=({},) * size, **values
    )  # fmt: skip


def test_what_is_odd() -> None:
    def reasons(*given: Any, number: int = 0, **changes: Any) -> list[str]:
        return odd_reasons(group(*given, **changes), number)

    assert reasons((True, True, False, False), (1.0, 1.0, 0.0, 0.0)) == []
    assert reasons((True, False, False), (1.0, 0.0, 0.0)) == ["only right one"]
    assert reasons((True, False, False), (1.0, 0.0, 0.0), number=1) == []
    assert reasons((False, True, True), (0.0, 1.0, 1.0)) == ["only wrong one"]
    assert reasons((True, False), (1.0, 0.0)) == [], "of two each is alone"
    assert reasons((True, True, False, False), (0.2, 1.0, 0.5, 0.0)) == ["reward against verdict"]
    assert reasons((True, True, False, False), (0.2, 1.0, 0.5, 0.0), number=2) == ["reward against verdict"]
    assert reasons((True, True, False, False), (0.2, 1.0, 0.5, 0.0), number=3) == []
    assert reasons((True, False), (0.5, 0.5)) == reasons((True, False), (0.5, 0.5), number=1) == []
    assert reasons((True, True), (1.0, 1.0), repeated=(REPEATS, 0.0)) == []
    assert reasons((True, True), (1.0, 1.0), truncated=(True, False), repeated=(0.5, 0.0)) == [
        "truncated",
        "repeats itself",
    ]
    for status, expected in (("ok", []), ("error", ["call failed"])):
        called = group((True, True), (1.0, 1.0))
        call = ToolCall(0, 1, "print(1)", "1", status, 0.5)
        completion = replace(called.graded[0].completion, calls=(call,))
        graded = (replace(called.graded[0], completion=completion), called.graded[1])
        assert odd_reasons(replace(called, graded=graded), 0) == expected
    silent = group((False, False), (0.0, 0.0))
    said = tuple(replace(each, extracted=None, disagrees=True) for each in silent.graded)
    assert odd_reasons(replace(silent, graded=said), 0) == ["no answer", "graders disagree"]
    cut = replace(silent, graded=said, truncated=(True, False))
    assert odd_reasons(cut, 0) == ["truncated", "graders disagree"], "it had no room for an answer"


def word_pieces() -> Any:
    """A tokenizer like Llama's: a token has its space before it, which is left out at the start of a text."""
    words = Tokenizer(WordLevel({"\u2581so": 0, "so": 1, "\u2581": 2, "?": 3}, unk_token="?"))
    words.decoder = Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=words)


def test_the_row_of_a_response_with_a_call_has_all_that_is_known_of_it() -> None:
    call = ToolCall(1, 3, "1+", "(...)\ud83d", "error", 0.5)
    completion = Completion(np.array([0, 1, 2, 1]), np.array([-1.0, 0.0, 0.0, -2.0]), "so\ud83d", "length", (call,))
    other = Completion(np.array([1]), np.array([-0.5]), "so", "stop")
    graded = (
        Graded("p", completion, True, 1.0, {}, "1\ud83d", "number", True),
        Graded("p", other, False, 0.25, {}, None, "none"),
    )
    made = RolloutGroup(
        0, (9,), (completion.tokens, other.tokens), ((-1.0, -2.0), (-0.5,)), (1.0, 0.25), (True, False), (True, False),
        ({"b": 2.0, "a": 1.0}, {}), (0.5, 0.0), graded=graded, calls=((call,), ()),
        sampled=(completion.sampled_mask, other.sampled_mask),
    )  # fmt: skip
    problem = Problem("p\ud83d", "q\ud83d", ("1", "2\ud83d"), "s\ud83d", "rl", level=3)
    kept = KeptRollouts(KeepRollouts(which="all"), [problem], word_pieces(), 0, None)
    batch = Batch(
        [made], torch.tensor([2, 1]), torch.zeros(3), torch.tensor([0.5, 0.5, -0.5]), torch.ones(3, dtype=torch.bool)
    )
    values = of_responses(batch, torch.tensor([3.0, 4.0, 5.0]).numpy())[0]
    rows = list(kept._rows(7, made, [0, 1], (values, [each * 2 for each in values])))
    arrays = [
        {name: row.pop(name).tolist() for name in ("logprobs", "advantages", "ratios")}  # type: ignore[attr-defined]
        for row in rows
    ]
    both = {"step": 7, "problem": "p\\ud83d", "question": "q\\ud83d", "answers": ["1", "2\\ud83d"]}
    both |= {"source": "s\\ud83d", "level": 3, "trained": True}
    assert rows == [
        both | {
            "response": 0, "text": "so\\ud83d", "correct": True, "extracted": "1\\ud83d", "rule": "number",
            "reward": 1.0, "parts": [("a", 1.0), ("b", 2.0)], "length": 2, "truncated": True, "repeated": 0.5,
            "disagrees": True,
            "odd": ["truncated", "repeats itself", "graders disagree", "call failed"],
            "calls": [{"start": 1, "end": 3, "status": "error", "code": "1+", "output": "(...)\\ud83d"}],
            "tokens": [0, 1, 2, 1], "pieces": [" so", "so", " ", "so"],
        },
        both | {
            "response": 1, "text": "so", "correct": False, "extracted": None, "rule": "none", "reward": 0.25,
            "parts": [], "length": 1, "truncated": False, "repeated": 0.0, "disagrees": None, "odd": ["no answer"],
            "calls": [], "tokens": [1], "pieces": ["so"],
        },
    ]  # fmt: skip
    nan = pytest.approx(math.nan, nan_ok=True)
    assert arrays == [
        {"logprobs": [-1, nan, nan, -2], "advantages": [3, nan, nan, 4], "ratios": [6, nan, nan, 8]},
        {"logprobs": [-0.5], "advantages": [5], "ratios": [10]},
    ]
    (alone,) = kept._rows(7, made, [1], None)
    assert (alone["trained"], alone["advantages"], alone["ratios"]) == (False, None, None)


def test_a_share_is_of_the_problems_and_the_same_at_every_step(small: Any, tmp_path: Path) -> None:
    problems = [replace(small.PROBLEMS[0], id=f"p{n}") for n in range(400)]

    def chosen(seed: int, share: float) -> set[int]:
        kept = KeptRollouts(KeepRollouts(which="share", share=share), problems, None, seed, None)
        groups = [replace(group((True, False), (1.0, 0.0)), problem=n) for n in range(400)]
        assert all(kept.choose(one) in ([], [0, 1]) for one in groups)
        return {one.problem for one in groups if kept.choose(one)}

    # 400 draws of 0.25: a standard deviation of 9.
    assert chosen(0, 0.25) == chosen(0, 0.25) and abs(len(chosen(0, 0.25)) - 100) < 45
    assert chosen(0, 0.25) != chosen(1, 0.25) and chosen(0, 0.25) < chosen(0, 0.5)
    assert sorted(chosen(0, 0.02))[:3] == [69, 94, 95], "the same with every version"
    half = {"keep_rollouts": KeepRollouts(which="share", share=0.5), "prompts_per_step": 8, "steps": 1}
    kept: list[set[str]] = []
    for seed in (0, 1):
        train(small, PARAMS.model_copy(update={**half, "dynamic_sampling": None}), tmp_path / str(seed), seed=seed)
        rows = read_responses(rollout_files(tmp_path / str(seed) / "rollouts")).to_pylist()
        kept.append({row["problem"] for row in rows})
    assert kept[0] != kept[1] and all(each < {p.id for p in small.PROBLEMS} for each in kept)
    params = PARAMS.model_copy(update={"keep_rollouts": KeepRollouts(which="odd"), "steps": 1})
    train(small, params, tmp_path)
    rows = read_responses(rollout_files(tmp_path / "rollouts")).to_pylist()
    assert rows and all(row["odd"] for row in rows)


def test_the_second_graders_verdict_is_kept(small: Any, tmp_path: Path) -> None:
    """Math-Verify reads a bare number as an answer, which strict extraction does not."""
    reward = build_reward({"extraction": "strict", "second_grader": {"share": 1.0}})
    model, sampler = small.policy()
    run = replace(small.training_run(tmp_path), rollouts=tmp_path / "rollouts")
    params = PARAMS.model_copy(update={"steps": 1, "dynamic_sampling": None})
    train_rl(model, sampler, small.PROBLEMS, (), reward, params, run)
    rows = read_responses(rollout_files(tmp_path / "rollouts")).to_pylist()
    assert {row["disagrees"] for row in rows} <= {True, False, None}
    assert sum(row["disagrees"] is not None for row in rows) == small.without_timings(tmp_path / "metrics.jsonl")[0][
        "verifier/second_graded"
    ] > 0  # fmt: skip


def test_the_size_is_an_upper_bound(small: Any, tmp_path: Path) -> None:
    assert Rl().kept_size == ""
    # 4 steps of 2 rounds of 4 prompts of 4 responses.
    assert PARAMS.kept_size.startswith("keeps 128 of 128 rollouts: at most about 1 MB")
    half = PARAMS.model_copy(update={"keep_rollouts": KeepRollouts(which="share", share=0.5)})
    assert half.kept_size.startswith("keeps 64 of 128")
