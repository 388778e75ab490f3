"""Instructions that a program can check: for each a response that follows it and one that does not."""

import json
import re
from typing import Any

import pytest

from mathrl.grading import CHECKS, grade
from mathrl.grading.instructions import instructions_followed
from mathrl.reading.registry import REGISTRY
from mathrl.reading.row_formats import to_problem
from mathrl.reading.row_values import BadRow

ENGLISH = "this is a longer english sentence about the weather in the mountains of the north"
CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("keywords:existence", {"keywords": ["sun", "rain"]}, "Sun and RAIN.", "Sun only."),
    ("keywords:frequency", {"keyword": "sun", "frequency": 2, "relation": "at least"}, "sun, Sun", "sun"),
    ("keywords:frequency", {"keyword": "sun", "frequency": 2, "relation": "less than"}, "sun", "sun sun"),
    ("keywords:forbidden_words", {"forbidden_words": ["can"]}, "a candle", "you Can"),
    ("keywords:letter_frequency", {"letter": "e", "let_frequency": 3, "let_relation": "at least"}, "eEe", "ee"),
    ("language:response_language", {"language": "de"}, "Heute ist das Wetter in den Bergen sehr schön.", ENGLISH),
    ("length_constraints:number_sentences", {"num_sentences": 3, "relation": "at least"}, "A b. C! E?", "A b. C 3.5"),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "One\n***\nTwo", "One\n\nTwo"),
    ("length_constraints:number_words", {"num_words": 3, "relation": "less than"}, "two words", "now three words"),
    ("length_constraints:nth_paragraph_first_word", {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "then"},
     "First.\n\n\"Then\" second.", "First.\n\nNow second."),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[name] at [place]", "[name]"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye.\nP.S. More", "Bye."),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* one\n- two", "* one\n* two\n* three"),
    ("detectable_format:constrained_response", {}, "Well: My answer is no.", "My answer is never."),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*a* and **b**", "*a* and b"),
    ("detectable_format:multiple_sections", {"section_spliter": "Section", "num_sections": 2},
     "Section 1 a\nSection 2 b", "Section 1 a"),
    ("detectable_format:json_format", {}, "```json\n{\"a\": 1}\n```", "a: 1"),
    ("detectable_format:title", {}, "<<A title>>\ntext", "<< >>"),
    ("combination:two_responses", {}, "one******two", "one******one"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say it."}, "say it. And more", "And say it."),
    ("startend:end_checker", {"end_phrase": "The end."}, "Once. the end.\n", "The end. Or not"),
    ("startend:quotation", {}, "\"all of it\"", "\"part\" of it"),
    ("change_case:capital_word_frequency", {"capital_frequency": 2, "capital_relation": "less than"},
     "ONE two", "ONE TWO"),
    ("change_case:english_capital", {}, ENGLISH.upper(), ENGLISH),
    ("change_case:english_lowercase", {}, ENGLISH, ENGLISH.title()),
    ("punctuation:no_comma", {}, "one two", "one, two"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "right", "wrong"), CASES)
def test_each_instruction_is_followed_by_one_response_and_not_by_the_other(
    name: str, arguments: dict[str, Any], right: str, wrong: str
) -> None:
    rules = [{"id": name, **arguments}]
    assert instructions_followed(right, rules) == (True, "")
    assert instructions_followed(wrong, rules) == (False, f"not followed: {name}")
    assert not instructions_followed(" ", rules)[0]


def test_all_checks_have_a_case() -> None:
    assert {name for name, *_ in CASES} == set(CHECKS)


def test_a_row_of_ifeval_is_graded_by_all_of_its_instructions_and_after_the_thinking() -> None:
    names = ["punctuation:no_comma", "keywords:existence"]
    row = {"key": 7, "prompt": "Write.", "instruction_id_list": names, "kwargs": [{"num": None}, {"keywords": ["sun"]}]}
    shape = REGISTRY["ifeval"].shapes[0]
    problem = to_problem(row, shape, name="f:1", source="ifeval", split="test", seed=0)
    assert problem.id == "7" and json.loads(problem.answers[0])["instructions"][1] == {
        "id": names[1],
        "keywords": ["sun"],
    }
    as_texts = {**row, "kwargs": ['{"num": null}', '{"keywords": ["sun"]}']}
    assert to_problem(as_texts, shape, name="f:1", source="ifeval", split="test", seed=0) == problem
    with pytest.raises(BadRow, match="field 'kwargs': expected an object for each instruction"):
        to_problem({**row, "kwargs": ["x", None]}, shape, name="f:1", source="ifeval", split="test", seed=0)
    verdicts = [
        grade(text, problem.answers, "strict") for text in ("the sun", "a, b</think>the sun", "the, sun", "rain")
    ]
    assert [verdict.correct for verdict in verdicts] == [True, True, False, False]
    assert verdicts[2].reason == "not followed: punctuation:no_comma"
    with pytest.raises(BadRow, match="no check of the instruction 'x:y'"):
        to_problem(
            {**row, "instruction_id_list": ["x:y", names[0]]}, shape, name="f:1", source="s", split="test", seed=0
        )


FAULTS: list[tuple[Any, Any, str]] = [
    (["a"], {}, "no check of the instruction \\['a'\\]; known: keywords:existence"),
    ("keywords:existence", {}, "keywords:existence: 'keywords' is None, expected a list of texts"),
    ("keywords:existence", {"keywords": "sun"}, "'keywords' is 'sun', expected a list of texts"),
    ("keywords:existence", {"keywords": [1]}, "'keywords' is \\[1\\], expected a list of texts"),
    ("length_constraints:number_words", {"num_words": "many", "relation": "at least"}, "expected a whole number"),
    ("length_constraints:number_words", {"num_words": 3, "relation": "more"}, 'expected "less than" or "at least"'),
    ("startend:end_checker", {"end_phrase": ["The end."]}, "expected a text"),
]


@pytest.mark.parametrize(("name", "arguments", "fault"), FAULTS)
def test_an_instruction_that_cannot_be_checked_is_named(name: Any, arguments: dict[str, Any], fault: str) -> None:
    row = {"prompt": "Write.", "instruction_id_list": ["punctuation:no_comma", name], "kwargs": [{}, arguments]}
    shape = REGISTRY["ifeval"].shapes[0]
    with pytest.raises(BadRow, match=f"^fields 'instruction_id_list' and 'kwargs': .*{fault}"):
        to_problem(row, shape, name="f:1", source="ifeval", split="test", seed=0)
    verdict = grade("the sun", json.dumps({"instructions": [{**arguments, "id": name}]}))
    assert not verdict.correct and re.search(fault, verdict.reason)


def test_an_instruction_that_is_no_object_is_named() -> None:
    assert grade("the sun", '{"instructions": [1]}').reason.startswith("no check of the instruction 1;")


def test_whole_numbers_may_be_floats_or_texts_as_columns_have_them() -> None:
    for count in (2, 2.0, "2"):
        assert instructions_followed(
            "[name] at [place]", [{"id": "detectable_content:number_placeholders", "num_placeholders": count}]
        )[0]
