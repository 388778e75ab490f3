"""SFT on data that are known to have no solutions is refused before anything runs, with what to write instead."""

import json
from pathlib import Path

import pytest

from mathrl.compose import load_params
from mathrl.params import Params
from mathrl.recipes.recipe import load_recipe
from mathrl.stages.known_lengths import judge_lengths, judge_recipe
from mathrl.tasks.lengths import is_judged

ROOT = Path(__file__).parents[2]
TEACH = ("sft.steps=9", "sft.terse_share=0", "curate.sft_share=0.25")
REFUSED = (
    "sft learns from worked solutions, and {} of curate.sources has none: leave sft out with sft.steps=0 (method=grpo "
    "does), learn the answers alone with sft.terse_share=1, or name the field with the solutions (solution_key)"
)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("MATHRL_DATA", raising=False)


def rows(folder: Path, **more: str) -> str:
    lines = [json.dumps({"question": f"What is {n} + 1?", "answer": str(n + 1), **more}) for n in range(30)]
    (folder / "rows.jsonl").write_text("\n".join(lines))
    return f"data={folder / 'rows.jsonl'}"


def taught(*overrides: str) -> Params:
    return load_params(ROOT / "params", overrides=[*overrides, *TEACH])


def refused(params: Params) -> list[str]:
    return judge_lengths(params, ["sft"], (), None).refused


def test_rows_of_a_file_without_solutions(tmp_path: Path) -> None:
    own = rows(tmp_path)
    assert refused(taught(own)) == [REFUSED.format("rows")]
    assert is_judged(taught(own)) and not refused(load_params(ROOT / "params", overrides=[own, *TEACH, "sft.steps=0"]))
    assert not refused(load_params(ROOT / "params", overrides=[own, *TEACH, "sft.terse_share=1"]))
    assert not refused(
        taught(rows(tmp_path, solution="We count up by one from the number, and so we get the number that comes next."))
    )


def test_named_sets_are_taught_unless_they_are_published_without_solutions() -> None:
    for data in ("countdown", "dapo", "orz"):
        assert refused(taught(f"data={data}")) == [REFUSED.format(data)]
    for data in ("gsm8k", "math", "chain"):
        assert refused(taught(f"data={data}")) == []


def test_of_a_mixture_the_source_without_solutions_is_named() -> None:
    assert refused(taught("data=gsm8k+countdown")) == [REFUSED.format("countdown")]


def test_a_recipes_step_is_named_and_one_that_learns_from_samples_is_not_asked() -> None:
    groups = ("data=countdown", *TEACH)
    judged = judge_recipe(load_recipe("rft", ROOT / "params", groups), ROOT / "params", overrides=("data=countdown",))
    assert judged.refused == [f"steps.sft: {REFUSED.format('countdown')}"]
