"""Reward parts, generators and user functions: a wrong name is refused when the parameters are read."""

from pathlib import Path

import pytest

from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.generators import GENERATORS
from mathrl.params.generators import ChainSource
from mathrl.params.reward_parts import OverlongPart

PARAMS = Path(__file__).parents[2] / "params"
SOURCE = "{{type: generated, name: chain, generator: {}, counts: {{rl: 8}}, options: {}}}"
FUNCTIONS = """
import json as codec

def plain(response, ground_truth, **row): ...
def rowless(response, ground_truth, factor=1.0): ...
def with_input(reward_input, factor=1.0): ...
try:
    from nowhere import fast
except ImportError:
    fast = plain
"""


def parts(text: str) -> str:
    return f"reward.parts=[{text}]"


def sources(generator: str, options: str = "{}") -> str:
    return f"curate.sources=[{SOURCE.format(generator, options)}]"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (parts("{type: overlong, options: {bufer: 3}}"), r"parts.0.options.bufer: unknown .*did you mean buffer\?"),
        (parts("{type: accuracyy}"), r"parts.0.type: no type 'accuracyy' \(did you mean accuracy\?\); write one of"),
        (parts("{weight: 2}"), "parts.0.type: missing; write one of accuracy, noisy_accuracy, majority, format_lines"),
        (parts("{type: overlong, buffer: 3}"), "parts.0.buffer: unknown parameter"),
        (parts("{type: overlong, options: {max_length: 5, buffer: 6}}"), "buffer 6 must be at most max_length 5"),
        (parts("{type: language, options: {language: xx}}"), "options.language: Input should be 'en', .*found 'xx'"),
        (parts("{type: repetition, options: {n: 0}}"), "options.n: Input should be greater than or equal to 1"),
        (parts("{type: function}"), "parts.0.options: Field required"),
        (
            "reward.routes={gsm8k: [{type: r1_tag}]}",
            r"routes.gsm8k.0.type: no type 'r1_tag' \(did you mean r1_tags\?\)",
        ),
        (sources("chian"), r"sources.0.generator: no generator 'chian' \(did you mean chain\?\); write one of chain"),
        (sources("chain", "{stepz: [2]}"), r"sources.0.options.stepz: unknown parameter \(did you mean steps\?\)"),
        (sources("chain", "{steps: [0]}"), "sources.0.options.steps.0: Input should be greater than or equal to 1"),
        (sources("word_problem", "{steps: [2, 2]}"), "sources.0.options.steps: a level is listed twice"),
        (sources("fractions", "{kinds: [1, 1, 2]}"), "sources.0.options.kinds: a level is listed twice"),
        ("reward.second_grader={type: llm, model: m}", "second_grader: type llm needs endpoint"),
        ("model.base={type: fresh, layrs: 2}", r"base.layrs: unknown parameter \(did you mean layers\?\)"),
    ],
)
def test_a_wrong_type_or_option_is_refused_with_the_nearest_name(override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_params(PARAMS, overrides=[override])


def test_options_are_typed_and_recorded_as_they_were_given() -> None:
    options = "{type: overlong, options: {buffer: 8}}"
    params = load_params(PARAMS, overrides=[parts(options), sources("chain", "{steps: [2, 3]}")])
    (part,), (source,) = params.reward.parts, params.curate.sources
    assert isinstance(part, OverlongPart) and (part.options.buffer, part.options.factor) == (8, 1.0)
    assert isinstance(source, ChainSource) and source.options.largest_number == 9
    assert part.model_dump()["options"] == {"buffer": 8}, "without defaults: what is recorded stays as it was"
    assert source.model_dump(mode="json")["options"] == {"steps": [2, 3]}


def test_every_generator_of_the_parameters_draws_problems() -> None:
    for name in GENERATORS:
        assert load_params(PARAMS, overrides=[sources(name)]).curate.sources[0].generator == name  # type: ignore[union-attr]
    with pytest.raises(UserError, match=f"write one of {', '.join(sorted(GENERATORS))}"):
        load_params(PARAMS, overrides=[sources("nothing")])


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("mine.rewards.plain", "least: 2", None),
        ("mine.rewards.fast", "least: 2", None),
        ("mine.rewards.codec", "", None),
        ("mine.windows.plain", "", None),
        ("mine.latin.plain", "", None),
        ("mine.rewards.with_input", "factor: 2", None),
        ("mine.rewards.plian", "", r"defines no 'plian' \(did you mean plain\?\)"),
        ("mine.reward.plain", "", "parts.0.options.path: no module 'mine.reward'"),
        ("elsewhere.plain", "", "no module 'elsewhere'"),
        ("plain", "", "options.path: String should match pattern"),
        ("mine.rewards.with_input", "facto: 2", r"parts.0.options.facto: unknown option \(did you mean factor\?\)"),
        ("mine.rewards.rowless", "factor: 2", r"must accept the fields of a problem's row: add \*\*row"),
        ("mine.broken.plain", "", "cannot be read as Python"),
        ("mathrl.rewards.format.r1_tagz", "", r"did you mean r1_tags\?"),
    ],
)
def test_a_function_is_checked_without_running_its_module(
    path: str, options: str, message: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "rewards.py").write_text("raise RuntimeError('imported')\n" + FUNCTIONS)
    (tmp_path / "mine" / "broken.py").write_text("def plain(:")
    (tmp_path / "mine" / "windows.py").write_text("def plain(**row): ...\n", encoding="utf-8-sig", newline="\r\n")
    latin = "# -*- coding: latin-1 -*-\ndef plain(**row): return 'é'\n"
    (tmp_path / "mine" / "latin.py").write_text(latin, encoding="latin-1")
    monkeypatch.chdir(tmp_path)
    override = parts(f"{{type: function, options: {{path: {path}, {options}}}}}")
    if message is None:
        load_params(PARAMS, overrides=[override])
    else:
        with pytest.raises(UserError, match=message):
            load_params(PARAMS, overrides=[override])
