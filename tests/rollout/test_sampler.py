import gc
import json
import os
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mathrl.core.hashing import derive_seed
from mathrl.core.types import Completion, Control, Problem
from mathrl.models.base import character_tokenizer
from mathrl.params.rollout import Rollout
from mathrl.params.run import FreshModel, Prompt
from mathrl.rewards.compose import RewardInput, build_reward
from mathrl.rollout.engine import Sampling
from mathrl.rollout.sample_problems import of_all_ranks, sample_problems
from mathrl.rollout.sampler import Sampler
from tests.rollout.calculator import Calculator
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


def test_a_prompt_that_is_too_long_is_not_sampled() -> None:
    sampler = Sampler(Scripted("<answer>12</answer>"), TOKENIZER, Prompt(max_tokens=6))
    groups = sampler.sample([problem(0, "1+2+3+4="), problem(1)], Sampling(1, 1.0, 8), build_reward(), 0)
    assert groups[0] is None and groups[1] is not None
    assert sampler.sample([problem(0)], Sampling(1, 1.0, 8), build_reward(), 0, prompts=[None]) == [None]
    assert len(sampler.prompt_tokens(problem(0, "9" * 6)) or ()) == 6, "as many as are allowed"


def test_a_response_prefix_is_given_to_the_model_and_graded_with_the_response() -> None:
    engine = Scripted("12</answer>")
    sampler = Sampler(engine, TOKENIZER, Prompt(response_prefix="<answer>"))
    groups = sampler.sample([problem(0)], Sampling(1, 1.0, 8), build_reward({"extraction": "strict"}), 0)
    assert engine.seen == ["7+5=<answer>"]
    assert groups[0] is not None and groups[0][0].correct
    assert groups[0][0].completion.tokens.tolist() == [5, 6]


def test_a_continued_response_is_graded_from_its_beginning_without_its_end_token() -> None:
    sampler = Sampler(Scripted(), TOKENIZER, Prompt())
    begun, rest, end = TOKENIZER.encode("1+"), TOKENIZER.encode("2"), TOKENIZER.eos_token_id
    whole = problem(0).with_(control=Control(begun=tuple(begun)))
    for tokens in ([*rest, end], [*rest, TOKENIZER.pad_token_id], rest):
        completion = Completion(tuple(tokens), (-0.1,) * len(tokens), "2", "stop")
        given = sampler.reward_input(whole, completion, 8)
        assert (given.response, given.length) == ("1+2", len(tokens)), tokens


def test_a_reward_is_given_all_that_is_known_of_a_response() -> None:
    asked = problem(0).with_(extra={"topic": "sums"}, control=Control(task="numbers"))
    completion = Completion((5, 6), (-0.1, -0.2), "1", "length")
    given = Sampler(Scripted(), TOKENIZER, Prompt()).reward_input(asked, completion, 8)
    row, routes = {"topic": "sums", "source": "chain"}, ("numbers", "chain")
    assert given == RewardInput("1", ("12",), "7+5=", 2, 8, truncated=True, row=row, routes=routes)


def test_what_is_sampled_is_audited() -> None:
    sampler, reward = Sampler(Scripted("<answer>12</answer>"), TOKENIZER, Prompt()), build_reward({"exact_share": 1.0})
    sampler.sample([problem(0), problem(1)], Sampling(1, 1.0, 8), reward, 0)
    assert reward.counters()["verifier/exact_graded"] == 2


def test_samples_are_kept_for_the_same_call_alone(small: Any, tmp_path: Path) -> None:
    _, sampler = small.policy()

    def sample(state: Path | None, sampler: Sampler = sampler, **changes: Any) -> Any:
        given = {"problems": small.PROBLEMS[:3], "sampling": Sampling(2, 1.0, 6), "seed": 0, "name": "x", **changes}
        return sample_problems(sampler, reward=small.CountsOnes(), state=state, **given)

    first = sample(tmp_path)
    others: list[dict[str, Any]] = [
        {"seed": 1}, {"name": str(tmp_path.parent / "own.jsonl")}, {"problems": small.PROBLEMS[1:4]},
        *({"sampling": sampling} for sampling in (Sampling(3, 1.0, 6), Sampling(2, 0.5, 6), Sampling(2, 1.0, 5))),
    ]  # fmt: skip
    for changes in others:
        assert sample(tmp_path, **changes) == sample(None, **changes) != first, changes
    for calls in (1, 2):
        sampler.engine.rollout = Rollout(turns={"max_calls": calls})  # type: ignore[arg-type]
        sample(tmp_path, Sampler(sampler.engine, small.TOKENIZER, Prompt(), tool=Calculator()))
    assert len(list(tmp_path.iterdir())) == 1 + len(others) + 2
    sampler.engine = NO_ENGINE  # nothing is sampled again
    assert sample(tmp_path) == first


