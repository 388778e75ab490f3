"""Which lengths are refused against the data: properties, the count of tokens, and the data of published presets."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mathrl.compose import load_params
from mathrl.core.types import Problem
from mathrl.data import lengths
from mathrl.data.lengths import answer_lengths, length_doubts
from mathrl.data.templates import prompt_lengths, render
from mathrl.models.base import character_tokenizer
from mathrl.params import Params
from mathrl.params.run import FreshModel

TOKENIZER = character_tokenizer(FreshModel(hidden_size=32, intermediate_size=16, layers=1, heads=2))
SAMPLING = ("difficulty", "rl", "sample", "evaluate")
sizes = st.lists(st.integers(1, 400), min_size=1, max_size=40)


def problems(questions: list[int], solutions: list[int]) -> list[Problem]:
    """Questions and solutions of so many characters, each of which is a token; 0: no solution."""
    return [
        Problem(str(n), "q" * asked, ("7",), "made", "rl", solution="s" * told or None)
        for n, (asked, told) in enumerate(zip(questions, solutions, strict=True))
    ]


def doubted(stage: str, rows: list[Problem], prompt: int, answer: int) -> dict[str, str]:
    """What is written instead, by the parameter."""
    params = PARAMS.model_copy(
        update={
            "prompt": PARAMS.prompt.model_copy(update={"max_tokens": prompt}),
            stage: getattr(PARAMS, stage).model_copy(update={"max_tokens": answer}),
        }
    )
    return {doubt.key: doubt.advice for doubt in length_doubts(params, stage, rows, TOKENIZER)}


def of_hub(*overrides: str) -> Params:
    base = "model.base={type: pretrained, path: Qwen/Qwen2.5-0.5B}"
    return load_params(overrides=[base, "prompt.template=plain", *overrides])


PARAMS = of_hub()


@settings(deadline=None)
@given(sizes, st.integers(1, 450), st.sampled_from(SAMPLING))
def test_what_holds_nine_tenths_is_taken_a_longer_length_too_and_so_is_the_advice(
    told: list[int], length: int, stage: str
) -> None:
    rows, key = problems([5] * len(told), told), f"{stage}.max_tokens"
    cut = sum(size > length for size in told) > 0.1 * len(told)
    advice = doubted(stage, rows, 64, length)
    assert (key in advice) == cut and "prompt.max_tokens" not in advice
    assert doubted(stage, rows, 64, max(told)) == {}
    if not cut:
        assert doubted(stage, rows, 64, length + 1) == {}
    else:
        suited = int(advice[key].removeprefix(f"set {key}="))
        assert suited > length and suited % 32 == 0 and doubted(stage, rows, 64, suited) == {}


@settings(deadline=None)
@given(sizes, st.integers(1, 450), st.sampled_from(("sft", "rl")))
def test_the_same_holds_of_prompts(asked: list[int], length: int, stage: str) -> None:
    rows = problems(asked, [0] * len(asked))
    params = PARAMS.model_copy(update={"prompt": PARAMS.prompt.model_copy(update={"max_tokens": length})})
    found = length_doubts(params, stage, rows, TOKENIZER)
    assert bool(found) == (sum(size > length for size in asked) > 0.1 * len(asked))
    for doubt in found:
        suited = int(doubt.advice.removeprefix("set prompt.max_tokens="))
        assert suited > length and sum(size > suited for size in asked) <= 0.1 * len(asked)


def test_the_sentence_has_the_share_the_percentile_and_the_value() -> None:
    rows = problems([5] * 100, [20] * 75 + [300] * 25)
    (doubt,) = length_doubts(of_hub("rl.max_tokens=128"), "rl", rows, TOKENIZER)
    assert doubt.problem == (
        "rl.max_tokens is 128, and 25.0% of 100 solutions of the data are longer (95th percentile: 300 tokens)"
    )
    assert (doubt.key, doubt.advice, doubt.value) == ("rl.max_tokens", "set rl.max_tokens=320", "128")


def test_random_weights_and_no_problems_are_not_judged() -> None:
    rows = problems([900] * 9, [900] * 9)
    assert length_doubts(load_params(), "rl", rows, TOKENIZER) == []
    assert length_doubts(PARAMS, "rl", [], TOKENIZER) == []


def test_a_problem_without_an_answer_and_one_with_half_a_surrogate_pair_are_counted() -> None:
    rows = [Problem("a", "q", (), "made", "rl"), Problem("b", "q", ("\ud83d",), "made", "rl")]
    assert answer_lengths(rows, TOKENIZER)[0] == 0
    assert answer_lengths(rows, TOKENIZER)[1] == len(TOKENIZER(r"\ud83d", add_special_tokens=False)["input_ids"])


def test_a_length_that_takes_all_positions_of_the_model_is_not_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 512}')
    rows = problems([300] * 9, [900] * 9)

    def advice(prompt: int, answer: int) -> list[str]:
        own = f"model.base={{type: pretrained, path: {tmp_path}}}"
        params = of_hub(own, f"prompt.max_tokens={prompt}", f"rl.max_tokens={answer}")
        return [doubt.advice for doubt in length_doubts(params, "rl", rows, TOKENIZER)]

    assert advice(128, 128) == ["set prompt.max_tokens=256", "set rl.max_tokens=384"]
    assert advice(256, 128) == ["set rl.max_tokens=256"] and advice(256, 256) == []


@pytest.mark.parametrize("template", ["plain", "r1_zero", "boxed"])
@pytest.mark.parametrize("shots", [0, 2])
def test_a_prompt_is_as_long_as_it_is_rendered(template: str, shots: int) -> None:
    prompt = load_params(overrides=[f"prompt.template={template}"]).prompt
    rows = problems([3, 70, 12], [4, 5, 6])
    expected = [len(render(row, prompt, TOKENIZER, rows[:shots])) for row in rows]
    assert prompt_lengths(rows, prompt, TOKENIZER, rows[:shots]) == expected


def test_at_most_2000_rows_are_counted() -> None:
    rows, encoded = problems([200] * 20_000, [300] * 20_000), list[str]()

    class Noting:
        """The tokenizer, which notes the texts that it is given."""

        def __getattr__(self, name: str) -> Any:
            return getattr(TOKENIZER, name)

        def __call__(self, texts: str | list[str], **options: Any) -> Any:
            encoded.extend([texts] if isinstance(texts, str) else texts)
            return TOKENIZER(texts, **options)

    (doubt,) = length_doubts(of_hub("prompt.max_tokens=256", "rl.max_tokens=128"), "rl", rows, Noting())
    assert lengths.ROWS < len(encoded) <= 2 * lengths.ROWS, "a prompt and a solution of each"
    assert f"of {lengths.ROWS:,} solutions" in doubt.problem