@pytest.mark.parametrize(("problems", "ranks"), [(7, 1), (7, 2), (5, 4), (8, 8)])
def test_the_first_ranks_progress_ends_with_the_whole(problems: int, ranks: int) -> None:
    mine, told = len(range(0, problems, ranks)), list[int]()
    finished = of_all_ranks(told.append, problems / mine)
    for _ in range(2 * mine):
        finished(1)
    assert sum(told) == 2 * problems


def test_chunks_have_seeds_of_their_own_and_rows_of_what_was_graded(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, sampler = small.policy()
    sampler.engine.rollout = Rollout(max_sequences=4)
    problems, sampling, told = small.PROBLEMS[:5], Sampling(2, 1.0, 6), []

    state = tmp_path / "not" / "there"

    def sample(state: Path | None = state, sampler: Any = sampler, sampling: Sampling = sampling) -> Any:
        told.clear()
        given = {"seed": 3, "name": "x", "state": state, "on_progress": told.append}
        return sample_problems(sampler, problems, sampling, small.CountsOnes(), **given)

    written: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda number: written.append(os.fstat(number).st_size))
    found = sample()
    assert sum(told) == 5 * 2
    expected = []
    for chunk in range(3):
        seed = derive_seed(3, "x", 0, chunk)
        expected += sampler.sample(problems[2 * chunk : 2 * chunk + 2], sampling, small.CountsOnes(), seed)
    rows = [
        {
            "response": graded.completion.text, "extracted": None, "correct": graded.correct, "rule": "none",
            "length": len(graded.completion.tokens), "truncated": len(graded.completion.tokens) == 6
            and graded.completion.tokens[-1] != small.TOKENIZER.eos_token_id,
        }
        for group in expected for graded in group
    ]  # fmt: skip
    assert [row for group in found for row in group] == rows
    assert len({row["truncated"] for row in rows}) == 2 and len({row["response"] for row in rows}) > 5
    # The file is torn within a line: what is whole is told at once, the rest is sampled again.
    (file,) = state.iterdir()
    whole = file.read_text(encoding="utf-8")
    lines = whole.splitlines(keepends=True)
    assert [json.loads(line)["chunk"] for line in lines] == [0, 1, 2]
    ends = list(accumulate(len(line.encode()) for line in lines))
    assert written == ends, "a chunk is on the disk before the next is sampled"
    first, second, third = lines
    for whole_lines, rest in ((1, second[:-9]), (1, second[:-1]), (1, third), (2, third[:-9])):
        file.write_text("".join(lines[:whole_lines]) + rest, encoding="utf-8")
        assert sample() == found and told[0] == whole_lines * 2 * 2 and sum(told) == 5 * 2
        assert file.read_text(encoding="utf-8") == whole
    file.write_text(first + second[:-9], encoding="utf-8")
    nothing: Any = SimpleNamespace(rollout=sampler.engine.rollout)
    with pytest.raises(AttributeError, match="generate"):
        sample(sampler=Sampler(nothing, TOKENIZER, Prompt()))
    assert file.read_text(encoding="utf-8") == first, "the torn line is gone"
    assert sample() == sample(None)
    sample(tmp_path / "many", sampling=Sampling(9, 1.0, 2))
    (file,) = (tmp_path / "many").iterdir()
    assert file.read_text(encoding="utf-8").count("\n") == 5, "a problem with more samples than fit is a chunk alone"


def test_the_tool_of_the_rollout_is_opened_and_closed_with_the_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Any] = []

    class Closing(Calculator):
        def close(self) -> None:
            closed.append(self)

    opened: list[tuple[Any, Closing]] = []

    def open_tool(parameters: Any) -> Closing:
        opened.append((parameters, Closing()))
        return opened[-1][1]

    monkeypatch.setattr("mathrl.rollout.sampler.open_tool", open_tool)
    engine = Scripted("12")
    assert Sampler(engine, TOKENIZER, Prompt()).turns is None and not opened
    engine.rollout = Rollout(tool={"kind": "bubblewrap"}, turns={"max_calls": 3})  # type: ignore[arg-type]
    sampler = Sampler(engine, TOKENIZER, Prompt())
    ((parameters, tool),) = opened
    assert parameters == engine.rollout.tool and sampler.turns is not None
    turns = sampler.turns
    assert (turns.tool, turns.engine, turns.tokenizer, turns.params.max_calls) == (tool, engine, TOKENIZER, 3)
    own = Calculator()
    given = Sampler(engine, TOKENIZER, Prompt(), tool=own)
    assert given.turns is not None and given.turns.tool is own and len(opened) == 1
    del sampler, turns
    gc.collect()
    assert closed == [tool]
